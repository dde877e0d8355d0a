"""What reading a pickle costs, in bytes of memory and steps of work, so that a small file cannot take up gigabytes.

The numbers of bytes were measured and rounded up.
"""

import sys
from typing import Any

from leafwise.files.limits import Limits, names_cost
from leafwise.files.pickle_objects import UnpicklingError, shown

MAX_DEPTH = 100  # nested containers
CONTAINERS = (dict, list, tuple, set)
_NUMBERS = frozenset({int, float, bool, complex, type(None)})

SLOT_BYTES = 9  # a place on the stack, or in a list
DICT_ENTRY_BYTES = 60
SET_ENTRY_BYTES = 110
ARRAY_BYTES = 400  # the description of an array
_TEXT_BYTES = 60  # a string, without its characters
_MEMO_BYTES = 80  # an entry of the memo
_WALKED_BYTES = 90  # what the walk stores for a value
_NUMBER_BYTES = 110  # what the walk, or a listing as JSON, allocates for a number

METHOD_STEPS = 4  # an opcode with its own method, in addition to the one step that every opcode takes
CALL_STEPS = 25
LOOKUP_STEPS = 6  # looking up a name, or accessing a dict
_COPY_STEPS = 8  # copying one entry of a large collection
_LARGE = 64  # entries; a collection with more is large

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
        limits.spend_steps(_COPY_STEPS * len(value) if len(value) > _LARGE else len(value))
        entry = SET_ENTRY_BYTES if isinstance(value, dict | set | list) else SLOT_BYTES
        limits.spend_bytes(entry * len(value))
    elif isinstance(value, str | bytes):
        limits.spend_bytes(sys.getsizeof(value))


def check_size(value: Any, limits: Limits) -> None:
    """Raises if the result of a pickle is nested too deeply, or expands to too much.

    Counts what the walk and a listing allocate for it: a few containers that are referred to again and again expand to
    very many.
    """
    sizes: dict[int, int] = {}  # id of a finished container → its size in bytes
    stack: list[tuple[Any, bool]] = [(value, False)]
    open_ids: set[int] = set()  # ids of the containers that contain the current one
    total = once = 0
    if getattr(value, "is_built", True) is False:
        raise UnpicklingError("the array was never given its values")
    while stack:
        container, done = stack.pop()
        if not done:
            if id(container) in sizes or id(container) in open_ids or not isinstance(container, CONTAINERS):
                continue  # a container inside itself is shown once by the walk
            limits.spend_steps(len(container))
            open_ids.add(id(container))
            if len(open_ids) > MAX_DEPTH:
                raise UnpicklingError(f"containers are nested more than {MAX_DEPTH} deep")
            stack.append((container, True))
            items = container.values() if isinstance(container, dict) else container
            below = {id(item): item for item in items if isinstance(item, CONTAINERS)}
            stack += [(item, False) for item in below.values()]
            continue
        open_ids.discard(id(container))
        own, inside = _size(container, sizes, limits)
        once += own
        total = sizes[id(container)] = own + inside
        if total > limits.bytes:
            limits.spend_bytes(total)
    limits.spend_bytes(total)
    limits.spend_repeats(total - once)


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
        if kind is str or kind is bytes:
            own += len(item)
        elif kind not in _NUMBERS and hasattr(item, "spec"):
            if getattr(item, "is_built", True) is False:
                raise UnpicklingError(f"the array under {shown(key)} was never given its values")
            array_names.append(str(key))
    return own + names_cost(array_names, limits.bytes), inside
