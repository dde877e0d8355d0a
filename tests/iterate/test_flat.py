"""`lw.flat`: every leaf is a view of one vector, and a leaf that is no longer in it is an error."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import toy
from tests.contract.cases import FusedAttention, TransposedAutoencoder
from tests.iterate.models import LanguageModel, batch, loss_of
from torch import nn

import leafwise as lw


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def test_values_stay_and_every_leaf_is_a_live_view() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    parameters = list(model.parameters())
    flat = lw.flat(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert flat.values.is_contiguous()
    assert flat.values.numel() == flat.grads.numel() == 32
    flat.values.fill_(7.0)
    assert all((parameter == 7).all() for parameter in model.parameters())
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    assert (flat.values == 3).sum() == 15


def test_slices_give_the_position_of_a_leaf() -> None:
    model = LanguageModel()
    flat = lw.flat(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(flat.values[flat.slices[name]], parameter.detach().flatten())
    stops = sorted((part.start, part.stop) for part in flat.slices.values())
    assert stops[0][0] == 0
    assert stops[-1][1] == flat.values.numel()
    assert all(a[1] == b[0] for a, b in pairwise(stops))


def test_a_step_on_the_vector_is_a_step_of_the_optimizer() -> None:
    plain, vectored = LanguageModel(), LanguageModel()
    vectored.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    flat = lw.flat(vectored)
    momentum = torch.zeros_like(flat.values)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(plain, batch(step)).backward()
        optimizer.step()
        flat.grads.zero_()
        loss_of(vectored, batch(step)).backward()
        momentum.mul_(0.9).add_(flat.grads)
        flat.values.sub_(0.1 * momentum)
    for one, other in zip(plain.parameters(), vectored.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("drop", [lambda model: model.zero_grad(), lambda model: setattr(model[2].bias, "grad", None)])
def test_gradients_that_were_dropped_or_replaced_are_fetched_back(drop: Any) -> None:
    model = net()
    flat = lw.flat(model)
    model(torch.ones(1, 3)).sum().backward()
    drop(model)
    model(torch.ones(1, 3)).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    grads = flat.grads
    for name, parameter in model.named_parameters():
        assert torch.equal(grads[flat.slices[name]].view(parameter.shape), expected[name])
        assert parameter.grad.untyped_storage().data_ptr() == grads.untyped_storage().data_ptr()
    model.zero_grad()
    assert not flat.grads.any()


def test_of_very_many_leaves_a_lost_one_is_found_in_time() -> None:
    model = nn.ParameterList([torch.zeros(2) for _ in range(3000)])
    flat = lw.flat(model)
    model[1500].grad = torch.ones(2)
    for _ in range(24):
        found = flat.grads.sum().item()
    assert found == 2
    model[1500].data = torch.zeros(2)
    with pytest.raises(lw.WriteError, match="1500 is no longer in this vector"):
        _ = [flat.values for _ in range(24)]


def test_check_covers_every_leaf() -> None:
    model = nn.ParameterList([torch.zeros(2) for _ in range(5000)])
    flat = lw.flat(model)
    model[4000].grad = torch.ones(2)
    flat.check()
    assert flat.grads.sum() == 2
    model[4000].grad = torch.full((2,), 3.0)
    assert lw.clip(flat, 1e6).total == pytest.approx(18**0.5)
    model[4000].data = torch.zeros(2)
    with pytest.raises(lw.WriteError, match="4000 is no longer in this vector"):
        flat.check()


def test_gradients_that_were_there_come_along() -> None:
    model = net()
    model(torch.ones(1, 3)).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    flat = lw.flat(model)
    assert all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), expected, strict=True))
    assert flat.grads[flat.slices["2.bias"]].tolist() == [1, 1]


def test_ties_are_preserved() -> None:
    model = LanguageModel()
    flat = lw.flat(model)
    assert model.head.weight is model.embed.weight
    assert flat.values.numel() == sum(parameter.numel() for parameter in model.parameters())
    assert len(lw.ties(model)) == 1
    assert lw.ties(model).shared_memory == []
    loss_of(model, batch(0)).backward()
    assert torch.equal(flat.grads[flat.slices["embed.weight"]], model.head.weight.grad.flatten())


def test_arrays_over_the_memory_of_a_leaf_follow() -> None:
    model = FusedAttention()
    flat = lw.flat(model)
    flat.values.fill_(2.0)
    assert (model.k_view == 2).all()
    assert len(lw.tree(model).ties) == 1
    flat.undo()
    with torch.no_grad():
        model.qkv.fill_(5.0)
    assert (model.v_view == 5).all()


def test_a_transposed_tie_follows() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 2), "decoder": nn.Linear(2, 4)})
    lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    flat = lw.flat(model)
    flat.values.fill_(3.0)
    assert (model["decoder"].weight == 3).all()
    assert flat.values.numel() == 8 + 2 + 4
    model["decoder"](model["encoder"](torch.ones(1, 4))).sum().backward()
    assert flat.grads[flat.slices["encoder.weight"]].all()


def test_state_dicts_and_files_stay_as_they_were(tmp_path: Path) -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    flat = lw.flat(model)
    assert model.state_dict().keys() == before.keys()
    lw.save(model, tmp_path / "a.safetensors")
    with lw.open(tmp_path / "a.safetensors") as file:
        assert file["2.weight"].numpy().tolist() == before["2.weight"].tolist()
    flat.values.zero_()
    lw.load(model, tmp_path / "a.safetensors")
    assert torch.equal(flat.values[flat.slices["2.weight"]], before["2.weight"].flatten())
    model.load_state_dict(before)
    assert torch.equal(flat.values[flat.slices["0.bias"]], before["0.bias"])


def test_undo_gives_every_leaf_its_own_memory() -> None:
    model = net()
    flat = lw.flat(model)
    model(torch.ones(1, 3)).sum().backward()
    values, grads = flat.values.clone(), flat.grads.clone()
    assert flat.undo() is model
    storages = {tensor.untyped_storage().data_ptr() for p in model.parameters() for tensor in (p, p.grad)}
    assert len(storages) == 8
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()).sort().values, values.sort().values)
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]).sort().values, grads.sort().values)
    with pytest.raises(lw.WriteError, match="undone"):
        flat.values  # noqa: B018
    assert "undone" in repr(flat)
    lw.clip(model, 1.0)


def test_leaves_without_elements_and_scalars_can_be_flat() -> None:
    model = nn.ParameterList([torch.zeros(0, 3), torch.zeros(())])
    flat = lw.flat(model)
    flat.grads.fill_(2.0)
    assert dict(lw.clip(model, 1.0)) == {"0": 0.0, "1": 2.0}
    assert model[1].grad.item() == 1.0
    empty = nn.ParameterList([torch.zeros(0), torch.zeros(0)])
    assert lw.clip(lw.flat(empty), 1.0).total == 0


def test_undo_leaves_alone_what_was_put_in_place_of_a_name() -> None:
    model = LanguageModel()
    flat = lw.flat(model)
    model.head.weight = nn.Parameter(torch.full((17, 8), 7.0))
    flat.undo()
    assert (model.head.weight == 7).all()
    assert not (model.embed.weight == 7).any()
    fused = FusedAttention()
    flat = lw.flat(fused)
    fused.k_view = torch.full((4, 4), 7.0)
    flat.undo()
    assert (fused.k_view == 7).all()


def test_replacing_any_name_of_a_shared_leaf_is_an_error() -> None:
    layer = nn.Linear(3, 3)
    for model, replace in (
        (LanguageModel(), lambda m: setattr(m.head, "weight", nn.Parameter(m.head.weight.detach().clone()))),
        (nn.Sequential(layer, layer), lambda m: m.__setitem__(1, nn.Linear(3, 3))),
    ):
        flat = lw.flat(model)
        replace(model)
        with pytest.raises(lw.WriteError, match="is no longer in this vector"):
            flat.values  # noqa: B018


def test_frozen_leaves_stay_out() -> None:
    model = lw.freeze(net(), "0.*")
    assert set(lw.flat(model).slices) == {"2.weight", "2.bias"}


def test_each_dtype_has_a_vector() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16)])
    flat = lw.flat(model)
    assert [part.values.dtype for part in flat.parts] == [torch.float32, torch.bfloat16]
    assert set(flat.parts[1].slices) == {"1.weight", "1.bias"}
    with pytest.raises(lw.WalkError, match=r"torch\.float32, torch\.bfloat16; use flat\.parts"):
        flat.values  # noqa: B018
    assert "12 parameters" in repr(flat)


def test_the_memory_order_of_axes_is_kept() -> None:
    model = nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
    before = model.weight.detach().clone()
    strides = model.weight.stride()
    lw.flat(model)
    assert model.weight.stride() == strides
    assert torch.equal(model.weight, before)


def test_leaves_whose_size_would_misalign_the_next_come_last() -> None:
    flat = lw.flat(nn.ModuleList([nn.Linear(3, 1), nn.Linear(4, 4)]))
    assert list(flat.slices) == ["1.weight", "1.bias", "0.weight", "0.bias"]


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.double(),
        lambda model: lw.flat(model),
        lambda model: setattr(model[2].weight, "data", torch.zeros(2, 5)),
        lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True),
        lambda model: setattr(model[2], "weight", nn.Parameter(torch.zeros(2, 5))),
        lambda model: model.__setitem__(2, nn.Linear(5, 2)),
        lambda model: lw.freeze(model, "2.weight"),
    ],
    ids=["cast", "flat again", "data", "assign", "parameter", "module", "frozen"],
)
def test_a_model_that_moved_is_an_error(move: Any) -> None:
    model = net()
    flat = lw.flat(model)
    move(model)
    with pytest.raises(lw.WriteError, match=r"weight is no longer in this vector.*call lw\.flat\(model\) again"):
        flat.values  # noqa: B018
    with pytest.raises(lw.WriteError, match="is no longer in this vector"):
        flat.check()


def test_a_leaf_that_cannot_be_flat_is_named_and_nothing_changes() -> None:
    model = net()
    model[2] = nn.Linear(5, 2, device="meta")
    pointer = model[0].weight.data_ptr()
    with pytest.raises(lw.WalkError, match=r"cannot flatten 2\.weight: a meta tensor.*nothing was changed"):
        lw.flat(model)
    assert model[0].weight.data_ptr() == pointer
    with pytest.raises(lw.WalkError, match=r"cannot flatten 0\.weight: a lazy layer"):
        lw.flat(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(lw.WalkError, match=r"encoder\.weight and decoder\.weight: they share memory but are not tied"):
        lw.flat(TransposedAutoencoder())
    with pytest.raises(lw.WalkError, match="cannot flatten the model: it has no trainable parameters"):
        lw.flat(lw.freeze(net(), "**"))
    quantized = nn.Linear(3, 3)
    quantized.weight.SCB = torch.ones(3)
    with pytest.raises(lw.WalkError, match="cannot flatten weight: bitsandbytes keeps it packed"):
        lw.flat(quantized)


def test_a_home_without_views_says_so() -> None:

    class Trained(toy.ToyHome):
        def spec(self, value: Any) -> Any:
            return super().spec(value)._replace(trainable=True)

    with toy.registered(Trained()), pytest.raises(lw.Unsupported, match="toy cannot flatten"):
        lw.flat(toy.Model(a=toy.matrix(2, 2)))
