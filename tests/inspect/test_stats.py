"""`lw.stats` over models, optimizers, containers and files."""

import gc
import json
import math
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pandas
import pytest
import torch
from tests.contract import toy
from tests.kernels.cases import assert_agree
from torch import nn

import leafwise as lw
from leafwise.kernels import reference


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def right(row: Any, array: Any) -> None:
    assert_agree(row, reference.measure(array))


def test_every_leaf_once_and_under_every_name() -> None:
    net = Tied()
    s = lw.stats(net)
    names = ["embed.weight", "body.0.weight", "body.0.bias"]
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(s) == [*names, *(f"body.2.{name}" for name in norm)]
    assert len(s) == 8
    for path, leaf in lw.tree(net).items():
        right(s[str(path)], leaf.numpy())
    assert s["head.weight"].path == "embed.weight"
    assert repr(s["head.weight"]) == repr(s["embed.weight"])
    assert s.total.count == 40 + 20 + 8 + 9
    row = s["body.0.weight"]
    assert (row.dtype, row.shape) == ("float32", (4, 4))
    assert math.isclose(row.std, net.body[0].weight.std(correction=0).item(), rel_tol=1e-6)
    assert row.absmax == net.body[0].weight.abs().max().item()
    assert math.isclose(row.l2, net.body[0].weight.norm().item(), rel_tol=1e-6)


def test_parts_are_tables_and_queries_fold() -> None:
    net = Tied()
    s = lw.stats(net)
    part = s["body"]
    assert list(part) == [path for path in s if path.startswith("body.")]
    assert part["0.weight"] == part["body.0.weight"] == s["body.0.weight"]
    assert {path: part[path].count for path in part} == {row.path: row.count for row in part.values()}
    assert [leaf["path"] for leaf in part.json()["leaves"]] == list(part) == list(part.pandas().index)
    assert list(s["head"]) == [s["head"]["weight"].path] == ["head.weight"]  # tied, and named as it is here
    assert s["head.weight"].path == "embed.weight"
    assert s["body.0"].total.count == 20
    weights = torch.cat([net.embed.weight.flatten(), net.body[0].weight.flatten(), net.body[2].weight])
    folded = s.fold("**.weight")
    right(folded, weights.detach().numpy())
    assert folded.path is None
    assert s.select(lw.where(kind="buffer")).total.count == 9
    assert s.fold(lw.where(role="norm.*", kind="parameter")).count == 8
    with pytest.raises(lw.PathError, match=r"nonsense"):
        s.fold("nonsense.**")
    with pytest.raises(lw.PathError, match=r"body\.7"):
        s["body.7"]
    assert len(s.select("nothing")) == 0
    assert s.select("nothing").total.count == 0


def test_a_name_of_a_part_of_a_leaf_is_not_taken_for_the_leaf() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    s = lw.stats({"x": x, "turned": x.T, "row": x[1]})
    assert list(s) == ["x"]
    assert s["turned"].mean == s["x"].mean
    with pytest.raises(lw.PathError, match=r'"row" is a part of x; statistics are of whole leaves'):
        s["row"]


