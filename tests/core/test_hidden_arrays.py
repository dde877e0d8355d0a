"""Objects that hold arrays but are neither nodes nor leaves are refused by name; others are harmless."""

import functools
import logging
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw


class Holder:
    def __init__(self) -> None:
        self.weight = np.ones(3)


class WithSlots:
    __slots__ = ("weight",)

    def __init__(self) -> None:
        self.weight = torch.ones(3)


class Variable:
    """An array of a library that leafwise does not know."""

    shape, dtype = (2,), "float32"

    def __array__(self) -> Any:
        return np.ones(2)


class DictWithMore(dict[str, Any]):
    def __init__(self) -> None:
        self.weight = np.ones(3)


class Color(Enum):
    RED = torch.ones(1)


def generated() -> Iterator[torch.Tensor]:
    tensor = torch.ones(3)
    yield tensor
    yield tensor


def started() -> Iterator[torch.Tensor]:
    generator = generated()
    next(generator)
    return generator


HOLDING: dict[str, Callable[[], Any]] = {
    "an object": Holder,
    "slots": WithSlots,
    "an unknown array": Variable,
    "a dict with attributes": DictWithMore,
    "an enum": lambda: Color.RED,
    "parameters()": lambda: nn.Linear(2, 2).parameters(),
    "a generator": started,
    "items()": lambda: nn.Linear(2, 2).state_dict().items(),
    "a set": lambda: {torch.ones(2)},
    "a deque": lambda: deque([torch.ones(2)]),
    "a partial": lambda: functools.partial(print, torch.ones(2)),
    "a namespace": lambda: types.SimpleNamespace(inner=[{"w": np.ones(2)}]),
    "a list in an object": lambda: types.SimpleNamespace(a=types.SimpleNamespace(b=[1, (torch.ones(1),)])),
}


@pytest.mark.parametrize("name", HOLDING)
def test_every_verb_refuses_an_object_that_holds_arrays(name: str, tmp_path: Path) -> None:
    make = HOLDING[name]
    verbs: list[Callable[[Any], Any]] = [
        lw.stats,
        lw.check,
        lw.groups,
        lw.Average,
        lambda model: lw.freeze(model, "w"),
        lambda model: lw.initialize(model, lw.Rule("**", init="zeros")),
        lambda model: lw.save(model, tmp_path / "file.safetensors"),
        lambda model: lw.load(model, {"w": np.ones(3)}, allow={"missing"}),
        lambda model: lw.load({"w": np.ones(3)}, model),
    ]
    for verb in verbs:
        with pytest.raises(lw.Error, match=re.escape("found.0")):
            verb({"found": [make()], "w": np.ones(3)})
    with pytest.raises(lw.Error, match="compare found"):
        lw.diff({"found": [make()], "w": np.ones(3)}, {"w": np.ones(3)})
    assert not (tmp_path / "file.safetensors").exists()


@pytest.mark.parametrize("name", HOLDING)
def test_a_tree_of_nothing_but_such_objects_is_refused(name: str) -> None:
    with pytest.raises(lw.WalkError):
        lw.tree([HOLDING[name]()])
    with pytest.raises(lw.WalkError):
        lw.tree(HOLDING[name]())


def test_the_tree_names_what_it_cannot_read() -> None:
    shown = str(lw.tree({"found": Holder(), "w": np.ones(3)}))
    assert "cannot read found: this" in shown
    assert (
        "holds arrays (numpy.ndarray) that leafwise does not find; pass a dict of its arrays, or leave it out" in shown
    )


def test_objects_without_arrays_are_plain_values() -> None:
    harmless: dict[str, Any] = {
        "function": print,
        "method": nn.Linear(2, 2).forward,
        "class": nn.Linear,
        "module": np,
        "logger": logging.getLogger("leafwise"),
        "lock": threading.Lock(),
        "path": Path("/"),
        "pattern": re.compile("a"),
        "number": np.float32(1),
        "device": torch.device("cpu"),
        "random": np.random.default_rng(0),
        "weak": weakref.ref(nn.Linear(2, 2)),
        "text": {"a": [1, 2.5, "b"]},
        "objects": np.dtype("float32"),
    }
    assert lw.stats(harmless | {"w": np.ones(3)})["w"].count == 3
    assert len(lw.tree(harmless)) == 0


def test_what_is_also_in_the_tree_is_not_hidden() -> None:
    model = nn.Linear(2, 2)
    trainer = types.SimpleNamespace(model=model, best=model.weight)
    assert len(lw.stats({"model": model, "trainer": trainer})) == 2
    with pytest.raises(lw.WalkError, match="cannot measure trainer"):
        lw.stats({"trainer": trainer, "w": np.ones(3)})


def test_the_error_says_what_to_pass_instead() -> None:
    for package, hint in {"keras.src.backend": "v.numpy()", "penzai.core": "unbind_params"}.items():
        cls = type("Variable", (Variable,), {"__module__": package})
        with pytest.raises(lw.WalkError, match=re.escape(hint)):
            lw.tree([cls()])


def test_a_mapping_whose_items_can_be_read_once_loses_nothing() -> None:
    tensor = torch.ones(3)
    weak: Any = weakref.WeakValueDictionary({"w": tensor})
    assert [str(leaf.path) for leaf in lw.tree(weak)] == ["w"]
