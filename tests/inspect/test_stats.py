"""`lw.stats` over models, optimizers, containers and files."""

import copy
import gc
import json
import math
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
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
from torch._subclasses.fake_tensor import FakeTensorMode

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


def test_every_leaf_is_measured_once_and_found_under_every_name() -> None:
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
    assert list(s["head"]) == [s["head"]["weight"].path] == ["head.weight"]  # tied, with its name in this part
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


def test_parts_without_statistics_are_an_error_that_says_why() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    s = lw.stats(net)
    with pytest.raises(lw.PathError, match=r"none of the leaves that match '1\.\*' has statistics; 1\.weight: a meta"):
        s.fold("1.*")
    with pytest.raises(lw.PathError, match=r'nothing at "0\.weight" in this part of the tree'):
        s.select("**.bias")["0.weight"]
    for wrong in (-1, 1.5, "2"):
        with pytest.raises(lw.QueryError, match="depth= takes a whole number of at least 0"):
            s.text(depth=wrong)  # type: ignore[arg-type]


def test_a_name_of_a_slice_of_a_leaf_is_not_mistaken_for_the_leaf() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    s = lw.stats({"x": x, "turned": x.T, "row": x[1]})
    assert list(s) == ["x"]
    assert s["turned"].mean == s["x"].mean
    with pytest.raises(lw.PathError, match=r'"row" is a slice of x, and only whole leaves have statistics; use "x"'):
        s["row"]


def test_gradients_are_measured_once_there_are_any() -> None:
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
    with pytest.raises(lw.QueryError, match='"value", "grad" or a tree of gradients, not \'gradient\''):
        lw.stats(net, of="gradient")  # type: ignore[arg-type]


def test_the_state_of_an_optimizer_is_measured() -> None:
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


def test_every_dtype_of_torch_is_measured() -> None:
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
def test_tensors_of_any_layout_are_measured(view: Any, dtype: torch.dtype) -> None:
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
    with pytest.raises(lw.PathError, match=r'"meta" has no statistics: a meta tensor has a shape but no values'):
        s["meta"]
    assert "left out: meta: a meta tensor" in s.text()


