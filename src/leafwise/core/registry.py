"""How core finds the home of an object."""

import sys
from importlib import import_module
from typing import Any, Literal

from leafwise.core.home import Home
from leafwise.errors import WalkError

# Framework module → the modules of its homes, asked in this order. Only frameworks that the program has already
# imported are considered, so that a walk never imports one.
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "leafwise.gluon": ("leafwise.gluon.home", "leafwise.gluon.array_home"),
    "torch": ("leafwise.homes.torch.home", "leafwise.homes.torch.optimizers"),
    "numpy": ("leafwise.homes.numpy",),
    "leafwise.files": ("leafwise.files.home",),
    "builtins": ("leafwise.homes.containers", "leafwise.homes.stateful"),
}

_registered: list[Home] = []


def register(home: Home) -> None:
    """Adds a home, which is asked before those of leafwise."""
    if home not in _registered:
        _registered.insert(0, home)


def unregister(home: Home) -> None:
    _registered.remove(home)


def homes() -> list[Home]:
    """The registered homes, then those of imported frameworks."""
    available = list(_registered)
    for framework, modules in FRAMEWORKS.items():
        if framework in sys.modules:
            available.extend(import_module(module).HOME for module in modules)
    return available


def find(cls: type) -> tuple[Home, Literal["node", "leaf"]] | None:
    """The home of a type, and whether its objects are nodes or leaves there."""
    for home in homes():
        kind = home.handles(cls)
        if kind is not None:
            return home, kind
    return None


def unwalkable(obj: Any) -> WalkError:
    """The error for an object that cannot be the root of a tree, with a list of what can."""
    cls = type(obj)
    handled = find(cls)
    if handled is not None and handled[1] == "node":
        return WalkError(f"there is nothing to walk in this {cls.__name__}: it holds only plain values")
    problem = f"cannot walk {cls.__module__}.{cls.__qualname__}"
    if handled is not None:
        problem += ", which is a leaf and no tree; put it into a container, such as {'x': it}"
    return WalkError(
        f"{problem}; leafwise walks: torch.nn.Module, torch.optim.Optimizer, "
        "dicts, lists, tuples and dataclasses of those or of tensors and arrays, a Tree, "
        "and the path or URL of a checkpoint"
    )
