"""The files of toynet: a magic number, the number of arrays, a header for each of them, and their bytes."""

from math import prod

from leafwise.core.dtypes import DTYPES
from leafwise.core.work.progress import Count
from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import Storage, Strided, spec_of
from leafwise.files.formats.array_files import write_file, write_values
from leafwise.files.formats.format import Format
from leafwise.files.sources.source import Cursor, Source
from leafwise.files.stored_file import StoredFile
from leafwise.files.writing.item_writer import Item
from leafwise.files.writing.output import Output

MAGIC = b"TOYNET1\0"
CODES = {"float32": 0, "float16": 1, "int64": 2}
NAMES = {code: name for name, code in CODES.items()}
ARRAY = 800  # bytes of memory for an array, including its place in the tree


def recognizes(start: bytes, size: int) -> bool:
    return start.startswith(MAGIC)


def read(source: Source) -> StoredFile:
    """Opens the file: reads the headers, and checks that what they describe is in the file."""
    cursor = Cursor(source, len(MAGIC))
    headers = [header(cursor) for _ in range(count(cursor))]
    arrays: dict[str, Strided] = {}
    for name, shape, dtype in headers:
        if name in arrays:
            raise cursor.error(f"the name {name!a} is there twice")
        nbytes = prod(shape) * DTYPES[dtype].itemsize
        arrays[name] = Strided(spec_of(shape, dtype), Storage(source, cursor.skip(nbytes), nbytes))
    if cursor.at != source.size:
        raise cursor.error(f"{source.size - cursor.at:,} bytes follow the last array")
    return StoredFile(source, FORMAT.name, arrays)


def count(cursor: Cursor) -> int:
    number = cursor.unsigned(4)
    cursor.source.limits.spend_bytes(ARRAY * number)  # before any of them is read: a small file may claim millions
    return number


def header(cursor: Cursor) -> tuple[str, tuple[int, ...], str]:
    at = cursor.at
    name = cursor.take(cursor.unsigned(2))
    dtype = NAMES.get(cursor.unsigned(1))
    sizes = [cursor.unsigned(8) for _ in range(cursor.unsigned(1))]
    if dtype is None or not name.isascii():
        raise cursor.source.error(at, f"an array called {name!a} has a dtype or a name that toynet does not have")
    return name.decode(), counts(sizes, cursor.source, at, f"the shape of {name!a}"), dtype


def write(items: list[Item], path: str, progress: Count) -> None:
    """Writes the arrays durably."""

    def fill(output: Output, count: Count) -> None:
        output.write(MAGIC + len(items).to_bytes(4, "little"))
        for item in items:
            name = item.name.encode()
            output.write(len(name).to_bytes(2, "little") + name + bytes([CODES[item.dtype], len(item.shape)]))
            output.write(b"".join(size.to_bytes(8, "little") for size in item.shape))
        for item in items:
            write_values(item, output.write, count)

    write_file(items, path, progress, fill)


FORMAT = Format("toynet", "toynet", read, recognizes, suffixes=(".toynet",), write=write, dtypes=CODES)
