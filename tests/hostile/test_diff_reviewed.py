"""What reviews of `lw.diff` found: things that differ and were called the same, figures that were wrong, and words that
said too little."""

import copy
import json
import math
import warnings
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.render.diff import lower, to_json
from leafwise.render.terminal import Terminal
from leafwise.render.text import text


def kinds(found: Any) -> dict[str, tuple[str, ...]]:
    return {change.path: change.kinds for change in found if change.kinds != ("same",)}


# -- views and ties --------------------------------------------------------------------------------------------------


def test_other_views_of_the_same_leaf_are_not_the_same(tmp_path: Path) -> None:
    q = torch.randn(8, 4)
    r = q.clone()
    one = {"qkv": q, "k": q[2:6]}
    assert lw.diff(one, {"qkv": r, "k": r[2:6]}).same
    for other in ({"qkv": q, "k": q[3:7]}, {"qkv": r, "k": r[3:7]}, {"qkv": r, "k": r[:2]}):
        torch.save(one, tmp_path / "one.pt")
        torch.save(other, tmp_path / "other.pt")
        assert not lw.diff(one, other).same
        assert not lw.diff(tmp_path / "one.pt", tmp_path / "other.pt").same
    found = lw.diff(one, {"qkv": r, "k": r[3:7]})["k"]
    assert found.kinds == ("changed", "untied", "tied")
    assert found.notes == ("in a it is qkv[2:6, :]", "in b it is qkv[3:7, :]")


def test_other_orders_of_axes_are_not_the_same() -> None:
    c = torch.randn(3, 3, 3)
    r = c.clone()
    one = {"w": c, "p": c.permute(0, 2, 1)}
    assert lw.diff(one, {"w": r, "p": r.permute(0, 2, 1)}).same
    assert kinds(lw.diff(one, {"w": r, "p": r.permute(2, 1, 0)})) == {"p": ("changed", "untied", "tied")}


def test_a_buffer_that_is_a_view_of_a_parameter() -> None:
    class Viewed(nn.Module):
        def __init__(self, start: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(32.0).reshape(8, 4))
            self.register_buffer("part", self.weight.data[start : start + 4])

    assert lw.diff(Viewed(2), Viewed(2)).same
    assert "changed" in lw.diff(Viewed(2), Viewed(3))["part"].kinds


def test_views_of_which_nobody_can_say_how_are_compared() -> None:
    w = torch.randn(4, 6)
    r = w.clone()
    for order in (["w", "flat"], ["flat", "w"]):
        one = {name: {"w": w, "flat": w.view(-1)}[name] for name in order}
        assert lw.diff(one, {name: {"w": r, "flat": r.view(-1)}[name] for name in order}).same
    assert kinds(lw.diff({"w": w, "x": w.view(-1)}, {"w": r, "x": r.view(-1).flip(0)}))["x"] == ("changed", "untied")


def test_a_leaf_is_gone_although_a_part_of_it_is_left() -> None:
    q = torch.randn(8, 4)
    whole, part = {"qkv": q, "k": q[2:6]}, {"k": q[2:6].clone()}
    assert kinds(lw.diff(whole, part)) == {"qkv": ("removed",)}
    assert kinds(lw.diff(part, whole)) == {"qkv": ("added",)}
    three = {"v": q[6:], **whole}
    assert kinds(lw.diff(three, part)) == {"qkv": ("removed",)}


def test_views_and_turned_names_that_are_left_are_noted() -> None:
    w, q = torch.randn(4, 6), torch.randn(8, 4)
    found = lw.diff({"w": w, "wt": w.t()}, {"w": w})
    assert found.same
    assert found.notes == ["wt is only in a, where it is w.T"]
    assert lw.diff({"wt": w.t()}, {"w": w, "wt": w.t()}).notes == ["w is only in b, where it is one with wt"]
    found = lw.diff({"k": q[:6].clone()}, {"k": q[:6], "z": q[:2]})
    assert found.same
    assert found.notes == ["z is only in b, where it is k[0:2, :]"]


def test_a_note_names_the_leaf_that_was_found() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    found = lw.diff(net, {"head.weight": net["head"].weight.detach().clone()})
    assert found.same
    assert found.notes == ["embed.weight is only in a, where it is another name of head.weight"]


# -- plain values ----------------------------------------------------------------------------------------------------


