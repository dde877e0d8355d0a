"""What reading a pickle costs, in bytes of memory and steps of work, so that a small file cannot take up gigabytes.

The numbers of bytes were measured and rounded up.
"""

import sys
from collections import deque
from typing import Any

from leafwise.core.opaque import Opaque
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
_LONG_KEY = 200  # characters
OBJECT_BYTES = 220  # the description of an opaque object
_WALKED_BYTES = 90  # what the walk stores for a value
_NUMBER_BYTES = 110  # what the walk, or a listing as JSON, allocates for a number

METHOD_STEPS = 4  # an opcode with its own method, in addition to the one step that every opcode takes
CALL_STEPS = 25
LOOKUP_STEPS = 6  # looking up a name, or accessing a dict
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


class Survey:
    """Goes through the result of a pickle, from the innermost containers to the outermost. Raises if it is nested too
    deeply, or expands to too much. Finds out which opaque objects are nodes of the tree, because the others cost
    nothing.

    Counts what the walk and a listing allocate for it: a few containers that are referred to again and again expand to
    very many.
    """

    def __init__(self, limits: Limits, content_of: ContentOf) -> None:
        self.limits, self.content_of = limits, content_of
        self.sizes: dict[int, int] = {}  # id of a finished container → its size in bytes
        self.with_arrays: set[int] = set()  # ids of finished containers with arrays inside
        self.with_objects: set[int] = set()  # containers with opaque objects inside, at any depth
        self.digests: dict[tuple[int, bool], bytes] = {}  # shared by all opaque objects of the file
        self.total = self.once = 0

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
            if id(container) in self.sizes or id(container) in open_ids or not isinstance(container, _NESTING):
                continue  # a container inside itself is shown once by the walk
            inside = _parts(container)
            limits.spend_steps(len(inside) + 1)
            open_ids.add(id(container))
            if depth > MAX_DEPTH or len(open_ids) > MAX_OBJECT_DEPTH:
                raise UnpicklingError(f"containers are nested more than {MAX_DEPTH} deep")
            stack.append((container, depth, inside))
            # What is inside an opaque object is not printed with what is outside, so it may again be as deep.
            deeper = 1 if isinstance(container, Opaque) else depth + 1
            # Nothing is inside an empty container. Modules have a dozen of them, for their hooks.
            below = {id(item): item for item in inside if item.__class__ not in _FLAT and item}
            stack += [(item, deeper, None) for item in below.values() if isinstance(item, _NESTING)]
        limits.spend_bytes(self.total)
        limits.spend_repeats(self.total - self.once)

    def has_arrays(self, value: Any) -> bool:
        return id(value) in self.with_arrays or isinstance(value, Stored)

    def _finish(self, container: Any, parts: Any) -> None:
        if any(map(self.has_arrays, parts)):
            self.with_arrays.add(id(container))
        kinds = set(map(type, container)) if isinstance(container, dict) else ()  # of its keys
        is_with_objects = any(isinstance(part, Opaque) or id(part) in self.with_objects for part in parts)
        if is_with_objects or any(issubclass(kind, Opaque) for kind in kinds):
            self.with_objects.add(id(container))
        if isinstance(container, Opaque):
            container.digests = self.digests
            container.content = self.content_of(container, self.has_arrays)
            own, inside = self._object_size(container)
        else:
            if isinstance(container, StoredDeque):
                container.is_node = id(container) in self.with_arrays or id(container) in self.with_objects
            own, inside = _size(container, self.sizes, self.limits)
        self.once += own
        self.total = self.sizes[id(container)] = own + inside
        if self.total > self.limits.bytes:
            self.limits.spend_bytes(self.total)

    def _object_size(self, record: Opaque) -> tuple[int, int]:
        if record.content is None:
            return _WALKED_BYTES + len(record.class_name), 0
        leaves, children, _ = record.content
        listed = [pair for _, pairs in leaves for pair in pairs]
        self.limits.spend_steps(len(listed) + len(children))
        return _size(dict([*listed, *children]), self.sizes, self.limits)


def _parts(container: Any) -> Any:
    """The values inside a container."""
    if isinstance(container, Opaque):
        return container.parts()
    return container.values() if isinstance(container, dict) else container


def _size(container: Any, sizes: dict[int, int], limits: Limits) -> tuple[int, int]:
    """The bytes that the walk and a listing allocate for a container itself, and for the containers in it."""
    is_dict = isinstance(container, dict)
    items = container.values() if is_dict else container
    if _NUMBERS.issuperset(map(type, items)):
        return _NUMBER_BYTES * len(container) + _WALKED_BYTES, 0
    own, inside = 4 * _WALKED_BYTES, 0
    array_names = []
    for key, item in container.items() if is_dict else enumerate(container):
        size = sizes.get(id(item))
        if size is None:
            own += _WALKED_BYTES
        else:
            inside += size
        kind = type(item)
        if (type(key) is str or type(key) is bytes) and len(key) > _LONG_KEY:
            own += 8 * len(key)  # in the paths of what is below it
        if kind is str or kind is bytes:
            own += len(item)
        elif kind in _NUMBERS or kind is dict:
            pass
        elif isinstance(item, Stored):
            array_names.append(str(key))
        elif isinstance(item, UnfinishedArray) and item.state is None:
            raise UnpicklingError(f"the array under {shown(key)} was never given its values")
    return own + names_cost(array_names, limits.bytes), inside
