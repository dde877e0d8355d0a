"""Ties under DistributedDataParallel, in two processes."""

from pathlib import Path

import pytest
from tests.files.processes import in_processes

SCRIPT = """
from torch import nn
import leafwise as lw
from tools.tie_table import ARCHITECTURES

for name in ("tied embedding", "transposed autoencoder", "fused qkv", "cross-layer"):
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    alone = architecture.by_leafwise(architecture.build())
    torch.manual_seed(rank)  # each rank starts with different values; DDP makes them equal
    model = architecture.by_leafwise(architecture.build())
    if rank == 0:
        model.load_state_dict(alone.state_dict())
    wrapped = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(7)
    batch = torch.randint(0, 10, (4, 3)) if "embedding" in name else torch.randn(4, 3, 4)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    together = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        sum(wrapped(one).pow(2).mean() for one in batch[2 * rank : 2 * rank + 2]).backward()
        optimizer.step()
        together.zero_grad()
        (sum(alone(one).pow(2).mean() for one in batch) / 2).backward()
        together.step()
    for (path, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text: f"{name}: {path}: {text}")
    ties = [[str(p) for p in tie.leaf.paths] for tie in lw.ties(wrapped)]
    assert ties == [[str(p) for p in tie.leaf.paths] for tie in lw.ties(alone)], name
    assert len(ties) == len(architecture.ties), name
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    in_processes(2, SCRIPT, tmp_path)
