"""Models of PyTorch in Orbax checkpoints: Orbax restores their values as NumPy arrays, and leafwise loads them."""

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import torch
from tests.jax.orbax_folders import same
from torch import nn

import leafwise as lw


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def trained() -> tuple[Tied, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([1, 2, 3])).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_orbax_restores_the_values_of_a_model(tmp_path: Path) -> None:
    model, _ = trained()
    lw.save(model.bfloat16(), tmp_path / "run", format="orbax")
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "run")
    assert set(restored) == {"embed", "layers"}  # the head is tied to the embedding, and is stored once
    weight = model.embed.weight.detach()
    assert restored["embed"]["weight"].dtype.name == "bfloat16"
    assert np.array_equal(restored["embed"]["weight"].astype(np.float32), weight.float().numpy())
    assert same(restored["layers"]["1"]["num_batches_tracked"], np.asarray(1))


def test_a_model_and_its_optimizer_resume_from_an_orbax_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained()
    lw.save({"model": model, "optimizer": optimizer, "step": 3}, tmp_path / "run", format="orbax")
    other = Tied()
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    run = {"model": other, "optimizer": other_optimizer, "step": 0}
    lw.load(run, tmp_path / "run")
    assert run["step"] == 3
    assert other.head.weight is other.embed.weight
    assert other_optimizer.param_groups[0]["lr"] == 1e-3
    assert other_optimizer.param_groups[0]["betas"] == (0.9, 0.999)  # a tuple, although Orbax has only lists
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    for trained_model, its_optimizer in ((model, optimizer), (other, other_optimizer)):
        its_optimizer.zero_grad()
        trained_model(torch.tensor([4, 5, 6])).square().sum().backward()
        its_optimizer.step()
    assert torch.equal(model.embed.weight, other.embed.weight)


def test_copies_of_tied_leaves_load_into_a_tied_model(tmp_path: Path) -> None:
    model, _ = trained()
    lw.save(model, tmp_path / "run", format="orbax", ties="copy")
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "run")
    assert same(restored["head"]["weight"], restored["embed"]["weight"])
    other = Tied()
    lw.load(other, tmp_path / "run")
    assert torch.equal(other.head.weight, model.head.weight)
