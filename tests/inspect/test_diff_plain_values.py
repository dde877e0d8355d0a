"""`lw.diff` of plain values: numbers, text, objects, the options of an optimizer."""

import copy
import math
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.helpers import kinds

import leafwise as lw


def test_plain_values_that_were_changed_added_or_removed_are_listed() -> None:
    w = torch.ones(1)
    a = {"w": w, "step": 3, "lr": 0.1, "betas": (0.9, 0.99), "nan": float("nan"), "gone": "x"}
    b = {"w": w.clone(), "step": 4, "lr": 0.1, "betas": [0.9, 0.99], "nan": float("nan"), "here": True}
    found = lw.diff(a, b)
    assert kinds(found) == {"step": ("changed",), "gone": ("removed",), "here": ("added",)}
    assert found["step"].values == (3, 4)
    assert lw.diff({"w": w, "x": True}, {"w": w, "x": 1})["x"].kind == "changed"


class Color(Enum):
    RED = 1
    BLUE = 2


class Mute:
    pass


class Broken:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float32(1), np.float32(2)),
        (np.int64(1), np.int64(2)),
        (np.bool_(True), np.bool_(False)),
        (np.bool_(True), np.int64(1)),
        (torch.float32, torch.float16),
        (torch.device("cpu"), torch.device("meta")),
        (Color.RED, Color.BLUE),
        ({1, 2}, {1, 3}),
        (range(3), range(4)),
        (slice(3), slice(4)),
        (Decimal(1), Decimal(2)),
        (date(2020, 1, 1), date(2020, 1, 2)),
        (Path("a"), Path("b")),
        (bytearray(b"a"), bytearray(b"b")),
        (0.0, -0.0),
        (complex(0, 0.0), complex(0, -0.0)),
        ([1, 0.0], [1, -0.0]),
        (1, "1"),
        (1j, "1"),
        (int, float),
    ],
)
def test_values_of_every_type_that_differ_are_changed(one: Any, other: Any) -> None:
    w = torch.ones(2)
    found = lw.diff({"w": w, "v": one}, {"w": w, "v": other})
    assert kinds(found) == {"v": ("changed",)}
    assert str(found)
    assert lw.diff({"w": w, "v": one}, {"w": w, "v": copy.deepcopy(one)}).same


def test_numbers_of_numpy_equal_those_of_python_and_nan_equals_itself() -> None:
    for one, other in (
        (np.float64(1), 1.0),
        (np.int64(3), 3),
        (math.nan, np.float32("nan")),
        (1, 1.0),
        (Decimal("nan"),) * 2,
    ):
        assert lw.diff({"v": one}, {"v": other}).same, (one, other)


@pytest.mark.parametrize("make", [torch.Generator, Mute, Broken])
def test_objects_that_cannot_be_compared_are_unknown(make: Any) -> None:
    w, one = torch.ones(2), make()
    assert lw.diff({"w": w, "v": one}, {"w": w, "v": one}).same
    found = lw.diff({"w": w, "v": one}, {"w": w, "v": make()})
    assert kinds(found) == {"v": ("unknown",)}
    assert "objects cannot be compared" in str(found)


class Numbered:
    """An object whose `==` returns a NumPy bool."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> Any:
        return np.bool_(isinstance(other, Numbered) and self.number == other.number)

    __hash__ = None  # type: ignore[assignment]


def test_an_equality_that_returns_a_numpy_bool_is_accepted() -> None:
    assert lw.diff({"v": Numbered(1)}, {"v": Numbered(1)}).same
    assert lw.diff({"v": Numbered(1)}, {"v": Numbered(2)}).counts == {"changed": 1}


def test_the_order_of_parameters_is_a_difference() -> None:
    one = {"w": torch.ones(1), "param_groups": [{"params": ["a", "b"]}]}
    for params in ([1, 0], [0, 1, 2], ["b", "a"], [0, True]):
        assert not lw.diff(one, {"w": torch.ones(1), "param_groups": [{"params": params}]}).same
    assert lw.diff(one, {"w": torch.ones(1), "param_groups": [{"params": [4, 5]}]}).same


def test_values_below_an_empty_name_are_compared() -> None:
    d = lw.diff({"": {"a": 1}, "a": 2}, {"": {"a": 5}, "a": 2})
    assert not d.same
    assert d.counts == {"changed": 1, "same": 1}
