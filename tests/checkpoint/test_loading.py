"""`lw.load` fills a model in place or on meta, with its ties, from any kind of source; or it changes nothing."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.models import Tied, bits, parameters, same
from torch import nn

import leafwise as lw


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Tied, str]:
    model = Tied()
    return model, str(lw.save(model, tmp_path / "model.safetensors"))


def untied_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    "way", ["file", "path", "shards", "folder", "tree", "model", "state dict", "pt", "npz", "subtree"]
)
def test_a_model_is_loaded_from_every_kind_of_source(way: str, tmp_path: Path) -> None:
    model = Tied()
    path = tmp_path / "model.safetensors"
    source: Any = model
    if way == "file":
        source = lw.save(model, path)
    elif way == "path":
        source = Path(lw.save(model, path))
    elif way == "shards":
        source = lw.save(model, path, shard_size=200)
    elif way == "folder":
        lw.save(model, path, shard_size=200)
        source = tmp_path
    elif way == "tree":
        source = lw.open(lw.save(model, path))
    elif way == "state dict":
        source = model.state_dict()
    elif way == "pt":
        source = tmp_path / "model.pt"
        torch.save(model.state_dict(), source)
    elif way == "npz":
        source = tmp_path / "model.npz"
        np.savez(source, **{name: value.numpy() for name, value in untied_state(model).items()})
    elif way == "subtree":
        source = lw.open(lw.save({"a": {"b": model}, "c": nn.Linear(2, 2)}, path))["a.b"]
    target = Tied()
    identities = {name: id(value) for name, value in target.named_parameters()}
    optimizer = torch.optim.SGD(target.parameters(), lr=1)
    assert lw.load(target, source) is target
    assert same(target, model)
    assert {name: id(value) for name, value in target.named_parameters()} == identities
    assert lw.ties(target, optimizer=optimizer).optimizer == []
    assert target.head.weight is target.embed.weight


@pytest.mark.parametrize("kind", ["missing", "unexpected", "shape", "dtype", "nothing"])
def test_what_does_not_fit_changes_nothing(kind: str) -> None:
    model = Tied()
    state: dict[str, Any] = untied_state(Tied())
    if kind == "missing":
        del state["body.weight"], state["norm.running_mean"]
    elif kind == "unexpected":
        state["more"] = torch.ones(1)
    elif kind == "shape":
        state["body.weight"] = torch.ones(5, 5)
    elif kind == "dtype":
        state["body.weight"] = torch.ones(4, 4).double()
    else:
        state = {"else": torch.ones(1)}
    before = bits(model)
    with pytest.raises(lw.LoadError, match=r"nothing was changed") as caught:
        lw.load(model, state)
    assert bits(model) == before
    assert isinstance(caught.value.plan, lw.plan(model, state).__class__)
    message = str(caught.value)
    if kind == "missing":
        assert "body.weight (4×4 float32)" in message
        assert "norm.running_mean" in message
    if kind in ("missing", "unexpected", "shape"):
        assert f'pass allow={{"{kind}"}}' in message
        lw.load(model, state, allow={kind})
        assert not torch.equal(model.embed.weight, torch.zeros(10, 4))
    if kind == "dtype":
        assert "float32 in the model but float64 in the source; pass cast=True" in message
        lw.load(model, state, cast=True)
        assert model.body.weight.dtype == torch.float32
        assert (model.body.weight == 1).all()
    if kind == "nothing":
        with pytest.raises(lw.LoadError, match=r"nothing in the source can be loaded into the model"):
            lw.load(model, state, allow={"missing", "unexpected", "shape"})


def test_targets_that_are_expanded_are_refused_before_anything_changes() -> None:
    target = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False))
    target[1].weight = nn.Parameter(torch.zeros(1, 4).expand(4, 4))
    before = target[0].weight.detach().clone()
    with pytest.raises(lw.LoadError, match=r"cannot load 1.weight: it is expanded.*nothing was changed"):
        lw.load(target, nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)))
    assert torch.equal(target[0].weight, before)


def test_read_only_targets_are_refused_before_anything_changes() -> None:
    with torch.inference_mode():
        inference = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(lw.LoadError, match=r"it was made in inference mode"):
        lw.load(inference, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    target = {"t": torch.zeros(2), "x": fixed}
    with pytest.raises(lw.LoadError, match=r"the array is read-only"):
        lw.load(target, {"t": torch.ones(2), "x": np.ones(2)})
    assert not target["t"].any()


def test_every_mismatch_is_listed_at_once() -> None:
    state: dict[str, Any] = untied_state(Tied())
    state["body.weight"] = torch.ones(5, 5)
    state["body.bias"] = torch.ones(4, dtype=torch.int64)
    state["more"] = torch.ones(1)
    del state["norm.weight"]
    with pytest.raises(lw.LoadError) as caught:
        lw.load(Tied(), state)
    message = str(caught.value)
    for part in ("1 missing", "1 shape", "1 dtype", "1 unexpected", "norm.weight", "body.weight is 4×4", "more"):
        assert part in message
    assert "leafwise does not cast one kind of number to another" in message


def test_zero_matches_is_an_error_whatever_is_allowed() -> None:
    with pytest.raises(lw.LoadError, match=r"nothing in the source can be loaded"):
        lw.load(nn.Linear(2, 2), {"x": torch.ones(1)}, allow={"missing", "unexpected"})


def test_leaves_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    path = lw.save(parameters(x=torch.randn(4).half(), y=torch.randn(4).bfloat16()), tmp_path / "a.safetensors")
    other = parameters(y=torch.zeros(4).half(), x=torch.zeros(4).bfloat16())
    with pytest.raises(lw.LoadError, match=r"2 dtype"):
        lw.load(other, path)
    net = nn.Sequential(nn.Linear(2, 3))
    state = {name: net.state_dict()[name] for name in reversed(net.state_dict())}
    loaded = lw.load(nn.Sequential(nn.Linear(2, 3)), state)
    assert torch.equal(loaded[0].weight, net[0].weight)


def test_a_list_in_place_of_an_array_is_an_error_that_names_it() -> None:
    with pytest.raises(lw.LoadError, match=r"is an array in the model but a list in the"):
        lw.load(nn.Linear(2, 2), {"weight": [1, 2], "bias": torch.zeros(2)})


# -- ties --------------------------------------------------------------------------------------------------


def test_a_tie_comes_back_into_a_model_that_was_not_tied(saved: tuple[Tied, str]) -> None:
    model, path = saved
    other = Tied(tied=False)
    assert not torch.equal(other.head.weight, other.embed.weight)  # its old values do not count
    lw.load(other, path)
    assert other.head.weight is other.embed.weight
    assert same(other, model)
    other.to("meta").to_empty(device="cpu")  # and is kept
    assert other.head.weight is other.embed.weight
    apart = Tied(tied=False)
    lw.load(apart, path, ties="ignore")
    assert apart.head.weight is not apart.embed.weight
    assert same(apart, model)


def test_values_for_a_tie_are_compared_in_the_source_and_not_in_the_target(tmp_path: Path) -> None:
    state = untied_state(Tied())
    state["head.weight"] = torch.randn(10, 4)
    tied = Tied()
    before = bits(tied)
    with pytest.raises(lw.LoadError, match=r"head.weight is tied in the model, but the source has two different"):
        lw.load(tied, state)
    assert bits(tied) == before
    other = lw.load(Tied(tied=False), state)
    assert other.head.weight is not other.embed.weight
    state["head.weight"] = state["embed.weight"].clone()
    assert lw.load(tied, state).head.weight is tied.embed.weight
    equal = lw.load(Tied(tied=False), state)
    assert equal.head.weight is not equal.embed.weight  # not recorded as tied
    # Recorded as tied and written twice, but changed since by another program: no tie is made.
    from safetensors.torch import load_file, save_file

    path = Path(lw.save(Tied(), tmp_path / "a.safetensors", ties="copy"))
    tensors = load_file(path)
    tensors["head.weight"] = torch.randn(10, 4)
    data = bytearray(path.read_bytes())
    save_file(tensors, tmp_path / "b.safetensors")
    size = 8 + int.from_bytes(data[:8], "little")
    with lw.open(path) as t:
        start = t.columns.row_values[t["head.weight"].row].storage.start
    data[start : start + 160] = tensors["head.weight"].numpy().tobytes()
    assert size < start
    path.write_bytes(data)
    changed = lw.load(Tied(tied=False), path, verify=False)
    assert changed.head.weight is not changed.embed.weight
    assert torch.equal(changed.head.weight, tensors["head.weight"])


def test_transposed_and_sliced_ties_come_back(tmp_path: Path) -> None:
    def build(tied: bool) -> Any:
        model: Any = nn.Module()
        model.qkv, model.q, model.t = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(12, 4)
        if tied:
            lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
            lw.tie(model, "t.weight", to="qkv.weight", transpose=True, keep="source")
        return model

    model = build(True)
    path = lw.save(model, tmp_path / "a.safetensors")
    for target in (build(True), build(False)):
        lw.load(target, path)
        assert torch.equal(target.t.weight, model.qkv.weight.T)
        assert torch.equal(target.q.weight, model.qkv.weight[:4])
        assert len(lw.ties(target)) == 1
    with torch.device("meta"):
        onto_meta = build(False)
    lw.load(onto_meta, path)
    assert torch.equal(onto_meta.t.weight, model.qkv.weight.T)
    apart = lw.load(build(False), path, ties="ignore")
    assert torch.equal(apart.t.weight, model.qkv.weight.T)
    assert len(lw.ties(apart)) == 0
    assert "sliced" in str(lw.plan(build(False), path))
    assert "transposed" in str(lw.plan(build(False), path))


def test_a_tie_that_the_optimizer_would_not_see_is_a_problem(tmp_path: Path) -> None:
    path = lw.save({"model": Tied()}, tmp_path / "a.safetensors")
    model = Tied(tied=False)
    target = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1)}
    plan = lw.plan(target, path)
    assert "create the optimizer after that" in str(plan)
    assert [problem.kind for problem in plan.problems] == ["missing", "tie"]


def test_values_of_several_transposed_names_must_agree() -> None:
    model: Any = nn.Module()
    model.enc, model.d1, model.d2 = (nn.Linear(*size, bias=False) for size in ((3, 4), (4, 3), (4, 3)))
    for name in ("d1.weight", "d2.weight"):
        lw.tie(model, name, to="enc.weight", transpose=True, keep="source")
    with pytest.raises(lw.LoadError, match=r"d2.weight is tied in the model, but the source has two different"):
        lw.load(model, {"d1.weight": torch.ones(3, 4), "d2.weight": torch.zeros(3, 4)})
    lw.load(model, {"d1.weight": torch.ones(3, 4), "d2.weight": torch.ones(3, 4)})
    assert (model.enc.weight == 1).all()


def test_names_that_are_transposed_in_the_model_and_of_each_other_in_the_source_do_not_agree() -> None:
    model: Any = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in ("enc", "d1", "d2")})
    lw.tie(model, "{d1,d2}.weight", to="enc.weight", transpose=True, keep="source")
    matrix = torch.arange(9.0).reshape(3, 3)
    with pytest.raises(lw.LoadError, match=r"d2.weight is tied in the model, but the source has two different"):
        lw.load(model, {"d1.weight": matrix, "d2.weight": matrix.T})
    lw.load(model, {"d1.weight": matrix, "d2.weight": matrix})
    assert torch.equal(model["enc"].weight, matrix.T)


def test_a_tie_to_a_leaf_that_keeps_its_values_is_not_restored(tmp_path: Path) -> None:
    source = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    source["b"].weight = source["a"].weight
    path = lw.save(source, tmp_path / "tied.safetensors")
    for wide, narrow in (("a", "b"), ("b", "a")):
        model = nn.ModuleDict({wide: nn.Linear(5, 3, bias=False), narrow: nn.Linear(3, 3, bias=False)})
        before = model[wide].weight.detach().clone()
        lw.load(model, path, allow={"shape"})
        assert torch.equal(model[narrow].weight, source["a"].weight)
        assert torch.equal(model[wide].weight, before)


def sliced(fused: bool) -> nn.Module:
    model: Any = nn.Module()
    if fused:
        model.qkv = nn.Linear(4, 12, bias=False)
    model.q = nn.Linear(4, 4, bias=False)
    model.o = nn.Linear(1, 1, bias=False)
    if fused:
        lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    return model


def test_a_leaf_of_which_only_a_part_is_given_or_taken_is_in_the_plan(tmp_path: Path) -> None:
    path = lw.save(sliced(True), tmp_path / "a.safetensors")
    assert lw.plan(sliced(False), path).unexpected == ["qkv.weight"]
    loaded = lw.load(sliced(False), path, allow={"unexpected"})
    assert np.array_equal(loaded.q.weight.detach().numpy(), lw.open(path)["qkv.weight"].numpy()[:4])
    plan = lw.plan(sliced(True), {"q.weight": torch.ones(4, 4), "o.weight": torch.ones(1, 1)})
    assert plan.missing == ["qkv.weight"]
    assert plan.unexpected == ["q.weight"]
    assert "the source has only parts of it: q.weight" in str(plan)


def test_a_tie_that_cannot_come_back_is_in_the_plan(tmp_path: Path) -> None:
    path = lw.save(Tied(), tmp_path / "a.safetensors")
    frozen = Tied(tied=False)
    frozen.head.weight.requires_grad_(False)
    plan = lw.plan(frozen, path)
    assert not plan.holds
    assert "head.weight is frozen and embed.weight is not" in str(plan)
    assert lw.plan(frozen, path, ties="ignore").holds


# -- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_on_meta_is_filled(tied: bool, saved: tuple[Tied, str]) -> None:
    model, path = saved
    with torch.device("meta"):
        target = Tied(tied)
    target.body.weight.requires_grad_(False)
    with pytest.raises(lw.LoadError, match=r"scratch is a non-persistent buffer on meta: checkpoints do not store it"):
        lw.load(target, path)
    assert all(tensor.is_meta for tensor in (*target.parameters(), *target.buffers()))
    lw.load(target, path, allow={"missing"})
    assert target.scratch.is_meta
    assert not target.body.weight.requires_grad
    assert target.head.weight is target.embed.weight
    assert isinstance(target.head.weight, nn.Parameter)
    assert bits_of_loaded(target) == {name: value for name, value in bits(model).items() if name != "scratch"}


def test_a_part_on_meta_stays_tied_to_a_name_outside_of_it() -> None:
    with torch.device("meta"):
        model = Tied()
    values = torch.arange(40.0).reshape(10, 4)
    lw.load(lw.tree(model)["embed"], {"weight": values})
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, values)


def test_attributes_of_parameters_on_meta_are_kept() -> None:
    with torch.device("meta"):
        target: Any = nn.Linear(2, 2)
    target.weight.tag = "mine"
    loaded = lw.load(target, nn.Linear(2, 2))
    assert loaded.weight.tag == "mine"


def bits_of_loaded(model: Tied) -> dict[str, bytes]:
    scratch = model._buffers.pop("scratch")
    try:
        return bits(model)
    finally:
        model._buffers["scratch"] = scratch


def test_kept_ties_of_a_model_on_meta_survive_a_load(saved: tuple[Tied, str]) -> None:
    model, path = saved
    with torch.device("meta"):
        target = lw.keep_ties(Tied())
    del target._buffers["scratch"]
    lw.load(target, path)
    assert target.head.weight is target.embed.weight
    assert lw.tree(target).undone == []
    assert torch.equal(target.head.weight, model.head.weight)


def test_lazy_layers_get_their_shapes_from_the_source() -> None:
    target = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    source = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    lw.load(target, source)
    assert torch.equal(target[0].weight, source[0].weight)
    assert target(torch.ones(2, 5)).shape == (2, 3)
    assert type(target[0]) is nn.Linear


def test_lazy_layers_that_are_tied_stay_tied() -> None:
    target = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(4))
    target[1].weight = target[0].weight
    weight = target[0].weight
    source = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    source[1].weight = source[0].weight
    plan = lw.plan(target, source)
    assert (plan.parameters, plan.covered) == (24, 24)
    lw.load(target, source)
    assert target[0].weight is target[1].weight is weight
    assert torch.equal(weight, source[0].weight)


@pytest.mark.slow
def test_a_load_onto_meta_takes_little_more_memory_than_the_model(tmp_path: Path) -> None:
    script = """
