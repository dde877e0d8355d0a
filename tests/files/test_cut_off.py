"""Truncating a file while it is read raises an error, and never kills the process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.files import writers

import leafwise as lw
from leafwise.cli import main
from leafwise.files.arrays import stored as stored_arrays
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk

SIZE = 400_000


def state() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    big = torch.randn(SIZE, generator=random)
    return {"a": big.view(800, -1), "b": big.clone(), "c": big.clone()}


class NothingMapped(Disk):
    def map(self, file: int, length: int) -> Any:
        raise AssertionError("a verb maps a file; whoever cuts it off meanwhile would kill the process")


def verbs(folder: Path) -> dict[str, Callable[[Any], Any]]:
    return {
        "load": lambda tree: lw.load({name: torch.zeros_like(value) for name, value in state().items()}, tree),
        "load with a cast": lambda tree: lw.load(
            {name: torch.zeros_like(value, dtype=torch.float64) for name, value in state().items()}, tree, cast=True
        ),
        "verify": lw.verify,
        "stats": lw.stats,
        "check": lw.check,
        "diff": lambda tree: lw.diff(tree, state()),
        "ties": lambda tree: lw.ties(tree, equal_untied=True),
        "image": lambda tree: str(lw.image(tree["a"])),
        "save": lambda tree: lw.save(tree, folder / "again.safetensors"),
        "save with a cast": lambda tree: lw.save(tree, folder / "again.safetensors", dtype="bfloat16"),
        "a part": lambda tree: tree["a"].numpy((slice(0, 700, 3), slice(5, 9))),
    }


@pytest.mark.slow
@pytest.mark.parametrize("verb", verbs(Path()))
@pytest.mark.parametrize("form", ["leafwise", "torch zip", "npz", "npz compressed", "torch legacy", "GGUF"])
def test_no_verb_maps_a_file(form: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    if form == "leafwise":
        lw.save(state(), path)
    else:
        writers.WRITERS[form](path, state())
    monkeypatch.setattr(local, "disk", NothingMapped())
    with lw.open(path) as tree:
        verbs(tmp_path)[verb](tree)


def test_convert_maps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers.torch_zip(tmp_path / "a.pt", state())
    monkeypatch.setattr(local, "disk", NothingMapped())
    for options in ([], ["--dtype", "bfloat16"]):
        assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors"), *options]) == 0


@pytest.mark.parametrize("verb", [verb for verb in verbs(Path()) if verb != "check"])
@pytest.mark.parametrize("form", ["leafwise", "safetensors", "torch zip"])
def test_a_file_that_was_cut_off_is_an_error(form: str, verb: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    if form == "leafwise":
        lw.save(state(), path)
    else:
        writers.WRITERS[form](path, state())
    if (form, verb) == ("safetensors", "verify"):
        return  # there are no checksums, so nothing is read
    with lw.open(path) as tree:
        os.truncate(path, 5_000)
        with pytest.raises(lw.Error, match=r"shorter than when it was opened|cut off|changed"):
            verbs(tmp_path)[verb](tree)
    assert not (tmp_path / "again.safetensors").exists()


# -- scattered parts are put together from pieces ------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), st.permutations(range(3)), st.booleans())
def test_scattered_parts_equal_those_of_numpy(data: st.DataObject, order: list[int], big_endian: bool) -> None:
    from leafwise.files.sources.source import BytesSource

    whole = np.arange(8 * 12 * 10, dtype=">i4" if big_endian else "<i4").reshape(8, 12, 10)
    seen = whole.transpose(order)[::-1, 1::2]
    offset = seen.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    storage = stored_arrays.Storage(BytesSource("x", whole.tobytes()), 0, whole.nbytes)
    array = stored_arrays.Strided(stored_arrays.spec_of(seen.shape, "int32"), storage, offset, seen.strides, big_endian)
    index = tuple(data.draw(st.slices(size) | st.integers(-size, size - 1)) for size in seen.shape)
    chunk, gap = stored_arrays.CHUNK, stored_arrays._GAP
    try:
        stored_arrays.CHUNK, stored_arrays._GAP = data.draw(st.sampled_from([4, 40, 100, 900])), 16
        found = array.read(index)
    finally:
        stored_arrays.CHUNK, stored_arrays._GAP = chunk, gap
    assert found.shape == seen[index].shape
    assert (found == seen[index]).all()


def test_a_part_takes_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    np.save(tmp_path / "a.npy", np.zeros((4_000, 4_000), np.float32))
    with lw.open(tmp_path / "a.npy") as tree:
        tree["array"].numpy((0, 0))
        tracemalloc.start()
        try:
            assert tree["array"].numpy((slice(None), slice(0, 2))).shape == (4_000, 2)
            assert tracemalloc.get_traced_memory()[1] < 30 << 20  # of 64 MB
        finally:
            tracemalloc.stop()
