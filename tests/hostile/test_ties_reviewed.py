"""What reviewers found in sharing, each as it was found."""

import copy
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from tools.tie_table import Autoencoder, LanguageModel
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize

import leafwise as lw


def lm() -> Any:
    return lw.tie(LanguageModel(), "head.weight", to="embed.weight", keep="source")


def ae() -> Any:
    return lw.tie(Autoencoder(), "decoder.weight", to="encoder.weight", transpose=True, keep="source")


def fresh(model: nn.Module) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def undone(model: nn.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        return [str(one.path) for one in lw.tree(model).undone]


def test_safetensors_loads_what_it_saved_once(tmp_path: Path) -> None:
    def by_hand() -> Any:
        model = LanguageModel()
        model.head.weight = model.embed.weight
        return model

    save_model(by_hand(), str(tmp_path / "model"))
    kept = lw.keep_ties(by_hand())
    assert load_model(kept, str(tmp_path / "model")) == (set(), [])
    partial = fresh(kept)
    del partial["head.weight"]
    assert kept.load_state_dict(partial, strict=False).missing_keys == ["head.weight"]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src = nn.Linear(4, 4, bias=False)
        self.part = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "ab"})


def test_a_tie_to_a_name_outside_is_not_torn_away() -> None:
    model = lw.tie(Parts(), "part.a.weight", to="src.weight", keep="source")
    with pytest.raises(lw.TieError, match=r"it is tied to src.weight already"):
        lw.tie(model.part, "a.weight", to="b.weight", keep="source")
    lw.untie(model.part, "a.weight")
    assert model.part["a"].weight is not model.src.weight
    assert undone(model) == []
    view = ae()
    lw.untie(view.decoder, "weight")
    assert type(view.decoder) is nn.Linear
    assert undone(view) == []


@pytest.mark.parametrize("transpose", [False, True])
def test_disagreement_is_found_from_wherever_one_loads(transpose: bool) -> None:
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", transpose=transpose, keep="source")
    lw.keep_ties(model.part)
    with pytest.raises(lw.TieError, match=r"a.weight and b.weight"):
        model.part.load_state_dict({"a.weight": torch.zeros(4, 4), "b.weight": torch.ones(4, 4)})
    state = fresh(model)
    state["part.a.weight"] += 1
    with pytest.raises(lw.TieError, match=r"src.weight and part.a.weight"):
        model.load_state_dict(state)


def test_disagreement_behind_renamed_keys_and_between_slices() -> None:
    model = lm()

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


def test_copies_do_not_silence_what_is_undone() -> None:
    model = lm()
    model.head = nn.Linear(4, 10, bias=False)
    assert undone(model) == ["head.weight"]
    again = copy.deepcopy(model)
    pickle.dumps(model)
    assert undone(model) == undone(again) == ["head.weight"]


def test_a_view_whose_source_was_replaced_can_be_tied_again_and_untied() -> None:
    for repair in ("tie", "untie"):
        model = ae()
        model.encoder = nn.Linear(4, 3)
        copy.deepcopy(model)
        assert undone(model) == ["decoder.weight"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lw.TieWarning)
            if repair == "tie":
                lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
                assert torch.equal(model.decoder.weight, model.encoder.weight.T)
            else:
                lw.untie(model, "decoder.weight")
                assert type(model.decoder) is nn.Linear
        assert undone(model) == []


def test_a_source_that_is_parametrized_or_deleted() -> None:
    model = ae()
    parametrizations.weight_norm(model.encoder)
    model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.decoder.weight, model.encoder.weight.T)
    assert "decoder.weight" in model.state_dict()
    assert len(undone(model)) == 1
    gone = ae()
    del gone.encoder.weight
    lw.tree(gone)
    assert list(gone.state_dict()) == ["encoder.bias", "decoder.bias"]
    gone.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    assert type(gone.decoder) is nn.Linear


def test_parametrizations_beside_a_view() -> None:
    model = ae()
    parametrize.register_parametrization(model.decoder, "bias", nn.Tanh())
    lw.untie(model, "decoder.weight")
    model(torch.ones(1, 4))
    model.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    assert not model.decoder.weight.any()
    other = Autoencoder()
    parametrize.register_parametrization(other.decoder, "bias", nn.Tanh())
    with pytest.raises(lw.TieError, match=r"belongs to a module that is parametrized; tie first, then parametrize"):
        lw.tie(other, "decoder.weight", to="encoder.weight", transpose=True, keep="source")


def test_a_shallow_copy_says_what_it_is() -> None:
    model = lm()
    shallow = copy.copy(model)
    del model
    with pytest.raises(lw.TieError, match=r"a shallow copy of a module whose ties are kept"):
        shallow.half()


