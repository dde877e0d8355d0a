"""The table of dtypes agrees with NumPy, ml_dtypes and the C code; a row with a code is all that a new dtype needs."""

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import leafwise
from leafwise.core.dtypes import BYTE_FLOAT, DTYPES, WORDS, is_float, is_inexact, number_kind, stored_itemsizes
from leafwise.files.formats import mxnet_params, numpy_files, safetensors
from leafwise.files.pickles import torch_objects
from leafwise.kernels.dtypes import numpy_dtype

KERNELS = Path(leafwise.__file__).parent / "kernels" / "c"
FLOATS = [dtype for dtype in DTYPES.values() if dtype.kind == "float"]


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_agrees_with_numpy(name: str) -> None:
    dtype, known = DTYPES[name], numpy_dtype(name)
    assert known.name == name
    assert known.itemsize == dtype.itemsize
    assert (known.type.__module__ == "numpy") == dtype.is_native
    if dtype.is_native:
        assert known.str[1:] == dtype.numpy
        assert {"f": "float", "c": "complex", "i": "int", "u": "int", "b": "bool"}[known.kind] == dtype.kind


@pytest.mark.parametrize("name", [dtype.name for dtype in FLOATS])
def test_the_range_of_a_float_agrees_with_its_values(name: str) -> None:
    floats, info = DTYPES[name].range, ml_dtypes.finfo(numpy_dtype(name))
    assert floats is not None
    assert floats.largest == float(info.max)
    assert floats.fraction_bits == info.nmant
    if floats.smallest_normal is not None:
        assert 2.0**floats.smallest_normal == float(info.smallest_normal)
        assert 2.0 ** (floats.smallest_normal - floats.fraction_bits) == float(info.smallest_subnormal)
    if DTYPES[name].kernel == BYTE_FLOAT:
        every = np.arange(1 << DTYPES[name].bits, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)
        assert bool(np.isinf(every).any()) == floats.has_infinity


def test_a_float_overflows_where_rounding_makes_infinity_of_it() -> None:
    for name in ("float32", "float16"):
        floats = DTYPES[name].range
        assert floats is not None
        with np.errstate(over="ignore"):
            assert np.isinf(np.float64(floats.overflows_from).astype(name))
            assert np.isfinite(np.nextafter(np.float64(floats.overflows_from), 0).astype(name))
    byte = DTYPES["float8_e4m3fn"].range
    assert byte is not None
    assert byte.overflows_from > byte.limit == 464  # which is rounded to 448, as that is even


def test_numbers_of_kernels_are_those_of_the_c_code() -> None:
    text = (KERNELS / "instruction_sets.h").read_text("utf-8")
    found = re.search(r"enum kind \{(.*?)\}", text, re.S)
    assert found
    names = re.findall(r"\w+", found[1])
    own_numbers = [dtype for dtype in DTYPES.values() if dtype.kernel not in (None, BYTE_FLOAT)]
    by_number = {dtype.kernel: dtype.name.upper() for dtype in own_numbers}
    assert names.index("BYTE_FLOAT") == BYTE_FLOAT
    assert {number: name for number, name in enumerate(names) if number != BYTE_FLOAT} == by_number
    sizes = re.search(r"item_bytes\[\] = \{(.*?)\}", text, re.S)
    assert sizes
    by_number_bytes = {dtype.kernel: dtype.itemsize for dtype in DTYPES.values() if dtype.kernel is not None}
    assert dict(enumerate(map(int, re.findall(r"\d+", sizes[1])))) == by_number_bytes


def test_codes_of_formats_are_unique_and_those_of_dtypes_that_are_stored() -> None:
    numpy_codes = {name: dtype.numpy for name, dtype in DTYPES.items() if dtype.numpy}
    formats = [safetensors.CODES, torch_objects.TYPED_STORAGES, numpy_files.CODES, mxnet_params.CODES]
    for codes in (numpy_codes, *formats):
        assert len(codes) == len(set(codes.values()))
    assert set().union(*formats) == set(stored_itemsizes())


def test_kinds_of_numbers() -> None:
    assert number_kind("uint16") == number_kind("q4_0") == "int"
    assert is_float("bfloat16")
    assert is_float("float128")
    assert not is_float("complex64")
    assert is_inexact("complex32")
    assert not is_inexact("bool")


