"""Imports timm and other libraries even if torchvision is not installed, as with a CPU build of torch."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def import_timm() -> Any:
    """Imports timm. From torchvision, it imports image transforms, datasets and a frozen batch norm, which are not
    needed to build models and optimizers."""
    with warnings.catch_warnings(), torchvision_if_absent():
        warnings.simplefilter("ignore")
        import timm
        import timm.optim
    return timm


class _Absent(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or type(name, (), dict(zip(_MODES, _MODES, strict=True)))


_MODES = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")  # interpolation modes that timm lists
_PARTS = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets", ".models")


@contextmanager
def torchvision_if_absent() -> Iterator[None]:
    """Puts modules of empty classes in the place of torchvision's, if it is not installed, for imports."""
    if find_spec("torchvision") is not None:
        yield
        return
    names = [f"torchvision{part}" for part in _PARTS]
    for name in names:
        sys.modules[name] = module = _Absent(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