class Colour(Enum):
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
        (Colour.RED, Colour.BLUE),
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
def test_plain_values_that_differ(one: Any, other: Any) -> None:
    w = torch.ones(2)
    found = lw.diff({"w": w, "v": one}, {"w": w, "v": other})
    assert kinds(found) == {"v": ("changed",)}
    assert str(found)
    assert lw.diff({"w": w, "v": one}, {"w": w, "v": copy.deepcopy(one)}).same


def test_numbers_of_numpy_are_numbers_and_nan_is_itself() -> None:
    for one, other in (
        (np.float64(1), 1.0),
        (np.int64(3), 3),
        (math.nan, np.float32("nan")),
        (1, 1.0),
        (Decimal("nan"),) * 2,
    ):
        assert lw.diff({"v": one}, {"v": other}).same, (one, other)


@pytest.mark.parametrize("make", [torch.Generator, Mute, Broken])
def test_objects_that_do_not_say_whether_they_are_equal_are_unknown(make: Any) -> None:
    w, one = torch.ones(2), make()
    assert lw.diff({"w": w, "v": one}, {"w": w, "v": one}).same
    found = lw.diff({"w": w, "v": one}, {"w": w, "v": make()})
    assert kinds(found) == {"v": ("unknown",)}
    assert "do not say whether they are equal" in str(found)


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_whole_numbers_of_two_dtypes_are_compared_exactly() -> None:
    ids = torch.arange(4) + 2**60
    assert kinds(lw.diff({"ids": ids}, {"ids": ids.to(torch.uint64)})) == {"ids": ("cast",)}
    for one, other in ((ids, (ids + 1).to(torch.uint64)), ((ids + 1).to(torch.uint64), ids)):
        found = lw.diff({"ids": one}, {"ids": other})["ids"]
        assert found.kinds == ("changed",)
        assert (found.comparison.changed, found.comparison.largest, found.comparison.distance) == (4, 1, 2)


def test_a_number_that_wraps_is_another_number() -> None:
    one, other = np.array([-1, 5, -3], np.int64), np.array([2**64 - 1, 5, 2], np.uint64)
    found = lw.diff({"a": one}, {"a": other})["a"]
    assert found.kinds == ("changed",)
    assert (found.comparison.size, found.comparison.changed, found.comparison.largest) == (3, 2, 2.0**64)
    wide = lw.diff({"a": one.astype(np.int32)}, {"a": np.array([2**32 - 1, 5, 2], np.uint32)})["a"]
    assert (wide.kinds, wide.comparison.changed, wide.comparison.largest) == (("changed",), 2, 2.0**32)


def test_dtypes_that_nobody_can_read_are_compared_as_bytes(tmp_path: Path) -> None:
    one = torch.arange(8, dtype=torch.uint8)
    other = one.flip(0)
    packed = [value.view(torch.float4_e2m1fn_x2) for value in (one, one.clone(), other)]
    assert lw.diff({"p": packed[0]}, {"p": packed[1]}).same
    found = lw.diff({"p": packed[0]}, {"p": packed[2]})["p"]
    assert (found.kinds, found.comparison) == (("changed",), None)
    assert "by how much is not known" in found.notes[0]
    assert lw.diff({"p": packed[0], "w": one}, {"p": one, "w": one})["p"].kinds == ("unknown",)


def test_whatever_goes_wrong_does_not_say_that_something_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "w.safetensors"))
    for error in (AttributeError("module has no float4"), MemoryError(), PermissionError(13, "not allowed", "w")):

        def fail(*given: Any, error: Exception = error, **more: Any) -> None:
            raise error

        monkeypatch.setattr("leafwise.inspect.diff.difference.diff", fail)
        assert main(["diff", path, path]) == 2
        assert type(error).__name__ in capsys.readouterr().err


def test_a_huge_value_on_one_side_leaves_the_norm_of_the_other() -> None:
    a = torch.ones(1000, dtype=torch.float64)
    b = a.clone()
    b[7] = 1e200
    found = lw.diff({"a": a}, {"a": b})["a"].comparison
    assert found.norm == pytest.approx(1000**0.5)
    assert found.relative_l2 == pytest.approx(1e200 / 1000**0.5)
    assert found.cosine == pytest.approx(1000**-0.5)


