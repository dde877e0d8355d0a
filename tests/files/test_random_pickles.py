"""leafwise shows of random nested pickles what their own loader returns, and `lw.diff` finds what differs in a pair."""

from pathlib import Path

import pytest
from tests.long import SEED, short_or_long
from tools import random_pairs, random_pickles
from tools.random_values import CHANGES

AT_ONCE = 30
PICKLES = short_or_long(150, 3_000)
PAIRS = 2 * short_or_long(len(CHANGES), 10 * len(CHANGES))  # every second one is a pair of equal objects


@pytest.mark.parametrize("first", range(0, PICKLES, AT_ONCE))
@pytest.mark.filterwarnings("ignore")
def test_no_value_of_a_pickle_is_wrong_or_lost(first: int, tmp_path: Path) -> None:
    kinds = set()
    for number in range(first, first + AT_ONCE):
        one = random_pickles.outcome(SEED, number, tmp_path)
        assert one.kind not in ("wrong", "crashed"), (number, one.format, one.why)
        kinds.add(one.kind)
    assert {"equal", "partly opaque"} <= kinds


@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
@pytest.mark.filterwarnings("ignore")
def test_no_difference_is_overlooked_and_none_is_made_up(first: int, tmp_path: Path) -> None:
    for number in range(first, min(first + AT_ONCE, PAIRS)):
        one = random_pairs.outcome(SEED, number, tmp_path)
        assert one is None or one.kind not in ("wrong", "crashed"), (number, one.stored, one.why)
