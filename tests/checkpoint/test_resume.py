"""Optimizer state is stored by name, and a resumed run goes on bit for bit."""

import random
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.models import Tied, run, same, train
from torch import nn

import leafwise as lw

O = torch.optim  # noqa: E741
S = torch.optim.lr_scheduler


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_a_run_goes_on_as_if_it_had_not_stopped(sharded: bool, tmp_path: Path) -> None:
    """AdamW, tied weights, BatchNorm, a scheduler, and three random number generators."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)

    def noise() -> tuple[float, float]:
        return random.random(), float(np.random.rand())

    def states() -> dict[str, Any]:
        return {"rng": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}

    whole = run()
    train(whole, 3)
    noise()
    path = lw.save({**whole, **states()}, tmp_path / "a.safetensors", shard_size=500 if sharded else None)
    expected = train(whole, 5), noise()
    torch.manual_seed(7)
    again = {**run(lr=5.0), **states()}
    random.seed(9)
    again = lw.load(again, path)
    torch.set_rng_state(again["rng"])
    random.setstate(again["python"])
    np.random.set_state(again["numpy"])
    assert again["step"] == 3
    assert again["model"].head.weight is again["model"].embed.weight
    assert (train(again, 5), noise()) == expected
    assert same(again["model"], whole["model"])
    for a, b in zip(whole["model"].parameters(), again["model"].parameters(), strict=True):
        for key, value in whole["optimizer"].state[a].items():
            assert torch.equal(value, again["optimizer"].state[b][key])
    assert whole["scheduler"].state_dict() == again["scheduler"].state_dict()
    assert whole["optimizer"].state_dict()["param_groups"] == again["optimizer"].state_dict()["param_groups"]


def regression() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def losses(model: nn.Module, optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    torch.manual_seed(11)
    x, y = torch.randn(32, 4), torch.randn(32, 2)
    found = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        loss = optimizer.step(closure).item()
        if isinstance(scheduler, S.ReduceLROnPlateau):
            scheduler.step(loss)
        elif scheduler is not None:
            scheduler.step()
        found.append(loss)
    return found


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: O.SGD(p, lr=0.1),
    "AdamW": lambda p: O.AdamW(p, lr=0.01, amsgrad=True),
    "AdamW fused": lambda p: O.AdamW(p, lr=0.01, fused=True),
    "AdamW, tensor lr": lambda p: O.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "Adagrad": lambda p: O.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: O.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adafactor": lambda p: O.Adafactor(p, lr=0.01),
    "Rprop": lambda p: O.Rprop(p),
    "ASGD": lambda p: O.ASGD(p),
    "LBFGS": lambda p: O.LBFGS(p, lr=0.1, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes(name: str, tmp_path: Path) -> None:
    build = OPTIMIZERS[name]
    model = regression()
    optimizer = build(model.parameters())
    losses(model, optimizer, None, 3)
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    expected = losses(model, optimizer, None, 3)
    other = regression()
    fresh = build(other.parameters())
    lw.load({"model": other, "optimizer": fresh}, path)
    assert losses(other, fresh, None, 3) == expected


SCHEDULERS: dict[str, Any] = {
    "cosine": lambda o: S.CosineAnnealingLR(o, 9),
    "one cycle": lambda o: S.OneCycleLR(o, 0.1, total_steps=20),
    "plateau": lambda o: S.ReduceLROnPlateau(o, patience=0),
    "multi step": lambda o: S.MultiStepLR(o, [2, 4]),
    "lambda": lambda o: S.LambdaLR(o, lambda epoch: 0.9**epoch),
    "sequential": lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1), S.ExponentialLR(o, 0.9)], [2]),
    "warm restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 2),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_resumes(name: str, tmp_path: Path) -> None:
    def build() -> dict[str, Any]:
        model = regression()
        optimizer = O.AdamW(model.parameters(), lr=0.05)
        return {"model": model, "optimizer": optimizer, "scheduler": SCHEDULERS[name](optimizer)}

    whole = build()
    losses(*whole.values(), 3)
    path = lw.save(whole, tmp_path / "a.safetensors")
    expected = losses(*whole.values(), 4)
    again = lw.load(build(), path)
    assert losses(*again.values(), 4) == expected


def test_state_follows_its_parameters_into_another_order_and_other_groups(tmp_path: Path) -> None:
    whole = run()
    train(whole, 2)
    both = {"model": whole["model"], "optimizer": whole["optimizer"]}
    path = lw.save(both, tmp_path / "a.safetensors")
    model = Tied()
    backwards = [*model.parameters()][::-1]
    optimizer = O.AdamW([{"params": backwards[:2], "lr": 0.5}, {"params": backwards[2:], "lr": 0.25}])
    plan = lw.plan({"model": model, "optimizer": optimizer}, path)
    assert "optimizer.param_groups.0 keeps its options: no group in the checkpoint has the same parameters" in str(plan)
    lw.load({"model": model, "optimizer": optimizer}, path)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    theirs = dict(whole["model"].named_parameters())
    for name, parameter in model.named_parameters():
        for key, value in whole["optimizer"].state[theirs[name]].items():
            assert torch.equal(optimizer.state[parameter][key], value), (name, key)


def test_groups_in_another_order_take_their_own_options(tmp_path: Path) -> None:
    model = regression()
    first, second = [*model[0].parameters()], [*model[2].parameters()]
    optimizer = O.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.2}], momentum=0.9)
    losses(model, optimizer, None, 1)
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    other = regression()
    first, second = [*other[0].parameters()], [*other[2].parameters()]
    swapped = O.SGD([{"params": second[::-1]}, {"params": first}], lr=7, momentum=0.9)
    lw.load({"model": other, "optimizer": swapped}, path)
    assert [group["lr"] for group in swapped.param_groups] == [0.2, 0.1]


def test_what_the_target_does_not_step_is_unexpected(tmp_path: Path) -> None:
    whole = run()
    train(whole, 1)
    path = lw.save({"model": whole["model"], "optimizer": whole["optimizer"]}, tmp_path / "a.safetensors")
    model = Tied()
    target = {"model": model, "optimizer": O.AdamW(model.body.parameters())}
    with pytest.raises(lw.LoadError, match=r"state for model.embed.weight, which is not a parameter of optimizer in"):
        lw.load(target, path)
    lw.load(target, path, allow={"unexpected"})
    assert len(target["optimizer"].state) == 2  # type: ignore[attr-defined]


def test_a_checkpoint_that_pytorch_wrote_is_resumed(tmp_path: Path) -> None:
    whole = run()
    train(whole, 2)
    torch.save(
        {
            "model": whole["model"].state_dict(),
            "optimizer": whole["optimizer"].state_dict(),
            "scheduler": whole["scheduler"].state_dict(),
            "step": 2,
        },
        tmp_path / "a.pt",
    )
    expected_rng = torch.get_rng_state()
    expected = train(whole, 3)
    again = run()
    del again["rng"]
    again = lw.load(again, tmp_path / "a.pt")
    torch.set_rng_state(expected_rng)
    assert train(again, 3) == expected


def test_a_grad_scaler_comes_back(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0, "_growth_tracker": 5})
    path = lw.save({"scaler": scaler}, tmp_path / "a.safetensors")
    other = torch.amp.GradScaler("cpu")
    lw.load({"scaler": other}, path)
    assert other.state_dict() == scaler.state_dict()


def test_state_of_a_type_that_cannot_be_rebuilt_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    model = regression()
    optimizer = O.SGD(model.parameters(), lr=0.1)
    pair = namedtuple("pair", "mean count")
    optimizer.state[model[0].weight] = {"kept": pair(torch.zeros(2), 3)}
    with pytest.raises(
        lw.WalkError,
        match=r"cannot save o\.state\.m\.0\.weight\.kept: leafwise cannot load a .*pair into the state of an optim",
    ):
        lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")


def test_containers_in_a_state_come_back_as_they_were(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, Any]:
        model = regression()
        return model, O.SGD(model.parameters(), lr=0.1)

    model, optimizer = made()
    kept = {
        "list": [torch.ones(2), None, 3],
        "tuple": (torch.zeros(1), [torch.ones(1), ()]),
        "by number": {0: torch.ones(3), 1: {"deep": [1, 2]}},
        "plain": {7: [(1, "a")], "x": {}},
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    optimizer.state[model[0].weight] = kept
    optimizer.state["all"] = {"steps": 4, "mean": torch.ones(2)}
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    other, fresh = made()
    lw.load({"m": other, "o": fresh}, path)
    found = fresh.state[other[0].weight]

    def same_all(one: Any, two: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return torch.equal(one, two) and one.stride() == two.stride()
        if type(one) is not type(two):
            return False
        if isinstance(one, dict):
            return one.keys() == two.keys() and all(same_all(one[key], two[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(two) and all(map(same_all, one, two))
        return bool(one == two)

    assert same_all(kept, found)
    assert same_all(optimizer.state["all"], fresh.state["all"])


def kept_and_found(state: dict[Any, Any], folder: Path) -> tuple[Any, Any]:
    """The state of a parameter in an optimizer, and in a new optimizer after a load."""
    model, other = regression(), regression()
    optimizer, fresh = O.SGD(model.parameters(), lr=0.1), O.SGD(other.parameters(), lr=0.1)
    optimizer.state[model[0].weight] = state
    lw.load({"m": other, "o": fresh}, lw.save({"m": model, "o": optimizer}, folder / "a.safetensors"))
    return state, fresh.state[other[0].weight]


@pytest.mark.parametrize(
    "state",
    [
        {0: torch.ones(2)},
        {"a.b": torch.ones(2)},
        {"a": torch.ones(2), "a.b": torch.zeros(3)},
        {("x",): 1, "t": torch.ones(1)},
        {"step": 3},
    ],
)
def test_keys_of_a_state_are_what_they_were(state: dict[Any, Any], tmp_path: Path) -> None:
    kept, found = kept_and_found(state, tmp_path)
    assert kept.keys() == found.keys()
    for key, value in kept.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(found[key]))


def test_an_array_of_numpy_in_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match="a NumPy array in the state of an optimizer"):
        kept_and_found({"a": np.ones(2)}, tmp_path)


def test_options_that_are_containers_of_tensors_come_back(tmp_path: Path) -> None:
    model = regression()
    optimizer, fresh = (O.SGD(model.parameters(), lr=0.1) for _ in range(2))
    optimizer.param_groups[0].update(d={"x": torch.ones(2), "y": 2}, ls=[torch.zeros(1), torch.ones(1)])
    lw.load({"m": model, "o": fresh}, lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors"))
    found = fresh.param_groups[0]
    assert found["d"]["y"] == 2
    assert torch.equal(found["d"]["x"], torch.ones(2))
    assert [value.item() for value in found["ls"]] == [0.0, 1.0]
    assert not [key for key in found if "." in key]


def test_a_learning_rate_that_groups_share_becomes_two(tmp_path: Path) -> None:
    def made(*rates: float) -> tuple[nn.Module, Any]:
        model = regression()
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
        optimizer = O.AdamW(groups, lr=torch.tensor(0.5))
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = torch.tensor(rate)
        return model, optimizer

    model, optimizer = made(0.1, 0.2)
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    model, fresh = made()
    assert fresh.param_groups[0]["lr"] is fresh.param_groups[1]["lr"]
    lw.load({"m": model, "o": fresh}, path)
    assert [round(float(group["lr"]), 3) for group in fresh.param_groups] == [0.1, 0.2]


def test_state_that_pytorch_numbered_beside_names_goes_by_the_names(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    optimizer = O.Adam(model.named_parameters())
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "a.pt")
    turned = O.Adam([*model.named_parameters()][::-1])
    lw.load({"m": model, "o": turned}, tmp_path / "a.pt")
    for parameter in model.parameters():
        assert torch.equal(turned.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"])


@pytest.mark.parametrize(("one", "other"), [(O.Adagrad, O.Adadelta), (O.SGD, O.RMSprop), (O.AdamW, O.SGD)])
def test_another_kind_of_optimizer_that_pytorch_saved_is_refused(one: Any, other: Any, tmp_path: Path) -> None:
    model = regression()
    optimizer = one(model.parameters(), lr=0.1)
    losses(model, optimizer, None, 1)
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "a.pt")
    with pytest.raises(lw.LoadError, match="has another kind of optimizer"):
        lw.load({"m": model, "o": other(model.parameters(), lr=0.1)}, tmp_path / "a.pt")
