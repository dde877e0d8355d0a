"""Makes `import mxnet` import this front end, in this process."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from leafwise_gluon import dialect, modes
from leafwise_gluon.dialect import Version
from leafwise_gluon.names.implementations import implementation, modules_for
from leafwise_gluon.names.inventory import inventory, places
from leafwise_gluon.names.placeholder import Placeholder
from leafwise_gluon.names.table import instead_of

VERSIONS = {1: "1.9.1", 2: "2.0.0beta1"}  # as mxnet.__version__ has them


class StandInModule(ModuleType):
    """A module of MXNet. Its names are looked up when they are first used. They are the front end's or placeholders."""

    def __init__(self, name: str, version: Version, others: dict[str, "StandInModule"]) -> None:
        super().__init__(name, "Replaces the module of this name of MXNet. See leafwise_gluon.")
        self._of_version, self._others = version, others
        self._entries = inventory(version)[name]
        self.__path__: list[str] = []  # so that submodules are looked up in sys.modules only
        self.__spec__ = ModuleSpec(name, None, is_package=True)  # importlib.util.find_spec("mxnet") needs one
        self.__all__ = [entry for entry, facts in self._entries.items() if not facts.hidden]
        if name in ("mxnet", "mxnet.libinfo"):
            self.__version__ = VERSIONS[version]

    def __getattr__(self, name: str) -> Any:
        value = self._look_up(name)
        setattr(self, name, value)
        return value

    def _look_up(self, name: str) -> Any:
        entry = self._entries.get(name)
        if entry is None:
            if name.startswith("_") and not name.startswith("__"):  # such names are not in the inventory
                for here in modules_for(self.__name__):
                    for names in (vars(here).get("BY_VERSION", {}).get(self._of_version, {}), vars(here)):
                        if name in names:
                            return names[name]
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        if entry.kind == "module":
            return self._others[entry.home]
        if entry.kind == "other module":
            return importlib.import_module(entry.home)
        replaced = implementation(self._of_version, self.__name__, name)
        if replaced is not None:
            return replaced[0]
        return Placeholder(f"{self.__name__}.{name}", instead_of(entry.path))

    def __dir__(self) -> list[str]:
        return sorted({*self._entries, *super().__dir__()})


def _aliases(version: Version) -> dict[str, str]:
    """Modules that MXNet has as attributes only, such as mxnet.nd; here, they can be imported, too."""
    return {
        f"{module}.{name}": entry.home
        for module, entries in inventory(version).items()
        for name, entry in entries.items()
        if entry.kind == "module" and module == "mxnet"
    }


class as_mxnet:  # noqa: N801
    """Makes `import mxnet` import this front end, in this process; as a context manager, only inside the `with` block.

    `version` is the dialect: 2 behaves like MXNet 2.0.0b1, 1 like MXNet 1.9.1. Every public module and name of that
    version can be imported. Using one that the front end does not have raises an error with what to do instead.

    >>> from leafwise_gluon import as_mxnet
    >>> with as_mxnet():
    ...     from mxnet import np, sym
    ...     from mxnet.gluon import nn
    >>> np.ones(2)
    array([1., 1.])
    >>> sym.var("x")
    Traceback (most recent call last):
    leafwise_gluon.base.MXNetError: the Gluon front end does not support mxnet.symbol.var; ...
    """

    def __init__(self, version: Version = 2) -> None:
        self._before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mxnet"}
        self._version_before = dialect.version()
        dialect.use_version(version)
        modes.back_to_the_dialect()
        for name in self._before:
            del sys.modules[name]
        self._modules: dict[str, StandInModule] = {}
        for name in inventory(version):
            self._modules[name] = StandInModule(name, version, self._modules)
        for name, home in _aliases(version).items():
            self._modules.setdefault(name, self._modules[home])
        sys.modules.update(self._modules)
        self._homes: list[tuple[type, str]] = []
        self._move_classes(version)

    def _move_classes(self, version: Version) -> None:
        """Printed classes show their module. While this front end replaces MXNet, they show MXNet's modules."""
        moved = set()
        for path, reached in places(version).items():
            module, _, name = path.rpartition(".")
            if inventory(version)[module][name].kind == "class":
                replaced = implementation(version, *reached[0])
                cls = replaced[0] if replaced is not None else None
                # A class with another name here stays where it is: pickle looks for its own name.
                if isinstance(cls, type) and cls.__module__.startswith("leafwise_gluon.") and cls.__name__ == name:
                    if cls not in moved:
                        moved.add(cls)
                        self._homes.append((cls, cls.__module__))
                        cls.__module__ = module

    def undo(self) -> None:
        """Puts everything back as it was."""
        for cls, home in self._homes:
            cls.__module__ = home
        self._homes.clear()
        if sys.modules.get("mxnet") is self._modules["mxnet"]:
            for name in self._modules:
                sys.modules.pop(name, None)
            sys.modules.update(self._before)
            dialect.use_version(self._version_before)
            modes.back_to_the_dialect()

    def __enter__(self) -> "as_mxnet":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()
