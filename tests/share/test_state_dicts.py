"""State dicts of models whose ties are kept: which names they need, and what happens when values disagree."""

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from tests.share.models import Parts, cloned_state, tied, tied_autoencoder, tied_by_hand, tied_language_model
from tools.tie_table import ARCHITECTURES, LanguageModel
from torch import nn
from torch.nn.utils import parametrize

import leafwise as lw


@pytest.mark.parametrize("owner_first", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_any_one_name_of_a_tie_is_enough(owner_first: bool, assign: bool) -> None:
    architecture = ARCHITECTURES["tied embedding"]
    model = tied(architecture)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    del state["embed.weight" if owner_first else "head.weight"]
    model.load_state_dict(state, assign=assign)
    (given,) = {"embed.weight", "head.weight"} & state.keys()
    assert torch.equal(model.embed.weight, state[given])
    assert model.head.weight is model.embed.weight


def test_a_tie_with_all_names_missing_is_missing() -> None:
    model = tied(ARCHITECTURES["transposed autoencoder"])
    with pytest.raises(RuntimeError, match=r'Missing key.*"encoder.weight".*"decoder.weight"'):
        model.load_state_dict({"encoder.bias": torch.zeros(3), "decoder.bias": torch.zeros(4)})
    with pytest.raises(RuntimeError, match=r"size mismatch for encoder.weight"):
        model.load_state_dict({**model.state_dict(), "encoder.weight": torch.zeros(2, 2)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*nonsense"):
        model.load_state_dict({**model.state_dict(), "nonsense": torch.zeros(2)})


@pytest.mark.parametrize("assign", [False, True])
def test_a_leaf_can_be_loaded_from_all_of_its_slices_but_not_from_some(assign: bool) -> None:
    model = tied(ARCHITECTURES["fused qkv"])
    parts = {f"{name}.weight": torch.randn(4, 4) for name in "qkv"}
    model.load_state_dict(parts, assign=assign)
    assert torch.equal(model.qkv.weight, torch.cat(list(parts.values())))
    with pytest.raises(RuntimeError, match=r'Missing key.*"qkv.weight", "q.weight"'):
        model.load_state_dict({name: parts[name] for name in ("k.weight", "v.weight")}, assign=assign)
    fresh = torch.randn(4, 4)
    model.load_state_dict({"k.weight": fresh}, strict=False, assign=assign)
    assert torch.equal(model.qkv.weight[4:8], fresh)
    assert torch.equal(model.qkv.weight[:4], parts["q.weight"])


def test_loading_into_one_owner_changes_both() -> None:
    model = tied(ARCHITECTURES["transposed autoencoder"])
    for assign in (False, True):
        weight = torch.randn(4, 3)
        model.decoder.load_state_dict({"weight": weight, "bias": torch.zeros(4)}, assign=assign)
        assert torch.equal(model.encoder.weight, weight.T)
        assert isinstance(model.encoder.weight, nn.Parameter)
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight"'):
        model.decoder.load_state_dict({"bias": torch.zeros(4)})
    with pytest.raises(RuntimeError, match=r"size mismatch"):
        model.decoder.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(4)}, assign=True)
    meta = tied(ARCHITECTURES["fused qkv"]).to("meta")
    with pytest.raises(RuntimeError, match=r"cannot assign a part of qkv.weight"):
        meta.q.load_state_dict({"weight": torch.zeros(4, 4)}, assign=True)


def test_names_that_disagree_are_refused_and_nothing_changes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(2, 2)
            self.inner = ARCHITECTURES["tied embedding"].build()

    model = lw.tie(Model(), "inner.head.weight", to="inner.embed.weight", keep="source")
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        lw.TieError, match=r"different values for the tied names inner.embed.weight and inner.head.weight"
    ):
        model.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(lw.TieError, match=r"different values for the tied names embed.weight and head.weight"):
        model.inner.load_state_dict({name.removeprefix("inner."): state[name] for name in state if "inner" in name})


@pytest.mark.parametrize("transpose", [False, True])
def test_values_that_disagree_are_an_error_whichever_module_loads_them(transpose: bool) -> None:
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", transpose=transpose, keep="source")
    lw.keep_ties(model.part)
    with pytest.raises(lw.TieError, match=r"a.weight and b.weight"):
        model.part.load_state_dict({"a.weight": torch.zeros(4, 4), "b.weight": torch.ones(4, 4)})
    state = cloned_state(model)
    state["part.a.weight"] += 1
    with pytest.raises(lw.TieError, match=r"src.weight and part.a.weight"):
        model.load_state_dict(state)


