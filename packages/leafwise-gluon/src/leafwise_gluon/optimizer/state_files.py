"""Files with the states of a Trainer: arrays and plain values, written by leafwise. Nothing is pickled."""

import json
import os
from typing import Any

import torch

from leafwise.checkpoint.saving.save import save
from leafwise.core.tree import Tree
from leafwise.core.tree import open as open_tree
from leafwise_gluon import lr_scheduler as schedulers
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.optimizer.base import Optimizer

_KIND = "states of a Gluon Trainer, written by leafwise"
_NOT_SAVED = ("param_dict", "lr_scheduler")


def save_states(path: Any, states: dict[Any, Any], optimizer: Optimizer) -> None:
    """Writes the states of weights, and the numbers of the optimizer and of its schedule."""
    arrays: dict[str, torch.Tensor] = {}
    facts = {
        "kind": _KIND,
        "optimizer": _described(optimizer, arrays),
        "lr_scheduler": None if optimizer.lr_scheduler is None else _described(optimizer.lr_scheduler, arrays),
        "states": _encoded(states, arrays, "the states"),
    }
    save({"facts": json.dumps(facts), "arrays": arrays}, path)


def load_states(path: Any, optimizer: Optimizer) -> dict[Any, Any]:
    """Reads the states of weights, and sets the numbers of the optimizer and of its schedule.

    Nothing is changed if the file is of another kind of optimizer or schedule.
    """
    facts, tree = _opened(path)
    name = type(optimizer).__name__
    if facts["optimizer"]["class"] != name:
        raise MXNetError(
            f"cannot load states of {facts['optimizer']['class']} from {os.fspath(path)!r} into a Trainer with {name}; "
            f"make the Trainer with {facts['optimizer']['class'].lower()!r}"
        )
    schedule = _schedule(facts["lr_scheduler"], optimizer.lr_scheduler, path)
    with tree:
        values, states = _decoded(facts["optimizer"]["values"], tree), _decoded(facts["states"], tree)
        if schedule is not None:
            schedule.__dict__.update(_decoded(facts["lr_scheduler"]["values"], tree))
    optimizer.__setstate__({**values, "lr_scheduler": schedule})
    return states  # type: ignore[no-any-return]


def _opened(path: Any) -> tuple[dict[str, Any], Tree]:
    with open(path, "rb") as file:
        start = file.read(9)
    if start[:1] == b"\x80" and start[8:] != b"{":  # a pickle; a safetensors file has its JSON after eight bytes
        raise refusal(
            f"Trainer.load_states of {os.fspath(path)!r}, which MXNet has pickled",
            "train on without it: the states are rebuilt after some steps; leafwise unpickles no file",
        )
    tree = open_tree(path)
    text = {str(name): value for name, value in tree.scalars.items()}.get("facts", "{}")
    facts = json.loads(text) if isinstance(text, str) else {}
    if facts.get("kind") != _KIND:
        raise MXNetError(f"{os.fspath(path)!r} is not a file that Trainer.save_states has written")
    return facts, tree


def _schedule(saved: Any, current: Any, path: Any) -> Any:
    """The schedule to use: that of the Trainer if it is of the saved class, otherwise a new one of that class."""
    if saved is None:
        return None
    if type(current).__name__ == saved["class"]:
        return current
    known = getattr(schedulers, saved["class"], None) if saved["class"] in schedulers.__all__ else None
    if known is None:
        raise MXNetError(
            f"the states in {os.fspath(path)!r} have an lr_scheduler of class {saved['class']}; make the Trainer with "
            "such an lr_scheduler"
        )
    return known.__new__(known)


def _described(obj: Any, arrays: dict[str, torch.Tensor]) -> dict[str, Any]:
    name = type(obj).__name__
    values = {key: value for key, value in vars(obj).items() if key not in _NOT_SAVED}
    return {"class": name, "values": _encoded(values, arrays, name)}


def _encoded(value: Any, arrays: dict[str, torch.Tensor], where: str) -> Any:
    """A value as JSON. Arrays are collected; containers are marked: JSON has no tuples, and no numbers as keys."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, ArrayValues):
        arrays[str(len(arrays))] = value.tensor.detach()
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple):
        items = [_encoded(item, arrays, f"{where}[{number}]") for number, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict):
        keys = [_encoded(key, arrays, where) for key in value]
        items = [_encoded(item, arrays, f"{where}.{key}") for key, item in value.items()]
        return {"dict": list(zip(keys, items, strict=True))}
    raise refusal(
        f"Trainer.save_states with a {type(value).__name__} in {where}", "keep numbers, texts and arrays only"
    )


def _decoded(value: Any, tree: Tree) -> Any:
    if not isinstance(value, dict):
        return value
    kind, inner = next(iter(value.items()))
    if kind == "array":
        return wrap_legacy(torch.from_numpy(tree[f"arrays.{inner}"].numpy().copy()))
    if kind == "dict":
        return {_decoded(key, tree): _decoded(item, tree) for key, item in inner}
    items = [_decoded(item, tree) for item in inner]
    return tuple(items) if kind == "tuple" else items
