"""Which object of the front end replaces a name of MXNet."""

import functools
import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from leafwise_gluon.dialect import Version
from leafwise_gluon.names.inventory import NameEntry, inventory, places

_HERE = "leafwise_gluon"
# The modules that replace one of MXNet. Others have the same name here: mxnet.gluon.loss and mxnet.callback are
# leafwise_gluon.loss and leafwise_gluon.callback.
_STANDS_FOR: dict[str, tuple[str, ...]] = {
    "mxnet": (),
    "mxnet.base": ("base", "base_types", "environment"),
    "mxnet.context": ("context",),
    "mxnet.contrib": (),  # leafwise_gluon.contrib would be mxnet.gluon.contrib
    "mxnet.device": ("context",),
    "mxnet.error": ("base",),
    "mxnet.gluon": ("",),
    "mxnet.gluon.utils": ("utils", "block.hooks"),
    "mxnet.initializer": ("init",),
    "mxnet.io.io": ("io",),
    "mxnet.ndarray": ("nd",),
    "mxnet.ndarray.ndarray": ("arrays.legacy", "nd"),
    "mxnet.ndarray.numpy": ("np",),
    "mxnet.ndarray.numpy_extension": ("npx",),
    "mxnet.ndarray.op": ("nd",),
    "mxnet.numpy": ("np",),
    "mxnet.numpy.fallback": ("np",),
    "mxnet.numpy.fallback_linalg": ("np.linalg",),
    "mxnet.numpy.multiarray": ("np",),
    "mxnet.numpy.type_functions": ("np",),
    "mxnet.numpy.utils": ("np",),
    "mxnet.numpy_extension": ("npx",),
    "mxnet.numpy_extension.utils": ("npx",),
    "mxnet.random": ("random",),
    "mxnet.rnn": (),  # leafwise_gluon.rnn is mxnet.gluon.rnn
    "mxnet.util": ("modes", "environment", "base_types"),
}
# MXNet's name → the name here, where they differ.
_RENAMED = {"mxnet.device.Device": "Context", "mxnet.device.current_device": "current_context"}


@functools.cache
def module_here(name: str) -> ModuleType | None:
    """A module of the front end by its name below leafwise_gluon, if there is one."""
    full = f"{_HERE}.{name}".rstrip(".")
    try:
        return importlib.import_module(full) if find_spec(full) is not None else None
    except ModuleNotFoundError as error:
        if f"{full}.".startswith(f"{error.name}."):  # there is no such module or package
            return None
        raise


@functools.cache
def modules_for(module: str) -> tuple[ModuleType, ...]:
    """The modules of the front end that have the names of a module of MXNet."""
    head, tail = module, ""
    while head not in _STANDS_FOR:
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    names = _STANDS_FOR[head] if head != "mxnet" or not tail else ("",)
    found_here = [module_here(f"{name}{tail}".strip(".")) for name in names]
    return tuple(module for module in found_here if module is not None)


def _fits(value: Any, entry: NameEntry) -> bool:
    """Whether a value of that name can be what MXNet has under it, and not, for example, a module that is imported."""
    if entry.kind == "class":
        return isinstance(value, type) or callable(value)
    return callable(value) if entry.kind == "function" else not isinstance(value, ModuleType)


@functools.cache
def implementation(version: Version, module: str, name: str) -> tuple[Any] | None:
    """What replaces a name of MXNet that is not a module, in a tuple; None if it is missing.

    An object that MXNet has in several modules needs to be in one of them only here.
    """
    entry = inventory(version)[module][name]
    for place, alias in [(module, name), *places(version)[entry.path]]:
        alias = _RENAMED.get(f"{place}.{alias}", alias)
        for here in modules_for(place):
            of_version = vars(here).get("BY_VERSION", {}).get(version, {})  # what differs between the versions
            if alias in of_version:
                return (of_version[alias],)
            if alias in vars(here) and _fits(vars(here)[alias], entry):
                return (vars(here)[alias],)
    return None


def is_implemented(version: Version, path: str) -> bool:
    """Whether the front end has what MXNet defines at this path."""
    return any(implementation(version, *place) is not None for place in places(version)[path])
