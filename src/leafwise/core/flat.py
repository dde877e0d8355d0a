"""Flat mappings of dotted strings (a state dict, a file) as the nested nodes that their names spell."""

from collections.abc import Iterable
from typing import Any

from leafwise.core.path import Entry


class Group:
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
        return Entry(name, "part") if isinstance(value, Group) else Entry(name, "key", self.front + name)


def split(items: Iterable[tuple[str, Any]]) -> Group:
    """The groups that dotted keys spell, in the order in which the keys come.

    >>> root = split([("0.weight", 1), ("0.bias", 2), ("scale", 3)])
    >>> [name for name, _ in root.children]
    ['0', 'scale']
    """
    root = Group("")
    groups = {"": root}

    def group_at(front: str) -> Group:
        # Not recursive, because a hostile file may hold a key with a million dots.
        missing = []
        while front not in groups:
            missing.append(front)
            front = front.rpartition(".")[0] if "." in front else ""
        group = groups[front]
        for front in reversed(missing):
            below = groups[front] = Group(front + ".")
            group.children.append((front.rpartition(".")[2], below))
            group = below
        return group

    for key, value in items:
        front, dot, last = key.rpartition(".")
        # A key that begins with its only dot has an empty first name, which is not the root.
        group = groups.get(front) if front or not dot else None
        if group is None:
            group = group_at(front) if front else _empty_first(root)
        group.children.append((last, value))
    return root


def _empty_first(root: Group) -> Group:
    for name, child in root.children:
        if name == "" and isinstance(child, Group):
            return child
    group = Group(".")
    root.children.append(("", group))
    return group
