"""Ties survive everything that PyTorch does to modules: the table in the docs, and cases that it does not show."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.share.models import Parts, cloned_state, facts, tied, tied_autoencoder, tied_language_model, undone_names
from tools import tie_table, tied_transformers
from tools.tie_table import ARCHITECTURES, KEPT, OPERATIONS, Architecture
from torch import nn

import leafwise as lw

SHARE = Path(__file__).parents[2] / "docs" / "share.md"


@pytest.fixture(params=ARCHITECTURES.values(), ids=[name.replace(" ", "-") for name in ARCHITECTURES])
def architecture(request: pytest.FixtureRequest) -> Architecture:
    found: Architecture = request.param
    return found


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=[name.replace("`", "") for name in OPERATIONS])
def test_every_tie_survives_every_operation(architecture: Architecture, operation: tie_table.Operation) -> None:
    model = tied(architecture)
    before = facts(model)
    listed = [name for name, _ in model.named_parameters()]
    keys = list(model.state_dict())
    after = operation(model, architecture)
    after = getattr(after, "_orig_mod", after)
    assert facts(after) == before
    assert tie_table.tied_by_memory(after, architecture)
    assert [name for name, _ in after.named_parameters()] == listed
    assert list(after.state_dict()) == keys
    assert lw.tree(after).undone == []
    # The tie still works: the model runs, and every leaf gets one gradient.
    after = after.float()
    for parameter in after.parameters():
        nn.init.normal_(parameter)
    after(architecture.inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in after.parameters())
    assert facts(after) == before


@pytest.mark.slow
def test_the_table_in_the_docs_is_what_happens() -> None:
    page = SHARE.read_text("utf-8")
    written = page.partition(tie_table.START)[2].partition(tie_table.END)[0].strip()
    assert written == tie_table.table()
    for row in written.splitlines()[2:]:
        assert all(cell.split()[1] == KEPT for cell in row.strip("|").split("|")[1:])


def test_values_come_back_after_copies_pickles_and_state_dicts(architecture: Architecture) -> None:
    model = tied(architecture).eval()
    expected = model(architecture.inputs)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for restored in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(restored(architecture.inputs), expected)
    for assign in (False, True):
        other = tied(architecture).eval()
        for parameter in other.parameters():
            nn.init.zeros_(parameter)
        if assign:
            other = other.to("meta")
        other.load_state_dict(state, assign=assign)
        assert torch.equal(other(architecture.inputs), expected)


def test_gradients_are_the_sums_of_those_of_an_untied_copy(architecture: Architecture) -> None:
    model = tied(architecture)
    untied = architecture.build()
    untied.load_state_dict(model.state_dict())
    for one in (model, untied):
        one(architecture.inputs).pow(2).sum().backward()
    theirs = dict(untied.named_parameters())
    for tie in lw.ties(model):
        if tie.leaf.kind != "parameter":
            continue
        total = torch.zeros_like(tie.leaf.value)
        for name in tie.names:
            part = total
            if name.op.slices is not None:
                part = part[name.op.slices]
            if name.op.order is not None:
                part = part.permute(name.op.order)
            part += theirs[str(name.path)].grad
        torch.testing.assert_close(tie.leaf.grad, total)


class TwoNamesInOneModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3))
        self.b = self.a
        self.register_buffer("part", self.a.detach()[1:])
        self.register_buffer("count", torch.zeros(2), persistent=False)
        self.register_buffer("again", self.count, persistent=False)


def two_names(model: Any) -> None:
    assert model.a is model.b
    assert model.part.data_ptr() == model.a[1:].data_ptr()
    assert model.count is model.again
    assert [len(tie.names) for tie in lw.ties(model)] == [3, 2]


def test_ties_within_one_module_and_buffers_that_are_views_survive() -> None:
    model = lw.keep_ties(TwoNamesInOneModule())
    two_names(model)
    two_names(copy.deepcopy(model))
    two_names(pickle.loads(pickle.dumps(model)))
    two_names(model.half())
    two_names(model.to("meta").to_empty(device="cpu"))
    model.load_state_dict({"a": torch.ones(3)})
    two_names(model)
    assert model.part.tolist() == [1, 1]
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    two_names(model)
    with pytest.raises(lw.TieError, match=r"a and part"):
        model.load_state_dict({"a": torch.ones(3), "part": torch.zeros(2)})


@pytest.fixture
def _other_ways_to_convert() -> Iterator[None]:
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_other_ways_to_convert")
def test_ties_survive_pytorchs_other_ways_to_convert(architecture: Architecture) -> None:
    model = tied(architecture)
    before = facts(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    assert facts(model.double()) == before
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    torch.__future__.set_swap_module_params_on_conversion(True)
    assert facts(model.float()) == before
    model.load_state_dict(state)
    assert facts(model) == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_copy_of_one_half_is_independent_and_warns_about_the_lost_tie(architecture: Architecture) -> None:
    model = tied(architecture)
    last = architecture.ties[0][-1]
    path, _, name = last.rpartition(".")
    owner = model.get_submodule(path)
    if architecture.build is tie_table.TwoPaths:
        assert len(lw.ties(owner)) == 0  # one module has both names, and so does its copy
        return
    for copied in (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
        with pytest.warns(lw.TieWarning, match=r"copied .* without .*, to which it is tied"):
            alone = copied(owner)
        assert torch.equal(getattr(alone, name), getattr(owner, name))
        assert isinstance(alone._parameters[name], nn.Parameter)
        assert getattr(alone, name).untyped_storage().data_ptr() != getattr(owner, name).untyped_storage().data_ptr()
        assert name in dict(alone.named_parameters())
        assert lw.tree(alone).undone == []
        copied(alone)  # warns only once
    assert len(lw.ties(model)) == len(architecture.ties)


def test_moving_a_shallow_copy_is_an_error_that_explains_why() -> None:
    model = tied_language_model()
    shallow = copy.copy(model)
    del model
    with pytest.raises(lw.TieError, match=r"a shallow copy of a module whose ties are kept"):
        shallow.half()


class Backwards(nn.Module):
    """The view comes before its source."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(3, 4)
        self.inner = nn.Module()
        self.inner.encoder = nn.Linear(4, 3)
        self.own = nn.Parameter(torch.randn(4, 3))
        self.other = nn.Linear(4, 3, bias=False)


