"""`lw.diff` of plain values: numbers, text, objects, the options of an optimizer."""

import argparse
import copy
import math
import pickle
import types
from collections import deque
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from tests.inspect.helpers import kinds

import leafwise as lw
from leafwise.files.arrays.stored import Strided


class Decorated:
    """An object of a class that leafwise does not load."""

    def __init__(self, table: Any) -> None:
        self.table = table


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


# -- content that leafwise does not show ------------------------------------------------------------------------

LONG = b"x" * 100_000
UNSHOWN: dict[str, tuple[Any, Any]] = {
    "text": (np.array(["a", "b"]), np.array(["a", "c"])),
    "bytes": (np.array([b"a"]), np.array([b"b"])),
    "dates": (np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-02"], "M8[D]")),
    "units": (np.array([1], "m8[s]"), np.array([1], "m8[h]")),
    "fields": (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), np.array([(1, 3.0)], [("a", "i4"), ("b", "f4")])),
    "names": (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), np.array([(1, 2.0)], [("a", "i4"), ("c", "f4")])),
    "longdouble": (np.array([1.0], "g"), np.array([2.0], "g")),
    "void": (np.array([b"ab"], "V2"), np.array([b"ac"], "V2")),
    "objects": (np.array(["a", 1], object), np.array(["a", 2], object)),
    "long bytes": (LONG, LONG[:-1] + b"y"),
    "storage": (torch.ones(3).untyped_storage(), torch.zeros(3).untyped_storage()),
    "large storage": (torch.ones(99_999).untyped_storage(), torch.zeros(99_999).untyped_storage()),
}


KEYS: dict[str, tuple[Any, Any]] = {
    "tensor": (torch.ones(2), torch.tensor([1.0, 2.0])),
    "tensor in a tuple": ((torch.ones(2), 1), (torch.tensor([1.0, 2.0]), 1)),
    "long bytes": (LONG, LONG[:-1] + b"y"),
    "storage": UNSHOWN["storage"],
    "byte order": (np.dtype("<f4"), np.dtype(">f4")),
}


@pytest.mark.parametrize("place", ["in the tree", "in an object"])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_with_the_same_name_are_compared(kind: str, place: str, tmp_path: Path) -> None:
    for number, key in enumerate([*KEYS[kind], copy.deepcopy(KEYS[kind][0])]):
        value = {"a": 1, key: 2}
        x = value if place == "in the tree" else Decorated(value)
        (tmp_path / str(number)).write_bytes(pickle.dumps({"w": np.ones(2, "f4"), "x": x}))
    changed = lw.diff(tmp_path / "0", tmp_path / "1").of("changed")
    assert [change.path.endswith('(key)"') for change in changed] == [place == "in the tree"]
    assert lw.diff(tmp_path / "0", tmp_path / "2").same


@pytest.mark.parametrize("make", [lambda **values: deque([values]), argparse.Namespace, types.SimpleNamespace])
def test_attributes_that_cannot_be_compared_are_unknown(make: Any) -> None:
    changes = []
    for number in (1, 2):
        first, second = make(number=1, value=Decorated(1)), make(number=number, value=Decorated(1))
        changes.append(lw.diff({"w": np.ones(2), "x": first}, {"w": np.ones(2), "x": second})["x"].kind)
    assert changes == ["unknown", "changed"]


def test_keys_in_a_deque_are_compared(tmp_path: Path) -> None:
    for number, day in enumerate([1, 2, 1]):
        content = {"w": np.ones(2, "f4"), "x": deque([{date(2026, 1, day): 1}])}
        (tmp_path / str(number)).write_bytes(pickle.dumps(content))
    assert not lw.diff(tmp_path / "0", tmp_path / "1").same
    assert lw.diff(tmp_path / "0", tmp_path / "2").same


def test_an_object_that_contains_itself_has_a_repr_in_its_change() -> None:
    values = [argparse.Namespace(number=number) for number in range(2)]
    for value in values:
        value.itself = value
    diff = lw.diff({"w": np.ones(2), "x": values[0]}, {"w": np.ones(2), "x": values[1]})
    assert "<Namespace> → <Namespace>" in repr(diff["x"])


def test_an_array_in_many_keys_is_read_once_and_only_to_compare_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = torch.ones(2)
    for name in "ab":
        torch.save({"w": torch.ones(3), "x": [{(array, number): number} for number in range(9)]}, tmp_path / name)
    reads: list[Any] = []

    def read(array: Strided, chunks: Any = Strided.chunks) -> Any:
        reads.append(array)
        return chunks(array)

    monkeypatch.setattr(Strided, "chunks", read)
    with lw.open(tmp_path / "a") as a, lw.open(tmp_path / "b") as b:
        assert lw.diff(a, b, values=False).same
        assert not reads
        assert lw.diff(a, b).same
        assert [array.spec.size for array in reads].count(2) == 2


@pytest.mark.parametrize("tool", ["pickle", "torch", "joblib"])
@pytest.mark.parametrize("kind", UNSHOWN)
def test_content_that_is_not_shown_is_compared(tool: str, kind: str, tmp_path: Path) -> None:
    for number, value in enumerate([*UNSHOWN[kind], UNSHOWN[kind][0]]):
        content, path = {"w": np.ones(2, "f4"), "x": [value]}, tmp_path / str(number)
        if tool == "pickle":
            path.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, path) if tool == "torch" else joblib.dump(content, path)
    if tool == "joblib" and kind == "longdouble":
        with pytest.raises(lw.FileError, match="whose size is not known"):
            lw.diff(tmp_path / "0", tmp_path / "1")
        return
    assert not lw.diff(tmp_path / "0", tmp_path / "1").same
    assert lw.diff(tmp_path / "0", tmp_path / "2").same
