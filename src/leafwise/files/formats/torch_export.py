"""Archives of torch.export, `.pt2`: a zip with the weights, the constants, and lists of both."""

import ast
import json
import zipfile
from contextlib import suppress
from functools import partial
from typing import Any

from leafwise.core.home import LeafKind
from leafwise.core.opaque import Opaque
from leafwise.files.arrays.slices import c_strides, is_shape
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.formats.torch_zip import entries, has_checksums, opened_zip, read_content, stored
from leafwise.files.limits import json_cost, names_cost
from leafwise.files.pickles.pickle_objects import Usage
from leafwise.files.sources.source import PartSource, Source
from leafwise.files.stored_file import StoredFile

_WEIGHTS, _CONSTANTS = "_weights_config.json", "_constants_config.json"
_OLD_WEIGHTS, _OLD_CONSTANTS = "serialized_state_dict.pt", "serialized_constants.pt"
_OBJECT = "opaque_obj_"  # in the names of entries that torch.export unpickles, whatever the list says
_MAX_LIST = 1 << 28  # bytes
_STRIDED = 7  # the code of the usual layout
# The codes of dtypes in the lists.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip


def read(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> StoredFile:
    """Opens the archive; the directory and the lists are read."""
    arrays: dict[str, tuple[LeafKind, Any]] = {}
    for name, info in zip_entries.items():
        if name.endswith((_WEIGHTS, _CONSTANTS)):
            _add(arrays, _listed(source, zip_entries, name, name.endswith(_WEIGHTS)), source, info)
        elif name in (_OLD_WEIGHTS, _OLD_CONSTANTS):
            _add(arrays, _old(source, info, name == _OLD_WEIGHTS), source, info)
        elif name.endswith(".pt"):  # sample inputs, which torch.export.load unpickles, too
            _unpickled(source, stored(source, info, False))
    if not arrays:
        raise source.error(0, "this archive of torch.export contains no weights; it may contain only compiled code")
    source.limits.spend_bytes(names_cost(arrays, source.limits.bytes))
    opened = opened_zip(source, "torch.export", _tree(arrays), zip_entries)
    opened.unread_objects.append(partial(_note_expressions, source, zip_entries))
    return opened


_ARITHMETIC = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_LONGEST = 10_000  # bytes of an expression
_FUNCTIONS = frozenset({"floor", "ceiling", "sqrt", "log", "exp", "sin", "cos", "tan", "asin", "acos", "atan"})


def _is_arithmetic(text: str) -> bool:
    """Whether an expression only has numbers, symbols, and classes and functions of sympy for arithmetic."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return (
        all(isinstance(node, _ARITHMETIC) for node in nodes)
        and all(isinstance(func, ast.Name) and (func.id[0].isupper() or func.id in _FUNCTIONS) for func in called)
        and all(name.isidentifier() and "__" not in name for name in (*names, *texts))
    )


def _note_expressions(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> None:
    """Adds to the names what loading the archive would do besides reading it: torch passes expressions for shapes to
    sympy, which passes them to `eval`, and imports the modules of enums."""
    for name, info in zip_entries.items():
        if not name.endswith(".json") and "/models/" not in f"/{name}":
            continue
        place = stored(source, info, False)
        text = bytes(place.read(0, place.nbytes))
        source.limits.spend_bytes(place.nbytes + json_cost(text))
        try:
            waiting = [json.loads(text)]
        except (ValueError, RecursionError):
            source.pickle_names["torch.export", "load"] = Usage(f"for {name[:200]!a}, which is not JSON")
            continue
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                _note_expression(source, value)
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
            elif isinstance(value, str) and value[:1] in ("{", "["):  # JSON in JSON, which describes containers
                source.limits.spend_bytes(json_cost(value.encode("utf-8", "replace")))
                with suppress(ValueError, RecursionError):
                    waiting.append(json.loads(value))


def _note_expression(source: Source, row: dict[str, Any]) -> None:
    text = row.get("expr_str", "0")
    if not isinstance(text, str) or len(text) > _LONGEST or not _is_arithmetic(text):
        source.pickle_names["sympy", "sympify"] = Usage("with an expression that could run code")
    if "__enum__" in row:
        source.pickle_names["importlib", "import_module"] = Usage("for a member of an enum")


def _add(
    arrays: dict[str, tuple[LeafKind, Any]],
    more: dict[str, tuple[LeafKind, Any]],
    source: Source,
    info: zipfile.ZipInfo,
) -> None:
    for name in more:
        if name in arrays:
            raise source.error(info.header_offset, f"{name!a} is both a weight and a constant")
    arrays |= more


def _old(source: Source, info: zipfile.ZipInfo, weights: bool) -> dict[str, tuple[LeafKind, Any]]:
    """The weights or the constants of an archive of PyTorch before 2.8, which are files of torch.save."""
    place = stored(source, info, False)
    content = _unpickled(source, place)
    if not isinstance(content, dict):
        raise source.error(place.start, "this is not a dict of tensors")
    kind: LeafKind = "array" if weights else "transient"
    return {str(name): (kind, value) for name, value in content.items() if isinstance(value, Stored | Opaque)}


def _unpickled(source: Source, place: Storage) -> Any:
    """What a file of torch.save in the archive describes."""
    part = PartSource(source, place.start, place.start + place.nbytes)
    part.limits = source.limits
    return read_content(part, entries(part))


def _listed(
    source: Source, zip_entries: dict[str, zipfile.ZipInfo], name: str, weights: bool
) -> dict[str, tuple[LeafKind, Any]]:
    info = zip_entries[name]
    place = stored(source, info, False)
    if place.nbytes > _MAX_LIST:
        raise source.error(info.header_offset, f"{name!a} has {place.nbytes:,} bytes; leafwise reads {_MAX_LIST:,}")
    text = bytes(place.read(0, place.nbytes))
    source.limits.spend_bytes(json_cost(text))
    try:
        config = json.loads(text)["config"]
        rows = [(str(key), row["path_name"], row["is_param"], row) for key, row in config.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise source.error(place.start, f"{name!a} is not a list of tensors") from error
    folder = name.rpartition("/")[0]
    checked = has_checksums(zip_entries)
    storages: dict[str, Storage] = {}
    arrays: dict[str, tuple[LeafKind, Any]] = {}
    source.limits.spend_steps(50 * len(rows))
    for key, file, is_parameter, row in rows:
        entry = zip_entries.get(f"{folder}/{file}")
        if entry is None:
            raise source.error(place.start, f"the values of {key!a} should be in {str(file)[:200]!a}, which is missing")
        if file not in storages:
            storages[file] = stored(source, entry, checked)
        kind: LeafKind = "transient" if not weights else "recorded" if is_parameter else "buffer"
        arrays[key] = kind, _array(source, key, row, storages[file], entry)
    return arrays


def _array(source: Source, name: str, row: dict[str, Any], storage: Storage, entry: zipfile.ZipInfo) -> Any:
    if row.get("use_pickle") or _OBJECT in entry.orig_filename:
        return _unpickled(source, storage)
    try:
        meta = row["tensor_meta"]
        dtype = _DTYPES.get(meta["dtype"], "")
        shape = tuple(size["as_int"] for size in meta["sizes"])
        steps = tuple(stride["as_int"] for stride in meta["strides"])
        offset, layout = meta["storage_offset"]["as_int"], meta["layout"]
    except (KeyError, TypeError) as error:
        raise source.error(entry.header_offset, f"the shape of {name!a} is not a list of numbers") from error
    if not is_shape(shape) or not is_shape([offset, *steps][:60]) or len(steps) != len(shape):
        raise source.error(entry.header_offset, f"the shape or the strides of {name!a} are not valid")
    if dtype not in ITEM_BYTES or layout != _STRIDED:
        reason = "its dtype or its layout is one that leafwise does not read"
        return Unreadable(spec_of(shape, "uint8", 0), reason)
    itemsize = ITEM_BYTES[dtype]
    reach = offset + sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) + 1
    spec = spec_of(shape, dtype, trainable=True if meta.get("requires_grad") else None)
    if spec.size and reach * itemsize > storage.nbytes:
        raise source.error(
            entry.header_offset, f"{name!a} needs {reach * itemsize:,} bytes but its file has {storage.nbytes:,}"
        )
    if spec.nbytes > storage.nbytes and not source.limits.allows_repeats(spec.nbytes - storage.nbytes):
        return Unreadable(spec, f"it is an expanded tensor: {storage.nbytes:,} bytes are stored")
    in_bytes = tuple(step * itemsize for step in steps)
    plain = None if in_bytes == c_strides(shape, itemsize) else in_bytes
    return Strided(spec, storage, offset * itemsize, plain)


def _tree(arrays: dict[str, tuple[LeafKind, Any]]) -> Opaque:
    """Nodes for the modules that the names describe."""
    root = Opaque("torch.export.ExportedProgram")
    leaves: dict[str, dict[LeafKind, list[tuple[str, Any]]]] = {}
    nodes: dict[str, Opaque] = {"": root}
    children: dict[str, list[tuple[str, Any]]] = {"": []}
    for name, (kind, value) in arrays.items():
        head, _, last = name.rpartition(".")
        _add_nodes(head, nodes, children)
        if isinstance(value, Stored):
            leaves.setdefault(head, {}).setdefault(kind, []).append((last, value))
        else:
            children[head].append((last, value))
    for head, node in nodes.items():
        node.content = tuple(leaves.get(head, {}).items()), children[head], "array"
    return root


def _add_nodes(head: str, nodes: dict[str, Opaque], children: dict[str, list[tuple[str, Any]]]) -> None:
    missing = []
    while head not in nodes:
        missing.append(head)
        head = head.rpartition(".")[0]
    for name in reversed(missing):
        nodes[name], children[name] = Opaque(""), []
        above, _, last = name.rpartition(".")
        children[above].append((last, nodes[name]))
