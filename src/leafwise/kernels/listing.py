"""Lists what is in a header with many thousands of names, with C code if it was built.

Each function returns None if there is no library, or if the text is unusual in any way: names with escapes or other
characters than ASCII, fields that leafwise does not know, arrays that are not stored one after the other. Then the
caller does the same in Python, which is slower, and reports what is wrong with it.
"""

import ctypes
import mmap
import os
import sys
from array import array
from typing import Any, Literal, NamedTuple

from leafwise.core.dotted import PrefixPlaces, SplitNames
from leafwise.kernels.library import load_with


class _HeaderFacts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("rows", "name_bytes", "spec_bytes", "commas", "metadata_start", "metadata_stop", "end")
    ]


class _SplitFacts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("nodes", "parts", "prefix_bytes", "in_order")]


_ROW = 40  # bytes; every row of a header is longer
_COLUMNS = (
    "order",
    "row_nodes",
    "row_parts",
    "parents",
    "prefix_starts",
    "prefix_stops",
    "node_parts",
    "part_starts",
    "part_stops",
)


class _Listing(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _COLUMNS]


class HeaderRows(NamedTuple):
    """The arrays of a header in its order: their names, where they start, and the number of their spec."""

    names: str  # each ends with a newline
    starts: list[int]  # in the file
    spec_numbers: list[int]
    specs: list[list[str]]  # dtype, number of bytes, sizes
    end: int  # of the last array, in the file
    shape_commas: int  # commas in the shapes
    metadata: tuple[int, int] | None  # where the object with the metadata is in the file


def _library() -> Any:
    return load_with("leafwise_split_names")


def _seed() -> int:
    """A number that nobody can know in advance, so that nobody can make names with colliding hashes."""
    return int.from_bytes(os.urandom(8), "little")


class _Column:
    """Memory for whole numbers or characters, which C code fills. It is mapped, so that only what is used is allocated:
    nobody knows in advance how much that is."""

    def __init__(self, code: Literal["b", "i", "q"], count: int) -> None:
        self._code = code
        self._bytes = mmap.mmap(-1, max(count, 1) * {"b": 1, "i": 4, "q": 8}[code])
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))

    def numbers(self, count: int) -> list[int]:
        return memoryview(self._bytes).cast(self._code)[:count].tolist()

    def text(self, count: int) -> str:
        return str(memoryview(self._bytes)[:count], "ascii")

    def array(self, count: int) -> "array[int]":
        return array(self._code, self._bytes[: count * 4])


def header_rows(lead: bytes, start: int) -> HeaderRows | None:
    """The rows in the JSON of a header, which begins at a byte of `lead`, the beginning of a file, and fills the rest
    of it. The arrays come next."""
    library = _library()
    if library is None:
        return None
    most = (len(lead) - start) // _ROW
    names, specs = _Column("b", len(lead)), _Column("b", len(lead))
    starts, spec_numbers, facts = _Column("q", most), _Column("i", most), _HeaderFacts()
    addresses = [column.address for column in (names, specs, starts, spec_numbers)]
    rows = library.leafwise_list_header(lead, len(lead), start, most, _seed(), *addresses, ctypes.byref(facts))
    if rows < 0:
        return None
    lines = (line.partition("\t") for line in specs.text(facts.spec_bytes - 1).split("\n"))
    return HeaderRows(
        names.text(facts.name_bytes),
        starts.numbers(rows),
        spec_numbers.numbers(rows),
        [[dtype, *sizes.split(" ")] for dtype, _, sizes in lines],
        facts.end,
        facts.commas,
        (facts.metadata_start, facts.metadata_stop) if facts.metadata_start >= 0 else None,
    )


class DottedNames:
    """The nodes that dotted names describe: how many there are, and, when they are needed, the columns of a walk."""

    def __init__(self, text: str, rows: int, columns: dict[str, _Column], facts: _SplitFacts) -> None:
        self.text, self._rows, self._columns = text, rows, columns
        self._parts, self._in_order = facts.parts, facts.in_order
        self.nodes = facts.nodes  # without the root
        self.prefix_length = facts.prefix_bytes  # the length of all prefixes, without the dots at their ends

    def columns(self) -> SplitNames:
        text, columns = self.text, self._columns
        starts, stops = columns["part_starts"].numbers(self._parts), columns["part_stops"].numbers(self._parts)
        parts = [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return SplitNames(
            columns["row_nodes"].numbers(self._rows),
            [parts[number] for number in columns["row_parts"].numbers(self._rows)],
            columns["parents"].numbers(self.nodes),
            [parts[number] for number in columns["node_parts"].numbers(self.nodes)],
            PrefixPlaces(text, columns["prefix_starts"].array(self.nodes), columns["prefix_stops"].array(self.nodes)),
            None if self._in_order else columns["order"].numbers(self._rows),
        )


def dotted_names(text: str, rows: int, most: int = sys.maxsize) -> DottedNames | None:
    """Splits names at their dots. The text has one in each row, which ends with a newline, and they describe at most
    `most` nodes."""
    library = _library()
    if library is None or not text.isascii():
        return None
    facts, most = _SplitFacts(), min(most, text.count("."))
    sizes = [rows] * 3 + [most] * 4 + [rows + most] * 2
    columns = {name: _Column("i", size) for name, size in zip(_COLUMNS, sizes, strict=True)}
    listing = _Listing(**{name: column.address for name, column in columns.items()})
    arguments = (rows, most, _seed(), ctypes.byref(listing), ctypes.byref(facts))
    if library.leafwise_split_names(text.encode(), len(text), *arguments) < 0:
        return None
    return DottedNames(text, rows, columns, facts)