def test_every_stored_dtype_of_one_part_has_a_word_that_views_it() -> None:
    for name, size in stored_itemsizes().items():
        assert size in WORDS or number_kind(name) == "complex"


NEW = """
import sys
from leafwise.core import dtypes

if sys.argv[2] == "with":
    row = dtypes.DTYPES["float8_e3m4"]._replace(in_files=True)
    dtypes.DTYPES["float8_e3m4"] = row
    from leafwise.files.formats import safetensors

    safetensors.CODES["float8_e3m4"] = "F8_E3M4"
    safetensors._BY_CODE["F8_E3M4"] = row
else:
    del dtypes.DTYPES["float8_e3m4"]

import ml_dtypes, numpy as np
import leafwise as lw
from leafwise.kernels import casting, cpu, reference

folder = sys.argv[1]
values = np.linspace(-3, 3, 50).astype(ml_dtypes.float8_e3m4)
model = {"w": values, "b": np.zeros(3, np.float32)}
"""

SUPPORTED = (
    NEW
    + """
assert "float8_e3m4" in str(lw.tree(model))
assert len(lw.tree(model).select(lw.where(dtype="float8_e3m4"))) == 1
row = lw.stats(model)["w"]
right = reference.measure(values)
assert (row.min, row.max, row.zeros, row.subnormals) == (right.min, right.max, right.zeros, right.subnormals)
assert row.std == right.std and row.outside("float8_e3m4").overflow == 0

lw.save(model, folder + "/a")
lw.save(model, folder + "/b", dtype="float8_e3m4")
lw.save({**model, "w": values.astype(np.float32)}, folder + "/c")
for name in "ab":
    with lw.open(folder + "/" + name) as opened:
        assert opened["w"].dtype == "float8_e3m4" and opened["w"].numpy().tobytes() == values.tobytes()
        assert lw.stats(opened)["w"].mean == row.mean
    lw.verify(folder + "/" + name)
assert lw.open(folder + "/b")["b"].dtype == "float8_e3m4"
assert {change.kind for change in lw.diff(model, folder + "/a")} == {"same"}
changed = {"w": values.copy(), "b": model["b"]}
changed["w"][7] = 1
changes = {change.path: change.kind for change in lw.diff(changed, folder + "/a")}
assert changes == {"w": "changed", "b": "same"}, changes

copy = {"w": np.zeros_like(values), "b": np.ones(3, np.float32)}
lw.load(copy, folder + "/a")
assert copy["w"].tobytes() == values.tobytes()
copy["w"][:] = 0
lw.load(copy, folder + "/c", cast=True)
assert copy["w"].tobytes() == values.tobytes()
assert "float8_e3m4, whose largest number is 15.5" in casting.misfit(np.array([16.0]), "float8_e3m4")
assert casting.cast_to(np.array([99.0]), "float8_e3m4", saturate=True) == 15.5
"""
)

UNSUPPORTED = (
    NEW
    + """
assert lw.stats(model).skipped == {"w": "there are no statistics of float8_e3m4"}
try:
    lw.save(model, folder + "/a")
except lw.Error as error:
    assert "float8_e3m4" in str(error), error
else:
    raise AssertionError("it was saved")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "script"), [("with", SUPPORTED), ("without", UNSUPPORTED)])
def test_a_row_with_a_code_is_all_that_a_new_dtype_needs(tmp_path: Path, row: str, script: str) -> None:
    """Row and code are added before anything reads the tables, as an edit of the files would."""
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path), row]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_no_two_dtypes_share_a_number_in_the_kernels() -> None:
    numbers = [dtype.kernel for dtype in DTYPES.values() if dtype.kernel not in (None, BYTE_FLOAT)]
    assert len(numbers) == len(set(numbers))


def test_a_plan_refuses_a_cast_to_a_dtype_that_nothing_is_cast_to() -> None:
    target = {"a": np.zeros(2, np.float32), "w": np.zeros(2).astype(ml_dtypes.float8_e4m3)}
    source = {"a": np.ones(2, np.float64), "w": np.ones(2, np.float64)}
    for cast in (True, "saturate"):
        reason = "w is float8_e4m3 in the model but float64 in the source; leafwise does not cast to"
        with pytest.raises(leafwise.LoadError, match=reason):
            leafwise.load(target, source, cast=cast)
        assert not target["a"].any()
