"""What leafwise knows about a format, in one record; the formats that it comes with, and those of other packages.

`FORMATS` is the table. A package adds a format with an entry point of the group `leafwise.formats`, which leads to its
`Format`. Such formats are asked after those in the table, and only about what none of these recognizes.
docs/extending.md shows how to write one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.path import escape
from leafwise.core.registry import from_packages
from leafwise.errors import warn

if TYPE_CHECKING:
    from leafwise.files.stored_file import StoredFile

FIRST_BYTES = 64  # what `recognizes` gets to see
# Protocols 0 and 1 of pickle have no magic number. This is how their dicts, lists, tuples, names and objects begin.
PICKLE = re.compile(
    rb"\x80[\x02-\x05]|[}\]]q|c[\w.]+\n[\w.]+\n|\((?:[dlt]p?\d*\n?|[SV].*\n|I\d+\n|[ci][\w.]+\n|[K-MGJ]|[}\]]q|U|X)"
)
# The magic number of PyTorch before 1.6, as a pickle of any protocol; the later ones begin with the length of a frame.
TORCH_MAGIC = re.compile(rb"\x80(?:[\x02\x03]|[\x04\x05]\x95\x0d\0{7})\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)


class Format(NamedTuple):
    """A format of files or folders, and the functions that read and write it.

    `read`, `write` and `dtypes` may be given as "module:name", which is imported on first use. `read(source)` checks
    what it relies on, raises `source.error(offset, cause)`, and returns a `StoredFile` with the name of the format. It
    also gets the entries of a zip, by name; for a format that is a folder, it gets the `Folder` instead.
    """

    name: str  # as `leafwise show` prints it
    tool: str  # whose format it is
    read: "Callable[..., Any] | str"
    # How the format is recognized; one of the three.
    recognizes: Callable[[bytes, int], bool] | None = None  # the first 64 bytes of a file, and its size
    in_zip: Callable[[Collection[str]], bool] | None = None  # the names of the entries of a zip
    in_folder: Callable[[Collection[str]], bool] | None = None  # the names of the files and folders in a folder
    suffixes: tuple[str, ...] = ()  # of its files; by these, a checkpoint in a folder is found
    is_general: bool = False  # such files may contain anything; one is used if a folder has no others
    # For a format that stores nothing but arrays: `write(items, path, progress)`, and what it calls the dtypes it has.
    write: "Callable[..., None] | str | None" = None
    dtypes: "Collection[str] | str" = ()
    saved_by: str = ""  # what to use instead of `lw.save`, which refuses names with these suffixes, if it is special

    def claims(self, how: str, *what: Any) -> bool:
        """Whether the function `how` recognizes a file, the entries of a zip, or a folder."""
        try:
            return bool(getattr(self, how) and getattr(self, how)(*what))
        except Exception as error:  # a package must not keep files of others from being opened
            warn(escape(f"{how} of the format {self.name} raised {type(error).__name__}: {error}; it is left out"))
            return False

    def opened(self, *where: Any) -> "StoredFile":
        return _resolved(self.read)(*where)  # type: ignore[no-any-return]

    def written(self, *what: Any) -> None:
        _resolved(self.write)(*what)

    @property
    def instead_of_save(self) -> str:
        """What to write such a file with instead of `lw.save`."""
        if self.saved_by:
            return self.saved_by
        if self.write is not None:
            return f"leafwise convert for a {self.suffixes[0]} file"
        return f"{self.tool} to write its own files"

    def cannot_store(self, dtype: str) -> str:
        """Why the format cannot store arrays of a dtype; empty if it can."""
        return "" if dtype in _resolved(self.dtypes) else f"{self.name} has no dtype {dtype}; cast it to another"


def _resolved(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


def _begins_with(magic: bytes) -> Callable[[bytes, int], bool]:
    return lambda start, size: start.startswith(magic)


def _has_entry(*last: str) -> Callable[[Collection[str]], bool]:
    return lambda names: any(name.rpartition("/")[2] in last for name in names)


_HERE = "leafwise.files.formats"
SAFETENSORS = Format("safetensors", "Hugging Face", f"{_HERE}.safetensors:read", suffixes=(".safetensors",))

# In this order, they are asked about a file, and in this order an error lists their suffixes.
FORMATS = (
    SAFETENSORS,  # recognized before all others, by `detect`
    Format(
        "PyTorch zip", "PyTorch", f"{_HERE}.torch_zip:read", in_zip=_has_entry("data.pkl"),
        suffixes=(".bin", ".pt", ".pth", ".ckpt"), saved_by="torch.save for a pickle",
    ),
    Format(
        "npz", "NumPy", f"{_HERE}.numpy_files:read_npz",
        in_zip=lambda names: all(name.endswith(".npy") for name in names),
        suffixes=(".npz",), is_general=True, saved_by="leafwise convert for an .npz file",
        write=f"{_HERE}.numpy_files:write_npz", dtypes=f"{_HERE}.numpy_files:CODES",
    ),
    Format(
        "torch.export", "torch.export", f"{_HERE}.torch_export:read",
        in_zip=_has_entry("archive_format", "serialized_state_dict.pt", "serialized_exported_program.json"),
        suffixes=(".pt2",), is_general=True, saved_by="torch.export.save for a program",
    ),
    Format(
        "npy", "NumPy", f"{_HERE}.numpy_files:read_npy", _begins_with(b"\x93NUMPY"),
        suffixes=(".npy",), is_general=True, saved_by="numpy.save for a single array",
    ),
    Format(
        "GGUF", "GGUF", f"{_HERE}.gguf_file:read", _begins_with(b"GGUF"), suffixes=(".gguf",),
        saved_by="llama.cpp to convert a safetensors file to GGUF",
    ),
    Format(
        "MXNet params", "MXNet", f"{_HERE}.mxnet_params:read",
        _begins_with((0x112).to_bytes(8, "little") + bytes(8)),
        suffixes=(".params",),
        write=f"{_HERE}.mxnet_params:write", dtypes=f"{_HERE}.mxnet_params:CODES",
    ),
    Format(
        "PyTorch, before 1.6", "PyTorch", f"{_HERE}.pickle_files:read_legacy",
        lambda start, size: TORCH_MAGIC.match(start) is not None,
    ),
    Format(
        "pickle", "pickle", f"{_HERE}.pickle_files:read", lambda start, size: PICKLE.match(start) is not None,
        suffixes=(".pkl", ".pickle"), is_general=True, saved_by="pickle.dump for a pickle",
    ),
    Format(
        "DCP", "PyTorch", "leafwise.files.dcp.opening:read", in_folder=lambda names: ".metadata" in names
    ),
    Format(
        "Orbax", "Orbax", "leafwise.files.orbax.opening:read",
        in_folder=lambda names: "_METADATA" in names or "_CHECKPOINT_METADATA" in names,
    ),
    Format(
        "diffusers pipeline", "diffusers", "leafwise.files.folders.pipeline:read",
        in_folder=lambda names: "model_index.json" in names,
    ),
)  # fmt: skip

# Formats that leafwise comes with, and that are added as those of other packages are.
_ADDED = (f"{_HERE}.flax_msgpack:FORMAT",)


def added_formats(of_packages: bool = True) -> Iterator[Format]:
    """The formats that are asked after those of the table: those of installed packages are the last."""
    yield from map(_resolved, _ADDED)
    if of_packages:
        yield from from_packages("leafwise.formats", Format)


def all_formats(name: str = "") -> Iterator[Format]:
    """The formats that a file of this name may have: one with a suffix of leafwise is never that of a package."""
    yield from FORMATS
    yield from added_formats(of_packages=not name.lower().endswith(suffixes_of(FORMATS)))


def suffixes_of(formats: Iterable[Format]) -> tuple[str, ...]:
    return tuple(suffix.lower() for known in formats for suffix in known.suffixes)


def format_of_suffix(path: str) -> Format | None:
    """The format to which a file belongs by its name."""
    return next((known for known in all_formats() if path.lower().endswith(suffixes_of([known]))), None)
