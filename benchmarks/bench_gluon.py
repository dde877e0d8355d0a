"""The cost of a Gluon network compared with the same network in torch.nn: ten Dense layers, width 256, batch 64.

    python benchmarks/bench_gluon.py

One round is a forward and a backward pass. Everything runs with one thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
from typing import Any

import torch
from common import interleaved, machine
from figures import exit_status, report

from leafwise.gluon import autograd, nn, np

LAYERS, WIDTH, BATCH = 10, 256, 64
PASSES, ROUNDS = 20, 15


def networks() -> tuple[Any, torch.nn.Module]:
    """The same network twice, with equal parameters."""
    gluon, plain = nn.Sequential(), torch.nn.Sequential()
    for _ in range(LAYERS):
        gluon.add(nn.Dense(WIDTH, activation="relu", in_units=WIDTH))
        plain.extend([torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()])
    gluon.initialize("xavier")
    for mine, theirs in zip(plain.parameters(), gluon.parameters(), strict=True):
        mine.data.copy_(theirs)
    return gluon, plain


def main() -> int:
    machine()
    torch.set_num_threads(1)
    gluon, plain = networks()
    array = np.random.uniform(size=(BATCH, WIDTH))
    tensor = array.tensor.clone()

    def with_arrays() -> None:
        for _ in range(PASSES):
            with autograd.record():
                output = gluon(array)
            output.backward()

    def with_tensors() -> None:
        for _ in range(PASSES):
            gluon.zero_grad(set_to_none=True)
            output = gluon(tensor)
            output.backward(torch.ones_like(output))

    def with_torch() -> None:
        for _ in range(PASSES):
            plain.zero_grad(set_to_none=True)
            output = plain(tensor)
            output.backward(torch.ones_like(output))

    torch.testing.assert_close(gluon(array).tensor, plain(tensor), check_stride=False)
    with_arrays()
    with_torch()
    for mine, theirs in zip(plain.parameters(), gluon.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    times = interleaved(ROUNDS, arrays=with_arrays, tensors=with_tensors, torch=with_torch)
    print("# " + ", ".join(f"{name} {time / PASSES * 1e3:.2f} ms" for name, time in times.items()))
    return exit_status(
        [
            report("Gluon with arrays / torch.nn, forward and backward, time", times["arrays"] / times["torch"], 1.15),
            report(
                "Gluon with tensors / torch.nn, forward and backward, time", times["tensors"] / times["torch"], 1.15
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