import sys, numpy, torch, leafwise as lw
def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
small = torch.nn.Linear(99, 99)
lw.load(small, lw.save(small, sys.argv[1] + "/small.safetensors"))
with torch.device("meta"):
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)])
before = peak()
lw.load(model, sys.argv[1] + "/big.safetensors")
print(peak() - before - sum(p.nbytes for p in model.parameters()))
"""
    big = {f"{number}.weight": torch.zeros(4096, 4096) for number in range(4)}
    lw.save(big, tmp_path / "big.safetensors")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, encoding="utf-8")
    assert int(done.stdout) < 64_000_000, done.stderr


@pytest.mark.parametrize("live", [True, False])
def test_what_is_written_counts_as_a_change_for_autograd(live: bool, tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    result = model(torch.ones(2, 3, requires_grad=True)).sum()
    lw.load(model, nn.Linear(3, 3) if live else lw.save(nn.Linear(3, 3), tmp_path / "m.safetensors"))
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        result.backward()


def test_views_of_the_memory_see_what_was_loaded() -> None:
    flat = torch.zeros(12)
    model: Any = nn.Module()
    model.a, model.b = nn.Parameter(flat[:4]), nn.Parameter(flat[4:].view(2, 4))
    lw.load(model, {"a": torch.ones(4), "b": torch.full((2, 4), 2.0)})
    assert flat.tolist() == [1.0] * 4 + [2.0] * 8


def test_axes_are_matched_by_name(tmp_path: Path) -> None:
    from transformers.pytorch_utils import Conv1D

    conv = Conv1D(3, 5)
    path = lw.save(conv, tmp_path / "a.safetensors")
    linear = lw.load(nn.Linear(5, 3), path)
    assert torch.equal(linear.weight, conv.weight.T)
    with torch.device("meta"):
        onto_meta = nn.Linear(5, 3)
    assert torch.equal(lw.load(onto_meta, path).weight, conv.weight.T)
    plain = tmp_path / "plain.safetensors"
    from safetensors.torch import save_file

    save_file({name: value.detach() for name, value in conv.state_dict().items()}, plain)
    with pytest.raises(lw.LoadError, match=r"in the .* \(transposed\)"):
        lw.load(nn.Linear(5, 3), plain)


def test_axes_are_matched_by_the_role_of_the_name_that_matched() -> None:
    target = nn.Module()
    target.c = nn.Conv2d(4, 4, 3, bias=False)
    target.d = nn.ConvTranspose2d(4, 4, 3, bias=False)
    target.d.weight = target.c.weight
    source = nn.Module()
    source.d = nn.ConvTranspose2d(4, 4, 3, bias=False)
    lw.load(target, source)
    assert torch.equal(target.d.weight, source.d.weight)


def test_plain_values_come_back_and_immutable_containers_are_made_anew(tmp_path: Path) -> None:
    import random
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Frozen:
        step: int
        weight: Any

    random.seed(3)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.RandomState(5).get_state(),
        "frozen": Frozen(7, torch.ones(2)),
        "list": [{"a": 1}, torch.ones(1)],
        "tuple": ({"b": 2}, (3, torch.ones(1))),
    }
    path = lw.save(state, tmp_path / "a.safetensors")
    target: dict[str, Any] = {
        "python": random.Random(9).getstate(),
        "numpy": np.random.RandomState(6).get_state(),
        "frozen": Frozen(0, torch.zeros(2)),
        "list": [{"a": 0}, torch.zeros(1)],
        "tuple": ({"b": 0}, (0, torch.zeros(1))),
    }
    loaded = lw.load(target, path)
    assert loaded is target
    assert loaded["python"] == state["python"]
    assert np.array_equal(loaded["numpy"][1], state["numpy"][1])
    assert loaded["frozen"].step == 7
    assert loaded["frozen"].weight.tolist() == [1, 1]
    assert loaded["list"][0] == {"a": 1}
    assert loaded["tuple"][0] == {"b": 2}
    assert loaded["tuple"][1][0] == 3
    with pytest.raises(lw.LoadError, match=r"more is in the model but not in the checkpoint"):
        lw.load({**target, "more": 1}, path)


@pytest.mark.slow
def test_buffers_that_hugging_face_computes_are_there_after_a_load_onto_meta() -> None:
    from transformers import AutoModel, BertConfig, LlamaConfig

    for config in (
        LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16),
        BertConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16),
    ):
        model = AutoModel.from_config(config)
        with torch.device("meta"):
            target = AutoModel.from_config(config)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lw.load(target, model)
        for name, value in model.named_buffers():
            assert torch.equal(value, target.get_buffer(name)), name
        tokens = torch.tensor([[1, 2, 3]])
        assert torch.equal(model.eval()(tokens)[0], target.eval()(tokens)[0])


def test_a_source_without_values_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = bits(model)
    source = model.state_dict() | {"1.bias": torch.ones(2, device="meta")}
    source["0.weight"] = torch.ones(2, 2)
    with pytest.raises(
        lw.LoadError, match=r"cannot load 1.bias from this source: a meta tensor .* nothing was changed"
    ):
        lw.load(model, source)
    assert bits(model) == before


def test_a_part_of_a_damaged_leaf_is_not_taken(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.qkv, model.q = nn.Linear(4, 12, bias=False), nn.Linear(4, 4, bias=False)
    lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    path = Path(lw.save(model, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-190] ^= 1
    path.write_bytes(data)
    for device in ("cpu", "meta"):
        target: Any = nn.Module()
        with torch.device(device):
            target.q = nn.Linear(4, 4, bias=False)
        with pytest.raises(lw.ChecksumError, match=r"q.weight is damaged"):
            lw.load(target, path, allow={"unexpected"})


def test_a_disk_that_fails_in_the_middle_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.sources import disk as local
    from leafwise.files.sources.disk import Disk

    class Failing(Disk):
        reads = 0

        def read_into(self, file: int, start: int, view: memoryview) -> int:
            self.reads += 1
            if self.reads > 2:  # the first two verify checksums
                raise OSError(5, "Input/output error")
            return super().read_into(file, start, view)

    torch.save({name: torch.ones(100_000) for name in "ab"}, tmp_path / "a.pt")
    monkeypatch.setattr(local, "disk", Failing())
    with pytest.raises(lw.LoadError, match=r"Input/output error; the model is partly changed"):
        lw.load({name: torch.zeros(100_000) for name in "ab"}, tmp_path / "a.pt")


def test_an_interrupted_load_says_that_the_model_is_partly_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({name: torch.ones(100_000) for name in "abcd"}, tmp_path / "a.safetensors")
    target = {name: torch.zeros(100_000) for name in "abcd"}
    for stop in (KeyboardInterrupt, SystemExit):

        def interrupted(work: Any, *args: Any, stop: type[BaseException] = stop) -> int:
            if list(work):  # the preparation may have nothing to fill
                raise stop
            return 0

        with monkeypatch.context() as patch:
            patch.setattr("leafwise.files.reading.checked_reads.fill", interrupted)
            with pytest.raises(stop) as caught:
                lw.load(target, path)
        said = [*map(str, caught.value.args), *getattr(caught.value, "__notes__", ())]
        assert said == [
            "interrupted while lw.load was writing: the model is partly changed; load it again before you use it"
        ]
    with monkeypatch.context() as patch:  # before anything was written there is nothing to say
        patch.setattr("leafwise.files.reading.checked_reads.verify_storages", interrupted)
        with pytest.raises(SystemExit) as caught:
            lw.load(target, path)
        assert not hasattr(caught.value, "__notes__")
    assert not any(value.any() for value in target.values())


def test_arrays_in_the_other_order_of_bytes_are_filled(tmp_path: Path) -> None:
    values = {"a": np.arange(5, dtype=np.float32), "b": np.arange(6).reshape(2, 3)}
    path = lw.save(values, tmp_path / "a.safetensors")
    target = {name: np.zeros(value.shape, value.dtype.newbyteorder(">")) for name, value in values.items()}
    lw.load(target, path)
    assert all((target[name] == value).all() for name, value in values.items())
    assert target["a"].dtype == np.dtype(">f4")


def test_the_same_bytes_in_the_other_order_are_not_tied() -> None:
    array = np.arange(5, dtype=np.float32)
    assert len(lw.ties({"a": array, "b": array[:]})) == 1
    assert not lw.ties({"a": array, "b": array.view(">f4")})
