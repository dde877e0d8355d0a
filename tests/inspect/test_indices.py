"""Findings and statistics say where in a leaf: indices of NaN, and numbers of units and rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import leafwise as lw
from leafwise.core.capabilities import measuring
from leafwise.inspect import indices as places

NAN, INF = float("nan"), float("inf")


def planted(*shape: int, dtype: str = "float32", count: int = 20, seed: int = 0) -> tuple[Any, list[tuple[int, ...]]]:
    """A tensor with NaN in random places, and their indices in order."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator)
    where = torch.randperm(values.numel(), generator=generator)[:count]
    values.view(-1)[where] = NAN
    return values.to(getattr(torch, dtype)), list(map(tuple, torch.isnan(values).nonzero().tolist()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(50,), (7, 9), (4, 5, 6), (3, 1, 2, 8)])
def test_nan_is_found_where_it_was_put(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values, expected = planted(*shape, dtype=dtype)
    assert list(lw.stats({"w": values}).nonfinite["w"].indices) == expected
    [finding] = lw.check({"w": values}, select="LW101")
    assert (list(finding.indices), finding.axis, finding.total) == (expected, None, 20)
    save_file({"w": values}, tmp_path / "w.safetensors")
    assert list(lw.stats(tmp_path / "w.safetensors").nonfinite["w"].indices) == expected
    [finding] = lw.check(tmp_path / "w.safetensors", select="LW101")
    assert list(finding.indices) == expected


def test_infinities_are_listed_with_nan_in_order() -> None:
    values = torch.tensor([1.0, INF, NAN, -INF, 0.0])
    assert lw.stats({"w": values}).nonfinite["w"] == (((1,), (2,), (3,)), None, 3)


def test_indices_are_those_of_the_tensor_as_it_is_indexed_whatever_its_strides(tmp_path: Path) -> None:
    values, _ = planted(6, 8)
    for view in (values.t(), values[::2], values[:, 1::3], values.t()[2:]):
        expected = list(map(tuple, torch.isnan(view).nonzero().tolist()))
        assert list(lw.stats({"w": view}).nonfinite["w"].indices) == expected
        torch.save({"w": view}, tmp_path / "view.pt")
        assert list(lw.stats(tmp_path / "view.pt").nonfinite["w"].indices) == expected


def test_large_leaves_are_read_in_bands_and_only_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "BAND", 64)
    values, expected = planted(40, 10, count=33)
    assert list(lw.stats({"w": values}).nonfinite["w"].indices) == expected
    monkeypatch.setattr(places, "MOST", 5)
    found = lw.stats({"w": values}).nonfinite["w"]
    assert (list(found.indices), found.total) == (expected[:5], 33)


def test_a_healthy_leaf_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "bands", lambda *_: pytest.fail("read again"))
    assert lw.stats({"w": torch.ones(3)}).nonfinite == {}
    assert not lw.check(nn.Linear(16, 16), select="LW101")


def test_a_tied_leaf_is_listed_once_and_a_single_number_has_no_index() -> None:
    net: Any = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    net["b"].weight = net["a"].weight
    with torch.no_grad():
        net["a"].weight[1, 2] = NAN
    assert lw.stats(net).nonfinite == {"a.weight": (((1, 2),), None, 1)}
    assert list(lw.stats(net)["b"].nonfinite) == ["b.weight"]
    [finding] = lw.check({"loss_scale": torch.tensor(NAN)}, select="LW101")
    assert finding.indices == ((),)
    assert " at " not in finding.message


def test_values_that_changed_since_they_were_measured_are_left_out() -> None:
    values = torch.tensor([1.0, NAN])
    s = lw.stats({"w": values})
    values[1] = 0.0
    assert s.nonfinite == {}
    assert "not finite in 1 leaf: w" in s.text()


def test_gradients_and_optimizer_state_have_indices_too() -> None:
    net: Any = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    net.weight.grad[2, 1] = INF
    optimizer.state[net.weight]["exp_avg"][0, 3] = NAN
    found = {finding.code: (finding.indices, finding.total) for finding in lw.check(net, optimizer, select="LW10")}
    assert found == {"LW102": (((2, 1),), 1), "LW101": (((0, 3),), 1)}
    assert lw.stats(net, of="grad").nonfinite["weight"].indices == ((2, 1),)


def test_messages_list_the_first_few_and_count_the_others() -> None:
    values = torch.ones(50, 20)
    values[12, 7] = NAN
    [finding] = lw.check({"w": values}, select="LW101")
    assert finding.message.startswith("1 NaN among 1,000 values, at [12, 7]; load")
    values[12:30, 9] = NAN
    [finding] = lw.check({"w": values}, select="LW101")
    assert finding.message.startswith("19 NaN among 1,000 values, at [12, 7], [12, 9], [13, 9] and 16 others; load")
    text = lw.stats({"w": values}).text()
    assert "not finite in 1 leaf: w\nw at [12, 7], [12, 9], [13, 9] and 16 others" in text
    rows = json.loads(json.dumps(lw.stats({"w": values}).json()))["leaves"]
    assert rows[0]["nonfinite"][:2] == [[12, 7], [12, 9]]
    assert len(rows[0]["nonfinite"]) == 19


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([8, 9], "8, 9"),
        ([3, 17, *range(64, 72)], "3, 17, 64-71"),
        ([0, 2, 4, 6, 8, 10, 12], "0, 2, 4, 6, 8, 10 and 1 other"),
        ([*range(0, 40, 2)], "0, 2, 4, 6, 8, 10 and 14 others"),
    ],
)
def test_numbers_of_lines_are_shortened_to_ranges(numbers: list[int], text: str) -> None:
    assert str(places.lines_along(0, numbers)) == text


def test_dead_units_and_copies_have_the_numbers_of_their_lines() -> None:
    net: Any = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    with torch.no_grad():
        net[0].weight[[3, 17, *range(40, 48)]] = 0
        net[2].weight[9] = net[2].weight[4]
        net[2].weight[:, 5] = 0
    found = {finding.code: finding for finding in lw.check(net, select="LW11")}
    assert found["LW110"].indices == (3, 17, *range(40, 48))
    assert (found["LW110"].axis, found["LW110"].total) == (0, 10)
    assert "10 of 64 units are all zero: 3, 17, 40-47; prune" in found["LW110"].message
    assert (found["LW111"].indices, found["LW111"].axis) == ((5,), 1)
    assert (found["LW113"].indices, found["LW113"].axis) == ((9,), 0)
    conv = nn.ConvTranspose2d(8, 16, 3)
    with torch.no_grad():
        conv.weight[:, 5] = 0
    [finding] = lw.check(conv, select="LW110")
    assert (finding.indices, finding.axis) == ((5,), 1)


def test_json_and_tables_have_all_indices_up_to_the_limit() -> None:
    values = np.full((200, 100), np.nan, np.float32)
    [finding] = lw.check({"w": values, "v": np.ones(3, np.float32)}, select="LW101")
    assert (len(finding.indices), finding.total) == (10_000, 20_000)
    [row] = json.loads(json.dumps(lw.check({"w": values}, select="LW101").json()))["findings"]
    assert row["indices"][101] == [1, 1]
    assert lw.check({"w": values}, select="LW101").pandas()["total"].tolist() == [20_000]
    dead = np.random.default_rng(0).standard_normal((30_000, 9)).astype(np.float32)
    dead[:12_345] = 0
    [finding] = lw.check({"w": dead}, select="LW110")
    assert (len(finding.indices), finding.total) == (10_000, 12_345)
    assert "0-9999 and 2,345 others" in finding.message
