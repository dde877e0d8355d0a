"""Plain containers: dicts, lists, tuples and dataclasses that contain models, optimizers or arrays."""

from collections.abc import Callable, Collection, Mapping, MutableMapping
from copy import copy
from typing import Any, ClassVar, Literal

from leafwise.core import registry as homes
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.dotted import DistinctNames, VirtualNode, prefixes_of, split
from leafwise.core.home import MANY_VALUES, Axes, Capabilities, Home, Visit
from leafwise.core.opaque import Opaque, StoredText
from leafwise.core.path import Entry, Path
from leafwise.core.roles.sections import is_optimizer_state

_PLAIN = frozenset({str, StoredText, int, float, complex, bool, bytes, type(None)})


class ContainerRebuilding(Rebuilding):
    def is_container(self, obj: Any) -> bool:
        return not isinstance(obj, VirtualNode)

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        if isinstance(owner, VirtualNode):
            return owner  # it represents keys of the mapping above it, which is changed itself
        if isinstance(owner, Mapping):
            return _changed_mapping(owner, changes)
        if _is_sequence(owner):
            return _changed_sequence(owner, changes)
        return _changed_fields(owner, changes)

    def replaced_copy(self, owner: Any, changes: dict[str, Any]) -> Any:
        if isinstance(owner, MutableMapping | list):
            owner = copy(owner)
        elif not isinstance(owner, Mapping | tuple | VirtualNode):
            return _changed_fields(owner, changes, copied=True)
        return self.replace(owner, changes)


class ContainerSaving(Saving):
    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        if isinstance(obj, VirtualNode):
            return None
        kind = type(obj)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if not isinstance(obj, Mapping):
            return name, None
        if all(type(key) is str and "." not in key for key in obj):
            return None if kind is dict else (name, None)
        return name, tuple(_keys_by_name(obj).items())


_MOST_KNOWN = 32  # mappings


class ContainersHome(Home):
    name = "containers"
    walks = "dicts, lists, tuples and dataclasses that contain these or arrays"
    capabilities: ClassVar[Capabilities] = {Rebuilding: ContainerRebuilding, Saving: ContainerSaving}
    nodes_by_reference = False
    _known_keys: ClassVar[dict[tuple[int, int], dict[str, Any]]] = {}

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, Mapping | list | tuple | VirtualNode) or hasattr(cls, "__dataclass_fields__"):
            return "node"
        return None

    def visit(self, obj: Any) -> Visit | None:
        if isinstance(obj, VirtualNode):
            return (), obj.children, None
        if isinstance(obj, Mapping):
            if len(obj) > MANY_VALUES and _PLAIN.issuperset(map(type, obj.values())):
                return None  # a vocabulary, say, is one plain value, not hundreds of thousands
            return _visit_mapping(obj) if obj else None
        if _is_sequence(obj):
            # [3, 4] and [] are plain values; only a list with something to walk is a node.
            if _PLAIN.issuperset(map(type, obj)):
                return None
            return (), [(str(index), item) for index, item in enumerate(obj)], None
        names = getattr(obj, "_fields", None)
        if names is None:
            from dataclasses import fields  # already imported, because there is a dataclass

            names = [field.name for field in fields(obj)]
        return (), [(name, getattr(obj, name)) for name in names], None

    def visitor(self, cls: type, path_of: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        return self._visit_dict if cls is dict else self.visit

    def _visit_dict(self, obj: dict[Any, Any]) -> Visit | None:
        """`visit` for a dict; fast if its keys are plain names, as those of almost all dicts in a pytree of JAX."""
        try:
            if obj and len(obj) <= MANY_VALUES and "." not in "\n".join(obj):
                return (), obj.items(), "state" if "param_groups" in obj and "state" in obj else None
        except TypeError:
            pass  # not all keys are text
        return self.visit(obj)

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, VirtualNode):
            return owner.entry(name, value)
        if isinstance(owner, Mapping):
            if isinstance(value, VirtualNode):
                return Entry(name, "part")
            return Entry(name, "key", name if name in owner else self._key(owner, name))
        if _is_sequence(owner):
            return Entry(name, "index", int(name))
        return Entry(name, "attribute")

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        home = homes.home_of(value)
        return home.role(owner, name, value, lineage) if home.roles_by_name else (None, None)

    def _key(self, owner: Mapping[Any, Any], name: str) -> Any:
        """The key with this name in a path. Those of the last mappings, which are usually inside each other, are kept,
        since they are asked next."""
        known, which = self._known_keys, (id(owner), len(owner))
        keys = known.get(which)
        if keys is None or keys.get(name, self) not in owner:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            keys = known[which] = _keys_by_name(owner)
        return keys[name]

    def type_name(self, obj: Any) -> str:
        return "" if isinstance(obj, VirtualNode) else type(obj).__name__


