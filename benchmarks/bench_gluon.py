"""The cost of a Gluon network compared with the same network in torch.nn: ten Dense layers, width 256, batch 64.
And the cost of `np.random.normal`, which draws MXNet's numbers, compared with NumPy's generator of the same kind.

    python benchmarks/bench_gluon.py

One round is a forward and a backward pass. Everything runs with one thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
from typing import Any

import numpy
import torch
from common import interleaved, machine
from figures import exit_status, report

from leafwise_gluon import autograd, nn, np

LAYERS, WIDTH, BATCH = 10, 256, 64
PASSES, ROUNDS = 20, 15
DRAWS = 1_000_000
FIRST_DRAWS = [2.2122064, 1.1630787, 0.7740038, 0.4838046]  # of MXNet after mx.random.seed(0)


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


def random_times() -> dict[str, float]:
    """The seconds that a million normal numbers take, here and with NumPy's Mersenne Twister and polar method."""
    np.random.seed(0)
    numpy.testing.assert_allclose(np.random.normal(size=4).asnumpy(), FIRST_DRAWS, rtol=1e-6)
    peer = numpy.random.RandomState(0)
    return interleaved(ROUNDS, arrays=lambda: np.random.normal(size=DRAWS), numpy=lambda: peer.normal(size=DRAWS))


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
    draws = random_times()
    print("# " + ", ".join(f"{name} {time * 1e3:.1f} ms a million" for name, time in draws.items()))
    return exit_status(
        [
            report("Gluon with arrays / torch.nn, forward and backward, time", times["arrays"] / times["torch"], 1.15),
            report(
                "Gluon with tensors / torch.nn, forward and backward, time", times["tensors"] / times["torch"], 1.15
            ),
            report("np.random.normal / numpy's RandomState.normal, time", draws["arrays"] / draws["numpy"], 2.5),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
