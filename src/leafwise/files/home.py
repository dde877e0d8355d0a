"""The home of files: an open file is a node, and an array in it is a leaf that knows where its bytes are."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Literal

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.delegating import Delegating
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.dotted import VirtualNode, split
from leafwise.core.home import Axes, Capabilities, Home, LeafKind, Memory, Spec, Visit
from leafwise.core.opaque import Opaque
from leafwise.core.path import Entry
from leafwise.errors import Unsupported
from leafwise.files.arrays.stored import Stored, Strided, shared_storages
from leafwise.files.pickles.pickle_objects import StoredDeque
from leafwise.files.record import Role
from leafwise.files.stored_file import FileGroup, StoredFile


class FilesHome(Home):
    name = "a file"
    roles_by_name = True
    capabilities: ClassVar[Capabilities] = {
        Comparing: "leafwise.files.capabilities:FileComparing",
        Delegating: "leafwise.files.reading.delegating:FileDelegating",
        Measuring: "leafwise.files.capabilities:FileMeasuring",
        Saving: "leafwise.files.capabilities:FileSaving",
        Vetting: "leafwise.files.capabilities:FileVetting",
        Viewing: "leafwise.files.capabilities:FileViewing",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, Stored):
            return "leaf"
        return "node" if issubclass(cls, StoredFile | FileGroup | Opaque | StoredDeque) else None

    def visit(self, obj: "StoredFile | FileGroup | Opaque | StoredDeque") -> Visit | None:
        if isinstance(obj, FileGroup):
            return _by_kind(obj)
        if isinstance(obj, Opaque):
            return obj.content
        if isinstance(obj, StoredDeque):
            return ((), [(str(number), item) for number, item in enumerate(obj)], None) if obj.is_node else None
        metadata = [("__metadata__", obj.metadata)] if obj.metadata else []
        if not obj.is_flat:
            content = obj.content
            if isinstance(content, Opaque) and content.content is None:
                # Nothing but an object, such as the training_args.bin of transformers: its attributes are shown.
                content.content = (), [(str(name), value) for name, value in content.attributes.items()], None
            return (), [*metadata, ("content", content)], None
        record = obj.record
        if record is None:
            listing = obj.listing()
            if listing is not None:
                return (), [*metadata, ("", listing)], None
            root = split(obj.content.items())
        else:
            root = split([*obj.content.items(), *record.scalars.items()], lambda prefix: FileGroup(prefix, record))
        root.children[:0] = metadata
        return _by_kind(root) if isinstance(root, FileGroup) else ((), root.children, None)

    def wrapped_child(self, cls: type) -> str | None:
        return "content" if issubclass(cls, StoredFile) else None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, VirtualNode):
            return owner.entry(name, value)
        if isinstance(owner, StoredDeque):
            return Entry(name, "index", int(name))
        if isinstance(owner, StoredFile) and value is owner.metadata:
            return Entry(name, "step", raw=attrgetter("metadata"), spelling="{root}.metadata")
        if isinstance(owner, StoredFile) and value is owner.content:
            return Entry(name, "attribute")
        return Entry(name, "part") if isinstance(value, VirtualNode) else Entry(name, "key", name)

    def type_name(self, obj: "StoredFile | VirtualNode | Opaque | StoredDeque") -> str:
        if isinstance(obj, Opaque):
            return obj.class_name.rpartition(".")[2]
        if isinstance(obj, StoredDeque):
            return "deque"
        return "" if isinstance(obj, VirtualNode) else obj.format

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        record = owner.record if isinstance(owner, StoredFile | FileGroup) else None
        if record is None:
            return value.role, None
        role: Role = record.roles.get(owner.prefix + name if isinstance(owner, FileGroup) else name, (None, None))
        return role

    # -- a leaf ----------------------------------------------------------------------------------------

    def spec(self, value: Stored) -> Spec:
        return value.spec

    def specs(self, values: list[Stored]) -> list[Spec]:
        return [value.spec for value in values]

    def value(self, value: Stored) -> Any:
        return value.view()

    def cannot_read(self, value: Stored) -> str:
        return value.why_unreadable

    def read(self, value: Stored, index: Any = ()) -> Any:
        return value.read(index)

    def write(self, value: Any, array: Any) -> None:
        raise Unsupported(self.name, "be written in place", "load it, change it, and save it")

    # -- memory ----------------------------------------------------------------------------------------

    def storages(self, values: list[Stored]) -> list[object | None]:
        storages = zip(values, shared_storages(values), strict=True)
        return [None if storage is None or not value.spec.size else id(storage) for value, storage in storages]

    def memory(self, value: Stored) -> Memory | None:
        return value.tied_memory() if isinstance(value, Strided) else None


def _by_kind(group: FileGroup) -> Visit:
    """The leaves of a group, by the kind that the file records for them, and the other children."""
    kinds = group.record.kinds
    leaves: dict[LeafKind, list[tuple[str, Any]]] = {}
    others = []
    for name, value in group.children:
        if isinstance(value, Stored):
            leaves.setdefault(kinds.get(group.prefix + name, "array"), []).append((name, value))
        else:
            others.append((name, value))
    return tuple(leaves.items()), others, None


HOME = FilesHome()
