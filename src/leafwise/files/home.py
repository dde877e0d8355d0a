"""The home of files: an open file is a node, an array in it a leaf that knows where it lies."""

from operator import attrgetter
from typing import Any, Literal, NamedTuple

from leafwise.core.flat import Group, split
from leafwise.core.home import Home, Spec, Visit
from leafwise.core.path import Entry
from leafwise.errors import Unsupported


class StoredArray(NamedTuple):
    """An array at rest: what it is, and which bytes of the file it takes."""

    spec: Spec
    start: int
    stop: int


class StoredFile:
    """An opened file: its format, its arrays by raw name, and what its header says besides."""

    def __init__(self, path: str, format_name: str, arrays: dict[str, StoredArray], metadata: dict[str, str]) -> None:
        self.path = path
        self.format = format_name
        self.arrays = arrays
        self.metadata = metadata

    def __getitem__(self, name: str) -> StoredArray:
        return self.arrays[name]


class FilesHome(Home):
    name = "a file"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if cls is StoredArray:
            return "leaf"
        return "node" if cls is StoredFile else None

    def visit(self, obj: StoredFile) -> Visit:
        children = split(obj.arrays.items()).children
        if obj.metadata:
            children.insert(0, ("__metadata__", obj.metadata))
        return (), children, None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if value is owner.metadata:
            return Entry(name, "step", raw=attrgetter("metadata"), spelling="{root}.metadata")
        return Entry(name, "part") if isinstance(value, Group) else Entry(name, "key", name)

    def type_name(self, obj: StoredFile) -> str:
        return obj.format

    def spec(self, value: StoredArray) -> Spec:
        return value.spec

    def value(self, value: StoredArray) -> Any:
        raise Unsupported(self.name, "give values", "only its header has been read")

    def numpy(self, value: StoredArray) -> Any:
        return self.value(value)


HOME = FilesHome()
