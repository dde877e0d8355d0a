"""Issue threads in which ties were lost, as tests: what was done there, and what leafwise does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save, save_file
from tests.share.models import cloned_state, tied_by_hand
from tools.tie_table import LanguageModel
from torch import nn
from torchinfo import summary

import leafwise as lw


def test_pytorch_20546_a_state_dict_forgets_sharing() -> None:
    (tie,) = lw.ties(tied_by_hand().state_dict())
    assert [str(path) for path in tie.leaf.paths] == ["embed.weight", "head.weight"]


def test_pytorch_188346_assign_unties_and_the_optimizer_steps_twice() -> None:
    plain = tied_by_hand()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    plain.load_state_dict(cloned_state(plain), assign=True)
    assert plain.head.weight is not plain.embed.weight
    assert {held.problem for held in lw.ties(plain, optimizer=optimizer).optimizer or ()} == {"stale"}
    model = lw.keep_ties(tied_by_hand())
    model.load_state_dict(cloned_state(model), assign=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.embed.weight.detach().clone()
    model(torch.tensor([1])).sum().backward()
    gradient = model.embed.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model.head.weight.detach(), before - gradient)
    assert lw.ties(model, optimizer=optimizer).optimizer == []


def test_pytorch_195593_functional_call_runs_one_module_by_two_paths() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.b(self.a(x))

    by_hand: Any = Twice()
    by_hand.b = by_hand.a
    optimizer = torch.optim.SGD(by_hand.parameters())
    x = torch.randn(1, 2)
    torch.func.functional_call(by_hand, {name: 2 * p for name, p in by_hand.named_parameters()}, (x,))
    if lw.ties(by_hand, optimizer=optimizer).optimizer:  # PyTorch left the values of the call in the model
        assert {held.problem for held in lw.ties(by_hand, optimizer=optimizer).optimizer or ()} == {"stale"}
    # Modules that leafwise ties stay two modules, and are unchanged after the call.
    model: Any = lw.tie(Twice(), "b", to="a", keep="source")
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters())
    given = {name: torch.randn_like(p) for name, p in before.items()}
    out = torch.func.functional_call(model, given, (x,))
    layer = given["a.weight"], given["a.bias"]
    expected = nn.functional.linear(nn.functional.linear(x, *layer), *layer)
    torch.testing.assert_close(out, expected)
    assert all(p is before[name] for name, p in model.named_parameters())
    assert lw.ties(model, optimizer=optimizer).optimizer == []
    assert len(lw.ties(model)) == 2


@pytest.mark.parametrize("module_by_module", [False, True])
def test_torchtitan_2252_torchdistx_10_accelerate_3668_a_tie_made_on_meta_is_kept(module_by_module: bool) -> None:
    with torch.device("meta"):
        model = tied_by_hand()
    lw.keep_ties(model)
    if module_by_module:  # as wrappers materialize
        for module in model.modules():
            module.to_empty(device="cpu", recurse=False)
    else:
        model.to_empty(device="cpu")
    assert model.head.weight is model.embed.weight
    assert not model.embed.weight.is_meta


def test_pytorch_77724_and_accelerate_4171_ties_across_units_are_named_before_sharding() -> None:
    model = tied_by_hand()
    units = {"embed", "head"}
    crossing = [tie for tie in lw.ties(model) if len({path.names[0] for path in tie.leaf.paths} & units) > 1]
    assert [[str(path) for path in tie.leaf.paths] for tie in crossing] == [["embed.weight", "head.weight"]]


def test_pytorch_129252_optimizer_state_of_a_shared_parameter_has_one_name() -> None:
    model = tied_by_hand()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    tree = lw.tree({"model": model, "optimizer": optimizer})
    state = [str(path) for path, _ in tree["optimizer"].select("**.exp_avg").items()]
    assert state == [f"optimizer.state.model.{name}.exp_avg" for name in ("embed.weight", "block.weight", "block.bias")]


def test_safetensors_98_202_304_and_huggingface_hub_2373_a_tie_is_saved_once_and_restored(tmp_path: Path) -> None:
    model = lw.keep_ties(tied_by_hand())
    with pytest.raises(RuntimeError, match=r"share memory"):
        save_file(model.state_dict(), tmp_path / "model.safetensors")
    data = save({str(path): leaf.value.detach() for path, leaf in lw.tree(model).items()})
    assert sorted(load(data)) == ["block.bias", "block.weight", "embed.weight"]
    other = lw.keep_ties(tied_by_hand())
    other.load_state_dict(load(data))
    assert other.head.weight is other.embed.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_transformers_42612_a_head_that_is_genuinely_different_is_not_overwritten() -> None:
    model = LanguageModel()
    head = model.head.weight.detach().clone()
    with pytest.raises(lw.TieError, match=r"their values differ"):
        lw.tie(model, "head.weight", to="embed.weight")
    assert torch.equal(model.head.weight, head)
    kept = lw.keep_ties(tied_by_hand())
    with pytest.raises(lw.TieError, match=r"different values"):
        kept.load_state_dict(cloned_state(model))


def test_transformers_44358_43429_45031_no_list_of_names_is_needed() -> None:
    """Ties are found by shared memory, whatever a list in the class of the model says."""
    import transformers  # heavy, and needed only here

    sizes = {"d_model": 16, "d_ff": 16, "d_kv": 4, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    pointers: dict[int, list[str]] = {}
    for name, value in model.state_dict().items():
        pointers.setdefault(value.data_ptr(), []).append(name)
    expected = sorted(sorted(names) for names in pointers.values() if len(names) > 1)
    assert sorted(sorted(str(path) for path in tie.leaf.paths) for tie in lw.ties(model)) == expected
    assert expected


def test_accelerate_2984_a_module_that_is_shared_whole_has_all_its_names() -> None:
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({f"linear{number}": shared for number in range(1, 5)})
    assert [[str(path) for path in tie.leaf.paths] for tie in lw.ties(model)] == [
        [f"linear{number}.{name}" for number in range(1, 5)] for name in ("weight", "bias")
    ]


class LowRank(nn.Module):
    """An adapter around a layer, as in LoRA."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.down = nn.Parameter(torch.randn(2, base_layer.in_features))
        self.up = nn.Parameter(torch.randn(base_layer.out_features, 2))

    def merge(self) -> None:
        self.base_layer.weight.data += self.up @ self.down


