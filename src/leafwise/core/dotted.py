"""Flat mappings with dotted keys (a state dict, a file) as the nested nodes that the keys describe."""

from collections.abc import Callable, Iterable
from typing import Any

from leafwise.core.path import Entry

# A key with more dots than any model is deep is not split, so that a hostile file cannot take long.
MAX_DOTS = 200


class VirtualNode:
    """A node of the tree with no object behind it, such as the common front of some dotted keys.

    `front` is that front with its dot, so that front and name together are the whole key.
    """

    __slots__ = ("children", "front")

    def __init__(self, front: str) -> None:
        self.front = front
        # Pairs, not a dict: a file may hold both `weight` and `weight.scale`.
        self.children: list[tuple[str, Any]] = []

    def entry(self, name: str, value: Any) -> Entry:
        """The step to a child. A part of a key fetches nothing by itself; its end fetches the whole key."""
        return Entry(name, "part") if isinstance(value, VirtualNode) else Entry(name, "key", self.front + name)


def split(items: Iterable[tuple[str, Any]], make: Callable[[str], VirtualNode] = VirtualNode) -> VirtualNode:
    """The nodes that dotted keys describe, in the order of the keys.

    >>> root = split([("0.weight", 1), ("0.bias", 2), ("scale", 3)])
    >>> [name for name, _ in root.children]
    ['0', 'scale']
    """
    root = make("")
    nodes = {"": root}  # by their fronts, each of which ends with its dot
    for key, value in items:
        head, dot, last = key.rpartition(".") if key.count(".") <= MAX_DOTS else ("", "", key)
        front = head + dot
        node = nodes.get(front)
        if node is None:
            # Almost always only the last node is missing.
            above, dot, name = head.rpartition(".")
            parent = nodes.get(above + dot)
            if parent is None:
                node = _add(nodes, front, make)
            else:
                node = nodes[front] = make(front)
                parent.children.append((name, node))
        node.children.append((last, value))
    return root


def _add(nodes: dict[str, VirtualNode], front: str, make: Callable[[str], VirtualNode]) -> VirtualNode:
    """Makes the node of a front, and the missing ones above it."""
    missing = []
    while front not in nodes:
        head, dot, name = front[:-1].rpartition(".")
        missing.append((front, name))
        front = head + dot
    node = nodes[front]
    for front, name in reversed(missing):
        below = nodes[front] = make(front)
        node.children.append((name, below))
        node = below
    return node
