"""How core finds the home of an object."""

import sys
from importlib import import_module
from typing import Any, Literal

from leafwise.core.home import Home
from leafwise.errors import WalkError

# Framework module → the modules of its homes, asked in this order. Only frameworks that the program has already
# imported are considered, so that a walk never imports one.
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "torch": ("leafwise.homes.torch.home", "leafwise.homes.torch.training.optimizers"),
    "flax.nnx": ("leafwise.homes.jax.nnx.nnx",),
    "equinox": ("leafwise.homes.jax.equinox_shared",),
    "jax": ("leafwise.homes.jax.arrays", "leafwise.homes.jax.pytrees"),
    "numpy": ("leafwise.homes.numpy",),
    "leafwise.files": ("leafwise.files.home",),
    "builtins": ("leafwise.homes.containers", "leafwise.homes.stateful"),
}

_registered: list[Home] = []


def register(home: Home) -> None:
    """Adds a home, which says how leafwise reaches the parameters of a framework. It is asked before the homes that
    come with leafwise, and the one that is added last is asked first.

    >>> import numpy as np, leafwise as lw
    >>> from leafwise.core.home import Home, Spec
    >>> class Grid:
    ...     rows = [[1.0, 2.0], [3.0, 4.0]]
    >>> class GridHome(Home):
    ...     name = "grids"
    ...     def handles(self, cls):
    ...         return "leaf" if cls is Grid else None
    ...     def spec(self, value):
    ...         return Spec((2, 2), "float64", "cpu", size=4, nbytes=32)
    ...     def read(self, value, index=()):
    ...         return np.array(value.rows)[index]
    >>> lw.register(GridHome())
    >>> lw.tree({"weight": Grid()})["weight"].numpy()
    array([[1., 2.],
           [3., 4.]])
    """
    if home not in _registered:
        _registered.insert(0, home)


def unregister(home: Home) -> None:
    _registered.remove(home)


def homes() -> list[Home]:
    """The registered homes, then the homes of imported frameworks."""
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


def home_of(array: Any) -> Home:
    """The home of an array that comes from a tree."""
    handled = find(type(array))
    assert handled is not None, type(array)
    return handled[0]


def unwalkable(obj: Any) -> WalkError:
    """The error for an object that cannot be the root of a tree. Lists what can be, in this process."""
    if isinstance(obj, type):
        return WalkError(f"cannot walk the class {obj.__qualname__}; pass an instance of it")
    cls = type(obj)
    handled = find(cls)
    if handled is not None and handled[1] == "node":
        return WalkError(f"cannot walk this {cls.__name__}: it contains no arrays, only plain values")
    name = f"{cls.__module__}.{cls.__qualname__}"
    if handled is not None:
        return WalkError(f"cannot walk {name}: it is a single array, not a tree; put it into a dict: {{'x': array}}")
    walked = dict.fromkeys(home.walks for home in homes() if home.walks)
    return WalkError(
        f"cannot walk {name}; leafwise walks: {', '.join(walked)}, a Tree, and the path or URL of a checkpoint"
    )
