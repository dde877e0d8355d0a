"""Parameters sharded over two processes, and clipping across two processes."""

from pathlib import Path

import pytest
from tests.files.processes import in_processes

SCRIPT = """
from torch import nn
from torch.distributed.tensor import DTensor
import leafwise as lw
from leafwise.iterate import leaf_filler

mesh = init_device_mesh("cpu", (2,))

def build():
    embed = nn.Embedding(10, 6, padding_idx=7)
    return nn.ModuleDict({"embed": embed, "fc": nn.Linear(6, 5), "turned": nn.Linear(4, 4)})

def sharded(placement):
    model = build()
    for module in model.values():
        for name, parameter in list(module.named_parameters()):
            here = placement if parameter.dim() > 1 else Shard(0)
            setattr(module, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [here])))
    return model

rules = [lw.Rule("fc.weight", init="kaiming_normal"), lw.Rule("turned.weight", init="orthogonal"),
         lw.Rule("fc.bias", init=lambda leaf, others: torch.arange(5.0))]
whole = lw.initialize(build(), rules)
drawn = []
words = leaf_filler.words
leaf_filler.words = lambda key, start, count: (drawn.append(count), words(key, start, count))[1]
for placement in (Shard(0), Shard(1), Replicate()):
    drawn.clear()
    model = lw.initialize(sharded(placement), rules)
    for (name, one), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(one, DTensor), name
        assert torch.equal(one.full_tensor(), other), (name, placement)
    if placement == Shard(0):  # half of each leaf, except that one must be whole and one has three of five rows here
        assert sum(drawn) <= 60 / 2 + 18 + 16 + 4 + 3, drawn
    loss = sum((parameter * 3).sum() for parameter in model.parameters())
    loss.backward()
    norms = lw.clip(model, 1.0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert abs(norms.total - 3 * count ** 0.5) < 1e-3, norms.total
    after = sum(parameter.grad.full_tensor().pow(2).sum() for parameter in model.parameters())
    assert abs(after.item() - 1) < 1e-4, after
    try:
        lw.flat(model)
    except lw.WalkError as error:
        assert "cannot flatten embed.weight" in str(error), error
    else:
        raise AssertionError("a sharded leaf was flattened")
"""


@pytest.mark.slow
def test_shards_draw_their_part_clip_together_and_are_not_flattened(tmp_path: Path) -> None:
    in_processes(2, SCRIPT, tmp_path)
