"""A model inside a wrapper of another library has the same names as without the wrapper, each once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw

pytestmark = pytest.mark.filterwarnings("ignore")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def wrapped_by_fabric(model: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    return tuple(fabric.setup(model, optimizer))


def wrapped_by_accelerate(model: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    return tuple(accelerator.prepare(model, optimizer))


@pytest.mark.parametrize("wrap", [wrapped_by_fabric, wrapped_by_accelerate])
def test_a_wrapped_run_is_saved_and_loaded_like_a_plain_one(wrap: Any, tmp_path: Path) -> None:
    def run(seed: int, wrapping: bool) -> dict[str, Any]:
        torch.manual_seed(seed)
        model: Any = net()
        optimizer: Any = torch.optim.AdamW(model.parameters())
        if wrapping:
            model, optimizer = wrap(model, optimizer)
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    plain, wrapped = run(0, False), run(1, True)
    names = [str(path) for path, _ in lw.tree(plain).items()]
    assert [str(path) for path, _ in lw.tree(wrapped).items()] == names
    assert lw.tree(wrapped).counts.names == len(names)
    before = {name: value.clone() for name, value in wrapped["model"].state_dict().items()}
    path = lw.save(wrapped, tmp_path / "a.safetensors")
    lw.load(wrapped, lw.save(plain, tmp_path / "b.safetensors"))
    assert lw.diff(wrapped, plain).same
    lw.load(plain, path)
    assert lw.diff(plain["model"], before).same


def test_a_lightning_module_inside_fabric_shows_its_own_paths() -> None:
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 2)

    wrapped = lightning.Fabric(accelerator="cpu", devices=1).setup(Model())
    assert [str(path) for path, _ in lw.tree(wrapped).items()] == ["net.weight", "net.bias"]
    assert lw.tree(wrapped).counts.names == 2
