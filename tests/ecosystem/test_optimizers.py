"""Optimizers of PyTorch, timm and pytorch_optimizer: a resumed run continues bit for bit, or saving it is refused.
tools/optimizers.py (`make optimizers`) tries all of them; here are PyTorch's own and those that keep state in unusual
ways."""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tools import optimizers
from torch import nn

import leafwise as lw
from leafwise.checkpoint.plain_values import PlainValue
from leafwise.checkpoint.saving import saved_content

pytestmark = pytest.mark.filterwarnings("ignore")
for library in ("timm", "pytorch_optimizer"):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


@functools.cache
def cases() -> dict[str, optimizers.Case]:
    """Not when the file is imported, because the libraries take seconds to import."""
    return {f"{case.library}.{case.name}": case for case in optimizers.cases()}


# Running values in groups, in state that belongs to no parameter, in wrappers, in special layouts, in lists and tuples.
SOME = [
    "timm.adafactor",
    "timm.adamp",
    "timm.adan",
    "timm.kron",
    "timm.lamb",
    "timm.laprop",
    "timm.lion",
    "timm.lookahead_adamw",
    "timm.madgrad",
    "timm.muon",
    "timm.nadamw",
    "timm.novograd",
    "timm.sgdp",
    "pytorch_optimizer.adabelief",
    "pytorch_optimizer.adafactor",
    "pytorch_optimizer.adammini",
    "pytorch_optimizer.came",
    "pytorch_optimizer.flashadamw",
    "pytorch_optimizer.galore",
    "pytorch_optimizer.lamb",
    "pytorch_optimizer.lorarite",
    "pytorch_optimizer.madgrad",
    "pytorch_optimizer.magma",
    "pytorch_optimizer.muon",
    "pytorch_optimizer.nero",
    "pytorch_optimizer.prodigy",
    "pytorch_optimizer.ranger21",
    "pytorch_optimizer.sara",
    "pytorch_optimizer.schedulefreeadamw",
    "pytorch_optimizer.shampoo",
    "pytorch_optimizer.soap",
    "pytorch_optimizer.spam",
    "pytorch_optimizer.splus",
    "pytorch_optimizer.Lookahead(AdamP)",
    "pytorch_optimizer.OrthoGrad(AdamP)",
    "pytorch_optimizer.PCGrad(AdamP)",
    "pytorch_optimizer.SAM(AdamP)",
    "pytorch_optimizer.ScheduleFreeWrapper(AdamP)",
    "pytorch_optimizer.TRAC(AdamP)",
]
# SparseAdam needs sparse gradients.
TORCH = [f"torch.{case.name}" for case in optimizers._of_torch() if case.name != "SparseAdam"]
REFUSED = {
    "timm.adahessian": "has its own random generator",
    "pytorch_optimizer.adashift": "grad_queue",
    "pytorch_optimizer.scalableshampoo": "graft",
    "pytorch_optimizer.scion": "norm_type",
}


@pytest.mark.parametrize("name", [*TORCH, *SOME])
def test_a_resumed_run_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    found = optimizers.outcome(cases()[name], tmp_path)
    assert found.kind == "exact", found


@pytest.mark.parametrize("name", REFUSED)
def test_saving_an_optimizer_that_cannot_resume_exactly_is_refused(name: str, tmp_path: Path) -> None:
    found = optimizers.outcome(cases()[name], tmp_path)
    assert found.kind == "refused", found
    assert REFUSED[name] in found.why