def test_a_copy_is_tied_whichever_module_is_copied_first() -> None:
    model = lw.tie(Backwards(), "decoder.weight", to="inner.encoder.weight", transpose=True, keep="source")
    lw.tie(model, "other.weight", to="own", transpose=True, keep="source")
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert facts(again) == facts(model)
        assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]
        again.own.data.zero_()
        assert not again.other.weight.any()
        assert model.other.weight.any()


def test_nothing_is_added_to_forward_and_no_type_changes() -> None:
    model = ARCHITECTURES["tied embedding"].build()
    ARCHITECTURES["tied embedding"].by_hand(model)
    kinds = [type(module) for module in model.modules()]
    before = [dict(vars(module)) for module in model.modules()]
    lw.keep_ties(model)
    lw.keep_ties(model)
    assert [type(module) for module in model.modules()] == kinds
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in vars(module)
        assert (
            vars(module).keys() - {"_leafwise_keeper", "_apply", "_load_from_state_dict", "load_state_dict"}
            == before.pop(0).keys()
        )


def test_letting_go_leaves_no_trace() -> None:
    model: Any = ARCHITECTURES["encoder–decoder, three-way"].build()
    ARCHITECTURES["encoder–decoder, three-way"].by_hand(model)
    before = [set(vars(module)) for module in model.modules()]
    assert lw.release_ties(lw.keep_ties(model)) is model
    assert [set(vars(module)) for module in model.modules()] == before
    assert model.head.weight is model.encoder["embed"].weight
    model.to("meta").to_empty(device="cpu")
    assert model.head.weight is not model.encoder["embed"].weight
    assert lw.tree(model).undone == []


def test_repeated_loads_do_not_grow_the_keeper_and_letting_go_leaves_nothing() -> None:
    model = tied_language_model()
    around = nn.ModuleDict({"m": model})
    state = cloned_state(around)
    del state["m.head.weight"]
    for _ in range(5):
        around.load_state_dict(state, strict=False)
    assert len(model.__dict__["_leafwise_keeper"]._filled[1]) == 1
    parts = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", keep="source")
    lw.release_ties(parts.part)
    with pytest.warns(lw.TieWarning):
        alone = copy.deepcopy(model.head)
    for module in (*parts.modules(), alone, copy.deepcopy(tied_language_model().head)):
        assert not {"_leafwise_keeper", "_apply", "load_state_dict", "_load_from_state_dict"} & vars(module).keys()


def test_views_stay_when_ties_are_let_go() -> None:
    model = lw.release_ties(tied(ARCHITECTURES["transposed autoencoder"]))
    assert facts(copy.deepcopy(model).half()) == facts(model)


def test_an_overwritten_tie_is_reported_by_the_next_walk() -> None:
    model = tied(ARCHITECTURES["tied embedding"])
    model.head.weight = nn.Parameter(torch.randn(10, 4))
    with pytest.warns(
        lw.TieWarning, match=r"declared tie undone: head.weight is no longer embed.weight; to tie them again: lw.tie"
    ):
        tree = lw.tree(model)
    assert [(str(u.path), str(u.source), u.op) for u in tree.undone] == [("head.weight", "embed.weight", "same")]
    assert "declared tie undone" in tree.text()
    assert tree.json()["undone"] == [{"path": "head.weight", "source": "embed.weight", "op": "same"}]
    # A tie that is gone never overwrites different values.
    different = model.head.weight
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.to("meta").to_empty(device="cpu")
        state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        assert torch.equal(model.head.weight, state["head.weight"])
        assert torch.equal(model.embed.weight, state["embed.weight"])
        lw.untie(model, "head.weight")
    assert different is not model.embed.weight
    assert lw.tree(model).undone == []