@pytest.mark.parametrize(
    ("a", "b", "distance", "relative"),
    [
        ([1e300, 1e-20], [1e300, 1.0], 1.0, 1e-300),
        ([1.0, 1e-200], [1.0, 2e-200], 1e-200, 1e-200),
        ([1.7e308], [-1.7e308], math.inf, 2.0),
    ],
)
def test_small_differences_beside_large_values(a: Any, b: Any, distance: float, relative: float) -> None:
    one, other = (torch.tensor(values, dtype=torch.float64) for values in (a, b))
    found = lw.diff({"a": one}, {"a": other})["a"].comparison
    assert found.distance == pytest.approx(distance)
    assert found.relative_l2 == pytest.approx(relative)


def test_what_went_to_nan_does_not_look_harmless() -> None:
    a = {"m": {"w": torch.ones(4), "v": torch.ones(3)}, "z": torch.tensor([1.0, math.inf])}
    b = {"m": {"w": torch.full((4,), math.nan), "v": torch.zeros(3)}, "z": torch.tensor([2.0, math.inf])}
    found = lw.diff(a, b)
    change = found["m.w"]
    assert math.isnan(change.comparison.relative_l2)
    assert math.isnan(change.comparison.largest)
    told = "4 of those that changed not finite"
    assert told in repr(change)
    shown = found.text()
    assert shown.count(told) == 2  # its line, and those that changed together
    assert "1 not finite" in shown
    assert told in found.text(depth=1).splitlines()[1]
    data = json.loads(json.dumps(to_json(found)))
    figures = next(leaf["comparison"] for leaf in data["leaves"] if leaf["path"] == "m.w")
    assert (figures["relative_l2"], figures["largest"], figures["nonfinite_changed"]) == (None, None, 4)
    assert found["z"].comparison.largest == 1


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz]
)
def test_the_casts_of_torch_are_casts(dtype: torch.dtype) -> None:
    # One just above the middle of two halves, which float32 does not see.
    wide = torch.randn(2000, dtype=torch.float64) * 100
    wide[:4] = torch.tensor([1 + 2**-11 + 2**-40, 1000.0, -5e4, 5.0], dtype=torch.float64)
    for one in (wide, wide.float()):
        assert lw.diff({"a": one}, {"a": one.to(dtype)})["a"].kinds == ("cast",)
    changed = wide.to(dtype)
    changed[3] = -wide[3]
    assert lw.diff({"a": wide}, {"a": changed})["a"].kinds == ("changed",)


@pytest.mark.parametrize("shape", [(5, 5), (5, 7)])
def test_turned_and_cast(shape: tuple[int, int]) -> None:
    w = torch.randn(shape)
    assert lw.diff({"w": w}, {"w": w.T.contiguous().half()})["w"].kinds == ("transposed", "cast")
    assert lw.diff({"w": w.half()}, {"w": w.T.contiguous()})["w"].kinds == ("transposed", "cast")


def test_complex_beside_real_numbers_warns_of_nothing() -> None:
    w = torch.randn(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lw.diff({"w": w}, {"w": w.to(torch.complex64)})["w"].kinds == ("cast",)
        assert lw.diff({"w": w.to(torch.complex64)}, {"w": w})["w"].kinds == ("cast",)
        assert lw.diff({"w": w + 1j}, {"w": w})["w"].kinds == ("changed",)


# -- names -----------------------------------------------------------------------------------------------------------


def test_leaves_with_the_same_statistics_and_crossed_names() -> None:
    p, r = torch.arange(1000.0), torch.arange(1000.0).flip(0)
    found = lw.diff({"a.p": p, "a.q": r}, {"b.q": p, "b.p": r})
    assert {change.path: change.other for change in found} == {"a.p": "b.q", "a.q": "b.p"}
    many = [torch.arange(1000.0).roll(number) for number in range(9)]
    found = lw.diff({f"a.{n}": value for n, value in enumerate(many)}, {f"b.{8 - n}": v for n, v in enumerate(many)})
    assert {change.path: change.other for change in found} == {f"a.{n}": f"b.{8 - n}" for n in range(9)}


def test_tied_on_one_side_and_renamed() -> None:
    p = torch.randn(3, 3)
    found = lw.diff({"e": p, "h": p}, {"x": p.clone(), "y": p.clone()})
    assert kinds(found) == {"e": ("renamed",), "y": ("added",)}
    found = lw.diff({"x": p.clone(), "y": p.clone()}, {"e": p, "h": p})
    assert kinds(found) == {"x": ("renamed",), "y": ("removed",)}


def test_the_shell_is_told_of_its_own_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        str(lw.save({name: torch.ones(size)}, tmp_path / f"{name}.safetensors")) for name, size in (("a", 3), ("b", 4))
    ]
    assert main(["diff", *paths]) == 2
    said = capsys.readouterr().err
    assert "no leaf in common" in said
    assert "--rename OLD=NEW" in said
    assert "rename=" not in said


