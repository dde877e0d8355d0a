"""Flat mappings of dotted strings (a state dict, a file) as the nested nodes that their names spell."""

from collections.abc import Callable, Iterable
from typing import Any

from leafwise.core.path import Entry

# A name with more dots than any model is deep is left whole, so that a hostile file costs no time.
MAX_DOTS = 200


class VirtualNode:
    """A node that exists only as the common front of some names.

    `front` is that front with its dot, so that front and name together are the whole key.
    """

    __slots__ = ("children", "front")

    def __init__(self, front: str) -> None:
        self.front = front
        # Pairs, not a dict: a file may hold both `weight` and `weight.scale`.
        self.children: list[tuple[str, Any]] = []

    def entry(self, name: str, value: Any) -> Entry:
        """The step to a child: the front of a key fetches nothing, its end fetches the whole key."""
        return Entry(name, "part") if isinstance(value, VirtualNode) else Entry(name, "key", self.front + name)


def split(items: Iterable[tuple[str, Any]], make: Callable[[str], VirtualNode] = VirtualNode) -> VirtualNode:
    """The groups that dotted keys spell, in the order in which the keys come.

    >>> root = split([("0.weight", 1), ("0.bias", 2), ("scale", 3)])
    >>> [name for name, _ in root.children]
    ['0', 'scale']
    """
    root = make("")
    groups = {"": root}  # by their fronts, each of which ends with its dot
    for key, value in items:
        head, dot, last = key.rpartition(".") if key.count(".") <= MAX_DOTS else ("", "", key)
        front = head + dot
        group = groups.get(front)
        if group is None:
            # Almost always only the last group is missing.
            above, dot, name = head.rpartition(".")
            parent = groups.get(above + dot)
            if parent is None:
                group = _open(groups, front, make)
            else:
                group = groups[front] = make(front)
                parent.children.append((name, group))
        group.children.append((last, value))
    return root


def _open(groups: dict[str, VirtualNode], front: str, make: Callable[[str], VirtualNode]) -> VirtualNode:
    """Makes the group of a front, and those above it that are missing."""
    missing = []
    while front not in groups:
        head, dot, name = front[:-1].rpartition(".")
        missing.append((front, name))
        front = head + dot
    group = groups[front]
    for front, name in reversed(missing):
        below = groups[front] = make(front)
        group.children.append((name, below))
        group = below
    return group
