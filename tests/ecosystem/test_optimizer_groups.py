"""The state of an optimizer loads into other groups, orders and kinds of optimizers correctly, or is refused."""

from pathlib import Path

import pytest
from tests.long import SEED, short_or_long
from tools import optimizer_groups

TRIALS = short_or_long(120, 600)
AT_ONCE = 20


@pytest.mark.parametrize("first", range(0, TRIALS, AT_ONCE))
@pytest.mark.filterwarnings("ignore")
def test_no_state_goes_to_another_parameter(first: int, tmp_path: Path) -> None:
    kinds = set()
    for number in range(first, first + AT_ONCE):
        trial = optimizer_groups.drawn(SEED, number)
        folder = tmp_path / str(number)
        folder.mkdir()
        one = optimizer_groups.outcome(trial, folder)
        assert one.kind not in ("wrong", "crashed"), (number, trial, one.why)
        kinds.add(one.kind)
    assert {"exact", "refused"} <= kinds
