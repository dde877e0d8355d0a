"""While a verb runs, Python searches for garbage less often; afterwards, as before."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import leafwise as lw
from leafwise.core.work.garbage import rarely_collected


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    yield
    gc.set_threshold(*before)


def test_blocks_inside_each_other_end_together() -> None:
    with rarely_collected():
        with rarely_collected():
            assert gc.get_threshold()[0] > 100_000
        assert gc.get_threshold()[0] > 100_000
    assert gc.get_threshold() == (701, 11, 12)


def test_verbs_restore_the_threshold_also_after_an_error(tmp_path: Path) -> None:
    path = lw.save({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    lw.load({"a": np.ones(3)}, path)
    with pytest.raises(lw.LoadError):
        lw.load({"b": np.ones(3)}, path)
    with pytest.raises(lw.FileError):
        lw.stats(tmp_path / "nothing.safetensors")
    assert gc.get_threshold() == (701, 11, 12)


def test_what_the_program_sets_meanwhile_stays_and_no_search_stays_none() -> None:
    with rarely_collected():
        gc.set_threshold(5)
    assert gc.get_threshold()[0] == 5
    gc.set_threshold(0)
    with rarely_collected():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0
