"""The home of files: an open file is a node, an array in it a leaf that knows where it lies."""

from operator import attrgetter
from typing import Any, Literal

from leafwise.core.flat import Group, split
from leafwise.core.home import Home, Memory, Spec, Visit
from leafwise.core.path import Entry
from leafwise.errors import Unsupported
from leafwise.files.arrays import Stored, Strided
from leafwise.files.source import Source


class StoredFile:
    """An opened file: its format, what it holds, and what its header says besides."""

    def __init__(
        self,
        source: Source,
        format_name: str,
        content: Any,
        metadata: dict[str, Any] | None = None,
        sources: dict[str, Source] | None = None,
    ) -> None:
        self.source = source
        self.path = source.name
        self.format = format_name
        self.content = content
        self.metadata = metadata or {}
        self.shard_of: dict[str, str] = {}
        self._sources = sources

    def __getitem__(self, name: str) -> Any:
        return self.content[name]

    @property
    def is_flat(self) -> bool:
        """Whether it holds nothing but arrays under dotted names."""
        if not isinstance(self.content, dict):
            return False
        kinds = set(map(type, self.content.values()))
        return set(map(type, self.content)) <= {str} and all(issubclass(kind, Stored) for kind in kinds)

    def close(self) -> None:
        """Lets go of the file; arrays that were read stay."""
        self.source.close()
        for source in (self._sources or {}).values():
            source.close()


class FilesHome(Home):
    name = "a file"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, Stored):
            return "leaf"
        return "node" if issubclass(cls, StoredFile) else None

    def visit(self, obj: StoredFile) -> Visit:
        if not obj.is_flat:
            return (), [("content", obj.content)], None
        children = split(obj.content.items()).children
        if obj.metadata:
            children.insert(0, ("__metadata__", obj.metadata))
        return (), children, None

    def wrapped_child(self, cls: type) -> str | None:
        return "content"

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if value is owner.metadata:
            return Entry(name, "step", raw=attrgetter("metadata"), spelling="{root}.metadata")
        if value is owner.content:
            return Entry(name, "attribute")
        return Entry(name, "part") if isinstance(value, Group) else Entry(name, "key", name)

    def type_name(self, obj: StoredFile) -> str:
        return obj.format

    # -- a leaf ----------------------------------------------------------------------------------------

    def spec(self, value: Stored) -> Spec:
        return value.spec

    def value(self, value: Stored) -> Any:
        return value.read()

    def numpy(self, value: Stored) -> Any:
        return value.read()

    def read(self, value: Stored, index: Any) -> Any:
        return value.read(index)

    def write(self, value: Any, array: Any) -> None:
        raise Unsupported(self.name, "be written in place", "load it, change it, and save it")

    # -- sharing ---------------------------------------------------------------------------------------

    def specs(self, values: list[Stored]) -> list[Spec]:
        return [value.spec for value in values]

    def storage(self, value: Stored) -> object | None:
        return id(value.storage) if isinstance(value, Strided) and value.storage.shared else None

    def storages(self, values: list[Stored]) -> list[object | None]:
        if not any(isinstance(value, Strided) and value.storage.shared for value in values):
            return [None] * len(values)
        return [self.storage(value) for value in values]

    def memory(self, value: Stored) -> Memory | None:
        return value.memory() if isinstance(value, Strided) else None


HOME = FilesHome()
