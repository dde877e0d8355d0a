"""What reading a pickle costs, in bytes of memory and steps of work, so that a small file cannot take up gigabytes.

The numbers of bytes were measured and rounded up.
"""

import sys
from collections import deque
from typing import Any, NamedTuple

from leafwise.core.home import MANY_VALUES
from leafwise.core.opaque import Digests, Opaque
from leafwise.files.arrays.stored import Stored
from leafwise.files.limits import Limits, names_cost
from leafwise.files.pickles.pickle_objects import StoredDeque, UnfinishedArray, UnpicklingError, shown
from leafwise.files.pickles.pickled_content import ContentOf

MAX_DEPTH = 100  # nested containers
MAX_OBJECT_DEPTH = 1_000  # nested containers and opaque objects
CONTAINERS = (dict, list, tuple, set, deque)
_NESTING = (*CONTAINERS, frozenset, Opaque)
_NUMBERS = frozenset({int, float, bool, complex, type(None)})
_FLAT = _NUMBERS | {str, bytes}

SLOT_BYTES = 9  # a place on the stack, or in a list
DICT_ENTRY_BYTES = 60
SET_ENTRY_BYTES = 110
ARRAY_BYTES = 400  # the description of an array
_TEXT_BYTES = 60  # a string, without its characters
_MEMO_BYTES = 9  # an entry of the memo, if they are numbered consecutively
FAR_MEMO_BYTES = 110  # an entry of the memo with another number
OBJECT_BYTES = 220  # the description of an opaque object
_WALKED_BYTES = 90  # what the walk stores for a value
_ENTRY_BYTES = 16  # an entry of a path, without its characters
_LONG_KEY = 60  # characters
_LONG_PATHS = 15  # how often verbs copy paths
_NUMBER_BYTES = 110  # what the walk, or a listing as JSON, allocates for a number

METHOD_STEPS = 4  # an opcode with its own method, in addition to the one step that every opcode takes
CALL_STEPS = 25
_CONTAINER_STEPS = 50  # looking at a container, and comparing it
ARRAY_STEPS = 200  # listing an array that is made in two steps, and comparing it
OBJECT_STEPS = 100  # the same for an opaque object
LOOKUP_STEPS = 6  # looking up a name, or accessing a dict
_ROW_STEPS = 120  # showing a value again
_COPY_STEPS = 8  # copying one entry of a large collection
_LARGE_ENTRIES = 64  # entries; a collection with more is large

# Bytes that each opcode allocates, without those that its method counts.
OPCODE_BYTES = [SLOT_BYTES] * 256
for _codes, _bytes in (
    ("qrp\x94", _MEMO_BYTES),
    ("XVSTUBC", SLOT_BYTES + _TEXT_BYTES),
    ("\x8c\x8d\x8e\x96", SLOT_BYTES + _TEXT_BYTES),
    ("JMILG", SLOT_BYTES + 32),
    ("]l", SLOT_BYTES + 72),
    ("}d", SLOT_BYTES + 180),
    ("\x8f\x91", SLOT_BYTES + 232),
    ("\x85\x86\x87t", SLOT_BYTES + 80),
    ("R\x81\x92", SLOT_BYTES + 64),
    ("0", 0),
):
    for _code in _codes:
        OPCODE_BYTES[ord(_code)] = _bytes


def count_argument(value: Any, limits: Limits) -> None:
    """Counts what it costs to copy an argument of a call."""
    if isinstance(value, (*CONTAINERS, frozenset)):
        limits.spend_steps(_COPY_STEPS * len(value) if len(value) > _LARGE_ENTRIES else len(value))
        entry = SET_ENTRY_BYTES if isinstance(value, dict | set | list) else SLOT_BYTES
        limits.spend_bytes(entry * len(value))
    elif isinstance(value, str | bytes):
        limits.spend_bytes(sys.getsizeof(value))


