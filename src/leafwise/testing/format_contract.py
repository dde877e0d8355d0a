"""What every format must do, as tests over a fixture `format_case`, a `leafwise.testing.FormatCase`."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leafwise as lw
from leafwise.files.formats.format import FORMATS, all_formats
from leafwise.testing import FormatCase, same_bytes

_DAMAGED = 300  # copies of a file, each with a changed byte or cut off


def arrays_of(case: FormatCase) -> dict[str, Any]:
    """Arrays of every dtype that the format has, with dotted names; one has no axes."""
    rng = np.random.default_rng(0)
    arrays = {f"layer.{at}.weight": (rng.normal(size=(6, 4)) * 9).astype(case.dtypes[0]) for at in range(2)}
    arrays |= {f"{dtype}.values": (rng.normal(size=(3, 2, 5)) * 9).astype(dtype) for dtype in case.dtypes}
    if case.has_scalars:
        arrays["count"] = np.array(7, case.dtypes[-1])
    return arrays


@pytest.fixture
def written(format_case: FormatCase, tmp_path: Path) -> Path:
    path = tmp_path / f"model{format_case.suffix}"
    format_case.write(path, arrays_of(format_case))
    return path


def test_the_format_is_known_and_has_a_name_of_its_own(format_case: FormatCase) -> None:
    names = [known.name for known in all_formats()]
    assert names.count(format_case.name) == 1, f"{format_case.name} is not an entry point of leafwise.formats, or twice"


def test_the_record_of_the_format_is_complete(format_case: FormatCase) -> None:
    known = next(known for known in all_formats() if known.name == format_case.name)
    ways = [way for way in (known.recognizes, known.in_zip, known.in_folder) if way is not None]
    assert ways or known.name == "safetensors", "it needs recognizes, in_zip or in_folder"
    assert all(map(callable, ways)), "recognizes, in_zip and in_folder are functions"
    assert known.tool, "tool is whose format it is, for messages"
    assert callable(known.read) or ":" in known.read, "read is a function, or its place as module:name"
    assert isinstance(known.suffixes, tuple), "suffixes is a tuple, as in ('.toynet',)"
    assert all(suffix.startswith(".") and len(suffix) > 1 for suffix in known.suffixes)
    if known not in FORMATS:
        taken = {suffix for other in FORMATS for suffix in other.suffixes}
        assert taken.isdisjoint(known.suffixes), "it has a suffix of leafwise's own formats, so it is never asked"


def test_a_file_is_recognized_by_its_content(format_case: FormatCase, written: Path) -> None:
    other = written.with_name("without-a-suffix")
    shutil.copy(written, other)
    for path in (written, other):
        with lw.open(path) as t:
            assert t.nodes[0].type == format_case.name


def test_the_names_shapes_and_dtypes_are_those_that_were_written(format_case: FormatCase, written: Path) -> None:
    with lw.open(written) as t:
        facts = {str(leaf.path): (leaf.shape, leaf.dtype) for leaf in t}
        assert facts == {name: (array.shape, array.dtype.name) for name, array in arrays_of(format_case).items()}
        text = t.text(full=True)
        assert all(name.rpartition(".")[2] in text for name in facts)


def test_the_values_are_those_that_were_written(format_case: FormatCase, written: Path) -> None:
    with lw.open(written) as t:
        for name, array in arrays_of(format_case).items():
            assert same_bytes(t[name].numpy(), array), name
            if array.ndim:
                assert same_bytes(t[name].numpy(slice(1, 3)), array[1:3]), name
                assert same_bytes(t[name].numpy((..., 0)), array[..., 0]), name


def test_values_that_were_read_outlive_the_file(format_case: FormatCase, written: Path) -> None:
    arrays = arrays_of(format_case)
    with lw.open(written) as t:
        values = {name: t[name].numpy() for name in arrays}
    written.unlink()
    assert all(same_bytes(values[name], array) for name, array in arrays.items())


def test_a_file_is_loaded_measured_and_compared(format_case: FormatCase, written: Path) -> None:
    arrays = arrays_of(format_case)
    target = lw.load({name: np.zeros_like(array) for name, array in arrays.items()}, written)
    assert all(same_bytes(target[name], array) for name, array in arrays.items())
    assert lw.diff(target, written).same
    name = "layer.0.weight"
    assert lw.stats(written)[name].max == arrays[name].max()


def test_a_checkpoint_is_converted_to_safetensors(format_case: FormatCase, written: Path, tmp_path: Path) -> None:
    with lw.open(lw.edit(written, tmp_path / "a.safetensors").path) as t:
        assert all(same_bytes(t[name].numpy(), array) for name, array in arrays_of(format_case).items())


def test_a_file_is_found_in_its_folder(format_case: FormatCase, written: Path) -> None:
    with lw.open(written.parent) as t:
        assert t.nodes[0].type == format_case.name


def test_a_damaged_file_is_an_error_or_has_other_values(format_case: FormatCase, written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    rng = random.Random(0)
    path = tmp_path / "damaged"
    for _ in range(_DAMAGED):
        at = rng.randrange(min(len(whole), 400) if rng.random() < 0.7 else len(whole))
        cut = rng.random() < 0.2
        path.write_bytes(whole[:at] if cut else whole[:at] + bytes([rng.randrange(256)]) + whole[at + 1 :])
        try:
            with lw.open(path) as t:
                for leaf in t:
                    leaf.numpy()
        except lw.Error:
            continue
        # If it opens, it opens as something that can be shown.
        assert t.text()


def test_files_of_other_formats_are_not_recognized(format_case: FormatCase) -> None:
    own = next(known for known in all_formats() if known.name == format_case.name)
    if own.recognizes is None or own in FORMATS:
        return
    starts = [b"\x93NUMPY\x01\x00v\x00{'descr'", b"GGUF\x03\x00\x00\x00", b"PK\x03\x04", b"\x80\x02}q\x00", b"x"]
    starts += [b"\x58\x00\x00\x00\x00\x00\x00\x00{", b'{"a": 1}', b"\x12\x01" + bytes(14), b"<html>", bytes(64)]
    starts += [random.Random(seed).randbytes(64) for seed in range(100)]
    assert [start for start in starts if own.recognizes(start, 10_000)] == []


def test_a_format_that_can_be_written_gives_back_what_was_written(
    format_case: FormatCase, written: Path, tmp_path: Path
) -> None:
    own = next(known for known in all_formats() if known.name == format_case.name)
    target = tmp_path / f"again{format_case.suffix}"
    if own.write is not None:
        assert lw.edit(written, target).path == str(target)
        with lw.open(target) as t:
            assert t.nodes[0].type == format_case.name
            assert all(same_bytes(t[name].numpy(), array) for name, array in arrays_of(format_case).items())
        assert not [name for name in os.listdir(tmp_path) if "tmp" in name]
        before = target.read_bytes()
        strange = lw.save({"a": np.zeros(2, "complex64")}, tmp_path / "strange.safetensors")
        if own.cannot_store("complex64"):
            with pytest.raises(lw.EditError, match=f"{own.name} has no dtype complex64"):
                lw.edit(strange, target)
            assert target.read_bytes() == before
    if own.name != "safetensors":
        with pytest.raises(lw.FileError, match=r"lw.save writes safetensors"):
            lw.save({"a": np.zeros(2, np.float32)}, tmp_path / f"other{format_case.suffix}")
