"""Makes `import mxnet` import this front end, in this process."""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from leafwise.gluon import dialect, modes
from leafwise.gluon.base import missing
from leafwise.gluon.dialect import Version

# MXNet's module → the module here that replaces it.
_STANDS_FOR = {
    "mxnet.autograd": "leafwise.gluon.autograd",
    "mxnet.base": "leafwise.gluon.base",
    "mxnet.gluon": "leafwise.gluon",
    "mxnet.gluon.block": "leafwise.gluon.block",
    "mxnet.gluon.nn": "leafwise.gluon.nn",
    "mxnet.gluon.nn.basic_layers": "leafwise.gluon.nn",
    "mxnet.gluon.parameter": "leafwise.gluon.parameter",
    "mxnet.init": "leafwise.gluon.init",
    "mxnet.initializer": "leafwise.gluon.init",
    "mxnet.np": "leafwise.gluon.np",
    "mxnet.numpy": "leafwise.gluon.np",
    "mxnet.npx": "leafwise.gluon.npx",
    "mxnet.numpy_extension": "leafwise.gluon.npx",
    "mxnet.np.random": "leafwise.gluon.np.random",
    "mxnet.random": "leafwise.gluon.np.random",
}
# Printed classes show their module. While this front end replaces MXNet, they must show MXNet's modules.
_LIVES_IN = {
    "mxnet.base": ("MXNetError",),
    "mxnet.gluon.block": ("Block", "HybridBlock"),
    "mxnet.gluon.nn.basic_layers": ("Sequential", "HybridSequential", "Dense", "Activation"),
    "mxnet.gluon.parameter": ("Parameter", "DeferredInitializationError"),
    "mxnet.initializer": ("Initializer", "Uniform", "Normal", "Zero", "One", "Constant", "Xavier"),
    "mxnet.numpy": ("ndarray",),
}


class _Refuser:
    """An import finder that raises for every MXNet module that the front end does not have."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "mxnet":
            raise ModuleNotFoundError(
                f"the Gluon front end has no {name}; it has {', '.join(sorted({'mxnet', *_STANDS_FOR}))}", name=name
            )
        return None


class as_mxnet:  # noqa: N801
    """Makes `import mxnet` import this front end, in this process; as a context manager, only inside the `with` block.

    `version` is the dialect: 2 behaves like MXNet 2.0.0b1, 1 like MXNet 1.9.1.

    >>> from leafwise.gluon import as_mxnet
    >>> with as_mxnet():
    ...     from mxnet import np
    ...     from mxnet.gluon import nn
    >>> np.ones(2)
    array([1., 1.])
    """

    def __init__(self, version: Version = 2) -> None:
        self._version_before = dialect.version()
        dialect.use_version(version)
        modes.back_to_the_dialect()
        self._before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mxnet"}
        for name in self._before:
            del sys.modules[name]
        self._homes: list[tuple[type, str]] = []
        self._refuser = _Refuser()
        sys.meta_path.insert(0, self._refuser)
        sys.modules["mxnet"] = _top()
        for name, real in _STANDS_FOR.items():
            sys.modules[name] = importlib.import_module(real)
        for home, names in _LIVES_IN.items():
            for name in names:
                self._move(getattr(sys.modules[home], name), home)

    def _move(self, cls: type, home: str) -> None:
        self._homes.append((cls, cls.__module__))
        cls.__module__ = home

    def undo(self) -> None:
        """Puts everything back as it was."""
        for cls, home in self._homes:
            cls.__module__ = home
        self._homes.clear()
        if self._refuser in sys.meta_path:
            sys.meta_path.remove(self._refuser)
            for name in ("mxnet", *_STANDS_FOR):
                sys.modules.pop(name, None)
            sys.modules.update(self._before)
            dialect.use_version(self._version_before)
            modes.back_to_the_dialect()

    def __enter__(self) -> "as_mxnet":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def _top() -> ModuleType:
    """The module `mxnet` itself."""
    from leafwise.gluon import autograd, init, np, npx
    from leafwise.gluon.np import random

    module: Any = ModuleType("mxnet", "The part of MXNet that leafwise's Gluon front end has.")
    module.__path__ = []
    module.__version__ = "1.9.1" if dialect.is_v1() else "2.0.0b1"
    module.gluon = importlib.import_module("leafwise.gluon")
    module.autograd, module.np, module.numpy, module.npx, module.numpy_extension = autograd, np, np, npx, npx
    module.init = module.initializer = init
    module.random = random
    module.cpu, module.gpu, module.MXNetError = (
        npx.cpu,
        npx.gpu,
        importlib.import_module("leafwise.gluon.base").MXNetError,
    )
    instead = {"nd": "use np", "sym": "use np", "symbol": "use np", "mod": "use gluon", "optimizer": "use torch.optim"}
    module.__getattr__ = missing("mxnet", instead, "it has gluon, np, npx, init and autograd")
    return module  # type: ignore[no-any-return]