class Cost(NamedTuple):
    """What a value costs that was surveyed."""

    bytes: int  # that the walk and a listing allocate for it and for everything in it
    rows: int  # the values that have paths of their own: it, and those in it
    path_bytes: int  # of these paths, as far as they are inside it


_ONE_ROW = Cost(0, 1, 0)


class Survey:
    """Goes through the result of a pickle, from the innermost containers to the outermost. Raises if it is nested too
    deeply, or expands to too much. Finds out which opaque objects are nodes of the tree, because the others cost
    nothing.

    Counts what the walk and a listing allocate for it: a few containers that are referred to again and again expand to
    very many.
    """

    def __init__(self, limits: Limits, content_of: ContentOf) -> None:
        self.limits, self.content_of = limits, content_of
        self.costs: dict[int, Cost] = {}  # by identity, of finished containers
        self.with_arrays: set[int] = set()  # ids of finished containers with arrays inside
        self.with_objects: set[int] = set()  # containers with opaque objects inside, at any depth
        self.digests = Digests()  # shared by all opaque objects of the file
        self.once = self.once_rows = 0
        self._counted: set[int] = set()  # ids of what is in keys of dicts

    def run(self, value: Any) -> None:
        limits = self.limits
        if isinstance(value, UnfinishedArray) and value.state is None:
            raise UnpicklingError("the array was never given its values")
        # Containers to look at, each with its depth and, once they are on the way, what is inside them.
        stack: list[tuple[Any, int, Any]] = [(value, 1, None)]
        open_ids: set[int] = set()  # ids of the containers that contain the current one
        while stack:
            container, depth, inside = stack.pop()
            if inside is not None:
                open_ids.discard(id(container))
                self._finish(container, inside)
                continue
            if id(container) in self.costs or id(container) in open_ids or not isinstance(container, _NESTING):
                continue  # a container inside itself is shown once by the walk
            inside = _parts(container)
            limits.spend_steps(len(inside) + (OBJECT_STEPS if isinstance(container, Opaque) else _CONTAINER_STEPS))
            open_ids.add(id(container))
            if depth > MAX_DEPTH or len(open_ids) > MAX_OBJECT_DEPTH:
                raise UnpicklingError(f"containers are nested more than {MAX_DEPTH} deep")
            stack.append((container, depth, inside))
            # What is inside an opaque object is not printed with what is outside, so it may again be as deep.
            deeper = 1 if isinstance(container, Opaque) else depth + 1
            # Nothing is inside an empty container. Modules have a dozen of them, for their hooks.
            below = {id(item): item for item in inside if item.__class__ not in _FLAT and item}
            for item in below.values():
                if item.__class__ is tuple and _NUMBERS.issuperset(map(type, item)):
                    limits.spend_steps(len(item) + _CONTAINER_STEPS)
                    self._note_cost(item, *_cost(item, self.costs, limits))
                elif isinstance(item, _NESTING):
                    stack.append((item, deeper, None))
        cost = self.costs.get(id(value), _ONE_ROW)
        limits.spend_bytes(cost.bytes)
        limits.spend_repeats(cost.bytes - self.once)
        limits.spend_steps(_ROW_STEPS * (cost.rows - self.once_rows))
        limits.spend_paths(cost.path_bytes)

    def has_arrays(self, value: Any) -> bool:
        return id(value) in self.with_arrays or isinstance(value, Stored)

    def _finish(self, container: Any, parts: Any) -> None:
        if any(map(self.has_arrays, parts)):
            self.with_arrays.add(id(container))
        has_keys = isinstance(container, dict) and not _FLAT.issuperset(map(type, container))
        keys = [key for key in container if isinstance(key, Opaque)] if has_keys else []
        for key in keys:
            key.digests = self.digests
            self._count_key(key)
        if keys or any(isinstance(part, Opaque) or id(part) in self.with_objects for part in parts):
            self.with_objects.add(id(container))
        if isinstance(container, Opaque):
            container.digests = self.digests
            container.content = self.content_of(container, self.has_arrays)
            own, cost = self._object_cost(container)
        else:
            if isinstance(container, StoredDeque):
                container.is_node = id(container) in self.with_arrays or id(container) in self.with_objects
            own, cost = _cost(container, self.costs, self.limits)
        self._note_cost(container, own, cost)

    def _count_key(self, key: Opaque) -> None:
        """Counts the work of comparing a key of a dict, which is not listed, with everything in it."""
        waiting: list[Any] = [key]
        while waiting:
            part = waiting.pop()
            if id(part) in self._counted:
                continue
            inside = [*part.keys(), *part.values()] if isinstance(part, dict) else _parts(part)
            self._counted.add(id(part))
            self.limits.spend_steps(len(inside) + (OBJECT_STEPS if isinstance(part, Opaque) else _CONTAINER_STEPS))
            waiting += [item for item in inside if isinstance(item, (*_NESTING, frozenset)) and item]

    def _note_cost(self, container: Any, own: Cost, cost: Cost) -> None:
        if id(container) not in self.costs:
            self.once += own.bytes
            self.once_rows += own.rows
            self.costs[id(container)] = cost
        if cost.bytes > self.limits.bytes:
            self.limits.spend_bytes(cost.bytes)

    def _object_cost(self, record: Opaque) -> tuple[Cost, Cost]:
        if record.content is None:
            own = Cost(_WALKED_BYTES + len(record.class_name), 1, 0)
            return own, own
        leaves, children, _ = record.content
        listed = [pair for _, pairs in leaves for pair in pairs]
        self.limits.spend_steps(OBJECT_STEPS + len(listed) + len(children))
        return _cost(dict([*listed, *children]), self.costs, self.limits)