def _changed_mapping(owner: Mapping[Any, Any], changes: dict[str, Any]) -> Any:
    new = {key: changes[name] for name, key in _keys_by_name(owner).items() if name in changes}
    new = {key: value for key, value in new.items() if owner[key] is not value}
    if new and isinstance(owner, MutableMapping):
        owner.update(new)
        return owner
    make: Any = type(owner)
    return make({**owner, **new}) if new else owner


def _changed_sequence(owner: Any, changes: dict[str, Any]) -> Any:
    new = {int(name): value for name, value in changes.items() if owner[int(name)] is not value}
    if not new:
        return owner
    if isinstance(owner, list):
        for index, value in new.items():
            owner[index] = value
        return owner
    return type(owner)(new.get(index, item) for index, item in enumerate(owner))


def _changed_fields(owner: Any, changes: dict[str, Any], copied: bool = False) -> Any:
    """For a named tuple or a dataclass. With `copied`, the owner itself stays as it is."""
    if all(value is getattr(owner, name) for name, value in changes.items()):
        return owner
    if hasattr(owner, "_fields"):
        return owner._replace(**changes)
    owner = copy(owner) if copied or type(owner).__dataclass_params__.frozen else owner
    for name, value in changes.items():
        object.__setattr__(owner, name, value)
    return owner


def _is_sequence(obj: Any) -> bool:
    """A list or tuple, but not a named tuple, whose fields have names of their own."""
    return isinstance(obj, list | tuple) and not hasattr(obj, "_fields")


def _visit_mapping(obj: Mapping[Any, Any]) -> Visit:
    kind: Literal["state"] | None = "state" if is_optimizer_state(obj.keys()) else None
    items: Collection[tuple[str, Any]] = list(obj.items())  # of some classes, this can be iterated over only once
    items_of_other_keys: list[tuple[str, Any]] = []
    if set(map(type, obj)) - {str}:
        named = _keys_by_name(obj).items()
        items = [(name, obj[key]) for name, key in named if isinstance(key, str)]
        items_of_other_keys = [(name, obj[key]) for name, key in named if not isinstance(key, str)]
    if "." in "\n".join([name for name, _ in items]) and _is_flat(items):
        items = split(items).children
    return (), [*items, *items_of_other_keys] if items_of_other_keys else items, kind


def _is_flat(items: Collection[tuple[str, Any]]) -> bool:
    """Whether dotted keys lead directly to arrays, as in a state dict.

    If a prefix of a dotted key is also the key of a nested dict or of a plain value, keys are not split, because two
    values could then have the same path.
    """
    kinds: dict[type, str | None] = {}  # type → "node", "leaf" or None
    nested = set()
    flat = False
    for key, value in items:
        if type(value) not in kinds:
            handled = homes.find(type(value))
            kinds[type(value)] = None if handled is None else handled[1]
        kind = kinds[type(value)]
        if kind != "leaf":
            nested.add(key)
        elif "." in key:
            flat = True
    return flat and (not nested or nested.isdisjoint(prefixes_of(key for key, _ in items)))


def _keys_by_name(obj: Mapping[Any, Any]) -> dict[str, Any]:
    """The keys of a mapping by the names that paths give them. Where 1 and "1" are both keys, "1" keeps its name, and 1
    is called "1 (int)"."""
    names = DistinctNames()
    keys: dict[str, Any] = {names.of(key, "str"): key for key in obj if isinstance(key, str)}
    others = [key for key in obj if not isinstance(key, str)]
    keys |= {names.of(str(key), "" if isinstance(key, Opaque) else type(key).__name__): key for key in others}
    return keys


HOME = ContainersHome()
