"""Initializers by name."""

import json
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from leafwise_gluon.init.initializer import Initializer

REGISTERED: dict[str, type[Initializer]] = {}
_Class = TypeVar("_Class", bound=type[Initializer])


def register(cls: _Class, name: str | None = None) -> _Class:
    """Registers an initializer under its lower-case name."""
    assert issubclass(cls, Initializer), "Can only register subclass of Initializer"
    key = (cls.__name__ if name is None else name).lower()
    before = REGISTERED.get(key)
    if before is not None:
        warnings.warn(
            f"\033[91mNew initializer {cls.__module__}.{cls.__name__} registered with name {key} is"
            f"overriding existing initializer {before.__module__}.{before.__name__}\033[0m",
            stacklevel=2,
        )
    REGISTERED[key] = cls
    return cls


def alias(*aliases: str) -> Callable[[_Class], _Class]:
    """Registers an initializer under further names."""

    def with_aliases(cls: _Class) -> _Class:
        for name in aliases:
            register(cls, name)
        return cls

    return with_aliases


def create(*args: Any, **kwargs: Any) -> Initializer:
    """The initializer with this name, given its arguments; or from what `dumps` wrote. An initializer is returned
    unchanged.

    >>> from leafwise_gluon import init
    >>> init.create("normal", sigma=0.5).dumps()
    '["normal", {"sigma": 0.5}]'
    """
    name, *rest = args if args else (kwargs.pop("initializer"),)
    if isinstance(name, Initializer):
        given = [*rest, *kwargs]
        assert not given, "initializer is already an instance. Additional arguments are invalid"
        return name
    if isinstance(name, dict):
        return create(**name)
    assert isinstance(name, str), "initializer must be of string type"
    if name.startswith("["):
        name, kwargs = json.loads(name)
        return create(name, **kwargs)
    if name.startswith("{"):
        return create(**json.loads(name))
    key = name.lower()
    assert key in REGISTERED, f"{key} is not registered. Please register with initializer.register first"
    return REGISTERED[key](*rest, **kwargs)
