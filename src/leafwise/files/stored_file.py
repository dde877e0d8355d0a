"""An opened file, and groups of names in it: the nodes in the tree of a file."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from leafwise.core.dotted import Listing, VirtualNode
from leafwise.files.arrays.stored import Placed, Stored
from leafwise.files.checksums import checksum
from leafwise.files.record import HeaderRecord
from leafwise.files.sources.source import Source

if TYPE_CHECKING:
    from leafwise.files.pickles.pickle_objects import PickleNames
    from leafwise.kernels.listing import DottedNames

_SAMPLE = 4096  # bytes
MANY = 2_000  # arrays; fewer are listed in less time than it takes to load the C code


class StoredFile:
    """An opened file: its format, its content, and the metadata of its header."""

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
        self.index_path = ""  # of the index that lists the shards, if there is one
        self.record: HeaderRecord | None = None  # leafwise's own entry, if leafwise wrote the file
        self.is_numbered = False  # whether the arrays have no names in the file, and are called 0, 1, 2 …
        self.seal = ""  # a checksum that differs if any value does; empty if the header does not say that much
        self.bound = self.unbound = 0  # shards whose seal an index lists, and shards without one
        self.without_checksums: tuple[str, ...] = (format_name,)  # formats of files whose arrays have no checksums
        self.further_checks: list[Callable[[], None]] = []  # compare checksums of what is not in arrays
        self.unread_objects: list[Callable[[], object]] = []  # read the pickles of objects that are only listed
        self._sources = {} if sources is None else sources  # not a copy: reading a piece may add its file

    def add_sources(self, sources: dict[str, Source]) -> None:
        """Adds further files that it consists of."""
        self._sources = {**self._sources, **sources}

    @property
    def sources(self) -> list[Source]:
        """All files that it consists of."""
        return list(dict.fromkeys((self.source, *self._sources.values())))

    def __getitem__(self, name: str) -> Any:
        if self.record is not None and name in self.record.scalars:
            return self.record.scalars[name]
        return self.content[name]

    @property
    def identity(self) -> str:
        """A text that is the same for two copies of a checkpoint, and differs if their values differ. Without a seal,
        it depends on a few bytes of each file: reading all of them would take as long as loading the checkpoint."""
        if self.seal:
            return f"{self.format} with checksum {self.seal}"
        by_name = {source.name: source for source in self.sources}
        sample = bytearray()
        for source in by_name.values():
            sample += source.size.to_bytes(8, "big")
            for start in (source.size // 4, source.size // 2, source.size - _SAMPLE):
                sample += source.read(max(start, 0), min(max(start, 0) + _SAMPLE, source.size))
        return f"{self.format} with checksum {checksum(bytes(sample))} of a sample"

    @property
    def is_flat(self) -> bool:
        """Whether it contains only arrays, with dotted names."""
        if not isinstance(self.content, dict):
            return False
        kinds = set(map(type, self.content.values()))
        return set(map(type, self.content)) <= {str} and all(issubclass(kind, Stored) for kind in kinds)

    def read_objects(self) -> None:
        """Reads the pickles of objects that opening the file leaves out, so that `pickle_names` is complete."""
        unread, self.unread_objects = self.unread_objects, []
        for read in unread:
            read()

    @property
    def pickle_names(self) -> "PickleNames":
        """The classes and functions that the pickles in the file refer to, by module and name, and what is done with
        them."""
        names: PickleNames = {}
        for source in self.sources:
            for named, use in source.pickle_names.items():
                names[named] = use.combined(names.get(named))
        return names

    def file_names(self) -> list[str]:
        """The paths of the files that it consists of."""
        names = [source.name for source in self.sources]
        return list(dict.fromkeys([*([self.index_path] if self.index_path else []), *names]))

    def changes(self) -> dict[str, str]:
        """What has happened, since they were opened, to the files that it consists of, by their paths: "changed" or
        "gone", which is also said of a file that another has replaced. Asks nothing of remote files."""
        happened: dict[str, str] = {}
        for source in self.sources:
            if source.was_changed():
                happened[source.name] = "changed"
            elif source.is_local and source.is_gone():
                happened[source.name] = "gone"
        return happened

    @property
    def is_local(self) -> bool:
        """Whether all files are on this machine."""
        return all(source.is_local for source in self.sources)

    def listing(self) -> Listing | None:
        """Its arrays with the nodes that their names describe, if it has so many that this saves time."""
        if len(self.content) < MANY:
            return None
        from leafwise.kernels.listing import dotted_names

        names = dotted_names("".join([f"{name}\n" for name in self.content]), len(self.content))
        return None if names is None else Listing(names.columns(), list(self.content.values()))

    def close(self) -> None:
        """Closes the file; arrays that were read stay valid."""
        for source in self.sources:
            source.close()


class ListedFile(StoredFile):
    """An opened file with so many arrays that C code listed them, and split their names. The arrays are in the order of
    the names."""

    is_flat = True

    def __init__(
        self, source: Source, format_name: str, names: "DottedNames", arrays: list[Placed], metadata: dict[str, Any]
    ) -> None:
        super().__init__(source, format_name, None, metadata)
        del self.content  # it is made below, when somebody asks for it
        self._names, self._arrays = names, arrays

    @cached_property
    def content(self) -> dict[str, Placed]:
        return dict(zip(self._names.text[:-1].split("\n"), self._arrays, strict=True))

    def listing(self) -> Listing:
        return Listing(self._names.columns(), self._arrays)


class FileGroup(VirtualNode):
    """Names with a common prefix in a file that leafwise wrote, with the record of their kinds and roles."""

    __slots__ = ("record",)

    def __init__(self, prefix: str, record: HeaderRecord) -> None:
        super().__init__(prefix)
        self.record = record