@pytest.mark.parametrize("inside", [False, True])
def test_an_optimizer_names_the_parameters_that_its_state_dict_numbers(inside: bool) -> None:
    net = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.5}])
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    one: Any = {"net": net, "optimizer": optimizer} if inside else optimizer
    other: Any = optimizer.state_dict()
    other = {"net": net.state_dict(), "optimizer": other} if inside else other
    for a, b in ((one, other), (other, one)):
        assert lw.diff(a, b).of("changed") == []
        assert lw.diff(a, b).same != inside  # there, the state is named by the parameters


def test_the_order_of_parameters_is_a_difference() -> None:
    one = {"w": torch.ones(1), "param_groups": [{"params": ["a", "b"]}]}
    for params in ([1, 0], [0, 1, 2], ["b", "a"], [0, True]):
        assert not lw.diff(one, {"w": torch.ones(1), "param_groups": [{"params": params}]}).same
    assert lw.diff(one, {"w": torch.ones(1), "param_groups": [{"params": [4, 5]}]}).same


# -- words -----------------------------------------------------------------------------------------------------------


def test_plain_values_are_no_leaves() -> None:
    a = {"x": {"b": torch.ones(2), "lr": 1, "mom": 2}, "w": torch.ones(1)}
    found = lw.diff(a, {**a, "w": torch.zeros(1)})
    assert "1 leaf, 2 values same" in found.text()
    assert "▸ 2 leaves, 2 values: 1 changed, 3 same" in found.text(depth=0)


def test_json_tells_bytes_and_complex_numbers() -> None:
    one = {"b": b"\x01" * 100, "c": 1 + 2j, "s": {1}, "l": [b"\x02"]}
    data = to_json(lw.diff(one, {"b": b"\x02", "c": 2j, "s": {2}, "l": [b"\x03"]}))
    json.dumps(data)
    told = {value["path"]: value["values"] for value in data["plain"]}
    assert told["b"] == ["01" * 64, "02"]
    assert told["c"] == ["(1+2j)", "2j"]
    assert told["s"] == ["{1}", "{2}"]
    assert told["l"] == [["02"], ["03"]] if "l" in told else told["l.0"] == ["02", "03"]


@pytest.mark.parametrize("width", [24, 40, 60])
def test_kinds_and_the_footer_survive_a_narrow_terminal(width: int) -> None:
    a = {"model": {"layers": {"self_attention_projection": torch.ones(3), "b": torch.ones(2)}}, "gone": torch.ones(4)}
    b = {"model": {"layers": {"self_attention_projection": torch.zeros(3), "b": torch.ones(2).half()}}}
    lines = text(lower(lw.diff(a, b)), Terminal(width=width)).splitlines()
    assert max(map(len, lines)) <= width
    for kind in ("changed", "cast", "removed"):
        assert any(f"  {kind}" in line for line in lines), kind
    assert "3 leaves: 1 removed, 1 changed, 1 cast" in " ".join(lines)


class Numbered:
    """Whose equality is told as NumPy tells it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> Any:
        return np.bool_(isinstance(other, Numbered) and self.number == other.number)

    __hash__ = None  # type: ignore[assignment]


def test_an_equality_of_numpy_is_one() -> None:
    assert lw.diff({"v": Numbered(1)}, {"v": Numbered(1)}).same
    assert lw.diff({"v": Numbered(1)}, {"v": Numbered(2)}).counts == {"changed": 1}


def test_parts_of_a_leaf_that_have_nothing_in_common_are_not_tied() -> None:
    q = torch.randn(8, 4)
    found = lw.diff({"q": q, "k": q[2:6], "v": q[6:]}, {"k": q[2:6].clone(), "v": q[6:].clone()})
    assert kinds(found) == {"q": ("removed",)}


def test_the_same_part_of_a_leaf_of_another_shape_is_as_tied_as_it_was() -> None:
    w = torch.arange(32.0).reshape(8, 4)
    v = w.clone().reshape(4, 8)
    assert kinds(lw.diff({"w": w, "k": w[2:4]}, {"w": v, "k": v[2:4]})) == {"w": ("reshaped",), "k": ("reshaped",)}
