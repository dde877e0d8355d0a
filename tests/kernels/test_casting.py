"""The rule of casts against exact fractions: every pair of dtypes, at the values where they differ."""

from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.long import short_or_long

from leafwise.errors import WriteError
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.kernels.casting import cast_to, misfit
from leafwise.kernels.dtypes import numpy_dtype

# Exponent bits, fraction bits, bias, and what the highest exponent and the pattern of a negative zero mean.
FORMATS = {
    "float64": (11, 52, 1023, "ieee"),
    "float32": (8, 23, 127, "ieee"),
    "float16": (5, 10, 15, "ieee"),
    "bfloat16": (8, 7, 127, "ieee"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
}
POWERS = "float8_e8m0fnu"
FLOATS = [*FORMATS, POWERS]
WHOLE = [name for name in ITEM_BYTES if "int" in name]
Exact = Fraction | str  # a number, or "inf", "-inf", "nan"


def decoded(bits: int, dtype: str) -> Exact:
    """What a pattern of bits means, by the definition of the format."""
    if dtype == POWERS:
        return "nan" if bits == 255 else Fraction(2) ** (bits - 127)
    exponent_bits, fraction_bits, bias, kind = FORMATS[dtype]
    fraction = bits & ((1 << fraction_bits) - 1)
    exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1)
    negative = bits >> (fraction_bits + exponent_bits)
    highest = exponent == (1 << exponent_bits) - 1
    if kind == "fnuz" and negative and not exponent and not fraction:
        return "nan"
    if kind == "fn" and highest and fraction == (1 << fraction_bits) - 1:
        return "nan"
    if kind == "ieee" and highest:
        return "nan" if fraction else "-inf" if negative else "inf"
    lead = 1 if exponent else 0
    size = (Fraction(fraction, 1 << fraction_bits) + lead) * Fraction(2) ** (max(exponent, 1) - bias)
    return -size if negative else size


def values_of(array: Any) -> list[Exact]:
    """The exact values of an array of floats, from its bits."""
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
    return [decoded(int(bits), array.dtype.name) for bits in np.ascontiguousarray(array).view(words)]


def largest_of(dtype: str) -> Fraction:
    if dtype == POWERS:
        return Fraction(2) ** 127
    exponent_bits, fraction_bits, _, _ = FORMATS[dtype]
    found = (decoded(bits, dtype) for bits in range((1 << (exponent_bits + fraction_bits)) - 1, 0, -1))
    for size in found:
        if isinstance(size, Fraction):
            return size
        if dtype in ("float64", "float32"):  # too many patterns that are not numbers
            return decoded((((1 << exponent_bits) - 1) << fraction_bits) - 1, dtype)  # type: ignore[return-value]
    raise AssertionError


LARGEST = {dtype: largest_of(dtype) for dtype in FLOATS}


def expected(value: Exact, dtype: str) -> Exact | None:
    """The nearest number of a dtype, ties to even; None where the value does not fit."""
    has_infinity = dtype != POWERS and FORMATS[dtype][3] == "ieee"
    if isinstance(value, str):
        return value if value == "nan" or has_infinity else None
    if dtype == POWERS:
        if value < Fraction(1, 2**128):
            return None
        power = max(_exponent(value), -127)
        step = Fraction(2) ** power
        nearest = step if value < step * 3 / 2 else 2 * step
    else:
        _, fraction_bits, bias, _ = FORMATS[dtype]
        step = Fraction(2) ** (max(_exponent(value), 1 - bias) - fraction_bits)
        nearest = round(value / step) * step  # Python rounds halves to even
    return nearest if abs(nearest) <= LARGEST[dtype] else None


def saturated(value: Exact, dtype: str) -> Exact:
    """The end of a dtype that is nearest to a value that does not fit."""
    if dtype == POWERS:
        is_large = value == "inf" or (isinstance(value, Fraction) and value > 1)
        return LARGEST[dtype] if is_large else Fraction(1, 2**127)
    negative = value == "-inf" or (isinstance(value, Fraction) and value < 0)
    return -LARGEST[dtype] if negative else LARGEST[dtype]