class Wrapper(torch.Tensor):
    """A tensor that wraps another one and has no memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("not this one")

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper"


def test_tensors_without_memory_are_left_out_and_named() -> None:
    freed, cut = torch.ones(1_000), torch.ones(1_000)
    freed.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(400)
    with FakeTensorMode():
        fake = torch.ones(3)
    s = lw.stats({"freed": freed, "cut": cut, "fake": fake, "wrapped": Wrapper(torch.ones(3)), "here": torch.ones(2)})
    assert list(s) == ["here"]
    assert set(s.skipped) == {"freed", "cut", "fake", "wrapped"}


def test_a_masked_array_is_not_mistaken_for_its_data() -> None:
    data = np.arange(4.0)
    masked = np.ma.masked_array(data, [0, 1, 0, 1])
    for model in ({"m": masked, "d": data}, {"d": data, "m": masked}):
        s = lw.stats(model)
        assert list(s) == ["d"]
        assert list(s.skipped) == ["m"]


def test_a_model_without_any_values_is_refused() -> None:
    with pytest.raises(lw.WalkError, match=r"no leaf has values to measure; weight: a meta tensor"):
        lw.stats(nn.Linear(2, 2, device="meta"))
    assert len(lw.stats(nn.Sequential(nn.ReLU()))) == 0
    assert lw.stats({"a": torch.zeros(0)}).total.count == 0
    assert "0 leaves" in lw.stats([]).text()


def test_a_bare_tensor_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match=r"it is a single array, not a tree; put it into a dict"):
        lw.stats(torch.ones(3))
    path = lw.save(nn.Linear(2, 2), tmp_path / "model.safetensors")
    with pytest.raises(lw.WalkError, match="a file contains no gradients"):
        lw.stats(path, of="grad")


def test_a_device_that_fails_is_an_error_with_the_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes.torch.values.measuring import TorchMeasuring

    def fails(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device is gone\nand more")

    monkeypatch.setattr(TorchMeasuring, "measure", lambda *_: fails)
    s = lw.stats(nn.Linear(2, 2))
    with pytest.raises(lw.WalkError, match=r"cannot measure weight, bias: RuntimeError: CUDA error"):
        s["weight"]
    monkeypatch.setattr(TorchMeasuring, "measure", fails)
    with pytest.raises(lw.WalkError, match=r"weight, bias: RuntimeError: CUDA error: device is gone$"):
        lw.stats(nn.Linear(2, 2))


def test_a_home_that_cannot_measure_is_measured_by_numpy() -> None:
    with toy.registered():
        model = toy.Model(weight=toy.matrix(2, 3), bias=toy.transposed(toy.matrix(2, 2)))
        s = lw.stats(model)
        assert (s["weight"].mean, s["bias"].max, s.total.count) == (2.5, 3, 10)


def test_containers_of_numpy_arrays_are_measured() -> None:
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


def test_statistics_without_any_finite_value_are_nan() -> None:
    row = lw.stats({"x": torch.full((3,), math.nan)})["x"]
    assert all(math.isnan(value) for value in (row.min, row.max, row.mean, row.std, row.absmax, row.quantile(0.5)))
    assert (row.l1, row.l2) == (0, 0)
    empty = lw.stats({"x": torch.zeros(0)})["x"]
    assert math.isnan(empty.std)


LARGEST = torch.finfo(torch.float64).max


def test_constants_have_no_spread() -> None:
    for value in (0.1, 1e10 / 3, LARGEST, -1e-310):
        row = lw.stats({"x": torch.full((10_001,), value, dtype=torch.float64)})["x"]
        assert (row.std, row.mean) == (0, value)


def test_extremes_of_doubles_stay_finite() -> None:
    ends = torch.tensor([LARGEST, -LARGEST] * 10, dtype=torch.float64)
    assert lw.stats({"x": ends})["x"].std == pytest.approx(LARGEST)
    apart = {"a": torch.full((4,), 1e308, dtype=torch.float64), "b": torch.full((4,), -1e308, dtype=torch.float64)}
    assert lw.stats(apart).total.std == 1e308
    assert lw.stats(apart).total.mean == 0


def test_the_deviation_far_from_zero_is_exact_in_double_precision() -> None:
    generator = np.random.default_rng(0)
    for offset, scale in ((1e8, 1e-3), (1e12, 1.0)):
        x = generator.normal(size=600_000) * scale + offset  # several blocks, and several chunks
        exact = math.sqrt(math.fsum((x - offset - math.fsum(x - offset) / x.size) ** 2) / x.size)
        assert lw.stats({"x": x})["x"].std == pytest.approx(exact, rel=1e-8)


def test_statistics_as_json_have_no_nan() -> None:
    s = lw.stats({"a": torch.tensor([1.0, math.inf]), "b": torch.full((2,), math.nan), "c": torch.arange(3)})
    data = json.loads(json.dumps(s.json(), allow_nan=False))
    assert [leaf["path"] for leaf in data["leaves"]] == ["a", "b", "c"]
    assert data["leaves"][0]["posinf"] == 1
    assert data["leaves"][0]["histogram"] == {"lowest": 0, "counts": [1]}
    assert data["leaves"][1]["mean"] is None
    assert data["leaves"][2] == {**data["leaves"][2], "dtype": "int64", "shape": [3], "max": 2, "mean": 1.0}
    assert data["total"]["count"] == 7
    assert lw.stats({"a": torch.ones(1)}, histogram=False).json()["leaves"][0]["histogram"] is None


def test_statistics_can_be_a_pandas_frame() -> None:
    frame = lw.stats({"a": torch.tensor([1.0, 3.0]), "b": torch.zeros(2)}).pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["a", "mean"] == 2
    assert frame["zeros"].sum() == 2
    assert list(lw.stats([]).pandas().columns) == list(frame.columns)


def test_whole_numbers_are_exact_in_pandas() -> None:
    frame = lw.stats({"a": torch.tensor([2**63 - 1]), "b": torch.tensor([0.5])}).pandas()
    assert frame.loc["a", "max"] == 2**63 - 1
    assert isinstance(frame.loc["a", "max"], int)


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_quantiles_begin_with_the_smallest_bin() -> None:
    row = lw.stats({"x": torch.full((100,), 0.7)})["x"]
    assert row.quantile(0) == 0.5
    assert row.quantile(1) == pytest.approx(0.7)
    for wrong in ("a", None, math.nan, -0.1):
        with pytest.raises(lw.QueryError, match="between 0 and 1"):
            row.quantile(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_values_that_would_not_survive_a_cast_are_counted(dtype: torch.dtype) -> None:
    x = torch.randn(20_000) * torch.logspace(-12, 6, 20_000)
    found = lw.stats({"x": x})["x"].outside(str(dtype).removeprefix("torch."))
    limits = torch.finfo(dtype)
    too_large = int((x.abs() > limits.max).sum())
    in_last_bin = int(((x.abs() <= limits.max) & (x.abs() >= 2.0 ** math.floor(math.log2(limits.max)))).sum())
    assert too_large <= found.overflow <= too_large + in_last_bin
    below = int((x.abs() < limits.smallest_normal).sum()) - int((x == 0).sum())
    assert found.subnormal + found.vanish == below
    with pytest.raises(lw.QueryError, match="supports the dtypes float32"):
        lw.stats({"x": x})["x"].outside("int8")


def test_the_counts_for_a_cast_are_those_of_the_cast_itself() -> None:
    def outside(*values: float, dtype: Any = "float16") -> Any:
        return lw.stats({"x": torch.tensor(values, dtype=torch.float64)})["x"].outside(dtype)

    assert outside(65505.0, 33000.0) == (0, 0, 0)  # rounded to the largest number
    assert outside(65520.0) == (1, 0, 0)
    assert outside(464.0, 300.0, dtype="float8_e4m3fn") == (0, 0, 0)  # halfway, which rounds to even
    assert outside(465.0, 300.0, 255.0, dtype="float8_e4m3fn") == (2, 0, 0)
    assert outside(1.5 * 2.0**-10, dtype="float8_e4m3fn") == (0, 1, 0)  # rounded up to the smallest
    assert outside(1.0, 1e6, dtype=torch.float16) == outside(1.0, 1e6, dtype=np.float16) == (1, 0, 0)
    for dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.randn(5_000, dtype=torch.float64) * torch.logspace(-9, 1, 5_000)
        cast = x.to(dtype).double()
        found = lw.stats({"x": x})["x"].outside(dtype)
        assert found.vanish == int(((cast == 0) & (x != 0)).sum())
        assert found.overflow == 0


def test_statistics_keep_no_model_alive() -> None:
    net = nn.Linear(2, 2)
    gone = weakref.ref(net.weight)
    row = lw.stats(net)["weight"]
    del net
    gc.collect()
    assert gone() is None
    assert row.count == 4


def test_rows_and_tables_with_equal_statistics_are_equal() -> None:
    model = {"a": torch.tensor([1.0, math.nan]), "b": torch.full((2,), math.nan)}
    assert lw.stats(model) == lw.stats(model)
    assert lw.stats(model)["a"] == lw.stats(model)["a"]
    assert len({lw.stats(model)["a"], lw.stats(model)["a"]}) == 1
    assert lw.stats(model)["a"] != lw.stats(model)["b"]
    s = lw.stats(model)
    assert "a" in s
    assert all(wrong not in s for wrong in ("c", None, 3, ""))


def test_several_threads_may_be_the_first_to_read_a_result() -> None:
    for _ in range(20):
        s = lw.stats({str(number): torch.randn(50) for number in range(20)} | {"n": np.ones(3)})
        with ThreadPoolExecutor(8) as pool:
            assert len({repr(row) for row in pool.map(lambda _, s=s: s.total, range(8))}) == 1


def test_results_can_be_pickled_and_copied() -> None:
    s = lw.stats({"a": torch.randn(50)})
    assert pickle.loads(pickle.dumps(s["a"])) == copy.deepcopy(s["a"]) == s["a"]
    assert copy.deepcopy(s) == s


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


# -- sections --------------------------------------------------------------------------------------------------------


def checkpoint() -> dict[str, Any]:
    state = {"state": {0: {"exp_avg": torch.full((2, 2), 3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"model": {"w": torch.ones(2, 2)}, "optimizer": state, "loss": torch.tensor([math.inf, 5.0])}


def test_each_section_has_a_total_of_its_own_and_the_total_is_that_of_the_weights() -> None:
    s = lw.stats(checkpoint())
    assert {section: row.count for section, row in s.totals.items()} == {"weights": 4, "optimizer": 4, "rest": 2}
    assert s.total == s.totals["weights"]
    assert (s.totals["optimizer"].mean, s.totals["rest"].max) == (3.0, 5.0)


def test_what_is_selected_is_folded_whatever_its_section() -> None:
    assert lw.stats(checkpoint()).fold("**").count == 10


def test_the_total_of_an_optimizer_is_that_of_its_state() -> None:
    s = lw.stats(checkpoint()["optimizer"])
    assert (list(s.totals), s.total.count) == (["optimizer"], 4)


def test_the_total_of_nothing_is_empty() -> None:
    s = lw.stats({"w": torch.ones(2)}).select("x")
    assert (s.total.count, s.totals) == (0, {})


def test_json_has_the_section_of_each_leaf_and_the_total_of_each_section() -> None:
    data = lw.stats(checkpoint()).json()
    assert [leaf["section"] for leaf in data["leaves"]] == ["weights", "optimizer", "rest"]
    assert data["totals"]["optimizer"]["mean"] == 3.0
    assert data["total"] == data["totals"]["weights"]
