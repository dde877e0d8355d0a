"""TorchScript archives: a zip with the source code of the classes, a pickle of the module, and one of the constants.

The module is shown as the tree of its parameters, buffers and submodules. Its code is read only to find out which
attributes are parameters and which are buffers; it is not run.
"""

import ast
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from leafwise.core.home import LeafKind, Visit
from leafwise.core.opaque import Opaque
from leafwise.files.arrays.stored import Stored
from leafwise.files.formats.torch_zip import opened_zip, start_of, unpickled
from leafwise.files.pickles import pickled_content
from leafwise.files.pickles.pickle_objects import Table, UnexpectedArgumentsError, Usage
from leafwise.files.pickles.torch_objects import TABLE as TORCH_TABLE
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile

_MAX_CODE = 64 << 20  # bytes of code in all
_CLASS = re.compile(
    r"^class (\w+)\(Module\):\n  __parameters__ = (\[[^\]\n]*\])\n  __buffers__ = (\[[^\]\n]*\])$", re.MULTILINE
)
# Calls that read or write files. Loading an archive runs the __setstate__ of its classes.
_FILES = re.compile(
    r"\b(?:torch|ops\s*\.\s*aten)\s*\.\s*(save|load|from_file)\s*\("
    r"|\bops\s*\.\s*(\w+)\s*\.\s*(\w*(?:file|save|write|exec|system)\w*)\s*\("
)
_OPERATORS = re.compile(rb"aten::(save|from_file)")  # their names in the bytecode for phones
Declared = dict[str, tuple[frozenset[str], frozenset[str]]]  # class → its parameters and its buffers


def _list(items: Any = (), *_: Any) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise UnexpectedArgumentsError("a list is made from unexpected arguments")
    return list(items)


TABLE: Table = {
    **TORCH_TABLE,
    **{
        ("torch.jit._pickle", f"build_{kind}list"): _list
        for kind in ("int", "double", "bool", "tensor", "complexdouble")
    },
    ("torch.jit._pickle", "restore_type_tag"): lambda value=None, *_: value,
}


def read(source: Source, zip_entries: dict[str, zipfile.ZipInfo], prefix: str) -> StoredFile:
    """Opens the archive; the directory, the pickles and the code are read."""
    declared = _declared(source, zip_entries, f"{prefix}code/")

    def content_of(record: Opaque, has_arrays: Callable[[Any], bool]) -> Visit | None:
        known = declared.get(record.class_name)
        if known is None:
            return pickled_content.content_of(record, has_arrays)
        return _module(record, *known, declared, has_arrays)

    for name, info in zip_entries.items():
        if name.endswith(".pkl") and "bytecode" in name:
            for match in _OPERATORS.finditer(_unpacked(source, info)):
                source.pickle_names.setdefault(("torch", str(match[1], "ascii")), Usage())
    content = unpickled(source, zip_entries, prefix, TABLE, content_of)
    constants = unpickled(source, zip_entries, prefix, TABLE, content_of, "constants")
    if constants:
        content = _with_constants(content, constants)
    return opened_zip(source, "TorchScript", content, zip_entries)


def _with_constants(content: Any, constants: Any) -> Any:
    if not isinstance(content, Opaque) or content.content is None:
        return {"module": content, "constants": constants}
    leaves, children, kind = content.content
    taken = {name for name, _ in children} | {name for _, pairs in leaves for name, _ in pairs}
    name = "constants" if "constants" not in taken else "constants of the archive"
    content.content = leaves, [*children, (name, constants)], kind
    return content


def _module(
    record: Opaque,
    parameters: frozenset[str],
    buffers: frozenset[str],
    declared: Declared,
    has_arrays: Callable[[Any], bool],
) -> Visit:
    leaves: dict[LeafKind, list[tuple[str, Any]]] = {"recorded": [], "buffer": [], "transient": []}
    children: list[tuple[str, Any]] = []
    for key, value in record.attributes.items():
        name = str(key)
        if isinstance(value, Stored):
            kind: LeafKind = "recorded" if name in parameters else "buffer" if name in buffers else "transient"
            leaves[kind].append((name, value))
        elif has_arrays(value) or (isinstance(value, Opaque) and value.class_name in declared):
            children.append((name, value))
    return tuple(leaves.items()), children, "transient"


def _declared(source: Source, zip_entries: dict[str, zipfile.ZipInfo], folder: str) -> Declared:
    """The parameters and buffers of each class, from the code in the archive."""
    declared: Declared = {}
    left = _MAX_CODE
    for name, info in zip_entries.items():
        if not name.startswith(folder) or not name.endswith(".py"):
            continue
        left -= info.file_size
        if left < 0:
            raise source.error(info.header_offset, f"the archive contains more than {_MAX_CODE:,} bytes of code")
        module = name.removeprefix(folder).removesuffix(".py").replace("/", ".")
        code = str(_unpacked(source, info), "utf-8", "replace")
        source.limits.spend_steps(len(code) // 64)
        for match in _FILES.finditer(code):
            named = ("torch", match[1]) if match[1] else (f"torch.ops.{match[2]}", match[3])
            source.pickle_names.setdefault(named, Usage())
        for match in _CLASS.finditer(code):
            source.limits.spend_bytes(4 * len(match[0]) + 1000)
            try:
                parameters, buffers = (frozenset(map(str, ast.literal_eval(match[part]))) for part in (2, 3))
            except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
                raise source.error(info.header_offset, f"the code in {name!a} cannot be read") from error
            declared[f"{module}.{match[1]}"] = parameters, buffers
    return declared


def _unpacked(source: Source, info: zipfile.ZipInfo) -> bytes:
    start = start_of(source, info)
    packed = bytes(source.read(start, start + info.compress_size))
    source.limits.spend_bytes(len(packed) + info.file_size)
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        return packed
    try:
        if info.compress_type != zipfile.ZIP_DEFLATED or info.flag_bits & 1:
            raise zlib.error("it is encrypted, or compressed by an unknown method")
        return zlib.decompressobj(-15).decompress(packed, info.file_size + 1)
    except zlib.error as error:
        raise source.error(start, f"the entry {info.orig_filename!a} cannot be unpacked ({error})") from error
