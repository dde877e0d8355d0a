"""`lw.clip`: gradients are clipped together, per leaf or per query, and their norms are reported by path."""

import copy
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.contract import toy
from tests.iterate.models import LanguageModel, batch, loss_of
from torch import nn

import leafwise as lw
from leafwise.core.capabilities.clipping import Clipping
from leafwise.homes.numpy import HOME as NUMPY


def trained(model: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    model = LanguageModel() if model is None else model
    loss_of(model, batch(0)).backward()
    return model


def grads(model: nn.Module) -> list[Any]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("max_norm", [0.01, 1e6])
@pytest.mark.parametrize("flat", [False, True])
def test_clipping_is_that_of_pytorch(max_norm: float, flat: bool) -> None:
    model = trained()
    theirs = copy.deepcopy(model)
    for one, other in zip(theirs.parameters(), model.parameters(), strict=True):
        one.grad = other.grad.clone()
    held = lw.flat(model) if flat else None
    norms = lw.clip(model, max_norm)
    total = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    assert norms.total == pytest.approx(total.item(), rel=1e-5)
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-4, atol=1e-9)
    assert held is None or torch.equal(held.grads[held.slices["norm.bias"]], model.norm.bias.grad)


def test_the_norms_come_by_path_and_a_shared_leaf_once() -> None:
    model = trained()
    norms = lw.clip(model, 1e6)
    assert list(norms) == [name for name, _ in model.named_parameters()]
    assert norms["embed.weight"] == pytest.approx(model.embed.weight.grad.norm().item(), rel=1e-5)
    assert norms["head.weight"] == norms["embed.weight"]  # under its other name, too
    with pytest.raises(lw.PathError, match="nothing at"):
        norms["nowhere"]
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(norms.total)
    assert norms.clipped is model
    assert repr(norms).splitlines()[0].split() == [path := max(norms, key=norms.__getitem__), f"{norms[path]:.4g}"]


@pytest.mark.parametrize("flat", [False, True])
def test_per_leaf_clips_each_leaf_alone(flat: bool) -> None:
    model = trained()
    held = lw.flat(model) if flat else None
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    norms = lw.clip(model, 0.05, per="leaf")
    assert norms["embed.weight"] > 0.05
    for name, parameter in model.named_parameters():
        assert parameter.grad.norm().item() == pytest.approx(min(norms[name], 0.05), rel=1e-4, abs=1e-9)
        assert torch.allclose(parameter.grad, before[name] * min(1, 0.05 / max(norms[name], 1e-30)), atol=1e-7)
    assert held is None or held.grads is not None


def test_per_leaf_clips_the_leaves_of_each_vector_of_a_flat_model_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False).double())
    for layer, gradient in zip(model, (3.0, 8.0), strict=True):
        layer.weight.grad = torch.full_like(layer.weight, gradient)
    flat = lw.flat(model)
    assert len(flat.parts) == 2
    lw.clip(flat, 1.0, per="leaf")
    for layer in model:
        assert layer.weight.grad.norm().item() == pytest.approx(1, rel=1e-4)


def test_per_query_clips_those_together_and_leaves_the_others() -> None:
    model = trained()
    before = grads(model)
    lw.clip(model, 0.01, where="layers.0.**")
    inside = torch.cat([parameter.grad.flatten() for parameter in model.layers[0].parameters()])
    assert inside.norm().item() == pytest.approx(0.01, rel=1e-4)
    assert torch.equal(model.embed.weight.grad, before[0])
    lw.clip(model, 0.001, where=["layers.1.**", lw.where(role="embedding.table")])
    assert model.embed.weight.grad.norm().item() == pytest.approx(0.001, rel=1e-4)
    with pytest.raises(lw.PathError, match="no leaf matches"):
        lw.clip(model, 1.0, where="blocks.**")
    with pytest.raises(lw.RuleError, match="a leaf may match only one query"):
        lw.clip(model, 1.0, where=["layers.**", "**"])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_named(flat: bool, bad: float) -> None:
    model = trained()
    held = lw.flat(model) if flat else None
    model.layers[1].up.weight.grad[0, 0] = bad
    before = grads(model)
    with pytest.raises(lw.NonFiniteError, match=r"layers\.1\.up\.weight are not finite; nothing was changed") as caught:
        lw.clip(model, 0.01)
    assert caught.value.paths == ("layers.1.up.weight",)
    norms = lw.clip(model, 0.01, strict=False)
    assert norms.nonfinite == ("layers.1.up.weight",)
    for mine, other in zip(grads(model), before, strict=True):
        assert torch.equal(mine, other) or torch.equal(mine.isnan(), other.isnan())
    lw.clip(model, 0.01, per="leaf", strict=False)
    assert model.embed.weight.grad.norm() < 0.011
    assert held is None or held.grads is not None


