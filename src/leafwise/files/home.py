"""The home of files: an open file is a node, an array in it a leaf that knows where it lies."""

from operator import attrgetter
from typing import Any, Literal

from leafwise.core.flat import Group, split
from leafwise.core.home import Home, Memory, Spec, Visit
from leafwise.core.memory import Op
from leafwise.core.path import Entry
from leafwise.errors import Unsupported
from leafwise.files.arrays import InMemory, Stored, Strided, Unreadable
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
        return value.tied_memory() if isinstance(value, Strided) else None

    def same_bits(self, a: Stored, b: Stored) -> bool:
        return a.spec[:2] == b.spec[:2] and _bits(a) == _bits(b)

    def fingerprint(self, value: Stored) -> tuple[int, bool] | None:
        import numpy as np

        if isinstance(value, Unreadable) or not value.spec.size:
            return None
        array = np.ascontiguousarray(value.read())
        words = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(array.itemsize, "u1")
        bits = array.reshape(-1).view(words)
        return int(bits.sum(dtype=np.uint64)), bool((array.reshape(-1) == array.reshape(-1)[0]).all())

    def seen_through(self, value: Stored, op: Op) -> Stored:
        seen = value.read(op.slices or ())
        seen = seen if op.order is None else seen.transpose(op.order)
        return InMemory(value.spec._replace(shape=seen.shape, size=seen.size, nbytes=seen.nbytes), lambda: seen)


def _bits(value: Stored) -> bytes:
    import numpy as np

    return np.ascontiguousarray(value.read()).tobytes()


HOME = FilesHome()