def test_gradients() -> None:
    net = Tied()
    with pytest.raises(lw.WalkError, match=r"no leaf has a gradient; call .* after backward\(\)"):
        lw.stats(net, of="grad")
    net.head(net.body(net.embed(torch.tensor([1, 2, 3])))).sum().backward()
    s = lw.stats(net, of="grad")
    assert list(s) == ["embed.weight", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"]
    assert net.embed.weight.grad is not None
    right(s["head.weight"], net.embed.weight.grad.numpy())
    assert set(s.skipped.values()) == {"it has no gradient"}
    assert list(s.skipped) == [f"body.2.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    with pytest.raises(lw.PathError, match="it has no gradient"):
        s["body.2.running_mean"]
    with pytest.raises(lw.QueryError, match='"value" or "grad", not \'gradient\''):
        lw.stats(net, of="gradient")  # type: ignore[arg-type]


def test_the_state_of_an_optimizer() -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    s = lw.stats({"model": net, "optimizer": optimizer})
    moments = [path for path in s if path.endswith("exp_avg_sq")]
    assert len(moments) == 2
    state = optimizer.state[net.weight]
    right(s[moments[0]], state["exp_avg_sq"].numpy())
    assert s.fold("**.step").max == 1


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def test_every_dtype_of_torch() -> None:
    values = torch.linspace(-3, 3, 1_001).abs()
    model = {str(dtype): values.to(dtype) for dtype in DTYPES}
    s = lw.stats(model)
    assert s.skipped == {}
    for dtype, row in zip(DTYPES, s.values(), strict=True):
        wanted = values.to(dtype)
        assert row.count == 1_001
        assert row.max == wanted.double().max().item()
        assert math.isclose(row.mean, wanted.double().mean().item(), rel_tol=1e-12)
        assert isinstance(row.max, int) == (not dtype.is_floating_point)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[1:, 3:],
        lambda x: x.unsqueeze(0).expand(3, -1, -1),
        lambda x: x.reshape(4, 5, 6).permute(2, 0, 1),
        lambda x: x[:0],
        lambda x: x[0, 0],
        lambda x: torch.view_as_complex(x.reshape(-1, 2)).conj().imag,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_however_they_lie(view: Any, dtype: torch.dtype) -> None:
    x = torch.randn(20, 6, dtype=torch.float64)
    base = x.float() if dtype is not torch.float64 else x
    seen = view(base)
    if dtype is torch.bfloat16:
        seen = view(base.bfloat16()) if not seen.is_neg() else seen
    row = lw.stats({"x": seen})["x"]
    right(row, np.ascontiguousarray(seen.detach().clone().contiguous().double().numpy())) if seen.numel() else None
    assert row.count == seen.numel()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_leaves_without_values_are_named_and_skipped() -> None:
    model = {
        "here": torch.ones(2),
        "meta": torch.empty(3, device="meta"),
        "complex": torch.ones(2, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "lazy": nn.LazyLinear(3),
        "text": np.array(["a", "b"]),
        "masked": np.ma.masked_array(np.ones(2), [0, 1]),
    }
    s = lw.stats(model)
    assert list(s) == ["here"]
    assert s.total.count == 2
    skipped = s.skipped
    assert set(skipped) == {"meta", "complex", "sparse", "quantized", "lazy.weight", "lazy.bias", "text", "masked"}
    assert "no statistics of complex64" in skipped["complex"]
    assert "meta" in skipped["meta"]
    assert "lazy" in skipped["lazy.weight"]
    with pytest.raises(lw.PathError, match=r'no statistics of "meta": a meta tensor has a shape and no values'):
        s["meta"]
    assert "left out: meta: a meta tensor" in s.text()


def test_a_model_without_any_values_is_refused() -> None:
    with pytest.raises(lw.WalkError, match=r"no leaf has values to look at; weight: a meta tensor"):
        lw.stats(nn.Linear(2, 2, device="meta"))
    assert len(lw.stats(nn.Sequential(nn.ReLU()))) == 0
    assert lw.stats({"a": torch.zeros(0)}).total.count == 0
    assert "0 leaves" in lw.stats([]).text()


def test_a_device_that_fails_is_told_with_the_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes import torch as home

    def fails(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device is gone\nand more")

    monkeypatch.setattr(home.TorchHome, "measure", lambda *_: fails)
    s = lw.stats(nn.Linear(2, 2))
    with pytest.raises(lw.WalkError, match=r"could not look at the values of weight, bias: RuntimeError: CUDA error"):
        s["weight"]
    monkeypatch.setattr(home.TorchHome, "measure", fails)
    with pytest.raises(lw.WalkError, match=r"weight, bias: RuntimeError: CUDA error: device is gone$"):
        lw.stats(nn.Linear(2, 2))


def test_a_home_that_says_nothing_of_it_is_measured_by_numpy() -> None:
    with toy.registered():
        model = toy.Model(weight=toy.matrix(2, 3), bias=toy.transposed(toy.matrix(2, 2)))
        s = lw.stats(model)
        assert (s["weight"].mean, s["bias"].max, s.total.count) == (2.5, 3, 10)


def test_numpy_containers() -> None:
    bits = np.arange(7, dtype=np.uint8).view(ml_dtypes.float8_e5m2)
    s = lw.stats({"a": np.arange(6.0).reshape(2, 3).T, "b": [bits], "scalar": np.float32(2)})
    assert s["a"].mean == 2.5
    right(s["b.0"], bits)


def test_not_finite_values_are_counted_and_left_out() -> None:
    x = torch.tensor([1.0, -3.0, math.nan, math.inf, -math.inf, 0.0, 1e-40])
    row = lw.stats({"x": x})["x"]
    assert (row.count, row.nan, row.posinf, row.neginf, row.zeros, row.subnormals) == (7, 1, 1, 1, 1, 1)
    assert (row.min, row.max, row.absmax, row.finite) == (-3, 1, 3, 4)
    assert row.l1 == pytest.approx(4)
    assert "1 NaN, 1 +inf, 1 -inf" in repr(row)


def test_without_any_finite_value() -> None:
    row = lw.stats({"x": torch.full((3,), math.nan)})["x"]
    assert all(math.isnan(value) for value in (row.min, row.max, row.mean, row.std, row.absmax, row.quantile(0.5)))
    assert (row.l1, row.l2) == (0, 0)
    empty = lw.stats({"x": torch.zeros(0)})["x"]
    assert math.isnan(empty.std)


def test_json_is_json() -> None:
    s = lw.stats({"a": torch.tensor([1.0, math.inf]), "b": torch.full((2,), math.nan), "c": torch.arange(3)})
    data = json.loads(json.dumps(s.json(), allow_nan=False))
    assert [leaf["path"] for leaf in data["leaves"]] == ["a", "b", "c"]
    assert data["leaves"][0]["posinf"] == 1
    assert data["leaves"][0]["histogram"] == {"lowest": 0, "counts": [1]}
    assert data["leaves"][1]["mean"] is None
    assert data["leaves"][2] == {**data["leaves"][2], "dtype": "int64", "shape": [3], "max": 2, "mean": 1.0}
    assert data["total"]["count"] == 7
    assert lw.stats({"a": torch.ones(1)}, histogram=False).json()["leaves"][0]["histogram"] is None


def test_pandas() -> None:
    frame = lw.stats({"a": torch.tensor([1.0, 3.0]), "b": torch.zeros(2)}).pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["a", "mean"] == 2
    assert frame["zeros"].sum() == 2
    assert list(lw.stats([]).pandas().columns) == list(frame.columns)


def test_pandas_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(lw.Error, match="pip install pandas"):
        lw.stats({"a": torch.ones(1)}).pandas()


def test_quantiles_are_right_up_to_a_factor_of_two() -> None:
    x = torch.randn(100_000)
    row = lw.stats({"x": x})["x"]
    for q in (0.01, 0.25, 0.5, 0.9, 0.999):
        exact = torch.quantile(x.abs(), q).item()
        assert exact / 2 <= row.quantile(q) <= exact * 2
    assert row.quantile(0) == 0 or row.quantile(0) <= x.abs().min().item() * 2
    assert row.quantile(1) == x.abs().max().item()
    with pytest.raises(lw.QueryError, match="between 0 and 1"):
        row.quantile(2)
    with pytest.raises(lw.QueryError, match="needs the histogram"):
        lw.stats({"x": x}, histogram=False)["x"].quantile(0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_would_not_survive_a_cast(dtype: torch.dtype) -> None:
    x = torch.randn(20_000) * torch.logspace(-12, 6, 20_000)
    found = lw.stats({"x": x})["x"].outside(str(dtype).removeprefix("torch."))
    limits = torch.finfo(dtype)
    too_large = int((x.abs() > limits.max).sum())
    in_last_bin = int(((x.abs() <= limits.max) & (x.abs() >= 2.0 ** math.floor(math.log2(limits.max)))).sum())
    assert too_large <= found.overflow <= too_large + in_last_bin
    below = int((x.abs() < limits.smallest_normal).sum()) - int((x == 0).sum())
    assert found.subnormal + found.vanish == below
    with pytest.raises(lw.QueryError, match="knows the floating dtypes"):
        lw.stats({"x": x})["x"].outside("int8")


def test_statistics_keep_no_model_alive() -> None:
    net = nn.Linear(2, 2)
    gone = weakref.ref(net.weight)
    row = lw.stats(net)["weight"]
    del net
    gc.collect()
    assert gone() is None
    assert row.count == 4


def test_a_file_a_folder_and_a_tree_of_one_give_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(700, 900), nn.Linear(900, 300)).bfloat16()
    whole = lw.save(model, tmp_path / "model.safetensors")
    lw.save(model, tmp_path / "shards", shard_size=300_000)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    np.savez(
        tmp_path / "model.npz", **{path: lw.tree(model)[path].numpy().astype(np.float32) for path in lw.stats(model)}
    )
    live = lw.stats(model)
    for source in (whole, tmp_path / "shards", tmp_path / "model.pt"):
        stored = lw.stats(source)
        assert {path: repr(row) for path, row in stored.items()} == {path: repr(row) for path, row in live.items()}
        assert list(stored.values()) == list(live.values())
    with lw.open(whole) as opened:
        assert lw.stats(opened).total == live.total
        assert lw.stats(opened["0"]).total.count == 700 * 900 + 900
        assert opened["0.weight"].numpy().shape == (900, 700)  # it is still open
    floats = lw.stats(tmp_path / "model.npz")
    assert floats["0.weight"].mean == live["0.weight"].mean


def test_a_large_file_in_pieces_gives_the_bits_of_memory(tmp_path: Path) -> None:
    from leafwise.kernels.cpu import PIECE

    array = np.random.default_rng(0).normal(size=2 * PIECE + 12_345).astype(np.float32)
    turned = np.asfortranarray(array[: 2 * PIECE].reshape(1024, -1))
    np.savez(tmp_path / "a.npz", run=array, turned=turned)
    s = lw.stats(tmp_path / "a.npz")
    live = lw.stats({"run": array, "turned": turned})
    assert s["run"] == live["run"]
    assert s["turned"] == live["turned"]