def _parts(container: Any) -> Any:
    """The values inside a container."""
    if isinstance(container, Opaque):
        return container.parts()
    return container.values() if isinstance(container, dict) else container


def _cost(container: Any, costs: dict[int, Cost], limits: Limits) -> tuple[Cost, Cost]:
    """What a container costs by itself, without paths, and with the containers in it."""
    is_dict = isinstance(container, dict)
    items = container.values() if is_dict else container
    if _NUMBERS.issuperset(map(type, items)):
        is_listed = is_dict and len(container) <= MANY_VALUES
        paths = sum(map(_key_bytes, container)) if is_listed else 0
        numbers = Cost(_NUMBER_BYTES * len(container) + _WALKED_BYTES, 1 + len(container) if is_listed else 1, paths)
        return numbers, numbers
    own, own_rows, inside, rows, path_bytes, empty = 4 * _WALKED_BYTES, 1, 0, 1, 0, 0
    array_names = []
    for key, item in container.items() if is_dict else enumerate(container):
        cost = costs.get(id(item))
        if cost is None:
            cost = _ONE_ROW
            own += _WALKED_BYTES
            own_rows += 1
        inside += cost.bytes
        rows += cost.rows
        path_bytes += cost.path_bytes + cost.rows * _key_bytes(key)
        kind = type(item)
        if kind is str or kind is bytes:
            own += len(item)
        elif kind in _NUMBERS:
            pass
        elif kind is dict:
            empty += not item
        elif isinstance(item, Stored):
            array_names.append(str(key))
        elif isinstance(item, UnfinishedArray) and item.state is None:
            raise UnpicklingError(f"the array under {shown(key)} was never given its values")
    limits.spend_steps(_CONTAINER_STEPS * empty)
    own += names_cost(array_names, limits.bytes)
    return Cost(own, own_rows, 0), Cost(own + inside, rows, path_bytes)


def _key_bytes(key: Any) -> int:
    """What a key adds to the paths below it. Long keys count more, because verbs copy and quote the paths."""
    parts = key if type(key) is tuple else (key,)
    length = sum(len(part) if type(part) is str else 4 * len(part) if type(part) is bytes else 8 for part in parts)
    return _ENTRY_BYTES + length + (_LONG_PATHS * (length - _LONG_KEY) if length > _LONG_KEY else 0)
