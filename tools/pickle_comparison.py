"""Compares the tree of a pickle with the object that the pickle's own loader returns; for tools/random_pickles.py.

Some classes count as equal to the built-in one that leafwise shows instead: numbers and text of NumPy, an OrderedDict,
defaultdict, Counter or Namespace (a dict), a torch.Size (a tuple), a bytearray (bytes), paths, devices, layouts (text).
"""

import argparse
import copyreg
import itertools
import pickle
import struct
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from tools.checkpoint_kinds.truth import Bits

import leafwise as lw
from leafwise.core.columns import Columns
from leafwise.core.dotted import VirtualNode
from leafwise.core.path import Entry
from leafwise.files.arrays.stored import Stored
from leafwise.files.pickles.pickle_objects import GlobalName, StoredBytes, StoredDeque
from leafwise.results import Opaque

_MOST_LOOKUPS = 100  # paths of a tree that are looked up
_PLAIN = (bool, int, float, complex, str, type(None))
_TEXTS = (PurePath, torch.device, torch.layout)  # shown as text
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


class Record(NamedTuple):
    """What a pickle says about an object: the class or function that makes it, its arguments, and what is then added.
    Of a class or function itself, only the name."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: Collection[Any] = ()
    entries: tuple[tuple[Any, Any], ...] = ()

    @classmethod
    def of(cls, value: Any, protocol: int) -> "Record":
        if isinstance(value, _NAMED):
            return cls(_name(value))
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(protocol) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return cls(f"{pickle.whichmodule(value, reduced)}.{reduced}")  # type: ignore[attr-defined]
        make, args, state, items, entries = (*reduced, None, None, None)[:5]
        if _name(make) == "copyreg.__newobj__":
            make, *args = args
        elif _name(make) == "copyreg._reconstructor":  # the class, the built-in class below it, and the value of that
            make, _, content = args
            items = content if isinstance(content, list) else ()
            entries = content.items() if isinstance(content, dict) else ()
            args = () if content is None or isinstance(content, list | dict) else [content]
        return cls(_name(make), tuple(args), state, list(items or ()), tuple(entries or ()))


def _name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


class Comparison:
    """`truth` is the object that the file's own loader returns. `problems` are the differences; `is_opaque` is whether
    some values are shown only by the name of their class or dtype. `protocol_in_arrays` is the protocol of the objects
    in arrays."""

    def __init__(self, t: lw.Tree, truth: Any, protocol: int, protocol_in_arrays: int, keeps_ties: bool) -> None:
        self.problems: list[str] = []
        self.is_opaque = False
        self._columns, self._protocol, self._protocol_in_arrays = t.columns, protocol, protocol_in_arrays
        self._leaves = {id(value): t.columns.leaf_of(row) for row, value in enumerate(t.columns.row_values)}
        self._arrays: dict[int, list[Any]] = {}  # those of `truth`, by the identity of the array that is shown
        self._seen: set[tuple[int, int]] = set()
        self._kept: list[Any] = []  # so that no identity is used twice
        content: Any = t.columns.node_objects[0].content
        self._compare(truth, content, "the root")
        if not self.problems:  # if a value differs, what is below it may be missing, too
            self.problems += self._problems_of_rows()
            self.problems += self._problems_of_ties(keeps_ties)
            self.problems += _problems_of_places(t)
            self.problems += _problems_of_nodes(t.columns)
            names = {class_name for _, class_name in t.opaque}
            self.problems += [f"{name} is not in t.opaque" for name in _outermost(content, set()) - names]

    # -- values --------------------------------------------------------------------------------------------

    def _compare(self, truth: Any, shown: Any, at: str) -> None:
        """Compares a value with what is shown in its place, and everything below it."""
        if type(truth) not in _PLAIN:
            if (id(truth), id(shown)) in self._seen:
                return
            self._seen.add((id(truth), id(shown)))
            self._kept.append(truth)
            truth = _as_shown(truth, shown)
        if type(truth) in _PLAIN:
            is_right = type(truth) is type(shown) and _bits(truth) == _bits(shown)
        else:
            is_right = self._rule(truth, shown)(truth, shown, at)
        if not is_right:
            self.problems.append(f"{at} is {_short(shown)}, and was {_short(truth)}")

    def _rule(self, truth: Any, shown: Any) -> Callable[[Any, Any, str], bool]:
        rules: list[tuple[Any, Callable[[Any, Any, str], bool]]] = [
            ((torch.Tensor, np.ndarray), self._is_unread_array if isinstance(shown, Opaque) else self._is_array),
            ((torch.UntypedStorage, torch.TypedStorage), self._is_storage),
            ((set, frozenset), self._is_set),
            # Not the text itself, because both may be keys of one dict.
            (_TEXTS if type(shown) is not str and isinstance(shown, str) else (), _is_text),
            (range, lambda truth, shown, _: type(shown) is range and truth == shown),
            (dict if type(truth) is dict else (), self._has_entries),  # not an object of a class derived from dict
            (bytes, self._is_data),
            ((list, tuple, deque) if type(truth) in (list, tuple, deque) else (), self._has_items),
            (np.dtype if type(shown).__name__ == "NumpyDtype" else (), _is_dtype),
        ]
        return next((rule for kinds, rule in rules if isinstance(truth, kinds)), self._is_object)

    def _has_items(self, truth: Any, shown: Any, at: str) -> bool:
        is_same_kind = type(shown) in (type(truth), StoredDeque if type(truth) is deque else type(truth))
        if not is_same_kind or getattr(truth, "maxlen", None) != getattr(shown, "maxlen", None):
            return False
        for number, (item, shown_item) in enumerate(zip(truth, shown, strict=False)):
            self._compare(item, shown_item, f"{at}.{number}")
        return len(truth) == len(shown)

    def _has_entries(self, truth: dict[Any, Any], shown: Any, at: str) -> bool:
        if not isinstance(shown, dict):
            return False
        if len(truth) != len(shown):
            self.problems.append(f"{at} has {len(shown)} keys of {len(truth)}, which are {list(truth)!r:.200}")
            return True
        for (key, value), (shown_key, shown_value) in zip(truth.items(), shown.items(), strict=True):
            self._compare(key, _in_wrapper(shown_key), f"a key of {at}")
            self._compare(value, shown_value, f"{at}.{_short(key)}")
        return True

    def _is_set(self, truth: Collection[Any], shown: Any, at: str) -> bool:
        name, items = type(truth).__name__, shown
        if isinstance(shown, Opaque):
            self.is_opaque = True
            items = [*(shown.args[0] if shown.args else ()), *(shown.items or ())]
            shown_name = shown.class_name.rpartition(".")[2]
        else:
            shown_name = type(shown).__name__
        if name != shown_name or len(truth) != len(items):
            return False
        if all(type(item) in (int, str) for item in truth):
            return {(type(item), item) for item in truth} == {(type(item), item) for item in items}
        left = list(items)
        for item in truth:
            match = next((number for number, one in enumerate(left) if self._matches(item, one)), None)
            if match is None:
                return False
            del left[match]
        return True

    def _matches(self, item: Any, shown: Any) -> bool:
        count, seen = len(self.problems), set(self._seen)
        self._compare(item, _in_wrapper(shown), "an item of a set")
        if len(self.problems) == count:
            return True
        del self.problems[count:]
        self._seen = seen
        return False

    def _is_data(self, truth: bytes, shown: Any, at: str) -> bool:
        if isinstance(shown, StoredBytes):
            self.is_opaque = True
            return bytes(shown.storage.read(0, len(shown))) == truth
        return isinstance(shown, bytes) and shown == truth

    def _is_object(self, truth: Any, shown: Any, at: str) -> bool:
        record = Record.of(truth, self._protocol)
        if isinstance(shown, GlobalName):  # a class, function or dtype
            return str(shown) == record.name and record.args == ()
        if not isinstance(shown, Opaque):
            return False
        self.is_opaque = True
        self._compare(record.args, shown.args, f"{at} (arguments)")
        is_empty = isinstance(record.state, dict) and not record.state  # which sets nothing
        if not is_empty or shown.state is not None:
            self._compare(record.state, shown.state, f"{at} (state)")
        self._compare(list(record.items), shown.items or [], f"{at} (items)")
        self._compare(dict(record.entries), shown.entries or {}, f"{at} (entries)")
        return shown.class_name == record.name and not shown.keywords

    def _is_storage(self, truth: Any, shown: Any, at: str) -> bool:
        self.is_opaque = True
        untyped = truth.untyped() if isinstance(truth, torch.TypedStorage) else truth
        stored = getattr(shown, "storage", None)
        return stored is not None and bytes(stored.read(0, stored.nbytes)) == bytes(untyped.tolist())

    def _is_unread_array(self, truth: Any, shown: Opaque, at: str) -> bool:
        """Whether an array is shown by its dtype and shape, because it does not consist of numbers that have a name."""
        self.is_opaque = True
        if not isinstance(truth, np.ndarray) or _is_number(truth.dtype):
            return False
        if shown.class_name.endswith("._frombuffer"):  # of protocol 5
            return _is_dtype(truth.dtype, shown.args[1], at) and shown.args[2] == truth.shape
        code = truth.dtype.__reduce__()[1][0]
        if code[:1] == "O":
            outside, self._protocol = self._protocol, self._protocol_in_arrays
            self._compare(truth.ravel().tolist(), shown.items, f"{at} (items)")
            self._protocol = outside
        return (shown.class_name, shown.args[:2]) == ("numpy.ndarray", (truth.shape, code))

    def _is_array(self, truth: Any, shown: Any, at: str) -> bool:
        if not isinstance(shown, Stored):
            return False
        leaf = self._leaves.get(id(shown))
        if leaf is None:  # only a key is not in the tree
            self.is_opaque = True
            return at.startswith("a key of ")
        self._arrays.setdefault(id(shown), []).append(truth)
        # A copy, because PyTorch takes a dimension of one element for contiguous, whatever its stride.
        copied = (
            truth.detach().clone(memory_format=torch.contiguous_format) if isinstance(truth, torch.Tensor) else truth
        )
        trains = truth.requires_grad if isinstance(truth, torch.nn.Parameter) else None
        bits = Bits.of(copied)
        if (leaf.dtype, leaf.shape, shown.spec.trainable) != (bits.dtype, bits.shape, trains):
            return False
        try:
            return Bits.of(leaf.numpy()).digest == bits.digest
        except lw.Error:
            self.is_opaque = True
            return True

    # -- arrays in the tree --------------------------------------------------------------------------------

    def _problems_of_rows(self) -> Iterator[str]:
        for row, value in enumerate(self._columns.row_values):
            if id(value) not in self._arrays:
                yield f"{self._columns.row_path(row)} is in the tree, but not in the object"
        for number, arrays in self._arrays.items():
            if any(array is not arrays[0] for array in arrays):
                yield f"{self._leaves[number].path} is one array, and was several"

    def _problems_of_ties(self, keeps_ties: bool) -> Iterator[str]:
        columns = self._columns
        rows = [(row, self._arrays.get(id(value), [None])[0]) for row, value in enumerate(columns.row_values)]
        elements = {id(array): _elements(array) for _, array in rows if array is not None}
        overlaps = [set(members) for members, _ in columns.overlaps]
        for (row, array), (other, partner) in itertools.combinations(rows, 2):
            if array is None or partner is None:
                continue
            leaves = {columns.ties.get(row, row), columns.ties.get(other, other)}
            first, second = elements[id(array)], elements[id(partner)]
            paths = f"{columns.row_path(row)} and {columns.row_path(other)}"
            if array is not partner and first.isdisjoint(second):
                if len(leaves) == 1:
                    yield f"{paths} are tied, but were not"
            elif keeps_ties and len(leaves) > 1:
                is_view = (first <= second or second <= first) and _is_conjugated(array) == _is_conjugated(partner)
                if is_view or not any(leaves <= members for members in overlaps):
                    yield f"{paths} share memory, and are not tied"


# -- the tree ----------------------------------------------------------------------------------------------------


def _problems_of_places(t: lw.Tree) -> Iterator[str]:
    """Whether each path leads to one place, and plain values are those of Python or described."""
    columns = t.columns
    nodes = [node for node, value in enumerate(columns.node_objects) if not isinstance(value, VirtualNode)]
    paths = [columns.node_path(node) for node in nodes if not columns.hidden(node)]
    paths += [columns.row_path(row) for row in range(len(columns.row_values))]
    values = [(columns.scalar_path(*scalar), scalar[2]) for scalar in columns.scalars]
    counts = Counter(map(str, [*paths, *(path for path, _ in values)]))
    yield from (f'two places are called "{path}"' for path, count in counts.items() if count > 1)
    for number, (path, value) in enumerate(values):
        is_internal = type(value).__module__.startswith("leafwise.")
        if is_internal and not isinstance(value, Opaque | StoredDeque | str | dict):
            yield f'"{path}" is a {type(value).__name__} of leafwise'
        if number < _MOST_LOOKUPS and t[path] is not value:
            yield f'what is at "{path}" is not found there'


def _problems_of_nodes(columns: Columns) -> Iterator[str]:
    """Whether the node of each container has exactly the items of the container."""
    inside = defaultdict[int, list[tuple[Entry, Any]]](list)

    def add(node: int, entry: Entry, value: Any) -> None:
        while isinstance(columns.node_objects[node], VirtualNode):
            node = columns.node_parents[node]
        inside[node].append((entry, value))

    for node, value in enumerate(columns.node_objects):
        if node and not isinstance(value, VirtualNode):
            add(columns.node_parents[node], columns.node_entries(node)[-1], value)
    for row, value in enumerate(columns.row_values):
        add(columns.row_nodes[row], columns.row_path(row).entries[-1], value)
    for node, name, value in columns.scalars:
        add(node, columns.scalar_path(node, name, value).entries[-1], value)
    file = columns.node_objects[0]
    for node, container in enumerate([file.content if file.is_flat else None, *columns.node_objects[1:]]):
        if node in columns.listed_elsewhere:
            is_complete = columns.node_objects[columns.repeats[node]] is container
        elif isinstance(container, dict | list | tuple | deque):
            pairs = container.items() if isinstance(container, dict) else enumerate(container)
            is_complete = {entry.raw: id(value) for entry, value in inside[node]} == {
                key: id(item) for key, item in pairs
            }
        else:
            is_complete = True
        if not is_complete:
            yield f'"{columns.node_path(node)}" has other items in the tree than in the file'


def _outermost(value: Any, seen: set[int]) -> set[str]:
    """The classes of the objects in containers."""
    if isinstance(value, Opaque):
        return {value.class_name}
    if not isinstance(value, dict | list | tuple | deque) or id(value) in seen:
        return set()
    seen.add(id(value))
    return set().union(*(_outermost(item, seen) for item in (value.values() if isinstance(value, dict) else value)))


# -- single values -----------------------------------------------------------------------------------------------


def _as_shown(truth: Any, shown: Any) -> Any:
    """A value as the built-in kind that leafwise shows instead."""
    if isinstance(truth, np.generic) and (truth.dtype.kind in "SU" or _is_number(truth.dtype)):
        item = truth.item()
        return shown if item != item and shown != shown else item
    if isinstance(truth, argparse.Namespace | types.SimpleNamespace) and isinstance(shown, dict):
        return vars(truth)
    kinds = {torch.Size: tuple, bytearray: bytes, OrderedDict: dict, defaultdict: dict, Counter: dict}
    return kinds.get(type(truth), lambda same: same)(truth)


def _in_wrapper(shown: Any) -> Any:
    """A key that takes long to hash, or that would be equal to another key as text, is inside an object with the name
    of its own class. Color(1) is no such key: it is not 1."""
    if not isinstance(shown, Opaque) or len(shown.args) != 1:
        return shown
    inner = shown.args[0]
    class_name = "torch.Tensor" if isinstance(inner, Stored) else f"builtins.{type(inner).__name__}"
    return inner if shown.class_name == getattr(inner, "class_name", class_name) else shown


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _is_text(truth: Any, shown: Any, at: str) -> bool:
    return str(truth) == str(shown)


def _is_dtype(truth: Any, shown: Any, at: str) -> bool:
    return bool(truth.__reduce__()[1][0] == shown.code)


def _bits(value: Any) -> Any:
    numbers = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return [struct.pack(">d", number) if isinstance(number, float) else number for number in numbers]


def _elements(array: Any) -> set[int]:
    """The addresses of its elements."""
    if isinstance(array, torch.Tensor):
        address, strides = array.data_ptr(), [stride * array.element_size() for stride in array.stride()]
    else:
        address, strides = array.__array_interface__["data"][0], list(array.strides)
    addresses = np.array([address])
    for size, stride in zip(array.shape, strides, strict=True):
        addresses = np.unique(addresses[:, None] + np.arange(size) * stride)
    return set(addresses.tolist())


def _is_conjugated(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and array.is_conj()


def _short(value: Any) -> str:
    try:
        return f"{value!r:.60} ({type(value).__name__})"
    except Exception:
        return f"a {type(value).__name__}"