def test_peft_2864_2777_merging_an_adapter_into_an_untied_head_leaves_the_embedding() -> None:
    model = lw.keep_ties(tied_by_hand())
    model.head = LowRank(model.head)
    (tie,) = lw.ties(model)  # shows that merging would change the embedding, too
    assert [str(path) for path in tie.leaf.paths] == ["embed.weight", "head.base_layer.weight"]
    lw.untie(model, "head.base_layer.weight")
    before = model.embed.weight.detach().clone()
    model.head.merge()
    assert torch.equal(model.embed.weight, before)
    assert not torch.equal(model.head.base_layer.weight, before)
    # If the head is replaced by a copy, as modules_to_save does, the lost tie is reported.
    other = lw.keep_ties(tied_by_hand())
    other.head = copy.deepcopy(nn.ModuleDict({"saved": nn.Linear(4, 10, bias=False)}))
    with pytest.warns(
        lw.TieWarning, match=r"declared tie undone: head.weight, which was embed.weight, no longer exists"
    ):
        lw.tree(other)


def test_xla_2719_a_move_that_replaces_parameters_keeps_ties() -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        plain, model = tied_by_hand().double(), lw.keep_ties(tied_by_hand()).double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert plain.head.weight is not plain.embed.weight
    assert model.head.weight is model.embed.weight


def test_torchinfo_322_377_a_shared_weight_counts_once() -> None:
    model = tied_by_hand()
    assert lw.tree(model).counts.parameters == sum(p.numel() for p in model.parameters()) == 60
    assert summary(model, verbose=0).total_params == 100


def test_pytorch_40967_a_parameter_that_is_listed_twice_is_reported() -> None:
    model = tied_by_hand()
    with pytest.warns(UserWarning, match=r"duplicate"):
        optimizer = torch.optim.SGD([*model.embed.parameters(), *model.head.parameters()], lr=1.0)
    assert [held.problem for held in lw.ties(model, optimizer=optimizer).optimizer or ()] == ["twice"]
    assert lw.ties(model, optimizer=torch.optim.SGD([leaf.value for leaf in lw.tree(model)])).optimizer == []
