"""Groups, averages, clipping, flat vectors and initial values, compared with PyTorch's own functions.

    python benchmarks/bench_iterate.py [cpu | cuda]

Needs 2 GB of memory; on a GPU, 40 GB of its memory. Groups are only measured on the CPU.
"""

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import interleaved, machine, mixture_of_experts
from figures import exit_status, report
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import leafwise as lw

ROUNDS = 15
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(64, device=DEVICE)) for _ in range(2))


def small_leaves() -> nn.Module:
    """20,000 leaves of 64 elements, in 10,000 modules."""
    return nn.ModuleList([Pair() for _ in range(10_000)])


WIDTH = 2048 if DEVICE == "cpu" else 8192


def large_leaves() -> nn.Module:
    """32 leaves, 16 of which have 4 million elements; on a GPU, 67 million."""
    return nn.ModuleList([nn.Linear(WIDTH, WIDTH, device=DEVICE) for _ in range(16)])


def with_gradients(net: nn.Module) -> nn.Module:
    generator = torch.Generator(DEVICE).manual_seed(0)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, device=DEVICE)
    return net


def copied(net: nn.Module) -> nn.Module:
    twin = copy.deepcopy(net)
    for one, other in zip(twin.parameters(), net.parameters(), strict=True):
        one.grad = None if other.grad is None else other.grad.clone()
    return twin


def check(a: nn.Module, b: nn.Module, what: str, of: Callable[[Any], Any] = lambda parameter: parameter) -> None:
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(of(one), of(other), rtol=1e-3, atol=1e-6, msg=lambda text: f"{what}: {text}")


def done(task: Callable[[], Any]) -> Callable[[], None]:
    """The task, including the wait until the device has finished it."""

    def run() -> None:
        task()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return run


def in_a_row(task: Callable[[], Any]) -> Callable[[], None]:
    """The task five times in a row, as in training."""

    def run() -> None:
        for _ in range(5):
            task()

    return run


def timed(**tasks: Callable[[], Any]) -> dict[str, float]:
    return interleaved(ROUNDS, **{name: done(task) for name, task in tasks.items()})


def groups() -> bool:
    model = mixture_of_experts()
    found = lw.groups(model, [lw.no_decay()])
    norms = {name for name, parameter in model.named_parameters() if "norm" in name or name.endswith("bias")}
    assert set(found[1]["param_names"]) == norms
    assert sum(account.leaves for account in found.groups) == len(list(model.parameters()))
    times = interleaved(7, walk=lambda: lw.tree(model), ours=lambda: lw.groups(model, [lw.no_decay()]))
    return report("groups of 47,337 leaves / the walk", times["ours"] / times["walk"], 3.0)


def averages() -> bool:
    met = True
    for what, build in (("large leaves", large_leaves), ("20,000 small leaves", small_leaves)):
        net = build()
        theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        ours = lw.Average(net, decay=0.9)
        for _ in range(3):
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(1.5)
            theirs.update_parameters(net)
            ours.update()
        with ours.applied():
            check(net, theirs.module, what)
        times = timed(theirs=partial(theirs.update_parameters, net), ours=ours.update)
        met &= report(f"Average.update / AveragedModel, {what}", times["ours"] / times["theirs"], 1.0)
    return met


def flat_steps() -> bool:
    net = with_gradients(small_leaves())
    twin = copied(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)
    flat = lw.flat(twin)
    momentum = torch.zeros_like(flat.values)

    def step() -> None:
        momentum.mul_(0.9).add_(flat.grads)
        flat.values.add_(momentum, alpha=-0.1)

    for _ in range(3):
        optimizer.step()
        step()
    check(net, twin, "SGD")
    values, grads = flat.values, flat.grads

    def bare() -> None:
        momentum.mul_(0.9).add_(grads)
        values.add_(momentum, alpha=-0.1)

    times = timed(theirs=in_a_row(optimizer.step), bare=in_a_row(bare), ours=in_a_row(step))
    print(f"      the same vector operations without leafwise: {times['theirs'] / times['bare']:.3g}")
    bound = 100 if DEVICE == "cpu" else 20
    return report("SGD with momentum on 20,000 leaves, foreach / flat", times["theirs"] / times["ours"], bound, True)


def clipping() -> bool:
    met = True
    for what, build, bound in (("20,000 small leaves", small_leaves, 3.0), ("large leaves", large_leaves, 1.0)):
        for how in ("flat", "as it is"):
            net = with_gradients(build())
            twin = copied(net)
            held = lw.flat(twin) if how == "flat" else None
            exact = torch.stack([parameter.grad.double().norm() for parameter in net.parameters()]).norm().item()
            assert abs(lw.clip(twin, 1.0).total / exact - 1) < 1e-5
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            check(net, twin, "clip", lambda parameter: parameter.grad)
            limit = {"theirs": 1.0, "ours": 1.0}

            def theirs(net: nn.Module = net, limit: dict[str, float] = limit) -> None:
                limit["theirs"] *= 0.9  # so that there is always something to clip
                nn.utils.clip_grad_norm_(net.parameters(), limit["theirs"], foreach=True)

            def ours(twin: nn.Module = twin, limit: dict[str, float] = limit) -> None:
                limit["ours"] *= 0.9
                lw.clip(twin, limit["ours"])

            times = timed(theirs=theirs, ours=ours)
            ratio = times["theirs"] / times["ours"]
            if what.startswith("large") or how == "flat":
                met &= report(f"clip_grad_norm_ / clip, {what}, {how}", ratio, bound, True)
            else:
                print(f"      clip_grad_norm_ / clip, {what}, {how}: {ratio:.3g}")
            del held
    return met


def initial_values() -> bool:
    met = True
    net = large_leaves()
    for init, fill in (("normal", torch.Tensor.normal_), ("uniform", lambda tensor: tensor.uniform_(-1, 1))):
        rules = [lw.Rule("**", init=init)]
        lw.initialize(net, rules)
        values = net[0].weight.detach().double()
        assert abs(values.mean().item()) < 3e-3
        assert abs(values.std().item() - (1 if init == "normal" else 3**-0.5)) < 3e-3

        def theirs(fill: Callable[[Any], Any] = fill) -> None:
            with torch.no_grad():
                for parameter in net.parameters():
                    fill(parameter)

        times = timed(theirs=theirs, ours=lambda rules=rules: lw.initialize(net, rules))
        met &= report(f"{init}: torch's fill / initialize", times["theirs"] / times["ours"], 0.3, True)
    return met


def main() -> int:
    machine()
    print(f"# on {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'cpu'}")
    parts = [averages, flat_steps, clipping, initial_values] + ([groups] if DEVICE == "cpu" else [])
    met = [part() for part in parts]
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
