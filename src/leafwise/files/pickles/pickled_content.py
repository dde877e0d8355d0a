"""Which values inside an object that was not loaded are part of the tree.

An object without arrays is a plain value. An object with arrays is a node, and what leads to them is below it. A
PyTorch module is a node with the same parameters, buffers and submodules as when it was saved.
"""

from collections.abc import Callable
from typing import Any

from leafwise.core.dotted import DistinctNames, prefixes_of, split
from leafwise.core.home import LeafKind, Visit
from leafwise.core.opaque import MODULE_INTERNALS, Opaque
from leafwise.files.arrays.stored import Stored
from leafwise.files.pickles.pickle_objects import TensorParts

ContentOf = Callable[[Opaque, Callable[[Any], bool]], Visit | None]


def content_of(record: Opaque, has_arrays: Callable[[Any], bool]) -> Visit | None:
    """The leaves and children of an object; None if it is a plain value. `has_arrays` is whether a value is an array or
    contains one."""
    if record.is_module:
        return _module(record, has_arrays)
    if record.entries is not None:  # an object like a dict: its entries are worth showing, even without arrays
        return (), _entries(record, has_arrays), None
    if not any(map(has_arrays, record.parts())):
        return None
    children = [(str(name), value) for name, value in record.attributes.items() if has_arrays(value)]
    if not children and has_arrays(record.state):
        children.append(("state", record.state))
    children += _items_and_arguments(record, has_arrays)
    return (), _distinct(children), "array" if isinstance(record, TensorParts) else None


def _module(record: Opaque, has_arrays: Callable[[Any], bool]) -> Visit:
    attributes = record.attributes
    parameters, buffers = attributes["_parameters"].items(), attributes["_buffers"].items()
    unsaved = attributes.get("_non_persistent_buffers_set")
    unsaved = unsaved if isinstance(unsaved, set | frozenset) else frozenset()
    leaves: dict[LeafKind, list[tuple[str, Any]]] = {"recorded": [], "buffer": [], "transient": []}
    children: list[tuple[str, Any]] = []
    for name, value in parameters:
        _place(str(name), value, leaves["recorded"], children)
    for name, value in buffers:
        _place(str(name), value, leaves["transient" if name in unsaved else "buffer"], children)
    children += [(str(name), module) for name, module in attributes["_modules"].items() if module is not None]
    # A tensor that is a plain attribute is not part of the state dict, just as a buffer that is not saved.
    others = [
        (str(name), value) for name, value in attributes.items() if name not in MODULE_INTERNALS and has_arrays(value)
    ]
    if others:
        taken = {name for name, _ in children} | {name for pairs in leaves.values() for name, _ in pairs}
        # After the modules, whose parameters they may refer to.
        children += [(name, value) for name, value in others if name not in taken]
    return tuple(leaves.items()), children, "transient"


def _place(name: str, value: Any, leaves: list[tuple[str, Any]], children: list[tuple[str, Any]]) -> None:
    if isinstance(value, Stored):
        leaves.append((name, value))
    elif value is not None:
        children.append((name, value))


def _entries(record: Opaque, has_arrays: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    assert record.entries is not None
    children = [(str(key), value) for key, value in record.entries.items()]
    dotted = {name for name, _ in children if "." in name}
    others = {name for name, value in children if not isinstance(value, Stored)}
    if dotted and others.isdisjoint(dotted | prefixes_of(dotted)):  # a state dict of another class
        children = split(_distinct(children)).children
    if has_arrays(record.state):
        children.append(("state", record.state))
    return _distinct(children + _items_and_arguments(record, has_arrays))


def _items_and_arguments(record: Opaque, has_arrays: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    named = [*enumerate(record.items or ()), ("args", record.args), ("keywords", record.keywords)]
    return [(str(name), value) for name, value in named if has_arrays(value)]


def _distinct(children: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Children whose names differ, also where 1 and "1" are both keys, or an attribute is called `args`."""
    names = DistinctNames()
    return [(names.of(name, type(value).__name__), value) for name, value in children]
