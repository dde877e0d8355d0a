"""Opening a pickled model of 1.5 GiB, compared with opening its state dict; and a pickle of NumPy arrays."""

import pickle
import sys
import tempfile
from pathlib import Path

import torch
from common import Layer, interleaved, machine, peak_memory
from figures import exit_status, report
from torch import nn

import leafwise as lw

ROUNDS = 15


def model() -> nn.Module:
    """A model of 1.5 GiB in 6,400 leaves, in modules as deep as those of a mixture of experts."""
    return nn.ModuleList([Layer(256, 256, 64) for _ in range(32)]).to(torch.float32)


def listed(path: Path) -> list[tuple[str, tuple[int, ...] | None]]:
    with lw.open(path) as t:
        return [(str(leaf.path), leaf.shape) for leaf in t]


def main() -> int:
    machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        net = model()
        size = sum(parameter.nbytes for parameter in net.parameters())
        torch.save(net, folder / "model.pt")
        torch.save(net.state_dict(), folder / "state.pt")
        (folder / "arrays.pkl").write_bytes(
            pickle.dumps({key: value.numpy() for key, value in net.state_dict().items()}, protocol=4)
        )
        print(f"# {size / 2**30:.2f} GiB in {len(net.state_dict()):,} leaves")
        expected = [(key, tuple(value.shape)) for key, value in net.state_dict().items()]
        for file in ("model.pt", "state.pt", "arrays.pkl"):
            assert sorted(listed(folder / file)) == sorted(expected), file
        times = interleaved(
            ROUNDS,
            model=lambda: lw.open(folder / "model.pt").close(),
            state=lambda: lw.open(folder / "state.pt").close(),
        )
        memory = peak_memory(sys.executable, "-m", "leafwise", "show", str(folder / "arrays.pkl"))
        return exit_status(
            [
                report("open a pickled model of 1.5 GiB / open its state dict", times["model"] / times["state"], 2.0),
                report("show a pickle with 1.5 GiB of NumPy arrays: peak memory, MB / 150 MB", memory / 150e6, 1.0),
            ]
        )


if __name__ == "__main__":
    sys.exit(main())
