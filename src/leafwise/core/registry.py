"""How core finds the home of an object, and what other packages add to leafwise."""

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from leafwise.core.home import Home
from leafwise.errors import ArgumentError, WalkError, warn
from leafwise.printable import escape

# Framework module → the modules of its homes, asked in this order. Only frameworks that the program has already
# imported are considered, so that a walk never imports one.
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "torch": ("leafwise.homes.torch.home", "leafwise.homes.torch.training.optimizers"),
    "flax.nnx": ("leafwise.homes.jax.nnx.home",),
    "equinox": ("leafwise.homes.jax.equinox_shared",),
    "jax": ("leafwise.homes.jax.arrays", "leafwise.homes.jax.pytrees"),
    "numpy": ("leafwise.homes.numpy",),
    "leafwise.files": ("leafwise.files.home",),
    "builtins": ("leafwise.homes.containers", "leafwise.homes.stateful"),
}

T = TypeVar("T")
_HOMES = "leafwise.homes"  # the group of entry points

_registered: list[Home] = []
Handled = tuple[Home, Literal["node", "leaf"]]
# What `find` returned for types, and which of the modules on which that depends had been imported then.
_known: WeakKeyDictionary[type, Handled] = WeakKeyDictionary()
_watched = list(FRAMEWORKS)
_imported: list[bool] = []


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
    >>> home = GridHome()
    >>> lw.register(home)
    >>> lw.tree({"weight": Grid()})["weight"].numpy()
    array([[1., 2.],
           [3., 4.]])

    Tests, and examples like this one, remove it again:

    >>> from leafwise.testing import unregister
    >>> unregister(home)
    """
    if not isinstance(home, Home):
        raise ArgumentError(f"lw.register takes an object of a class that derives from Home, not {home!r:.60}")
    if home not in _registered:
        _registered.insert(0, home)
        _known.clear()


def unregister(home: Home) -> None:
    _registered.remove(home)
    _known.clear()


def homes(of_packages: bool = True) -> list[Home]:
    """The homes that were registered, those of installed packages, then those of leafwise; of imported frameworks."""
    available = list(_registered)
    if of_packages:
        available.extend(from_packages(_HOMES, Home, only_imported=True))
    for framework, modules in FRAMEWORKS.items():
        if framework in sys.modules:
            available.extend(import_module(module).HOME for module in modules)
    return available


@cache
def _entry_points(group: str) -> tuple[Any, ...]:
    from importlib.metadata import entry_points  # late: it takes longer than opening a file

    try:
        entries = tuple(entry_points(group=group))
    except Exception as error:  # the metadata of any package may be damaged
        reason = f"{type(error).__name__}: {error}"
        warn(escape(f"packages cannot extend leafwise here, because their metadata cannot be read: {reason}"))
        return ()
    if group == _HOMES:
        _watched.extend(entry.name for entry in entries)
    return entries


def from_packages(group: str, kind: type[T], only_imported: bool = False) -> Iterator[T]:
    """What installed packages add by entry points of a group. With `only_imported`, only by those that are named after
    a module which the program has imported. What cannot be used is left out, with one warning."""
    for entry in _entry_points(group):
        if not only_imported or entry.name in sys.modules:
            if (added := _loaded(entry, kind)) is not None:  # type: ignore[arg-type]
                yield added


@cache
def _loaded(entry: Any, kind: type) -> Any:
    package = f" of the package {entry.dist.name}" if entry.dist is not None and entry.dist.name else ""
    try:
        added = entry.load()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if isinstance(added, kind):
            return added
        reason = f"it is {added!r:.60}, not an object of the class {kind.__name__}"
    warn(
        escape(f"cannot use {entry.value}{package}, which extends leafwise: {reason}; update or uninstall the package")
    )
    return None


def forget_packages() -> None:
    """Looks for installed packages again when they are next needed."""
    _entry_points.cache_clear()
    _loaded.cache_clear()
    _known.clear()


def find(cls: type) -> Handled | None:
    """The home of a type, and whether its objects are nodes or leaves there."""
    imported = [name in sys.modules for name in _watched]
    if imported != _imported:
        _known.clear()
        _imported[:] = imported
    handled = _known.get(cls)
    if handled is None:
        handled = _find(cls)
        # A class of one's own may be registered as a pytree later.
        if handled is not None and (cls.__module__ == "builtins" or handled[0] not in _of_builtins()):
            _known[cls] = handled
    return handled


def _find(cls: type) -> Handled | None:
    # Types of Python and of leafwise belong to no other package, so that opening a file reads no entry points.
    package = cls.__module__.partition(".")[0]
    for home in homes(of_packages=package != "leafwise" and package not in sys.stdlib_module_names):
        kind = home.handles(cls)
        if kind is not None:
            return home, kind
    return None


def _of_builtins() -> list[Home]:
    return [import_module(module).HOME for module in FRAMEWORKS["builtins"]]


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