def test_a_replaced_module_is_not_overwritten_either() -> None:
    model = tied(ARCHITECTURES["tied embedding"])
    kept = model.head  # alive, but no longer in the model
    model.head = nn.Linear(4, 10, bias=False)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(model.head.weight, state["head.weight"])
    assert torch.equal(kept.weight, state["embed.weight"])
    with pytest.warns(lw.TieWarning, match=r"head.weight is no longer"):
        lw.tree(model)
    del model.head
    with pytest.warns(
        lw.TieWarning, match=r"head.weight, which was embed.weight, no longer exists; to accept this: lw.untie"
    ):
        lw.tree(model)
    with pytest.warns(lw.TieWarning):
        lw.untie(model, "embed.weight")
    assert lw.tree(model).undone == []


def test_a_tie_that_was_undone_is_still_reported_after_a_copy() -> None:
    model = tied_language_model()
    model.head = nn.Linear(4, 10, bias=False)
    assert undone_names(model) == ["head.weight"]
    again = copy.deepcopy(model)
    pickle.dumps(model)
    assert undone_names(model) == undone_names(again) == ["head.weight"]


def test_a_view_whose_source_was_replaced_can_be_tied_again_and_untied() -> None:
    for repair in ("tie", "untie"):
        model = tied_autoencoder()
        model.encoder = nn.Linear(4, 3)
        copy.deepcopy(model)
        assert undone_names(model) == ["decoder.weight"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lw.TieWarning)
            if repair == "tie":
                lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
                assert torch.equal(model.decoder.weight, model.encoder.weight.T)
            else:
                lw.untie(model, "decoder.weight")
                assert type(model.decoder) is nn.Linear
        assert undone_names(model) == []


def test_a_wrapper_around_one_name_keeps_the_tie() -> None:
    model = tied(ARCHITECTURES["tied embedding"])
    model.head = nn.ModuleDict({"base_layer": model.head})
    assert facts(model) == [[("embed.weight", "same", ""), ("head.base_layer.weight", "same", "")]]
    assert lw.tree(model).undone == []


def test_ties_of_parts_of_a_model_are_kept_when_the_whole_is_tied() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = ARCHITECTURES["tied embedding"].build()
            self.right = ARCHITECTURES["tied embedding"].build()

    model: Any = Two()
    lw.tie(model.left, "head.weight", to="embed.weight", keep="source")
    lw.tie(model.right, "head.weight", to="embed.weight", keep="source")
    lw.tie(model, "right.{embed,head}.weight", to="left.embed.weight", keep="source")
    assert facts(model) == [
        [(f"{side}.{name}.weight", "same", "") for side in ("left", "right") for name in ("embed", "head")]
    ]
    model.to("meta").to_empty(device="cpu")
    assert len(set(map(id, model.parameters()))) == len(list(model.parameters())) == 5
    model.right.head.to("meta").to_empty(device="cpu")
    assert model.left.embed.weight is model.right.head.weight
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(lw.TieError, match=r"right.head.weight"):
        model.load_state_dict({**state, "right.head.weight": torch.full((10, 4), 7.0)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["albert", "bart", "bert", "gemma2", "gpt2", "mamba", "opt", "roberta", "t5", "whisper", "xlnet"]
)
def test_transformers_architectures_keep_their_ties(name: str) -> None:
    """A bounded sample; `make ties` runs all of them."""
    found = tied_transformers.outcomes_of(name)
    assert found is not None
    assert found.operations, "no weight is tied"
    assert {ours for _, ours in found.operations.values()} == {"kept"}, found


def test_a_tie_whose_first_name_changes_keeps_the_ops_of_all_names() -> None:
    model: Any = nn.Module()
    for name in "yxz":  # so that y, which is tied last, is the first name of the leaf
        part = nn.Module()
        part.register_buffer("buf", torch.randn(3, 3))
        model.add_module(name, part)
    lw.tie(model, "z.buf", to="x.buf", keep="source")
    lw.tie(model, "y.buf", to="x.buf", transpose=True, keep="source")
    for survive in (copy.deepcopy, lambda model: model.double(), lambda model: model.to("meta").to_empty(device="cpu")):
        model = survive(model)
        model.x.buf.normal_()
        assert torch.equal(model.y.buf, model.x.buf.T)
        assert torch.equal(model.z.buf, model.x.buf)
        assert lw.tree(model).undone == []