def test_values_that_disagree_behind_renamed_keys_or_between_slices_are_an_error() -> None:
    model = tied_language_model()

    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if prefix + "tok.weight" in state:
            state[prefix + "embed.weight"] = state.pop(prefix + "tok.weight")

    model.register_load_state_dict_pre_hook(rename)
    state = LanguageModel().state_dict()
    state["tok.weight"] = state.pop("embed.weight")
    with pytest.raises(lw.TieError, match=r"different values"):
        model.load_state_dict(state)
    del state["head.weight"]
    model.load_state_dict(state)
    assert torch.equal(model.head.weight, state["tok.weight"])
    slices: Any = nn.Module()
    slices.whole = nn.Parameter(torch.randn(9, 4))
    slices.a, slices.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 4))
    lw.tie(slices, "a", to="whole", slice=slice(0, 5), keep="source")
    lw.tie(slices, "b", to="whole", slice=slice(3, 8), keep="source")
    with pytest.raises(lw.TieError, match=r"a and b"):
        slices.load_state_dict({"a": torch.zeros(5, 4), "b": torch.ones(5, 4)}, strict=False)


@pytest.mark.parametrize("assign", [False, True])
def test_keep_chooses_the_value_to_use(assign: bool) -> None:
    state = {"embed.weight": torch.ones(10, 4), "head.weight": torch.full((10, 4), 3.0)}
    for keep, value in (("source", 1.0), ("target", 3.0), ("mean", 2.0)):
        model = lw.keep_ties(tied(ARCHITECTURES["tied embedding"]), keep=keep)  # type: ignore[arg-type]
        model.load_state_dict(state, strict=False, assign=assign)
        assert model.head.weight is model.embed.weight
        assert model.embed.weight.unique().tolist() == [value]
    state = {"encoder.weight": torch.ones(3, 4), "decoder.weight": torch.full((4, 3), 3.0)}
    for keep, value in (("source", 1.0), ("target", 3.0), ("mean", 2.0)):
        model = lw.keep_ties(tied(ARCHITECTURES["transposed autoencoder"]), keep=keep)  # type: ignore[arg-type]
        model.load_state_dict(state, strict=False, assign=assign)
        assert model.encoder.weight.unique().tolist() == [value]
    model = lw.keep_ties(tied(ARCHITECTURES["encoder–decoder, three-way"]), keep="target")
    names = ("encoder.embed.weight", "decoder.embed.weight", "head.weight")
    with pytest.raises(lw.TieError, match=r"cannot choose"):
        model.load_state_dict({name: torch.full((10, 4), float(n)) for n, name in enumerate(names)}, strict=False)


def test_keep_chooses_among_the_names_in_the_state_dict() -> None:
    zeros, ones = torch.zeros(4, 4), torch.ones(4, 4)
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", keep="source")
    lw.keep_ties(model, keep="mean")
    model.load_state_dict({"part.a.weight": zeros, "part.b.weight": ones})
    assert model.src.weight.unique().tolist() == [0.5]
    for keep, expected in (("mean", 0.5), ("target", 1.0), ("source", 0.0)):
        shared = nn.Linear(4, 4, bias=False)
        twice = lw.keep_ties(nn.ModuleDict({"a": shared, "b": shared}), keep=keep)  # type: ignore[arg-type]
        twice.load_state_dict({"a.weight": zeros, "b.weight": ones})
        assert shared.weight.unique().tolist() == [expected]
    slices: Any = nn.Module()
    slices.whole = nn.Parameter(torch.randn(9, 4))
    slices.a, slices.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 4))
    lw.tie(slices, "a", to="whole", slice=slice(0, 5), keep="source")
    lw.tie(slices, "b", to="whole", slice=slice(3, 8), keep="source")
    lw.keep_ties(slices, keep="mean")
    slices.load_state_dict({"a": torch.zeros(5, 4), "b": torch.ones(5, 4)}, strict=False)
    assert slices.whole[:8, 0].tolist() == [0, 0, 0, 0.5, 0.5, 1, 1, 1]


