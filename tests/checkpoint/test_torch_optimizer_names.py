"""Optimizer state as PyTorch names it: relative to the model, in groups or flattened, under the keys of other tools."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import leafwise as lw

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

Run = tuple[nn.Module, torch.optim.Optimizer]


def trained(seed: int, kind: str = "AdamW") -> Run:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    weights = {"params": [model[0].weight, model[1].weight]}
    biases = {"params": [model[0].bias, model[1].bias], "lr": 0.5 * seed}
    make: dict[str, Any] = {
        "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01 * seed, amsgrad=True),
        "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01 * seed, momentum=0.9),
        "tensor rate": lambda groups: torch.optim.Adam(groups[:1], lr=torch.tensor(0.01 * seed)),
    }
    optimizer: torch.optim.Optimizer = make[kind]([weights, biases])
    for _ in range(seed):
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def named(run: Run) -> dict[str, Any]:
    return {"model": run[0], "optimizer": run[1]}


def states(run: Run, flattened: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    return get_model_state_dict(run[0]), get_optimizer_state_dict(run[0], run[1], options=options)


# Which keys a tool uses for the model and the optimizer. torchtitan puts the names of the model at the top.
LAYOUTS = {
    "torch": ("model", "optimizer"),
    "short": ("model", "optim"),
    "Lightning": ("state_dict", "optimizer_0"),
    "torchtitan": ("", "optimizer"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flattened", [False, True], ids=["groups", "flattened"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "tensor rate"])
def test_it_loads_as_pytorch_loads_it(kind: str, flattened: bool, layout: str, tmp_path: Path) -> None:
    saved, ours, theirs = trained(1, kind), trained(2, kind), trained(2, kind)
    weights, state = states(saved, flattened)
    model_key, optimizer_key = LAYOUTS[layout]
    content = {**weights, optimizer_key: state} if not model_key else {model_key: weights, optimizer_key: state}
    dcp.save({**content, "step": 7}, checkpoint_id=tmp_path, no_dist=True)

    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    set_model_state_dict(theirs[0], weights)
    set_optimizer_state_dict(theirs[0], theirs[1], state, options=options)

    target = {**named(ours), "step": 0}
    assert lw.load(target, tmp_path)["step"] == 7
    assert lw.diff(named(ours), named(theirs)).same
    assert lw.diff(named(ours), named(saved)).same


def test_a_part_of_a_checkpoint_loads_too(tmp_path: Path) -> None:
    """As in PyTorch's tutorial, which saves everything below `app`."""
    saved, ours = trained(1), trained(2)
    weights, state = states(saved, flattened=False)
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=tmp_path, no_dist=True)
    with lw.open(tmp_path) as t:
        lw.load(named(ours), t["app"])
    assert lw.diff(named(ours), named(saved)).same


@pytest.mark.parametrize("flattened", [False, True], ids=["groups", "flattened"])
def test_the_optimizer_may_be_in_a_folder_of_its_own(flattened: bool, tmp_path: Path) -> None:
    """As accelerate saves it."""
    saved, ours = trained(1), trained(2)
    weights, state = states(saved, flattened)
    dcp.save({"model": weights}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0", no_dist=True)
    dcp.save({"optimizer": state}, checkpoint_id=tmp_path / "optimizer_0", no_dist=True)
    lw.load(named(ours), {"model": tmp_path / "pytorch_model_fsdp_0", "optimizer": tmp_path / "optimizer_0"})
    assert lw.diff(named(ours), named(saved)).same


def test_two_models_of_one_kind_keep_their_own_states(tmp_path: Path) -> None:
    saved = trained(1), trained(3)
    ours = trained(2), trained(4)
    content: dict[str, Any] = {}
    for name, run in zip("ab", saved, strict=True):
        content[f"model_{name}"], content[f"optimizer_{name}"] = states(run, flattened=False)
    dcp.save(content, checkpoint_id=tmp_path, no_dist=True)
    target = {}
    for name, run in zip("ab", ours, strict=True):
        target |= {f"model_{name}": run[0], f"optimizer_{name}": run[1]}
    lw.load(target, tmp_path)
    for mine, run in zip(ours, saved, strict=True):
        assert lw.diff(named(mine), named(run)).same


def test_options_that_differ_within_a_group_are_refused(tmp_path: Path) -> None:
    saved, ours = trained(1), trained(2)
    weights, state = states(saved, flattened=True)
    state["param_groups.1.weight.lr"] = 0.75
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    before = ours[1].state_dict()["param_groups"]
    with pytest.raises(lw.LoadError, match=r"param_groups\.1\.weight\.lr in .* differs from that of other parameters"):
        lw.load(named(ours), tmp_path)
    assert ours[1].state_dict()["param_groups"] == before


def test_state_that_cannot_be_read_is_not_loaded(tmp_path: Path) -> None:
    saved, ours = trained(1), trained(2)
    weights, state = states(saved, flattened=False)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    data = tmp_path / "__0_0.distcp"
    damaged = bytearray(data.read_bytes())
    damaged[:300] = bytes(300)  # in the first plain value
    data.write_bytes(damaged)
    with lw.open(tmp_path) as t:
        assert "which cannot be read" in t.text()
        with pytest.raises(lw.LoadError, match=r"optimizer\.param_groups\.0\.lr is <an object of .* cannot be read"):
            lw.load(named(ours), t)
    assert ours[1].param_groups[0]["lr"] == 0.02