def _exponent(value: Fraction) -> int:
    """The power of two at or below the size of a number."""
    if not value:
        return -(10**6)
    value = abs(value)
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def special_floats(dtype: str) -> Any:
    """Values of a dtype at and around everything that another dtype does not have."""
    if ITEM_BYTES[dtype] == 1:
        return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))
    if ITEM_BYTES[dtype] == 2:
        fraction_bits = FORMATS[dtype][1]
        powers = np.arange(0, 1 << 16, 1 << fraction_bits)
        some = np.arange(0, 1 << 16, short_or_long(31, 7))
        bits = np.unique(np.concatenate([some, powers, powers + 1, (powers - 1) % (1 << 16)]))
        return bits.astype(np.uint16).view(numpy_dtype(dtype))
    points = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 2.0**53 + 2, 1e-310, 5e-324, 2.0**-149, 2.0**-150, 1e300]
    for name, (_, fraction_bits, bias, _) in FORMATS.items():
        largest = float(LARGEST[name])
        step = 2.0 ** (_exponent(LARGEST[name]) - fraction_bits)
        smallest = 2.0 ** max(1 - bias - fraction_bits, -1074)
        points += [largest, largest + step / 2, smallest, smallest / 2, smallest * 1.5, smallest * 2.5]
        points += [(1 + 2.0 ** -(fraction_bits + 1)), 1 + 3 * 2.0 ** -(fraction_bits + 1)]
    points += [2.0**-127, 2.0**-128, 1.5 * 2.0**127, 1.5 * 2.0**-127, 3.0, 6.0]
    wanted = np.dtype(dtype)
    with np.errstate(all="ignore"):
        found = np.array(points).astype(wanted)
        found = np.concatenate([found, np.nextafter(found, wanted.type(np.inf)), np.nextafter(found, wanted.type(0))])
        # Just beyond a tie of a narrow dtype, where rounding through float32 goes wrong.
        found = np.concatenate([found, found * wanted.type(1 + 2.0**-40)])
    rng = np.random.default_rng(0)
    count = short_or_long(1000, 4000)
    bits = rng.integers(0, 1 << (8 * wanted.itemsize), count, f"u{wanted.itemsize}", endpoint=False)
    return np.concatenate([found, -found, bits.view(wanted)])


@cache
def special_values(dtype: str) -> tuple[Any, list[Exact]]:
    source = special_floats(dtype)
    return source, values_of(source)


@pytest.mark.parametrize(("own", "dtype"), [*product(FLOATS, FLOATS)])
def test_floats_are_rounded_once_or_refused(own: str, dtype: str) -> None:
    source, exact = special_values(own)
    truth = [expected(value, dtype) for value in exact]
    fitting = np.array([value is not None for value in truth])
    found = cast_to(source[fitting], dtype)
    assert found.dtype == numpy_dtype(dtype)
    assert values_of(found) == [value for value in truth if value is not None]
    nearest = [saturated(value, dtype) if near is None else near for value, near in zip(exact, truth, strict=True)]
    assert values_of(cast_to(source, dtype, saturate=True)) == nearest
    refused, others = source[~fitting], source[fitting]
    for value in refused[:: max(1, len(refused) // short_or_long(100, 300))]:
        lone = np.array([value], source.dtype)
        assert misfit(lone, dtype), (value, dtype)
        with pytest.raises(WriteError, match="do not fit into"):
            cast_to(np.concatenate([others, lone]), dtype)
        others = source[fitting][:20]  # all of them once


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != "float64"])
def test_a_negative_zero_keeps_its_sign_where_there_is_one(dtype: str) -> None:
    if dtype == POWERS:
        return
    found = cast_to(np.array([-0.0, -1e-300]), dtype).astype(np.float64)
    assert (np.signbit(found) == ("fnuz" not in dtype)).all()
    assert not found.any()