def stepped(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = optimizers.build()
    optimizer = cases()[name].make(model)
    optimizers.steps(model, optimizer, range(3))
    return model, optimizer


class _AsBefore:
    """Plain values as leafwise saved them until November 2026: each under its own name, and without types."""

    def __init__(self, t: lw.Tree, apart: Any = None) -> None:
        self.items = [PlainValue(*item) for item in t.columns.scalar_items(t.root)]

    def node_types(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("name", ["torch.AdamW", "torch.SGD", "torch.LBFGS", "timm.lamb", "pytorch_optimizer.adan"])
def test_files_saved_by_earlier_versions_still_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = stepped(name)
    with monkeypatch.context() as patch:
        patch.setattr(saved_content, "PlainValues", _AsBefore)
        path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    assert lw.open(path).columns.node_objects[0].record.nodes == {}
    torch.manual_seed(1)
    fresh = optimizers.build()
    other = cases()[name].make(fresh)
    lw.load({"model": fresh, "optimizer": other}, path)
    assert optimizers._went_on(model, optimizer, fresh, other, 0, None)[0] == "exact"


def test_a_lookahead_saved_by_an_earlier_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = stepped("timm.lookahead_adamw")
    with monkeypatch.context() as patch:
        patch.setattr(saved_content, "PlainValues", _AsBefore)
        path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match=r"is not recorded in .*, which may lack some of the state of timm.Look"):
        lw.load({"model": model, "optimizer": optimizer}, path)


def test_an_optimizer_that_numbers_its_parameters_needs_them_in_the_same_order(tmp_path: Path) -> None:
    model, optimizer = stepped("timm.lookahead_adamw")
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    base = torch.optim.AdamW(list(model.parameters())[::-1])
    turned = type(optimizer)(base)
    with pytest.raises(lw.LoadError, match=r"another order; timm\.Lookahead knows its parameters by their position"):
        lw.load({"model": model, "optimizer": turned}, path)
    other = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    plain = lw.save(other, tmp_path / "b.safetensors")
    with pytest.raises(
        lw.LoadError, match=r"optimizer is timm\.Lookahead in the model but torch\.AdamW in the checkpoint"
    ):
        lw.load({"model": model, "optimizer": optimizer}, plain)


@pytest.mark.parametrize(
    "name", ["timm.lookahead_adamw", "pytorch_optimizer.Lookahead(AdamP)", "pytorch_optimizer.madgrad"]
)
def test_state_dicts_that_pytorch_wrote_are_loaded(name: str, tmp_path: Path) -> None:
    model, optimizer = stepped(name)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    torch.manual_seed(1)
    fresh = optimizers.build()
    other = cases()[name].make(fresh)
    lw.load({"model": fresh, "optimizer": other}, tmp_path / "a.pt")
    assert optimizers._went_on(model, optimizer, fresh, other, 0, None)[0] == "exact"


def test_another_kind_of_optimizer_is_refused(tmp_path: Path) -> None:
    model, optimizer = stepped("torch.AdamW")
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match="has another kind of optimizer"):
        lw.load({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}, path)


def test_running_values_that_the_saved_run_did_not_have_are_removed(tmp_path: Path) -> None:
    model = optimizers.build()
    make = cases()["timm.lamb"].make
    path = lw.save({"model": model, "optimizer": make(model)}, tmp_path / "a.safetensors")
    model, optimizer = stepped("timm.lamb")
    assert "step" in optimizer.param_groups[0]
    lw.load({"model": model, "optimizer": optimizer}, path)
    assert "step" not in optimizer.param_groups[0]


def test_state_keeps_a_precision_other_than_that_of_its_parameter(tmp_path: Path) -> None:
    """PyTorch casts state to the dtype of the parameter when it loads a state dict."""
    name = "pytorch_optimizer.Lookahead(AdamP)"
    model, optimizer = stepped(name)
    state = optimizer.state_dict()
    first = next(iter(state["base_optimizer"]["state"].values()))
    wide = {key: value.double() for key, value in first.items() if isinstance(value, torch.Tensor)}
    first.update(wide)
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    other = cases()[name].make(model)
    lw.load({"model": model, "optimizer": other}, path)
    found = next(iter(other.state_dict()["base_optimizer"]["state"].values()))
    assert wide
    for key, value in wide.items():
        assert found[key].dtype == torch.float64
        assert torch.equal(found[key], value)
