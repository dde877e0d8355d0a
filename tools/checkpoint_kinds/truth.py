"""What an object contains, found without leafwise: arrays with their paths and bytes, plain values, ties, modules."""

import hashlib
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


class Bits(NamedTuple):
    """An array, as facts that can be compared: equal if and only if dtype, shape and every bit are equal."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    @classmethod
    def of(cls, array: Any) -> "Bits":
        if isinstance(array, torch.Tensor):
            array = array.detach().cpu()
            flat = array.resolve_conj().resolve_neg().contiguous().reshape(-1)
            data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
            return cls(str(array.dtype).removeprefix("torch."), tuple(array.shape), _digest(data))
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return cls(array.dtype.name, tuple(array.shape), _digest(little.tobytes()))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Truth:
    """`arrays`: path → bits. `plain`: path → number, text, or list of these. `ties`: sets of paths with the same
    elements in memory. `modules`: path → class name.

    Paths are joined by dots. A key such as a class is `*`, since it has no natural spelling.
    """

    arrays: dict[str, Bits] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    ties: set[frozenset[str]] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, obj: Any, keeps_ties: bool = True) -> "Truth":
        """`keeps_ties` is False for formats that store each array separately."""
        truth = cls(plain={".".join(path): value for path, value in plain_values(obj) if "*" not in path})
        places: dict[Any, set[str]] = {}
        alive: list[Any] = []  # so that no address is used twice
        for path, value in _walk(obj, (), set()):
            text = ".".join(path)
            if isinstance(value, nn.Module):
                truth.modules[text] = type(value).__name__
                continue
            assert text not in truth.arrays, f"two arrays at {text}"
            truth.arrays[text] = Bits.of(value)
            alive.append(value)
            if isinstance(value, torch.Tensor) and value.numel() and value.device.type != "meta":
                place = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
                places.setdefault(place, set()).add(text)
        if keeps_ties:
            truth.ties = {frozenset(paths) for paths in places.values() if len(paths) > 1}
        return truth


def plain_values(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the plain values in nested containers, with their paths. A list of plain values is one value."""
    if type(value) in _SCALARS:
        yield path, value
    elif isinstance(value, list | tuple):
        if value and all(type(item) in _SCALARS for item in value):
            yield path, list(value)
        else:
            for number, item in enumerate(value):
                yield from plain_values(item, (*path, str(number)))
    elif type(value) in (dict, OrderedDict, defaultdict, Namespace):
        for key, item in (vars(value) if isinstance(value, Namespace) else value).items():
            below = (*path, _key(key))
            if type(item) in _SCALARS:  # without another generator, because there may be millions
                yield below, item
            else:
                yield from plain_values(item, below)


_SCALARS = (str, bytes, int, float, complex, bool, type(None))


def _walk(value: Any, path: tuple[str, ...], above: set[int]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the arrays and modules in a value, with their paths. Of objects, it walks what a pickle stores."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            yield path, value
        elif value.dtype.kind == "O":
            yield from _walk(value.tolist(), path, above)
    elif id(value) not in above and not isinstance(value, _PLAIN):
        above = above | {id(value)}
        if isinstance(value, nn.Module):
            yield path, value
        if isinstance(value, np.random.Generator):  # NumPy decides where in its pickle this is
            yield (*path, "*"), value.bit_generator.seed_seq.pool
        for key, item in _items(value):
            yield from _walk(item, (*path, key), above)


# There may be millions of these, and there are no arrays in them.
_PLAIN = (str, bytes, int, float, complex, type(None), type)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((_key(key), item) for key, item in value.items() if not isinstance(item, _PLAIN))
    elif isinstance(value, list | tuple | deque):
        if not all(isinstance(item, int | str) for item in value):  # there may be millions
            yield from ((str(number), item) for number, item in enumerate(value))
    elif isinstance(value, nn.Module):
        for key, item in _state(value).items():
            if key in ("_parameters", "_buffers", "_modules"):
                yield from item.items()
            elif key != "_flat_weights":  # the parameters of a recurrent layer once more, which are not in its tree
                yield key, item
    elif not callable(value):
        yield from _state(value).items()


def _key(key: Any) -> str:
    is_plain = isinstance(key, str | int) or (isinstance(key, tuple) and all(isinstance(item, int) for item in key))
    return str(key) if is_plain else "*"


def _state(value: Any) -> dict[str, Any]:
    state = value.__getstate__() if hasattr(value, "__getstate__") else getattr(value, "__dict__", None)
    return state if isinstance(state, dict) else {}
