"""The dtypes that leafwise knows, one row each. A new dtype is a new row here, and in the formats that store it.

Everything else about dtypes follows from this table: which can be measured, cast, saved and read, and their numbers in
the kernels. Only a dtype that needs its own arithmetic in C (`kernel`) needs more.
Floats of eight bits or fewer need no arithmetic, since the kernels look up their values.

The names are those of NumPy and ml_dtypes, and of PyTorch if it has the dtype.
"""

import math
import sys
from typing import Literal, NamedTuple

Kind = Literal["float", "complex", "int", "bool"]

# The kernels have one number for all floats of a byte or less: they look up the values of its 256 bytes.
BYTE_FLOAT = 4


class FloatRange(NamedTuple):
    """The range of a float dtype."""

    fraction_bits: int
    smallest_normal: int | None  # as a power of two; smaller numbers are subnormal. None if there are none
    largest: float
    has_infinity: bool = True

    @property
    def largest_exponent(self) -> int:
        return math.frexp(self.largest)[1] - 1

    @property
    def limit(self) -> float:
        """Halfway between the largest number and the next one, if there were one."""
        return self.largest + 2.0 ** (self.largest_exponent - self.fraction_bits - 1)

    @property
    def rounds_limit_down(self) -> bool:
        """Whether the limit itself rounds to the largest number: if that is even, because ties round to even."""
        return int(self.largest / 2.0 ** (self.largest_exponent - self.fraction_bits)) % 2 == 0

    @property
    def overflows_from(self) -> float:
        """The smallest double that rounds to more than the largest number."""
        return math.nextafter(self.limit, math.inf) if self.rounds_limit_down else self.limit


class DType(NamedTuple):
    """A dtype and its properties."""

    name: str
    kind: Kind
    bits: int  # of an element in a file
    kernel: int | None = None  # its number in C (`enum kind`) and Triton; None if it cannot be measured
    range: FloatRange | None = None  # for a float
    numpy: str = ""  # NumPy's code for kind and bytes; V, for void, if only ml_dtypes has it
    in_files: bool = True  # whether leafwise saves it, reads it byte by byte, and casts to it

    @property
    def is_packed(self) -> bool:
        """Whether files store several elements in a byte. In memory, each element has its own byte."""
        return self.bits < 8

    @property
    def itemsize(self) -> int:
        """How many bytes an element takes in memory."""
        return max(self.bits // 8, 1)

    @property
    def is_native(self) -> bool:
        """Whether NumPy has it without ml_dtypes."""
        return self.numpy[:1] not in ("", "V")

    @property
    def is_stored(self) -> bool:
        """Whether leafwise saves it, reads it byte by byte, and casts to it."""
        return not self.is_packed and self.in_files


_ROWS = (
    DType("float64", "float", 64, 1, FloatRange(52, -1022, sys.float_info.max), numpy="f8"),
    DType("float32", "float", 32, 0, FloatRange(23, -126, (2 - 2.0**-23) * 2.0**127), numpy="f4"),
    DType("float16", "float", 16, 3, FloatRange(10, -14, 65504.0), numpy="f2"),
    DType("bfloat16", "float", 16, 2, FloatRange(7, -126, (2 - 2.0**-7) * 2.0**127), numpy="V2"),
    DType("complex64", "complex", 64, numpy="c8"),
    DType("complex128", "complex", 128, numpy="c16"),
    DType("float8_e4m3fn", "float", 8, BYTE_FLOAT, FloatRange(3, -6, 448.0, False)),
    DType("float8_e4m3fnuz", "float", 8, BYTE_FLOAT, FloatRange(3, -7, 240.0, False)),
    DType("float8_e5m2", "float", 8, BYTE_FLOAT, FloatRange(2, -14, 57344.0)),
    DType("float8_e5m2fnuz", "float", 8, BYTE_FLOAT, FloatRange(2, -15, 57344.0, False)),
    # The powers of two from 2^-127 to 2^127, and nan; it has no zero and no sign.
    DType("float8_e8m0fnu", "float", 8, BYTE_FLOAT, FloatRange(0, None, 2.0**127, False)),
    DType("float8_e3m4", "float", 8, BYTE_FLOAT, FloatRange(4, -2, 15.5), in_files=False),
    DType("float8_e4m3", "float", 8, BYTE_FLOAT, FloatRange(3, -6, 240.0), in_files=False),
    DType("float8_e4m3b11fnuz", "float", 8, BYTE_FLOAT, FloatRange(3, -10, 30.0, False), in_files=False),
    DType("float6_e3m2fn", "float", 6, BYTE_FLOAT, FloatRange(2, -2, 28.0, False)),
    DType("float6_e2m3fn", "float", 6, BYTE_FLOAT, FloatRange(3, 0, 7.5, False)),
    DType("float4_e2m1fn", "float", 4, BYTE_FLOAT, FloatRange(1, 0, 6.0, False)),
    DType("int64", "int", 64, 8, numpy="i8"),
    DType("int32", "int", 32, 7, numpy="i4"),
    DType("int16", "int", 16, 6, numpy="i2"),
    DType("int8", "int", 8, 5, numpy="i1"),
    DType("uint64", "int", 64, 12, numpy="u8"),
    DType("uint32", "int", 32, 11, numpy="u4"),
    DType("uint16", "int", 16, 10, numpy="u2"),
    DType("uint8", "int", 8, 9, numpy="u1"),
    DType("bool", "bool", 8, 13, numpy="b1"),
)  # fmt: skip

DTYPES = {dtype.name: dtype for dtype in _ROWS}

# The unsigned integer with as many bytes as an element, to view its bits.
WORDS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def number_kind(dtype: str) -> Kind:
    """Whether the elements of a dtype are floats, complex numbers, integers or booleans. Goes by the name if leafwise
    does not know the dtype, as for NumPy's `float128`.

    >>> number_kind("bfloat16"), number_kind("uint8"), number_kind("float128")
    ('float', 'int', 'float')
    """
    known = DTYPES.get(dtype)
    if known is not None:
        return known.kind
    return "float" if "float" in dtype else "complex" if "complex" in dtype else "int"


def is_castable(name: str) -> bool:
    """Whether leafwise casts numbers to a dtype: to every dtype that it saves."""
    return name in DTYPES and DTYPES[name].is_stored


def is_float(dtype: str) -> bool:
    return number_kind(dtype) == "float"


def is_inexact(dtype: str) -> bool:
    """Whether a dtype has floats or complex numbers, which can have gradients."""
    return number_kind(dtype) in ("float", "complex")


def stored_itemsizes() -> dict[str, int]:
    """The dtypes that leafwise saves and reads byte by byte, with the bytes of an element."""
    return {name: dtype.itemsize for name, dtype in DTYPES.items() if dtype.is_stored}
