"""leafwise shows of random nested pickles what their own loader returns, and `lw.diff` finds what differs in a pair."""

import array
from pathlib import Path

import numpy as np
import pytest
from tests.long import SEED, short_or_long
from tools import random_pairs, random_pickles
from tools.pickle_comparison import Comparison
from tools.random_values import CHANGES, Color

import leafwise as lw

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


@pytest.mark.parametrize("protocol", [2, 5])
def test_objects_in_arrays_of_joblib_are_compared_as_joblib_writes_them(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, numbers = tmp_path / "a.joblib", array.array("f", [1, 2])
    content = {"alone": numbers, "in an array": np.array([numbers, None], object)}
    random_pickles.FORMATS["joblib"].write(content, path, protocol)
    made = random_pickles.Written("joblib", protocol, path, content)
    monkeypatch.setattr(random_pickles, "written", lambda *_: made)
    assert random_pickles.outcome(0, 0, tmp_path)[2:] == ("partly opaque", "")


def test_a_number_in_a_set_is_not_taken_for_an_object_that_is_made_from_it(tmp_path: Path) -> None:
    random_pickles.FORMATS["pickle 2"].write({"x": {Color.RED, None}}, tmp_path / "a.pickle", 2)
    with lw.open(tmp_path / "a.pickle") as t:
        assert not Comparison(t, {"x": {Color.RED, None}}, 2, 2, False).problems
        assert Comparison(t, {"x": {Color.RED.value, None}}, 2, 2, False).problems


@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
@pytest.mark.filterwarnings("ignore")
def test_no_difference_is_overlooked_and_none_is_made_up(first: int, tmp_path: Path) -> None:
    for number in range(first, min(first + AT_ONCE, PAIRS)):
        one = random_pairs.outcome(SEED, number, tmp_path)
        assert one is None or one.kind not in ("wrong", "crashed"), (number, one.stored, one.why)
