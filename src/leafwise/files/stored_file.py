"""An opened file, and the groups of names in it: the nodes of a tree of files."""

from typing import Any

from leafwise.core.flat import Group
from leafwise.files.arrays import Stored
from leafwise.files.record import HeaderRecord
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
        self.record: HeaderRecord | None = None  # what leafwise said of it, where leafwise wrote it
        self.seal = ""  # the checksum of its header, where leafwise wrote it
        self.bound = self.unbound = 0  # how many of its shards an index holds to what they were, and how many none does
        self.without_checksums: tuple[str, ...] = (format_name,)  # what holds arrays whose bytes nothing can prove
        self._sources = sources

    def __getitem__(self, name: str) -> Any:
        if self.record is not None and name in self.record.scalars:
            return self.record.scalars[name]
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


class FileGroup(Group):
    """A common front of names in a file that leafwise wrote, which says more of them than their bytes."""

    __slots__ = ("record",)

    def __init__(self, front: str, record: HeaderRecord) -> None:
        super().__init__(front)
        self.record = record
