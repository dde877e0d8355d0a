"""TorchScript archives: a zip with the source code of the classes, a pickle of the module, and one of the constants.

The module is shown as the tree of its parameters, buffers and submodules. Its code is read only to find out which
attributes are parameters and which are buffers; it is not run.
"""

import ast
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
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
# Loading an archive runs the __setstate__ of its classes, which may read and write files. Words of the code, without
# comments and the ends of lines: texts, names, and other characters.
_WORDS = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*)|\#[^\n]*|\\\r?\n|(\S)""", re.DOTALL)
_FILES = re.compile(r"save|load|from_file|\w*(?:file|save|write|exec|system)\w*")
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
    code = [name for name in zip_entries if name.startswith(f"{prefix}code/")]
    known = {f"{prefix}data.pkl", f"{prefix}constants.pkl", *code}
    return opened_zip(source, "TorchScript", content, zip_entries, known)


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
        if not name.startswith(folder) or name.endswith(".debug_pkl"):
            continue
        left -= info.file_size
        if left < 0:
            raise source.error(info.header_offset, f"the archive contains more than {_MAX_CODE:,} bytes of code")
        module = name.removeprefix(folder).removesuffix(".py").replace("/", ".")
        code = str(_unpacked(source, info), "utf-8", "replace")
        source.limits.spend_steps(len(code) // 64)
        for named in _file_operators(code):
            source.pickle_names.setdefault(named, Usage())
        for match in _CLASS.finditer(code):
            source.limits.spend_bytes(4 * len(match[0]) + 1000)
            try:
                parameters, buffers = (frozenset(map(str, ast.literal_eval(match[part]))) for part in (2, 3))
            except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
                raise source.error(info.header_offset, f"the code in {name!a} cannot be read") from error
            declared[f"{module}.{match[1]}"] = parameters, buffers
    return declared


def _file_operators(code: str) -> Iterator[tuple[str, str]]:
    """The operators in some code that read or write files, however they are spelled."""
    if not any(word in code for word in ("save", "load", "file", "write", "exec", "system", "getattr")):
        return
    words = [word or sign for word, sign in _WORDS.findall(code) if word or sign]
    for number, word in enumerate(words):
        if number > 1 and words[number - 1] == "." and _FILES.fullmatch(word):
            if _first_of(words, number - 2) in ("torch", "ops"):
                yield "torch" if word in ("save", "load", "from_file") else "torch.ops", word
        elif word == "getattr":
            # Modules in lists are reached like this, because their names are numbers.
            texts = [text for text in words[number : number + 16] if text[0] in "\"'"][:1]
            if not texts or "\\" in texts[0] or _FILES.fullmatch(texts[0][1:-1]):
                yield "torch", "save"


def _first_of(words: list[str], last: int) -> str:
    """The first name of what is before a dot, such as `torch` in `torch.ops.aten` and in `(torch)`."""
    while last >= 0 and words[last] == ")":
        last -= 1
    while last >= 2 and words[last - 1] == ".":
        last -= 2
        while last >= 0 and words[last] == ")":
            last -= 1
    return words[last] if last >= 0 else ""


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
