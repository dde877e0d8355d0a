"""`lw.Average`: averages of weights over steps, and how they are applied, saved and loaded."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import toy
from tests.iterate.models import LanguageModel, batch, loss_of
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import leafwise as lw
from leafwise.core.capabilities.rebuilding import Rebuilding


def moved(net: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator))
            else:
                tensor.add_(1)


def batch_normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("decay", [0.9, None])
def test_averages_are_those_of_pytorchs_averaged_model(decay: float | None) -> None:
    net = batch_normed()
    function = get_ema_multi_avg_fn(decay) if decay is not None else None
    theirs = AveragedModel(net, multi_avg_fn=function)
    ours = lw.Average(net, decay)
    for step in range(5):
        moved(net, step)
        theirs.update_parameters(net)
        ours.update()
    with ours.applied() as averaged:
        assert averaged is net
        for mine, other in zip(net.parameters(), theirs.module.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-6)


def test_buffers_are_copied_or_averaged() -> None:
    for buffers in ("copy", "average"):
        net = batch_normed()
        average = lw.Average(net, 0.5, buffers=buffers)
        seen = []
        for step in range(3):
            moved(net, step)
            seen.append(net[1].running_mean.clone())
            average.update()
        expected = seen[2] if buffers == "copy" else 0.25 * seen[0] + 0.25 * seen[1] + 0.5 * seen[2]
        with average.applied():
            assert torch.allclose(net[1].running_mean, expected)
            assert net[1].num_batches_tracked == 3


def test_the_decay_warms_up() -> None:
    net = nn.Linear(1, 1, bias=False)
    average = lw.Average(net, decay=0.99, warmup=10)
    expected = 0.0
    for n in range(30):
        net.weight.data.fill_(float(n))
        average.update()
        decay = min(0.99, (1 + n) / (10 + n)) if n else 0.0
        expected = decay * expected + (1 - decay) * n
    with average.applied():
        assert net.weight.item() == pytest.approx(expected, rel=1e-5)


def test_ties_are_averaged_once_and_still_tied() -> None:
    model = LanguageModel()
    average = lw.Average(model, 0.5)
    assert len(average.state_dict()["values"]) == len(list(model.parameters()))
    before = model.embed.weight.clone()
    average.update()
    with torch.no_grad():
        model.embed.weight.zero_()
    average.update()
    with average.applied():
        assert model.head.weight is model.embed.weight
        assert torch.allclose(model.embed.weight, before / 2)


def test_the_models_own_values_come_back_even_after_an_error() -> None:
    net = batch_normed()
    average = lw.Average(net, 0.5)
    moved(net, 0)
    own = copy.deepcopy(net.state_dict())
    with pytest.raises(ZeroDivisionError), average.applied():
        raise ZeroDivisionError
    assert all(torch.equal(own[name], value) for name, value in net.state_dict().items())


def test_small_dtypes_are_averaged_in_float32() -> None:
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    net.weight.data.fill_(1.0)
    average = lw.Average(net, decay=0.999)
    average.update()
    net.weight.data.fill_(2.0)
    for _ in range(1000):
        average.update()
    assert average.state_dict()["values"]["weight"].dtype == torch.float32
    with average.applied():
        assert net.weight.dtype == torch.bfloat16
        assert net.weight.item() == pytest.approx(2 - 0.999**1000, rel=0.01)


def test_parameters_that_are_replaced_are_followed() -> None:
    net = nn.Linear(2, 2)
    average = lw.Average(net, 0.0)
    net.load_state_dict({name: torch.ones_like(value) for name, value in net.state_dict().items()}, assign=True)
    average.update()
    average.update()
    assert average.state_dict()["values"]["weight"].tolist() == [[1, 1], [1, 1]]


def test_an_average_is_saved_and_loaded_with_everything_else(tmp_path: Path) -> None:
    def start() -> dict[str, Any]:
        torch.manual_seed(0)
        model = LanguageModel()
        optimizer = torch.optim.AdamW(lw.groups(model, [lw.no_decay()]), lr=1e-2)
        return {"model": model, "optimizer": optimizer, "average": lw.Average(model, 0.9, warmup=2), "step": 0}

    def train(state: dict[str, Any], steps: int) -> None:
        for _ in range(steps):
            state["optimizer"].zero_grad()
            loss_of(state["model"], batch(state["step"])).backward()
            state["optimizer"].step()
            state["average"].update()
            state["step"] += 1

    whole = start()
    train(whole, 6)
    first = start()
    train(first, 3)
    path = lw.save(first, tmp_path / "run.safetensors")
    assert "average" in str(lw.tree(path))
    second = lw.load(start(), path)
    assert second["average"].updates == 3
    train(second, 3)
    ours, theirs = (state["average"].state_dict() for state in (second, whole))
    assert ours["updates"] == theirs["updates"] == 6
    assert all(torch.equal(ours["values"][name], theirs["values"][name]) for name in theirs["values"])


def test_a_state_that_is_loaded_replaces_the_average_completely() -> None:
    averages = []
    for value in (1.0, 5.0):
        model = nn.Linear(2, 2, bias=False)
        nn.init.constant_(model.weight, value)
        averages.append(lw.Average(model, 0.5))
        averages[-1].update()
    one, other = averages
    one.load_state_dict(other.state_dict())
    assert one.state_dict()["values"]["weight"].eq(5).all()
    assert one.state_dict()["values"]["weight"] is not other.state_dict()["values"]["weight"]


def test_another_copy_of_the_model_can_be_given() -> None:
    net, other = batch_normed(), batch_normed()
    average = lw.Average(net, 0.5)
    average.update(other)
    with average.applied(other) as evaluated:
        assert evaluated is other
    assert torch.equal(average.state_dict()["values"]["0.weight"], other[0].weight)
    with pytest.raises(
        lw.PathError, match=r"changed since its average was created: 1\.bias is in the average but not in the model"
    ):
        average.update(nn.Sequential(nn.Linear(3, 4)))


def test_a_model_that_cannot_change_is_passed_to_each_update() -> None:
    with toy.registered() as ours:
        shared = toy.matrix(2, 2)
        first = toy.Model(a=shared, b=toy.Model(c=toy.transposed(shared)))
        average = lw.Average(first, 0.5)
        average.update(first)
        tripled = ours.capability(Rebuilding).from_numpy(shared, 3 * ours.read(shared))
        average.update(toy.Model(a=tripled, b=toy.Model(c=toy.transposed(tripled))))
        with average.applied() as model:
            assert ours.read(model.a).tolist() == [[0, 2], [4, 6]]
            assert [str(name.path) for name in lw.tree(model).ties[0].names] == ["a", "b.c"]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: lw.untie(model, "head.weight"),
        lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True),
        lambda model: torch.nn.utils.parametrizations.weight_norm(model.layers[0].up),
        lambda model: setattr(model, "extra", nn.Linear(2, 2)),
    ],
    ids=["untied", "untied by assignment", "parametrized", "added"],
)
def test_a_model_with_other_leaves_is_an_error_that_names_one(change: Any) -> None:
    model = LanguageModel()
    average = lw.Average(model, 0.5)
    change(model)
    with pytest.raises(
        lw.PathError,
        match=r"changed since its average was created: .* is in the (average|model) but not in the (model|average)",
    ):
        average.update()


def test_non_persistent_buffers_may_appear_and_grow() -> None:
    net = batch_normed()
    net.register_buffer("cache", torch.zeros(0, 2), persistent=False)
    average = lw.Average(net, 0.5)
    average.update()
    net.cache = torch.ones(4, 2)
    net.register_buffer("late", torch.ones(2), persistent=False)
    average.update()
    with average.applied():
        assert net.cache.shape == (4, 2)


def test_modules_that_are_replaced_are_followed() -> None:
    net = batch_normed()
    average = lw.Average(net, 0.5)
    average.update()
    net[0] = nn.Linear(3, 4)
    before = average.state_dict()["values"]["0.weight"].clone()
    average.update()
    # Where both values nearly cancel out, only the absolute error is small.
    assert torch.allclose(average.state_dict()["values"]["0.weight"], (before + net[0].weight) / 2, atol=1e-6)


def test_an_update_that_fails_changes_nothing() -> None:
    net = batch_normed()
    average = lw.Average(net, 0.5)
    average.update()
    moved(net, 0)
    before = copy.deepcopy(average.state_dict())
    good = net[1].weight
    net[1].weight = nn.Parameter(torch.ones(1))  # would fit by broadcasting
    with pytest.raises(lw.WriteError, match=r"1\.weight has the shape \(1,\), but its average has \(4,\)"):
        average.update()
    net[1].weight = good
    after = average.state_dict()
    assert after["updates"] == 1
    assert all(torch.equal(before["values"][name], after["values"][name]) for name in after["values"])
    state = {**after["values"], "1.bias": torch.ones(1)}
    with pytest.raises(lw.WriteError, match=r"1\.bias has the shape \(1,\), but its average has \(4,\)"):
        average.load_state_dict({"updates": 3, "values": state})
    assert average.updates == 1


def test_a_part_of_a_model_is_averaged_by_itself() -> None:
    net = batch_normed()
    for part in (lw.tree(net)["0"], lw.tree(net).select("0.*")):
        average = lw.Average(part, 0.5)
        average.update()
        assert len(average.state_dict()["values"]) == 2
        with average.applied():
            pass


def test_arrays_and_models_in_inference_mode_are_averaged() -> None:
    import numpy as np

    arrays = {"w": np.ones(3, np.float32)}
    average = lw.Average(arrays, 0.5)
    average.update()
    arrays["w"][:] = 3
    average.update()
    with average.applied():
        assert arrays["w"].tolist() == [2, 2, 2]
    assert arrays["w"].tolist() == [3, 3, 3]
    net = nn.Linear(2, 2)
    with torch.inference_mode():
        average = lw.Average(net, 0.5)
    average.update()
    average.update()


def test_what_makes_no_sense_is_an_error() -> None:
    net = batch_normed()
    with pytest.raises(lw.RuleError, match=r"decay= must be between 0 and 1, not 1\.5"):
        lw.Average(net, 1.5)
    with pytest.raises(lw.RuleError, match="warmup= needs decay="):
        lw.Average(net, warmup=3)
    with pytest.raises(lw.RuleError, match="warmup= must be 0 or more, not -1"):
        lw.Average(net, 0.5, warmup=-1)
    twice = {"a.b": nn.Linear(2, 2), "a": {"b": nn.Linear(2, 2)}}
    with pytest.raises(lw.WalkError, match=r"another leaf is also called .a\.b\.weight."):
        lw.Average(twice)
    with pytest.raises(lw.PathError, match="not the state of an average"):
        lw.Average(net).load_state_dict({})
    expanded = nn.Sequential(nn.Linear(2, 2))
    expanded.register_buffer("mask", torch.ones(1).expand(4))
    with pytest.raises(lw.WalkError, match="cannot average mask: it is expanded"):
        lw.Average(expanded)
    other = lw.Average(net, 0.5)
    with lw.Average(net, 0.5).applied(), pytest.raises(lw.WriteError, match="currently has its averaged values"):
        other.update()
    with pytest.raises(lw.RuleError, match="buffers="):
        lw.Average(net, buffers="keep")
    with pytest.raises(lw.WalkError, match=r"cannot average 0\.weight: a meta tensor"):
        lw.Average(nn.Sequential(nn.Linear(2, 2, device="meta")))
    with pytest.raises(lw.WalkError, match="nothing to average"):
        lw.Average(nn.ReLU())
    average = lw.Average(net, 0.5)
    with average.applied(), pytest.raises(lw.WriteError, match="currently has its averaged values"):
        average.update()
    with average.applied(), pytest.raises(lw.WriteError, match="applied twice"), average.applied():
        pass
    part = lw.Average(net[0], 0.5)
    with part.applied(), pytest.raises(lw.WriteError, match="currently has its averaged values"):
        average.update()
    net[0] = nn.Linear(3, 5)
    average = lw.Average(net, 0.5)
    net[0].weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(lw.WriteError, match=r"0\.weight has the shape \(2, 2\), but its average has \(5, 3\)"):
        average.update()
    with pytest.raises(
        lw.PathError, match=r"cannot load this average: .* is in the average but not in the loaded state"
    ):
        average.load_state_dict({"updates": 0, "values": {}})
    assert repr(average) == "<Average of 7 leaves: decay 0.5, 0 updates>"


def test_narrow_floats_are_averaged_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*[nn.Linear(size, 3) for size in (2, 9, 1, 4)]).bfloat16()
    whole, parts = lw.Average(net, decay=0.9), lw.Average(net, decay=0.9)
    sizes: list[int] = []
    lerp = torch._foreach_lerp_

    def counted(targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> None:
        sizes.append(sum(map(torch.numel, values)))
        lerp(targets, values, weight)

    for step in range(3):
        moved(net, step)
        whole.update()
        with monkeypatch.context() as patch:
            patch.setattr("leafwise.homes.torch.training.averaging._CONVERTED", 12)
            patch.setattr(torch, "_foreach_lerp_", counted)
            parts.update()
    assert lw.diff(whole, parts).same
    assert sizes == [9, 27, 9, 12, 3] * 2  # the first update copies; a leaf of 27 is a part of its own