def test_nan_agrees_with_itself_and_casts_are_compared_after_rounding() -> None:
    model = tied(ARCHITECTURES["tied embedding"])
    value = torch.full((10, 4), float("nan"))
    model.load_state_dict({"embed.weight": value, "head.weight": value.clone()}, strict=False)
    wide = torch.randn(10, 4, dtype=torch.float64)
    model.load_state_dict({"embed.weight": wide, "head.weight": wide.float()}, strict=False)
    assert torch.equal(model.embed.weight, wide.float())


@pytest.mark.parametrize("assign", [False, True])
def test_a_part_that_holds_only_views_loads_into_their_source(assign: bool) -> None:
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", transpose=True, keep="source")
    value = torch.randn(4, 4)
    model.part.load_state_dict({"a.weight": value, "b.weight": value.clone()}, assign=assign)
    assert torch.equal(model.src.weight, value.T)
    other = torch.randn(4, 4)
    model.part.load_state_dict({"a.weight": other}, assign=assign)
    assert torch.equal(model.part["b"].weight, other)
    replaced = tied_autoencoder()
    kept = replaced.encoder  # alive, but no longer in the model
    replaced.encoder = nn.Linear(4, 3)
    state = {name: torch.randn_like(tensor) for name, tensor in replaced.state_dict().items()}
    replaced.load_state_dict(state)
    assert torch.equal(replaced.decoder.weight, state["decoder.weight"])
    assert torch.equal(kept.weight, state["decoder.weight"].T)


def test_values_win_over_meta_tensors_and_what_is_not_a_tensor_is_an_error() -> None:
    model = tied_language_model()
    state = cloned_state(model)
    state["embed.weight"] = state["embed.weight"].to("meta")
    model.load_state_dict(state, assign=True)
    assert model.embed.weight.device.type == "cpu"
    with pytest.raises(RuntimeError, match=r"expected torch.Tensor"):
        model.load_state_dict({**cloned_state(model), "head.weight": "garbage"})
    view = tied_autoencoder()
    with pytest.raises(RuntimeError, match=r"expected a tensor, received int for decoder.weight"):
        view.load_state_dict({**cloned_state(view), "decoder.weight": 3})


class ExtraArgument(LanguageModel):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False, extra: Any = None) -> Any:  # type: ignore[override]
        return super().load_state_dict(state_dict, strict, assign)


class OlderSignature(LanguageModel):
    def load_state_dict(self, sd: Any, strict: bool = True) -> Any:  # type: ignore[override]
        super().load_state_dict(sd, strict)


def test_classes_that_override_load_state_dict_keep_their_signature() -> None:
    for cls, options in ((ExtraArgument, {"extra": 3}), (OlderSignature, {"strict": False}), (OlderSignature, {})):
        model = lw.tie(cls(), "head.weight", to="embed.weight", keep="source")
        state = cloned_state(model)
        del state["head.weight"]
        model.load_state_dict(state, **options)
    model.load_state_dict(sd=state)
    assert model.head.weight is model.embed.weight


def test_safetensors_loads_a_shared_tensor_that_it_saved_once(tmp_path: Path) -> None:
    save_model(tied_by_hand(), str(tmp_path / "model"))
    kept = lw.keep_ties(tied_by_hand())
    assert load_model(kept, str(tmp_path / "model")) == (set(), [])
    partial = cloned_state(kept)
    del partial["head.weight"]
    assert kept.load_state_dict(partial, strict=False).missing_keys == ["head.weight"]


def test_a_view_that_comes_before_its_parametrized_source_is_loaded() -> None:
    model: Any = nn.ModuleDict({"z": nn.Linear(3, 4), "e": nn.Linear(4, 3)})
    lw.tie(model, "z.weight", to="e.weight", transpose=True, keep="source")
    parametrize.register_parametrization(model["e"], "weight", nn.Tanh())
    again = copy.deepcopy(model)
    assert torch.equal(again["z"].weight, again["e"].weight.T)
    state = cloned_state(again)
    again.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"the model computes .* from other tensors, and its values differ"):
        again.load_state_dict({**state, "z.weight": torch.randn(4, 3)})


def test_several_threads_may_take_state_dicts_at_once() -> None:
    model = tied_autoencoder()
    threads = [threading.Thread(target=lambda: [model.state_dict() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.decoder._parameters["weight"] is None