def test_gradients_whose_squares_overflow_are_finite() -> None:
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e25)
    norms = lw.clip(model, 1.0)
    assert norms["weight"] == pytest.approx(4e25, rel=1e-5)
    assert model.weight.grad.norm().item() == pytest.approx(math.sqrt(0.8), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_gradients_of_other_dtypes_are_clipped(dtype: torch.dtype) -> None:
    model = nn.ModuleList([nn.Linear(9, 9, dtype=dtype), nn.Linear(3, 3)])
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 100
    norms = lw.clip(model, 1.0)
    assert norms["0.weight"] == pytest.approx(model[0].weight.grad.double().norm().item() * norms.total, rel=0.02)


def test_large_sparse_and_missing_gradients_are_clipped_together() -> None:
    model = nn.ModuleDict(
        {"table": nn.Embedding(9, 4, sparse=True), "large": nn.Linear(300, 300), "unused": nn.Linear(2, 2)}
    )
    (model["table"](torch.tensor([1, 1, 2])).sum() + model["large"](torch.ones(1, 300)).sum()).backward()
    expected = model["table"].weight.grad.to_dense().norm().item()
    norms = lw.clip(model, 0.5)
    assert set(norms) == {"table.weight", "large.weight", "large.bias"}
    assert norms["table.weight"] == pytest.approx(expected, rel=1e-5)
    assert model["table"].weight.grad.to_dense().norm().item() == pytest.approx(expected * 0.5 / norms.total, rel=1e-4)


def test_gradients_that_cannot_change_come_back_clipped() -> None:
    with toy.registered() as ours:
        shared = toy.matrix(1, 4)
        gradients = toy.Model(a=shared, b=toy.Model(c=shared))
        norms = lw.clip(gradients, 1.0)
        assert dict(norms) == {"a": pytest.approx(math.sqrt(14))}
        assert ours.read(norms.clipped.b.c).tolist() == [pytest.approx([n / math.sqrt(14) for n in range(4)])]
        assert norms.clipped.a is norms.clipped.b.c
        assert ours.read(gradients.a).tolist() == [[0, 1, 2, 3]]


def test_a_tree_can_be_given_and_sees_what_was_replaced_since() -> None:
    model = trained()
    t = lw.tree(model)
    assert lw.clip(t, 1e6).total == lw.clip(model, 1e6).total
    model.norm.weight = nn.Parameter(torch.ones(8))
    assert "norm.weight" not in lw.clip(t, 1e6)


@pytest.mark.parametrize("flat", [False, True])
def test_norms_of_very_large_leaves_are_exact(flat: bool) -> None:
    model = nn.ParameterList([torch.zeros(20_000_000), torch.zeros(3)])
    held = lw.flat(model) if flat else None
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    assert lw.clip(model if held is None else held, 1.0).total == pytest.approx(math.sqrt(20_000_003), rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(),
        lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True),
        lambda model: model.__setitem__(2, nn.Linear(4, 4)),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 4))),
        lambda model: lw.thaw(model, "**"),
        lambda model: model.append(nn.Linear(4, 4)),
        lambda model: None,
    ],
    ids=["cast", "assign", "module", "parameter", "thaw", "append", "nothing"],
)
@pytest.mark.parametrize("part", [False, True])
def test_a_model_that_changed_since_it_was_made_flat_is_clipped_all_the_same(change: Any, part: bool) -> None:
    model = lw.freeze(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), "1.*")
    held = lw.flat(lw.tree(model).select("0.*") if part else model)
    change(model)
    model.zero_grad()
    (model(torch.ones(2, 4, dtype=model[0].weight.dtype)) * 100).sum().backward()
    expected = torch.stack([p.grad.double().norm() for p in model.parameters() if p.grad is not None]).norm()
    assert lw.clip(model, 1.0).total == pytest.approx(expected.item(), rel=1e-5)
    after = torch.stack([p.grad.double().norm() for p in model.parameters() if p.grad is not None]).norm()
    assert after.item() == pytest.approx(1.0, rel=1e-4)
    del held