def test_a_module_inside_one_that_is_shared_is_untied_from_the_outside() -> None:
    shared = nn.Sequential(nn.Linear(3, 3))
    weight = shared[0].weight
    model = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(lw.TieError, match=r'lies in a, which is used in several places itself; lw.untie\(model, "a"\)'):
        lw.untie(model, "a.0")
    assert shared[0].weight is weight
    lw.untie(model, "a")
    assert len(lw.ties(model)) == 0


def test_state_dicts_from_several_threads() -> None:
    model = ae()
    threads = [threading.Thread(target=lambda: [model.state_dict() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.decoder._parameters["weight"] is None


class NoSubclasses(nn.Linear):
    def __init_subclass__(cls, *, key: int, **options: Any) -> None:
        super().__init_subclass__(**options)


class Stubborn(nn.Linear):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "bias" and "bias" in self.__dict__.get("_parameters", {}):
            raise RuntimeError("no")
        super().__setattr__(name, value)


def test_whatever_fails_changes_nothing() -> None:
    auto: Any = Autoencoder()
    auto.decoder = NoSubclasses(3, 4)
    with pytest.raises(lw.TieError, match=r"of which no subclass can be made"):
        lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    auto(torch.ones(1, 4))
    expanded: Any = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    expanded["a"].bias = nn.Parameter(torch.zeros(1).expand(3))
    stubborn: Any = nn.ModuleDict({"a": nn.Linear(3, 3), "b": Stubborn(3, 3)})
    for model, error in ((expanded, "is expanded"), (stubborn, "no")):
        before = [p.detach().clone() for p in model.parameters()]
        held = [id(p) for p in model.parameters()]
        with pytest.raises(Exception, match=error):
            lw.tie(model, "b", to="a", keep="target")
        assert [id(p) for p in model.parameters()] == held
        assert all(torch.equal(p, then) for p, then in zip(model.parameters(), before, strict=True))


def test_values_win_over_meta_and_garbage_is_not_hidden() -> None:
    model = lm()
    state = fresh(model)
    state["embed.weight"] = state["embed.weight"].to("meta")
    model.load_state_dict(state, assign=True)
    assert model.embed.weight.device.type == "cpu"
    with pytest.raises(RuntimeError, match=r"expected torch.Tensor"):
        model.load_state_dict({**fresh(model), "head.weight": "garbage"})
    view = ae()
    with pytest.raises(RuntimeError, match=r"expected a tensor, received int for decoder.weight"):
        view.load_state_dict({**fresh(view), "decoder.weight": 3})


class Hashed(nn.Linear):
    def __hash__(self) -> int:
        return self.in_features


def test_modules_with_manners_of_their_own() -> None:
    model: Any = nn.ModuleDict({"a": Hashed(3, 3), "b": Hashed(3, 3)})
    lw.tie(model, "b.weight", to="a.weight", keep="source")
    again = copy.deepcopy(model)
    assert again["a"].weight is again["b"].weight
    other = LanguageModel()
    other.head.weight = other.embed.weight

    def mine(fn: Any, recurse: bool = True) -> str:
        return "mine"

    other.head.__dict__["_apply"] = mine
    lw.keep_ties(other)
    assert other.head._apply(lambda tensor: tensor) == "mine"
    lw.keep_ties(other, False)
    assert other.head.__dict__["_apply"] is mine


# -- uses --------------------------------------------------------------------------------------------------


def listed(uses: Any, path: str = "weight") -> list[str]:
    return [str(use) for use in uses[path]]


def test_uses_through_properties_renormalised_tables_and_transforms() -> None:
    model = Autoencoder()
    with lw.uses(model) as uses:
        code = F.linear(torch.ones(1, 4), model.encoder.weight)
        F.linear(code, model.encoder.weight.T).sum().backward()
    assert listed(uses, "encoder.weight") == ["(root) call 0: linear", "(root) call 0: T"]
    table = nn.Embedding(10, 4, max_norm=0.5)
    with lw.uses(table) as uses:
        table(torch.tensor([1, 2])).sum().backward()
    assert torch.equal(uses["weight"].total(), table.weight.grad)
    layer = nn.Linear(3, 3)
    with lw.uses(layer):
        torch.func.vmap(layer)(torch.ones(2, 3))
        torch.func.jacrev(layer)(torch.ones(3))
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(3))


def test_uses_of_sparse_and_dense_of_complex_nested_and_twice() -> None:
    model: Any = LanguageModel()
    model.embed = nn.Embedding(10, 4, sparse=True)
    lw.tie(model, "head.weight", to="embed.weight", keep="source")
    with lw.uses(model) as uses:
        model(torch.tensor([1, 2])).sum().backward()
    torch.testing.assert_close(uses["embed.weight"].total(), model.embed.weight.grad.to_dense())
    waves: Any = nn.Module()
    waves.w = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
    with lw.uses(waves) as uses:
        ((waves.w * 2j).abs().sum() + (waves.w.T * 1j).real.sum()).backward()
    torch.testing.assert_close(uses["w"].total(), waves.w.grad)
    layer = nn.Linear(3, 3)
    with lw.uses(layer) as outer, lw.uses(layer) as inner:
        layer(torch.ones(1, 3)).sum().backward()
    assert listed(outer) == listed(inner) == ["(root) call 0: linear"]
    with inner:
        layer(torch.ones(1, 3)).sum().backward()
    assert listed(inner) == ["(root) call 0: linear"]


def test_another_thread_does_not_confuse_uses() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    stop = threading.Event()

    def evaluate() -> None:
        with torch.no_grad():
            while not stop.is_set():
                model(torch.ones(1, 3))

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        for _ in range(50):
            with lw.uses(model) as uses:
                model(torch.ones(1, 3)).sum().backward()
            assert listed(uses, "0.weight") == ["0 call 0: linear"]
            assert listed(uses, "1.weight") == ["1 call 0: linear"]
    finally:
        stop.set()
        thread.join()


# -- and what a second review found ------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True])
def test_a_part_that_holds_only_views_loads_into_their_source(assign: bool) -> None:
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", transpose=True, keep="source")
    value = torch.randn(4, 4)
    model.part.load_state_dict({"a.weight": value, "b.weight": value.clone()}, assign=assign)
    assert torch.equal(model.src.weight, value.T)
    other = torch.randn(4, 4)
    model.part.load_state_dict({"a.weight": other}, assign=assign)
    assert torch.equal(model.part["b"].weight, other)
    replaced = ae()
    kept = replaced.encoder  # alive, but no longer in the model
    replaced.encoder = nn.Linear(4, 3)
    state = {name: torch.randn_like(tensor) for name, tensor in replaced.state_dict().items()}
    replaced.load_state_dict(state)
    assert torch.equal(replaced.decoder.weight, state["decoder.weight"])
    assert torch.equal(kept.weight, state["decoder.weight"].T)


class ExtraArgument(LanguageModel):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False, extra: Any = None) -> Any:  # type: ignore[override]
        return super().load_state_dict(state_dict, strict, assign)


class OlderSignature(LanguageModel):
    def load_state_dict(self, sd: Any, strict: bool = True) -> Any:  # type: ignore[override]
        super().load_state_dict(sd, strict)


def test_classes_with_a_load_of_their_own() -> None:
    for cls, options in ((ExtraArgument, {"extra": 3}), (OlderSignature, {"strict": False}), (OlderSignature, {})):
        model = lw.tie(cls(), "head.weight", to="embed.weight", keep="source")
        state = fresh(model)
        del state["head.weight"]
        model.load_state_dict(state, **options)
    model.load_state_dict(sd=state)
    assert model.head.weight is model.embed.weight


def test_keep_chooses_right_whoever_is_given() -> None:
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


def test_a_view_before_a_parametrized_source() -> None:
    model: Any = nn.ModuleDict({"z": nn.Linear(3, 4), "e": nn.Linear(4, 3)})
    lw.tie(model, "z.weight", to="e.weight", transpose=True, keep="source")
    parametrize.register_parametrization(model["e"], "weight", nn.Tanh())
    again = copy.deepcopy(model)
    assert torch.equal(again["z"].weight, again["e"].weight.T)
    state = fresh(again)
    again.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"is computed, and gives other values"):
        again.load_state_dict({**state, "z.weight": torch.randn(4, 3)})


def test_nothing_grows_and_nothing_is_left() -> None:
    model = lm()
    around = nn.ModuleDict({"m": model})
    state = fresh(around)
    del state["m.head.weight"]
    for _ in range(5):
        around.load_state_dict(state, strict=False)
    assert len(model.__dict__["_leafwise_keeper"]._filled[1]) == 1
    parts = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", keep="source")
    lw.keep_ties(parts.part, False)
    with pytest.warns(lw.TieWarning):
        alone = copy.deepcopy(model.head)
    for module in (*parts.modules(), alone, copy.deepcopy(lm().head)):
        assert not {"_leafwise_keeper", "_apply", "load_state_dict", "_load_from_state_dict"} & vars(module).keys()
