"""leafwise's own entry in the metadata of a file: how it is written and read, and how a damaged header is noticed.

docs/format.md is the specification. A header (of a safetensors file, or of an index of shards) begins with a fixed
text, the mark, and the checksums of all its blocks. Either the text or the mark is enough to show that leafwise wrote
the file, so a single flipped bit cannot make it look like a file without checksums.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from leafwise.core.home import Axes, LeafKind
from leafwise.core.memory.ops import SAME, Op
from leafwise.errors import ChecksumError, FileError
from leafwise.files.arrays.slices import sliced
from leafwise.files.arrays.stored import Stored, Strided, spec_of
from leafwise.files.checksums import DIGITS, ChunkChecksums, checksummer, count, flipped_byte
from leafwise.files.limits import LimitError, Limits, filled_dict, json_cost
from leafwise.files.plain_encoding import decoded, encoded
from leafwise.files.sources.source import Source

KEY = "leafwise"
VERSION = 1
MARK = f"leafwise/{VERSION} "
BLOCK = 4096  # bytes of a header that share one checksum

# How a file begins, up to the mark. In a safetensors file, eight bytes with the length come first.
TENSORS = '{"__metadata__":{"leafwise":"'
INDEX = '{"leafwise":"'


def sealed(rest: str, prefix: str, lead: int, multiple: int = 1) -> bytes:
    """A header: `prefix`, the mark, the checksums of its blocks, then `rest`, padded with spaces so that its size is a
    multiple of `multiple`. It is preceded by `lead` bytes with its length; the checksums cover these too."""
    tail = rest.encode()
    begin = (prefix + MARK).encode()
    blocks = 1
    while True:
        length = lead + len(begin) + blocks * DIGITS + len(tail)
        length += -length % multiple
        if -(-length // BLOCK) <= blocks:
            break
        blocks = -(-length // BLOCK)
    at = lead + len(begin)
    text = bytearray((length - lead).to_bytes(lead, "little") if lead else b"")
    text += begin + b"0" * (blocks * DIGITS) + tail
    text += b" " * (length - len(text))
    text[at : at + blocks * DIGITS] = "".join(_sums(text)).ljust(blocks * DIGITS, "0").encode()
    return bytes(text)


def _sums(text: "bytes | bytearray") -> list[str]:
    checksum = checksummer()
    view = memoryview(text)
    return [checksum(view[start : start + BLOCK]) for start in range(0, len(text), BLOCK)]


def is_sealed(text: bytes, prefix: str, lead: int) -> bool:
    """Whether leafwise wrote this header, judging by how it begins."""
    begin, at = prefix.encode(), lead + len(prefix)
    return text[lead:at] == begin or text[at : at + len(MARK)] == MARK.encode()


def is_trusted(text: bytes, prefix: str, lead: int, source: Source) -> bool:
    """Whether leafwise wrote the header and it is intact. Raises if it is damaged; if `source.verify` is off, the file
    is treated as if another program had written it."""
    if not is_sealed(text, prefix, lead):
        return False
    try:
        check(text, prefix, lead, source)
    except FileError:
        if source.verify:
            raise
        return False
    return True


def check(text: bytes, prefix: str, lead: int, source: Source) -> None:
    """Raises, with the offset, if the header does not match its checksums."""
    at = lead + len(prefix)
    mark = re.match(rb"leafwise/(\d+) ", text[at : at + 32])
    if mark and int(mark[1]) != VERSION and text[lead:at] == prefix.encode():
        version = int(mark[1])
        raise source.error(
            at + len("leafwise/"),
            f"the file is in version {version} of leafwise's format, and this leafwise reads version {VERSION}; "
            "install a newer leafwise, unless this byte is damaged",
        )
    at += len(MARK)
    blocks = -(-len(text) // BLOCK)
    stated = text[at : at + blocks * DIGITS]
    blank = bytearray(text)
    blank[at : at + len(stated)] = b"0" * len(stated)
    for number, actual in enumerate(_sums(blank)):
        stated_sum = stated[number * DIGITS : (number + 1) * DIGITS]
        if stated_sum != actual.encode():
            where, extent = _locate(blank, number, stated_sum, actual, at + number * DIGITS)
            cause = f"the header is damaged {extent}; its checksum does not match"
            raise ChecksumError(str(source.error(where, cause)))


def _locate(text: bytearray, number: int, stated: bytes, actual: str, at: int) -> tuple[int, str]:
    """Where a header is damaged: the byte, if one flipped bit explains the damage; otherwise the block."""
    differing = [k for k, (a, b) in enumerate(zip(stated, actual.encode(), strict=False)) if a != b]
    if len(differing) == 1:
        return at + differing[0], "in this byte, which belongs to a checksum"
    start = number * BLOCK
    block = text[start : start + BLOCK]
    for byte in flipped_byte(block, stated.decode("ascii", "replace")):
        return start + byte, "in this byte"
    return start, f"somewhere in the {len(block):,} bytes from here"


# -- the content of the entry -----------------------------------------------------------------------------------

# Letter in a file → kind of leaf. `core.roles.sections` finds the optimizers among "s", the letter of all state.
KINDS: dict[str, LeafKind] = {"p": "recorded", "b": "buffer", "s": "rest"}
Role = tuple[str | None, Axes]
TieRow = tuple[str, str, Op]  # a name, the name it is tied to, and which view of that it is


class NodeType(NamedTuple):
    """The type of a node when it was saved. For a dict whose keys are not all text, also the keys, each with its name
    in paths."""

    type: str
    keys: tuple[tuple[str, Any], ...] | None = None


class HeaderRecord:
    """The content of the entry without the checksums: kinds and roles by name, ties, plain values by name, and the
    types of nodes."""

    def __init__(self) -> None:
        self.kinds: dict[str, LeafKind] = {}
        self.roles: dict[str, Role] = {}
        self.ties: list[TieRow] = []
        self.scalars: dict[str, Any] = {}
        self.nodes: dict[str, NodeType] = {}
        self.orders: dict[str, tuple[int, ...]] = {}  # the order of the axes of arrays that were not in C order
        self.shards: dict[str, str] = {}  # in an index: name of a shard → its seal

    def merge(self, part: "HeaderRecord") -> None:
        """Adds the record of another file of the same checkpoint."""
        self.kinds |= part.kinds
        self.roles |= part.roles
        self.ties += part.ties
        self.scalars |= part.scalars
        self.nodes |= part.nodes
        self.orders |= part.orders


def text_of(
    *,
    chunk: int = 0,
    sums: str = "",
    kinds: str = "",
    roles: Iterable[Role] = (),
    ties: Iterable[TieRow] = (),
    tie_roles: Iterable[Role] = (),
    scalars: dict[str, Any] | None = None,
    nodes: dict[str, NodeType] | None = None,
    orders: dict[str, tuple[int, ...]] | None = None,
    shards: dict[str, str] | None = None,
) -> str:
    """The entry as text: a JSON object of columns, as `read_record` reads it. Empty columns are left out."""
    table: dict[Role, int] = {}
    ties = list(ties)
    columns = {
        "chunk": chunk,
        "sums": sums,
        "kinds": kinds,
        "roles": [table.setdefault(role, len(table)) for role in roles],
        "ties": [[name, source, *_op_row(op)] for name, source, op in ties],
        "tie_roles": [table.setdefault(role, len(table)) for role in tie_roles],
        "role_table": [[role, axes and list(axes)] for role, axes in table],
        "scalars": list(scalars or ()),
        "values": [encoded(value) for value in (scalars or {}).values()],
        "orders": [[name, *order] for name, order in (orders or {}).items()],
        "nodes": [_node_row(name, node) for name, node in (nodes or {}).items()],
        "shards": [[name, seal] for name, seal in (shards or {}).items()],
    }
    return json.dumps({name: column for name, column in columns.items() if column}, separators=(",", ":"))


def read_record(
    text: str, arrays: dict[str, Stored], source: Source, pieces: "list[Stored] | None" = None
) -> HeaderRecord:
    """Reads an entry. `arrays` must be in the order of their bytes; they get the checksums that the entry lists. If the
    checkpoint stores arrays in pieces, these get them instead."""
    try:
        return _read_record(text, arrays, source.limits, list(arrays.values()) if pieces is None else pieces)
    except LimitError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise source.error(8, f"leafwise's entry in the header cannot be read ({error!r:.200})") from error


def columns_text(text: str) -> str:
    """An entry without the mark and the checksums of the header."""
    return text.partition(" ")[2].partition(" ")[2]


def _read_record(text: str, arrays: dict[str, Stored], limits: Limits, pieces: list[Stored]) -> HeaderRecord:
    body = columns_text(text)
    limits.spend_bytes(5 * json_cost(body.encode()) // 4)  # the values are decoded into new ones
    columns = json.loads(body)
    record = HeaderRecord()
    table = [_role(*row) for row in _column(columns, "role_table", list)]
    roles, kinds = _column(columns, "roles", list), _column(columns, "kinds", str)
    rows, tie_roles = _column(columns, "ties", list), _column(columns, "tie_roles", list)
    names, values = _column(columns, "scalars", list), _column(columns, "values", list)
    tied = [row[0] for row in rows]
    if not all(type(number) is int and 0 <= number < len(table) for number in (*roles, *tie_roles)):
        raise ValueError("a role is not in the table")
    if not all(type(name) is str for name in (*(name for row in rows for name in row[:2]), *names)):
        raise ValueError("a name is not text")
    if len({*tied, *names}) < len(tied) + len(names) or not arrays.keys().isdisjoint(names):
        raise ValueError("a name occurs twice")
    if roles:
        record.roles = {name: table[role] for name, role in zip(arrays, roles, strict=True)}
    if kinds:
        record.kinds = {name: KINDS[kind] for name, kind in zip(arrays, kinds, strict=True)}
    record.ties = [(name, of, _op(slices, order)) for name, of, slices, order in rows]
    record.roles |= {name: table[role] for name, role in zip(tied, tie_roles, strict=True)}
    record.scalars = {name: decoded(value) for name, value in zip(names, values, strict=True)}
    record.orders = dict(map(_order, _column(columns, "orders", list)))
    record.nodes = dict(map(_node, _column(columns, "nodes", list)))
    record.shards = _shards(_column(columns, "shards", list))
    _give_sums(columns.get("sums", ""), columns.get("chunk", 0), pieces)
    return record


def _shards(rows: list[Any]) -> dict[str, str]:
    seals = {name: seal for name, seal in rows}  # noqa: C416
    if len(seals) < len(rows) or not all(type(text) is str for row in rows for text in row):
        raise ValueError("the shards do not have distinct names and a checksum each")
    return seals


def _order(row: Any) -> tuple[str, tuple[int, ...]]:
    name, *order = row
    if type(name) is not str or sorted(order) != list(range(len(order))):
        raise ValueError("an order of axes is not valid")
    return name, tuple(order)


def _node_row(name: str, node: NodeType) -> list[Any]:
    keys = [] if node.keys is None else [[[key_name, encoded(key)] for key_name, key in node.keys]]
    return [name, node.type, *keys]


def _node(row: Any) -> tuple[str, NodeType]:
    name, kind, *key_rows = row
    if type(name) is not str or type(kind) is not str or len(key_rows) > 1:
        raise ValueError("the type of a node is not valid")
    keys = tuple((key_name, decoded(key)) for key_name, key in key_rows[0]) if key_rows else None
    if keys is not None:
        key_names = [key_name for key_name, _ in keys]
        if not all(type(key_name) is str for key_name in key_names) or len(set(key_names)) < len(keys):
            raise ValueError("the keys of a dict do not have distinct names")
        if len(filled_dict([(key, key_name) for key_name, key in keys])) < len(keys):
            raise ValueError("a dict contains a key twice")
    return name, NodeType(kind, keys)


def _column(columns: Any, name: str, kind: type) -> Any:
    column = columns.get(name, kind())
    if type(column) is not kind:
        raise ValueError(f"{name} is not a {kind.__name__}")
    return column


def _role(role: Any, axes: Any) -> Role:
    if not (role is None or type(role) is str) or not (axes is None or type(axes) is list):
        raise ValueError("a role is not valid")
    if axes is not None and not all(type(axis) is str for axis in axes):
        raise ValueError("the axes of a role do not have names")
    return role, None if axes is None else tuple(axes)


def _give_sums(digits: str, chunk: int, arrays: list[Stored]) -> None:
    if not digits and not arrays:
        return
    if type(chunk) is not int or chunk < 1:
        raise ValueError(f"{chunk!r:.50} is not a valid chunk size")
    first = 0
    for array in arrays:
        if isinstance(array, Strided):
            array.storage.checksums = ChunkChecksums(digits, first, chunk)
        first += count(array.spec.nbytes, chunk)
    if first * DIGITS != len(digits):
        raise ValueError(f"{len(digits) // DIGITS:,} checksums are listed for {first:,} chunks")


def add_ties(content: dict[str, Any], ties: Iterable[TieRow], source: Source) -> None:
    """Adds tied names, which are not stored, as further names of stored arrays. A tied name that was stored as a copy,
    for other programs, stays as it is."""
    for name, of, op in ties:
        if name in content:
            continue
        array = content.get(of)
        if op == "same" and array is not None:
            content[name] = array
        elif isinstance(array, Strided):
            try:
                content[name] = seen(array, op)
            except (ValueError, IndexError, TypeError) as error:
                raise source.error(8, f"{name!a} cannot be tied to {of!a}{op.describe()} ({error})") from error
        elif isinstance(array, Stored) and op.slices is None and op.order is not None:
            content[name] = _transposed(of, array, op.order)
        else:
            raise source.error(8, f"{name!a} is tied to {of!a}, which is not in the file")


def _transposed(name: str, array: Stored, order: tuple[int, ...]) -> Stored:
    """An array that is stored in several pieces, with its axes in another order."""
    from leafwise.core.roles.recipes import Taken, Turned
    from leafwise.files.arrays.assembled import Assembled

    return Assembled(Turned(Taken(name, array.spec.shape or ()), order), {name: array})


def seen(array: Strided, op: Op) -> Strided:
    """A view of a stored array: the same bytes with other strides."""
    array.storage.shared = True
    offset, shape, strides = sliced(array.memory(), op.slices or ())
    if op.order is not None:
        if sorted(op.order) != list(range(len(shape))):
            raise ValueError(f"{op.order} is not an order of {len(shape)} axes")
        shape = tuple(shape[axis] for axis in op.order)
        strides = tuple(strides[axis] for axis in op.order)
    return Strided(spec_of(shape, array.spec.dtype), array.storage, offset, strides, array.big_endian)


def _op_row(op: Op) -> list[Any]:
    slices = (
        None
        if op.slices is None
        else [part if isinstance(part, int) else [part.start, part.stop, part.step] for part in op.slices]
    )
    return [slices, None if op.order is None else list(op.order)]


def _op(slices: Any, order: Any) -> Op:
    if slices is None and order is None:
        return SAME
    lists = [part for part in (slices, order) if part is not None]
    if any(type(part) is not list for part in lists) or not all(type(axis) is int for axis in order or ()):
        raise ValueError("the slices or the order of axes of a tie are not valid")
    parts = None if slices is None else tuple(part if type(part) is int else slice(*part) for part in slices)
    return Op("transpose" if parts is None else "view", slices=parts, order=None if order is None else tuple(order))
