"""Nodes of pytrees that are registered with JAX: Equinox modules, `flax.struct` dataclasses, and classes of users.

Only their dynamic content is shown, as JAX flattens it; static fields are part of the type. Dicts, lists, tuples and
named tuples are shown by `homes.containers`.
"""

import re
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from jax._src import tree_util as _tree_util  # JAX has no public list of the types that are registered

from leafwise.core import registry as homes
from leafwise.core.capabilities.converting import Converting
from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.capabilities.tying import Tying
from leafwise.core.dotted import DistinctNames
from leafwise.core.hidden_arrays import Search
from leafwise.core.home import Axes, Capabilities, Home, Visit
from leafwise.core.path import Entry
from leafwise.homes.jax.roles import is_equinox_state, role_of

_LIBRARIES = ("flax.nnx.", "equinox.nn.")
_CONTAINERS = frozenset({tuple, list, dict, type(None), OrderedDict, defaultdict})


class Child(NamedTuple):
    """A child of a node as JAX flattens it: its name in paths, the key of JAX, and the child itself."""

    name: str
    key: Any
    value: Any


def is_registered(cls: type) -> bool:
    """Whether JAX flattens objects of this class, other than those of plain containers."""
    return cls in _tree_util._registry and cls not in _CONTAINERS


def is_optax_state(cls: type) -> bool:
    """Whether objects of this class are states of optax, most of which are named tuples."""
    return cls.__module__.partition(".")[0] == "optax" and (hasattr(cls, "_fields") or is_registered(cls))


def flattened(obj: Any) -> tuple[list[Child], Any]:
    """The children of a registered node, and the structure that puts them together again."""
    keyed, structure = jax.tree_util.tree_flatten_with_path(obj, is_leaf=lambda child: child is not obj)
    if len(keyed) == 1 and not keyed[0][0]:
        return [], structure  # JAX considers this object a leaf
    names = DistinctNames()
    known = _names_of_state(obj, structure)
    return [
        Child(names.of(*(_name(path[0]) if known is None else (known[number], "str"))), path[0], value)
        for number, (path, value) in enumerate(keyed)
    ], structure


def _names_of_state(obj: Any, structure: Any) -> list[str] | None:
    """The names of the children of an `eqx.nn.State`, which JAX only numbers: the paths of the indices in the model, as
    `eqx.nn.make_with_state` records them, without the class of the model. None for other nodes."""
    if not is_equinox_state(obj):
        return None
    markers = structure.node_data()[1]
    if not all(isinstance(marker, str) for marker in markers):
        return None
    paths = [re.sub(r"\[['\"]?(.*?)['\"]?\]", r".\1", re.sub(r"^\w+", "", marker)) for marker in markers]
    return [path.removeprefix(".") for path in paths]


def _name(key: Any) -> tuple[str, str]:
    """The name of a key of JAX, and the name of its type, which distinguishes equal names."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return str(value), type(value).__name__
    return str(key), type(key).__name__


class PytreeRebuilding(Rebuilding):
    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        children, structure = flattened(owner)
        if all(child.value is changes.get(child.name, child.value) for child in children):
            return owner
        new = [changes.get(child.name, child.value) for child in children]
        return jax.tree_util.tree_unflatten(structure, new)


class PytreeConverting(Converting):
    def framework(self, cls: type) -> str:
        equinox = sys.modules.get("equinox")
        return "Equinox" if equinox is not None and issubclass(cls, (equinox.Module, equinox.nn.State)) else ""


class LayerFilling(Filling):
    """Layers of Flax NNX and Equinox begin with the values of PyTorch's layers, so that equal paths get equal values.
    Arrays are replaced as a whole, also those in the Variables of NNX."""

    @property
    def by_parts(self) -> bool:
        return False

    def is_stock(self, owner: Any) -> bool:
        """Whether a layer is one of the library's own, or derived from one without another `__init__`."""
        made_by = next((base for base in type(owner).__mro__ if "__init__" in vars(base)), object)
        return made_by.__module__.startswith(_LIBRARIES)


class PytreeHome(Home):
    name = "jax pytrees"
    walks = "pytrees of JAX, such as Equinox modules and variable dicts of Flax Linen"
    nodes_by_reference = False
    roles_by_class = True
    capabilities: ClassVar[Capabilities] = {
        Converting: PytreeConverting,
        Filling: LayerFilling,
        Rebuilding: PytreeRebuilding,
        Saving: "leafwise.homes.jax.values.reading:JaxSaving",
        Stepping: "leafwise.homes.jax.training:JaxStepping",
        Tying: "leafwise.homes.jax.value_tying:ValueTying",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if is_registered(cls) or is_optax_state(cls) else None

    def visit(self, obj: Any) -> Visit | None:
        every_child = [(child.name, child.value) for child in flattened(obj)[0]]
        if is_optax_state(type(obj)):
            return (), every_child, "state"
        children = [(name, value) for name, value in every_child if not _is_code(value)]
        return (), children, "buffer" if is_equinox_state(obj) else None  # running statistics and caches

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        position, key = next(
            (position, child.key) for position, child in enumerate(flattened(owner)[0]) if child.name == name
        )
        if isinstance(key, jax.tree_util.SequenceKey):
            return Entry(name, "index", key.idx)
        if isinstance(key, jax.tree_util.DictKey):
            return Entry(name, "key", key.key)
        if isinstance(key, jax.tree_util.GetAttrKey):
            return Entry(name, "attribute")
        leaves = f"jax.tree.leaves({{root}}, is_leaf=lambda child: child is not {{root}})[{position}]"
        return Entry(name, "step", _Numbered(name), spelling=leaves)

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        return role_of(owner, name, value, lineage)


class _Numbered(NamedTuple):
    """Fetches a child that has only a number among the children of its node."""

    name: str

    def __call__(self, obj: Any) -> Any:
        return next(child.value for child in flattened(obj)[0] if child.name == self.name)


def _is_code(value: Any) -> bool:
    """Whether a child is a function, such as the activation of a layer, or None: nothing that a checkpoint contains. An
    object that can be called is one only if it holds no arrays."""
    if value is None:
        return True
    if not callable(value) or homes.find(type(value)) is not None:
        return False
    is_of_jax = type(value).__module__.startswith(("jax.", "jaxlib."))  # a jitted function, or one with own derivatives
    return is_of_jax or Search(set()).array_in(value) is None


HOME = PytreeHome()
