"""`Block._children`, which much code reads, and some writes: the children by name."""

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

from leafwise_gluon.base import refusal


class Children(MutableMapping[str, Any]):
    """The modules of a block as MXNet stores them: blocks in 1.x, weak references to them in 2.x."""

    def __init__(self, modules: dict[str, Any], are_weak: bool) -> None:
        self._named, self._are_weak = modules, are_weak

    def __getitem__(self, name: str) -> Any:
        child = self._named[name]
        return weakref.ref(child) if self._are_weak else child

    def __setitem__(self, name: str, child: Any) -> None:
        if self._are_weak:
            if not isinstance(child, weakref.ref):
                raise refusal(f"_children[{name!r}] = block in MXNet 2.x", f"use register_child(block, {name!r})")
            child = child()
        self._named[name] = child

    def __delitem__(self, name: str) -> None:
        del self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __repr__(self) -> str:
        return f"OrderedDict({list(self.items())})"
