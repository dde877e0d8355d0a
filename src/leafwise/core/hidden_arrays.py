"""Objects that hold arrays although leafwise does not know their class, such as a Keras variable: the walk takes them
for plain values, so a verb would silently leave their arrays out."""

import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import ItemsView, Iterator, Set, ValuesView
from typing import TYPE_CHECKING, Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.home import Home
from leafwise.core.path import quote

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

_MOST_OBJECTS = 200_000  # that are searched in one tree

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), range, slice)
_NEVER_SEARCHED = (
    *_PLAIN,
    type,
    property,
    weakref.ref,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FunctionType,
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.MethodType,
    types.MethodWrapperType,
    types.ModuleType,
    types.WrapperDescriptorType,
)
_WITHOUT_ARRAYS = ("leafwise.", "logging.", "numpy.random.", "threading.")

# What to pass instead of an object, by its package.
_INSTEAD = {
    "keras": "pass {v.path: v.numpy() for v in model.variables}",
    "penzai": "pass its unbound parameters, pz.unbind_params(layer, freeze=True)",
    "flax": "pass its variables, not the module",
    "h5py": "pass a dict of its datasets, {name: data[...]}",
    "pandas": "pass its arrays, such as .to_numpy()",
    "scipy": "pass its arrays: .data, .indices and .indptr",
}
_OTHERWISE = "pass a dict of its arrays, or leave it out"


def hidden_arrays(columns: "Columns", root: int) -> dict[str, str]:
    """The objects in a tree that hold arrays which the walk did not find: the reason, by path. What is also in the tree
    itself does not count, so a scheduler or a trainer beside its model is harmless."""
    nodes = range(root, columns.node_ends[root])
    unknown = [place for place in columns.scalars if place[0] in nodes and not isinstance(place[2], _PLAIN)]
    empty = list(_nodes_without_leaves(columns, root))
    if not unknown and not empty:
        return {}
    search = Search({*map(id, columns.row_values), *map(id, columns.node_objects)})
    reasons = {}
    for node in empty:
        if (array := search.array_in(columns.node_objects[node])) is not None:
            reasons[columns.node_text(node)] = _reason(columns.node_objects[node], array)
    for node, name, value in unknown:
        if (array := search.array_in(value)) is not None:
            above = columns.node_text(node)
            reasons[f"{above}.{quote(name)}" if above else quote(name)] = _reason(value, array)
    return reasons


def _nodes_without_leaves(columns: "Columns", root: int) -> Iterator[int]:
    """Containers without any leaf, of a class that may hold arrays in other attributes than its items."""

    def may_hold_more(home: Home, obj: Any) -> bool:
        is_plain = type(obj) in (dict, list, tuple) or home.roles_by_class
        return not is_plain and home.capability(Rebuilding).is_container(obj)

    for node in columns.nodes_where(may_hold_more, root):
        first, last = columns.row_ranges[node]
        if first >= last:
            yield node


def _reason(obj: Any, array: type) -> str:
    cls = type(obj)
    packages = [base.__module__.partition(".")[0] for base in (*cls.__mro__, *array.__mro__)]
    instead = next((_INSTEAD[package] for package in packages if package in _INSTEAD), _OTHERWISE)
    if isinstance(obj, Iterator | ItemsView | ValuesView | Set | deque):
        instead = "pass a dict or a list of them"
    if array is cls:
        return f"leafwise does not know arrays of class {_name(cls)}; {instead}"
    return f"this {_name(cls)} holds arrays ({_name(array)}) that leafwise does not find; {instead}"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


class Search:
    """Searches objects for arrays. `known` are the identities of what is not searched."""

    def __init__(self, known: set[int]) -> None:
        self._seen = known
        self._left = _MOST_OBJECTS
        self._kept: list[Any] = []  # so that no other object gets the identity of one that was seen
        self._is_array: dict[type, bool] = {}

    def array_in(self, value: Any) -> type | None:
        """The type of the first array that an object is or refers to; None if there is none."""
        waiting = deque([value])
        while waiting and self._left:
            obj = waiting.popleft()
            if isinstance(obj, _NEVER_SEARCHED) or f"{type(obj).__module__}.".startswith(_WITHOUT_ARRAYS):
                continue
            self._left -= 1
            if self._holds_numbers(obj):
                return type(obj)
            for referent in gc.get_referents(obj):
                if id(referent) not in self._seen and not isinstance(referent, _PLAIN):
                    self._seen.add(id(referent))
                    self._kept.append(referent)
                    waiting.append(referent)
        return None

    def _holds_numbers(self, obj: Any) -> bool:
        cls = type(obj)
        if cls not in self._is_array:
            handled = homes.find(cls)
            self._is_array[cls] = (handled is not None and handled[1] == "leaf") or _is_array_like(cls)
        return self._is_array[cls] and str(getattr(obj, "dtype", "")) != "object"


def _is_array_like(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.generic):
        return False  # a single number
    is_buffer = cls is memoryview or (cls.__module__ == "array" and cls.__name__ == "array")
    has_values = any(hasattr(cls, name) for name in ("__array__", "__dlpack__", "data_ptr"))
    return is_buffer or has_values or (hasattr(cls, "shape") and hasattr(cls, "dtype"))
