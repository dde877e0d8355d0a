"""leafwise's record in a distributed checkpoint: a JSON file with what `.metadata` cannot say.

docs/format.md is the specification. The record has the checksum of `.metadata`, so the two belong together or the
record does not count. It says where the bytes of each array are, with their checksums: `.metadata` is not unpickled.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple

from leafwise.core.path import shown_file
from leafwise.errors import ChecksumError, FileError
from leafwise.files import record
from leafwise.files.arrays.pieces import NotTiledError, Piece, Pieces
from leafwise.files.arrays.slices import is_shape
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, Strided, spec_of
from leafwise.files.checksums import CHUNK, checksum, running_checksum
from leafwise.files.dcp.metadata import Shape
from leafwise.files.formats.safetensors import without_duplicates
from leafwise.files.limits import json_cost, names_cost
from leafwise.files.record import add_ties, is_trusted, read_record
from leafwise.files.sources.folder import Folder
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile

HEADER = 64  # bytes at the beginning of each data file
OWN_FILE = re.compile(r"__\d+_\d+-(?P<save>[0-9a-f]{8})\.distcp", re.ASCII)
OWN_RECORD = re.compile(r"leafwise-(?P<save>[0-9a-f]{8})\.json", re.ASCII)
_MAX = 1 << 30  # bytes of a record
_ARRAY = 900  # bytes of memory for an array


class RecordedBox(NamedTuple):
    """A part of an array: the number of the file, the offset of its first byte, its position and its shape."""

    file: int
    start: int
    position: Shape
    size: Shape


class RecordedArray(NamedTuple):
    """An array with its parts."""

    name: str
    dtype: str
    shape: Shape
    boxes: list[RecordedBox]


def record_name(save: str) -> str:
    return f"leafwise-{save}.json"


def data_name(rank: int, save: str) -> str:
    return f"__{rank}_0-{save}.distcp"


def data_header(rank: int, save: str) -> bytes:
    """How a data file begins: which save it belongs to, and which process wrote it."""
    return f"leafwise/1 {save} {rank}".ljust(HEADER - 1).encode() + b"\n"


def record_bytes(
    entry: str,
    metadata: bytes,
    files: Iterable[tuple[str, int, str]],
    arrays: Iterable[RecordedArray],
    texts: dict[str, str],
) -> bytes:
    """The record. `entry` is leafwise's entry, `metadata` is the content of `.metadata`, `files` have their sizes
    and the checksums of what is not in arrays, and `texts` is the metadata of the checkpoint."""
    rest = {
        "metadata_checksum": checksum(metadata),
        "files": list(files),
        "arrays": [[array.name, array.dtype, array.shape, _box_rows(array)] for array in arrays],
        **({"metadata": texts} if texts else {}),
    }
    text = f' {json.dumps(entry)[1:-1]}",{json.dumps(rest, separators=(",", ":"))[1:]}\n'
    return record.sealed(text, record.INDEX, lead=0)


def _box_rows(array: RecordedArray) -> list[list[Any]]:
    """The parts of an array; the whole array needs no position and shape."""
    if len(array.boxes) == 1 and array.boxes[0].size == array.shape:
        return [[box.file, box.start] for box in array.boxes]
    return [[box.file, box.start, box.position, box.size] for box in array.boxes]


# -- reading ---------------------------------------------------------------------------------------------------


def read(folder: Folder, source: Source, metadata: bytes) -> StoredFile | None:
    """Opens the checkpoint by the record that belongs to this `.metadata`; None if there is none."""
    names = [name for name in folder.names if OWN_RECORD.fullmatch(name)]
    digits = checksum(metadata).encode() if names else b""
    for name in names:
        record_source = folder.open(name)
        text = _text(record_source)
        if b'"metadata_checksum":"' + digits + b'"' in text:
            return _read(folder, source, record_source, text, name)
    return None


def check_foreign(folder: Folder, source: Source, files: Iterable[str]) -> None:
    """Raises if leafwise wrote the files to which a `.metadata` refers, although no record belongs to it: then it is
    damaged, or the record is."""
    if not folder.verify:
        return
    saves = {match["save"] for file in files if (match := OWN_FILE.fullmatch(file))}
    for save in sorted(saves):
        name = record_name(save)
        if name not in folder.names:
            raise FileError(
                f"{shown_file(folder.path)}: {name} is missing, in which lw.save recorded the checksums; was the whole "
                "folder copied? verify=False opens it without checksums"
            )
        record_source = folder.open(name)
        record.check(_text(record_source), record.INDEX, 0, record_source)
        raise ChecksumError(
            f"{shown_file(source.name)} is damaged, or was rewritten by another program: its checksum does not match "
            f"the one in {name}"
        )


def _text(source: Source) -> bytes:
    try:
        if source.size > _MAX:
            raise source.error(0, f"the record has {source.size:,} bytes; leafwise reads at most {_MAX:,}")
        return bytes(source.read(0, source.size))
    finally:
        source.close()


def _read(folder: Folder, source: Source, record_source: Source, text: bytes, name: str) -> StoredFile | None:
    if not is_trusted(text, record.INDEX, 0, record_source):
        return None
    record_source.limits.spend_bytes(3 * json_cost(text) // 2)
    try:
        index = json.loads(text, object_pairs_hook=without_duplicates)
        entry, files, rows, texts = index[record.KEY], index["files"], index["arrays"], index.get("metadata", {})
        file_sizes = {str(name): int(size) for name, size, _ in files}
        sums_around = [str(digits) for _, _, digits in files]
        described = [_array_row(row, len(file_sizes)) for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise record_source.error(0, f"the record cannot be read ({error!r:.200})") from error
    sources = _opened(folder, file_sizes, name)
    try:
        stored = _arrays(described, list(sources.values()), record_source)
        pieces = [piece for _, parts in stored.values() for piece in parts]
        content: dict[str, Any] = {name: array for name, (array, _) in stored.items()}
        header = read_record(entry, content, record_source, pieces)
        add_ties(content, header.ties, record_source)
    except BaseException:
        for opened in sources.values():
            opened.close()
        raise
    source.close()
    result = StoredFile(source, "DCP", content, sources={record_source.name: record_source, **sources})
    result.record = header
    result.metadata = {str(key): value for key, value in texts.items()} if isinstance(texts, dict) else {}
    result.without_checksums = ()
    result.path = folder.path
    result.seal = checksum(record.columns_text(entry).encode())  # the checksums of all arrays, and the plain values
    result.bound = len(sources)
    places: list[list[tuple[int, int]]] = [[] for _ in sources]
    for array in described:
        for box in array.boxes:
            places[box.file].append((box.start, prod(box.size) * ITEM_BYTES[array.dtype]))
    for data, arrays, digits in zip(sources.values(), places, sums_around, strict=True):
        result.further_checks.append(partial(_check_around, data, arrays, digits))
    return result


def _check_around(file: Source, arrays: list[tuple[int, int]], digits: str) -> None:
    """Raises if bytes of a data file changed that belong to no array: plain values and headers, which PyTorch reads.
    `arrays` are the offsets and lengths of the arrays."""
    around, at = running_checksum(), 0
    for start, nbytes in [*sorted(arrays), (file.size, 0)]:
        for first in range(at, start, CHUNK):
            around.update(file.read(first, min(first + CHUNK, start)))
        at = max(at, start + nbytes)
    if around.hexdigest() != digits:
        raise ChecksumError(
            f"{shown_file(file.name)} is damaged between its arrays, where PyTorch reads plain values and headers; "
            'lw.load still reads the checkpoint, and lw.edit(folder, other_folder, format="dcp") writes it again'
        )


def _array_row(row: Any, files: int) -> RecordedArray:
    name, dtype, shape, boxes = row
    if type(name) is not str or dtype not in ITEM_BYTES or not is_shape(shape) or type(boxes) is not list:
        raise ValueError("an array is not valid")
    shape = tuple(shape)
    return RecordedArray(name, dtype, shape, [_box_row(box, shape, files) for box in boxes])


def _box_row(row: Any, shape: Shape, files: int) -> RecordedBox:
    file, start, *box = row
    position, size = box or ((0,) * len(shape), shape)
    sound = type(file) is int and 0 <= file < files and type(start) is int and start >= 0
    if not sound or not is_shape(position) or not is_shape(size) or not len(position) == len(size) == len(shape):
        raise ValueError("a part of an array is not valid")
    if any(p + n > whole for p, n, whole in zip(position, size, shape, strict=True)):
        raise ValueError("a part of an array does not fit into it")
    return RecordedBox(file, start, tuple(position), tuple(size))


def _opened(folder: Folder, sizes: dict[str, int], record_file: str) -> dict[str, Source]:
    """The data files, each with the size and the beginning that belong to this save."""
    match = OWN_RECORD.fullmatch(record_file)
    assert match is not None
    save = match["save"]
    sources, missing = folder.open_all(sizes)
    try:
        if missing:
            error = FileError(
                f"{shown_file(folder.path)}: {len(missing):,} of its {len(sizes):,} data files "
                f"{'are' if len(missing) > 1 else 'is'} missing: {', '.join(missing[:8])}; is the copy complete?"
            )
            if folder.has_changed():  # a save is replacing the files: this makes the caller try again
                error.__cause__ = FileNotFoundError()
            raise error
        for name, source in sources.items():
            if not folder.verify:
                continue
            if not OWN_FILE.fullmatch(name):
                raise FileError(f"{shown_file(folder.path)}: {record_file} lists {name[:200]!a} as a data file")
            rank = int(name[2:].partition("_")[0])
            begin = bytes(source.read(0, min(HEADER, source.size)))
            if begin != data_header(rank, save):
                raise ChecksumError(
                    f"{shown_file(source.name)} does not belong to this checkpoint: it does not begin as the data of "
                    f"process {rank} of the save {save}; is it from another save, or damaged?"
                )
            if source.size != sizes[name]:
                raise source.error(
                    min(source.size, sizes[name]),
                    f"the file should have {sizes[name]:,} bytes and has {source.size:,}; is the copy complete?",
                )
    except BaseException:
        for source in sources.values():
            source.close()
        raise
    return sources


def _arrays(
    described: list[RecordedArray], files: list[Source], source: Source
) -> dict[str, tuple[Stored, list[Stored]]]:
    """The arrays by name, each with the stored parts it consists of, in the order of the record."""
    arrays: dict[str, tuple[Stored, list[Stored]]] = {}
    source.limits.spend_bytes(names_cost([array.name for array in described], source.limits.bytes))
    for array in described:
        source.limits.spend_steps(20 * len(array.boxes))
        source.limits.spend_bytes(_ARRAY * len(array.boxes))
        if array.name in arrays:
            raise source.error(0, f"the record lists {array.name!a} twice")
        parts: list[Stored] = [_part(box, array.dtype, files[box.file]) for box in array.boxes]
        spec = spec_of(array.shape, array.dtype)
        if len(parts) == 1 and array.boxes[0].size == array.shape:
            arrays[array.name] = parts[0], parts
            continue
        pieces: list[Piece] = [
            (box.position, box.size, lambda part=part: part)  # type: ignore[misc]
            for box, part in zip(array.boxes, parts, strict=True)
        ]
        try:
            arrays[array.name] = Pieces(spec, pieces, source.limits), parts
        except NotTiledError:
            text = f"the parts of {array.name!a} do not cover each of its {spec.size:,} elements exactly once"
            raise source.error(0, text) from None
    return arrays


def _part(box: RecordedBox, dtype: str, file: Source) -> Strided:
    spec = spec_of(box.size, dtype)
    if box.start + spec.nbytes > file.size:
        raise file.error(box.start, f"an array of {spec.nbytes:,} bytes should begin here, but the file ends before")
    return Strided(spec, Storage(file, box.start, spec.nbytes, shared=False))


def unfinished(folder: Folder) -> FileError | None:
    """The error for a folder in which a save of a distributed checkpoint did not finish; None if there was none."""
    files = [name for name in folder.names if name.endswith(".distcp") or OWN_RECORD.fullmatch(name)]
    parts = [name for name in folder.names if re.fullmatch(r"\.leafwise-[0-9a-f]{16}-[0-9a-f]{16}\.part", name)]
    if not files and not parts:
        return None
    there = f"{len(files):,} of its files are" if files else f"{len(parts):,} unfinished files are"
    return FileError(
        f"cannot open {shown_file(folder.path)}: a distributed checkpoint in it is not complete: {there} there, but "
        "not '.metadata', which is written last; was the save interrupted, or is the copy complete?"
    )
