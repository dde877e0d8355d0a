"""Distributed checkpoints in one process: saving 2 GiB of bfloat16 and 5,000 small leaves, with checksums, compared
with `dcp.save`; and converting from and to safetensors.

    python benchmarks/bench_dcp.py [FOLDER]

Needs about 10 GB in FOLDER (a temporary one by default) and 6 GB of memory. Both tools sync what they write, and
replace the checkpoint of the round before.
"""

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from common import interleaved, machine
from figures import exit_status, report
from torch import nn

import leafwise as lw

ROUNDS = 5


def large() -> nn.Module:
    """2 GiB of bfloat16 in 252 leaves."""
    return nn.Sequential(*(nn.Linear(2920, 2920, bias=False).bfloat16() for _ in range(126)))


def small() -> nn.Module:
    """5,000 leaves of a few elements."""
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(2_500)))


def check_equal(net: nn.Module, folder: Path) -> None:
    """Raises unless both tools load what leafwise saved, with the same bits."""
    lw.save({"model": net}, folder / "checked", format="dcp")
    lw.verify(folder / "checked")
    state = {"model": {name: torch.zeros_like(value) for name, value in net.state_dict().items()}}
    dcp.load(state, checkpoint_id=folder / "checked", no_dist=True)
    assert all(torch.equal(state["model"][name], value) for name, value in net.state_dict().items())
    with lw.open(folder / "checked") as t:
        assert all(bool((t[f"model.{name}"].numpy().view("u1") == _bytes(value)).all()) for name, value in _some(net))
    shutil.rmtree(folder / "checked")


def _some(net: nn.Module) -> list[tuple[str, Any]]:
    return list(net.state_dict().items())[:50]


def _bytes(value: torch.Tensor) -> Any:
    return value.contiguous().view(torch.uint8).numpy()


def bench_save(what: str, net: nn.Module, folder: Path, limit: float) -> bool:
    check_equal(net, folder)
    state = {"model": net.state_dict()}
    times = interleaved(
        ROUNDS,
        leafwise=lambda: lw.save({"model": net}, folder / "a", format="dcp"),
        dcp=lambda: dcp.save(state, checkpoint_id=folder / "b", no_dist=True),
    )
    print("#", what, {name: round(taken, 2) for name, taken in times.items()})
    return report(f"DCP save of {what}, with checksums / dcp.save", times["leafwise"] / times["dcp"], limit)


def bench_convert(net: nn.Module, folder: Path) -> bool:
    lw.save({"model": net}, folder / "a", format="dcp")
    times = interleaved(
        ROUNDS,
        to_safetensors=lambda: lw.edit(folder / "a", folder / "c.safetensors"),
        to_dcp=lambda: lw.edit(folder / "c.safetensors", folder / "d", format="dcp"),
        copy=lambda: _copy(folder),
    )
    assert lw.diff(folder / "a", folder / "d").same
    print("#", {name: round(taken, 2) for name, taken in times.items()})
    return report("DCP to safetensors, verified / cp, synced", times["to_safetensors"] / times["copy"], 2.0) & report(
        "safetensors to DCP, verified / cp, synced", times["to_dcp"] / times["copy"], 2.0
    )


def _copy(folder: Path) -> None:
    """Copies the bytes of the checkpoint through memory, as a conversion must."""
    (source,) = (folder / "a").glob("*.distcp")
    with source.open("rb") as file, (folder / "copy").open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)
        os.fsync(out.fileno())


def main(folder: Path) -> int:
    machine()
    net = large()
    passed = [
        bench_save("2 GiB", net, folder, 1.15),
        bench_convert(net, folder),
        bench_save("5,000 small leaves", small(), folder, 1.15),
    ]
    return exit_status(passed)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as temporary:
        status = main(Path(temporary))
    sys.exit(status)