@pytest.mark.parametrize(("own", "dtype"), [*product(WHOLE, WHOLE)])
def test_whole_numbers_stay_the_same_or_are_refused(own: str, dtype: str) -> None:
    least, largest = (int(getattr(np.iinfo(own), end)) for end in ("min", "max"))
    ends = [int(getattr(np.iinfo(name), end)) for name in WHOLE for end in ("min", "max")]
    points = {0, 1, 2**53 + 1, *(end + by for end in ends for by in (-1, 0, 1))} | {-1}
    values = sorted(value for value in points if least <= value <= largest)
    low, high = (int(getattr(np.iinfo(dtype), end)) for end in ("min", "max"))
    for value in values:
        array = np.array([value], own)
        assert (misfit(array, dtype) == "") == (low <= value <= high)
        assert int(cast_to(array, dtype, saturate=True)[0]) == min(max(value, low), high)
    inside = [value for value in values if low <= value <= high]
    assert cast_to(np.array(inside, own), dtype).tolist() == inside


@pytest.mark.parametrize(("own", "dtype"), [*product(ITEM_BYTES, ITEM_BYTES)])
def test_kinds_of_numbers_are_not_mixed(own: str, dtype: str) -> None:
    kinds = [
        "float" if name in FLOATS else "complex" if "complex" in name else "bool" if name == "bool" else "int"
        for name in (own, dtype)
    ]
    array = np.ones(2, np.uint8).view(np.uint8).astype(numpy_dtype(own))
    if kinds[0] == kinds[1]:
        assert cast_to(array, dtype).astype(np.complex128).tolist() == [1, 1]
    else:
        with pytest.raises(WriteError, match="another kind of number"):
            cast_to(array, dtype, saturate=True)
        assert "another kind of number" in misfit(array, dtype)


def test_both_parts_of_complex_numbers_count() -> None:
    for value in (complex(1e300, 0), complex(0, 1e300), complex(0, -1e39)):
        array = np.array([1, value])
        assert misfit(array, "complex64")
        found = cast_to(array, "complex64", saturate=True)
        assert np.isfinite(found).all()
        assert found[0] == 1
        assert np.sign(found[1].real) == np.sign(value.real)
        assert np.sign(found[1].imag) == np.sign(value.imag)
    special = np.array([complex(np.inf, np.nan), complex(-0.0, 5e-324), complex(2.0**53 + 2, -np.inf)])
    found = cast_to(special, "complex64")
    assert values_of(found.view(np.float32)) == [expected(v, "float32") for v in values_of(special.view(np.float64))]


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name != POWERS])
def test_arrays_of_any_layout_are_cast_alike(dtype: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.normal(size=(300, 411)) * 3
    whole = cast_to(array, dtype)
    for one in (array.T, array[::2, ::-3], array[:, 5], array[7, 7], array[:0]):
        again = cast_to(one, dtype)
        assert again.shape == one.shape
        reference = cast_to(np.ascontiguousarray(one), dtype).reshape(one.shape)
        assert np.array_equal(again.astype(np.float64), reference.astype(np.float64))
    big = cast_to(array.astype(">f8"), dtype)
    assert np.array_equal(big.astype(np.float64), whole.astype(np.float64))
    read_only = array.astype(np.float32)
    read_only.flags.writeable = False
    assert np.array_equal(
        cast_to(read_only, dtype).astype(np.float64), cast_to(read_only.copy(), dtype).astype(np.float64)
    )


def test_pytorch_rounds_float16_as_numpy_does() -> None:
    """PyTorch is asked for these, where it is imported, because it is faster."""
    array = special_floats("float32")
    array = array[np.isfinite(array) & (np.abs(array) < 65520)]
    with np.errstate(under="ignore"):
        reference = array.astype(np.float16)
    assert torch.from_numpy(array).to(torch.float16).numpy().tobytes() == reference.tobytes()


def test_dtypes_narrower_than_those_of_files_are_cast_from() -> None:
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float8_e3m4", "float8_e4m3b11fnuz"):
        array = np.array([0.5, 1.0, -1.5], getattr(ml_dtypes, name))
        assert cast_to(array, "float16").tolist() == [0.5, 1.0, -1.5]
        assert misfit(array, POWERS)
        assert "cannot cast float32 to" in misfit(np.ones(1, np.float32), name)
