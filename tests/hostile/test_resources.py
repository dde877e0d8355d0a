"""Verbs release their descriptors, threads, mappings and memory, however often they are called."""

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.long import short_or_long
from torch import nn

import leafwise as lw

pytestmark = pytest.mark.slow

CALLS = short_or_long(60, 200)
WARM_UP = 20  # calls after which caches are full
LEAVES = 30


class Held(NamedTuple):
    descriptors: int
    threads: int
    mappings: int
    objects: int
    resident: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        maps = Path("/proc/self/maps").read_text("utf-8")
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
        return cls(
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            sum(".safetensors" in line or ".pt" in line for line in maps.splitlines()),
            sys.getallocatedblocks(),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


class Scene:
    """A model, an optimizer that has stepped, and files saved from them."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.net = self.build()
        self.net(torch.randn(4, 8)).sum().backward()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.optimizer.step()
        self.average = lw.Average(self.net, decay=0.9)
        self.folder = folder
        self.path = lw.save(self.net, folder / "net.safetensors")
        self.run = lw.save({"net": self.net, "optimizer": self.optimizer, "step": 1}, folder / "run.safetensors")
        self.shards = lw.save(self.net, folder / "shards.safetensors", shard_size=1024)
        self.pickled = folder / "net.pt"
        torch.save(self.net.state_dict(), self.pickled)
        with torch.no_grad():
            self.net[0].weight.add_(1)
        self.changed = lw.save(self.net, folder / "changed.safetensors")

    @staticmethod
    def build() -> nn.Sequential:
        return nn.Sequential(*[nn.Linear(8, 8) for _ in range(LEAVES // 2)])

    def open(self, path: Any) -> None:
        with lw.open(path) as tree:
            for leaf in tree:
                leaf.numpy()

    def tie(self) -> None:
        lw.untie(lw.tie(self.net, "1.weight", to="0.weight", keep="source"), "1.weight")

    def uses(self) -> None:
        with lw.uses(self.net) as uses:
            self.net(torch.ones(1, 8)).sum().backward()
        str(uses)

    def applied(self) -> None:
        self.average.update()
        with self.average.applied():
            pass


VERBS: dict[str, Callable[[Scene], Any]] = {
    "tree": lambda s: str(lw.tree(s.net)),
    "tree of an optimizer": lambda s: str(lw.tree({"net": s.net, "optimizer": s.optimizer})),
    "open": lambda s: s.open(s.path),
    "open, shards": lambda s: s.open(s.shards),
    "open, pickled": lambda s: s.open(s.pickled),
    "open, not closed": lambda s: lw.open(s.path)["0.weight"].numpy(),
    "stats": lambda s: str(lw.stats(s.net)),
    "stats of a file": lambda s: str(lw.stats(s.path)),
    "stats of a pickled file": lambda s: str(lw.stats(s.pickled)),
    "check": lambda s: str(lw.check(s.net, s.optimizer)),
    "check of a file": lambda s: str(lw.check(s.path)),
    "check against a file": lambda s: str(lw.check(s.changed, against=s.path)),
    "diff of files": lambda s: str(lw.diff(s.path, s.changed)),
    "diff of a model and a file": lambda s: str(lw.diff(s.net, s.pickled)),
    "image of a file": lambda s: lw.image(s.path, "0.weight").text(),
    "ties": lambda s: str(lw.ties(s.net)),
    "tie and untie": lambda s: s.tie(),
    "uses": lambda s: s.uses(),
    "groups": lambda s: str(lw.groups(s.net, [lw.no_decay()], lr=1e-3)),
    "freeze and thaw": lambda s: lw.thaw(lw.freeze(s.net, "0.*"), "0.*"),
    "initialize": lambda s: lw.initialize(s.build()),
    "average": lambda s: s.applied(),
    "clip": lambda s: lw.clip(s.net, 1.0),
    "flat": lambda s: lw.flat(s.build()).undo(),
    "plan": lambda s: str(lw.plan(s.net, s.path)),
    "load": lambda s: lw.load(s.build(), s.path),
    "load of a run": lambda s: lw.load({"net": s.net, "optimizer": s.optimizer, "step": 0}, s.run),
    "load of a pickled file": lambda s: lw.load(s.build(), s.pickled),
    "save": lambda s: lw.save(s.net, s.folder / "again.safetensors"),
    "save of shards": lambda s: lw.save(s.net, s.folder / "again-shards.safetensors", shard_size=1024),
    "save in the background": lambda s: lw.save(s.net, s.folder / "later.safetensors", background=True).wait(),
    "verify": lambda s: str(lw.verify(s.path)),
}


@pytest.mark.parametrize("name", VERBS)
def test_no_resources_are_kept_however_often_a_verb_is_called(name: str, tmp_path: Path) -> None:
    scene, call = Scene(tmp_path), VERBS[name]
    for _ in range(WARM_UP):
        call(scene)
    calls = CALLS - WARM_UP
    for _ in range(2):  # what is allocated once, such as an arena for a thread, is not there a second time
        before = Held.now()
        for _ in range(calls):
            call(scene)
        after = Held.now()
        if after.resident - before.resident < 100_000 * calls:
            break
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.mappings <= before.mappings
    assert after.objects - before.objects < 10 * calls
    assert after.resident - before.resident < 100_000 * calls