@pytest.mark.parametrize("by_flat", [False, True])
def test_clipping_a_flat_model_gives_no_gradients_to_leaves_without(by_flat: bool) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "other": nn.Linear(4, 1)})
    held = lw.flat(model)
    model.zero_grad()
    model["used"](torch.ones(1, 4)).sum().backward()
    norms = lw.clip(held if by_flat else model, 0.1, per="tree")
    assert norms.total > 2
    assert model["used"].weight.grad.norm() < 0.11
    assert model["other"].weight.grad is None


@pytest.mark.parametrize("flat", [False, True])
def test_very_large_gradients_are_clipped_without_overflow(flat: bool) -> None:
    for dtype, large in ((torch.float32, 1e25), (torch.float64, 1e200)):
        model = nn.Sequential(nn.Linear(3, 3, dtype=dtype), nn.Linear(3, 1, dtype=dtype))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, large)
        held = lw.flat(model) if flat else None
        lw.clip(model, 1.0)
        assert sum(p.grad.double().square().sum().item() for p in model.parameters()) == pytest.approx(1.0, rel=1e-4)
        del held


def test_another_default_dtype_changes_nothing() -> None:
    model = trained()
    torch.set_default_dtype(torch.float16)
    try:
        lw.clip(model, 1e-6)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.cat(grads_flat(model)).norm().item() == pytest.approx(1e-6, rel=1e-4)


def grads_flat(model: nn.Module) -> list[Any]:
    return [gradient.flatten() for gradient in grads(model)]


def test_what_makes_no_sense_is_an_error() -> None:
    with pytest.raises(lw.WalkError, match=r"call lw\.clip after backward"):
        lw.clip(nn.Linear(2, 2), 1.0)
    with pytest.raises(lw.RuleError, match="where= is an empty list; give at least one query"):
        lw.clip(trained(), 1.0, where=[])
    model = nn.Linear(1, 3)
    model.bias.grad = torch.tensor([10.0]).expand(3)
    with pytest.raises(lw.WriteError, match="cannot clip the gradient of bias: it is expanded"):
        lw.clip(model, 1.0)
    for wrong in (0, -1.0, math.nan, "1.0"):
        with pytest.raises(lw.RuleError, match="max_norm= takes a number above 0"):
            lw.clip(trained(), wrong)


def test_norms_of_narrow_arrays_are_computed_in_more_bits() -> None:
    numpy = NUMPY.capability(Clipping)
    assert numpy.norms([np.full(4, 300, np.float16)]) == [600]
    assert numpy.norms([np.ones(100_000, ml_dtypes.bfloat16)]) == [pytest.approx(math.sqrt(100_000))]


def test_a_gradient_whose_elements_share_memory_is_refused_before_others_are_scaled() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[0].weight.grad = torch.full((3, 3), 2.0)
    net[1].weight.grad = torch.ones(1, 3).expand(3, 3)
    for options in ({}, {"per": "leaf"}):
        with pytest.raises(lw.WriteError, match=r"cannot clip the gradient of 1\.weight: it is expanded"):
            lw.clip(net, 0.5, **options)
        assert torch.equal(net[0].weight.grad, torch.full((3, 3), 2.0))


def test_a_gradient_that_two_parameters_have_is_scaled_once() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[0].weight.grad = net[1].weight.grad = torch.full((2, 2), 3.0)
    assert lw.clip(net, math.sqrt(72) / 2).total == pytest.approx(math.sqrt(72))
    assert torch.allclose(net[0].weight.grad, torch.full((2, 2), 1.5))
