"""Every verb on a GPU, beside what people would write: diff, initialize, check, load, save and clip, in bfloat16.

    python benchmarks/bench_gpu.py [diff initialize check load save clip]      # all, or some

Needs 60 GB of GPU memory, 40 GB of memory, and 20 GB in the folder that LEAFWISE_BENCH_FOLDER names (/dev/shm unless
set); without a GPU, nothing is measured. Results are compared before anything is timed.
"""

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import machine
from figures import exit_status, not_run, report
from torch import nn

import leafwise as lw

ROUNDS = 5
FOLDER = os.environ.get("LEAFWISE_BENCH_FOLDER", "/dev/shm")
NORMAL = [lw.Rule("**", init="normal", std=0.02)]


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)


class Decoder(nn.Module):
    """A decoder with the sizes of Llama 2: 6.7 billion parameters in 32 layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(32_000, 4096)
        self.layers = nn.ModuleList([Block(4096, 11_008) for _ in range(layers)])
        self.norm = nn.RMSNorm(4096)
        self.head = nn.Linear(4096, 32_000, bias=False)


class Leaves(nn.Module):
    """Many small leaves."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.leaves = nn.ParameterList([nn.Parameter(torch.empty(256, 512)) for _ in range(count)])


def on_gpu(build: Callable[[], nn.Module], seed: int | None = 0) -> nn.Module:
    """The model in bfloat16 on the GPU, with initial values unless `seed` is None."""
    with torch.device("meta"):
        model = build().bfloat16()
    model = model.to_empty(device="cuda")
    if seed is not None:
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.fill_(1) if "norm" in name else value.normal_(0, 0.02)
    return model


def copy_of(model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    other = on_gpu(build, None)
    with torch.no_grad():
        torch._foreach_copy_(list(other.parameters()), list(model.parameters()))
    return other


def gigabytes(model: nn.Module) -> float:
    return sum(value.nbytes for value in model.parameters()) / 1e9


def seconds(task: Callable[[], Any], rounds: int = ROUNDS, before: Callable[[], Any] = lambda: None) -> float:
    """The median time of a task until its work on the GPU is done; for a single round, without a first call."""
    times = []
    for turn in range(rounds + (rounds > 1)):
        before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = task()
        if hasattr(result, "total"):
            result.total  # noqa: B018  # statistics are measured when they are first read
        torch.cuda.synchronize()
        if turn or rounds == 1:  # the first call compiles kernels and allocates buffers
            times.append(time.perf_counter() - start)
        else:
            print(f"#   the first call took {(time.perf_counter() - start) * 1e3:,.1f} ms")
        del result
    return statistics.median(times)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def copy_ceiling() -> float:
    """The bytes per second that a copy reads and writes, in GB/s."""
    source = torch.empty(4_000_000_000, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 8 / seconds(lambda: target.copy_(source))


def decoder() -> nn.Module:
    return Decoder(32)


def half_decoder() -> nn.Module:
    return Decoder(16)


def small_leaves() -> nn.Module:
    return Leaves(20_000)


# -- diff ------------------------------------------------------------------------------------------------------------


def torch_diff(first: nn.Module, second: nn.Module) -> list[tuple[float, float, int]]:
    """The loop that people write: relative norm, largest difference, and number of changed values of each leaf."""
    changes = []
    for x, y in zip(first.parameters(), second.parameters(), strict=True):
        apart = x.detach().float() - y.detach().float()
        relative = (apart.norm() / x.detach().float().norm()).item()
        changes.append((relative, apart.abs().max().item(), int((apart != 0).sum())))
    return changes


def check_diff(first: nn.Module, second: nn.Module) -> None:
    names = [name for name, _ in first.named_parameters()]
    right = dict(zip(names, torch_diff(first, second), strict=True))
    differences = {change.path: change.comparison for change in lw.diff(first, second).of("changed")}
    assert {name for name, (_, _, changed) in right.items() if changed} == set(differences), "other leaves changed"
    for name, change in differences.items():
        relative, largest, changed = right[name]
        assert change is not None
        assert change.changed == changed, (name, change.changed, changed)
        assert abs(change.relative_l2 - relative) <= 1e-3 * relative, (name, change.relative_l2, relative)
        assert abs(change.largest - largest) <= 1e-6 * largest, (name, change.largest, largest)


def bench_diff() -> list[bool]:
    ceiling = copy_ceiling()
    model = on_gpu(decoder)
    other = copy_of(model, decoder)
    size = 2 * gigabytes(model)
    equal = seconds(lambda: lw.diff(model, other))
    with torch.no_grad():
        for number, value in enumerate(other.parameters()):
            if number % 2:
                value.view(-1)[:: 1 << 10] += 0.5
            else:
                value.mul_(1.01)
    check_diff(model, other)
    changed = seconds(lambda: lw.diff(model, other))
    loop = seconds(lambda: torch_diff(model, other), 2)
    print(f"# diff of {size / 4:.2f} billion parameters: equal {equal * 1e3:.1f} ms, changed {changed * 1e3:.1f} ms, ")
    print(f"# a loop of torch {loop * 1e3:.0f} ms; a copy reads and writes {ceiling:,.0f} GB/s")
    met = [
        report("diff, equal: both sides / the copy ceiling", size / equal / ceiling, 0.6, at_least=True),
        report("diff, changed: both sides / the copy ceiling", size / changed / ceiling, 0.6, at_least=True),
        report("a loop of torch / diff", loop / changed, 15, at_least=True),
    ]
    del model, other
    free()
    model = on_gpu(small_leaves)
    other = copy_of(model, small_leaves)
    with torch.no_grad():
        for value in list(other.parameters())[::100]:
            value.view(-1)[7] += 1
    first, second = lw.tree(model), lw.tree(other)
    found = lw.diff(first, second)
    assert len(found.of("changed")) == 200
    of_models = seconds(lambda: lw.diff(model, other))
    of_trees = seconds(lambda: lw.diff(first, second))
    print(f"# diff of 20,000 leaves: models {of_models * 1e3:.1f} ms, trees {of_trees * 1e3:.1f} ms")
    return [*met, report("diff of 20,000 leaves, of trees, ms", of_trees * 1e3, 40)]


# -- initialize ------------------------------------------------------------------------------------------------------


def check_initialize() -> None:
    for options in ({"init": "normal", "std": 0.02}, {"init": "uniform", "low": -0.1, "high": 0.1}):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            here = {"a": torch.empty(1_000, 4_003, dtype=dtype), "b": torch.empty(77, dtype=dtype)}
            there = {name: value.cuda() for name, value in here.items()}
            lw.initialize(here, [lw.Rule("**", **options)])
            lw.initialize(there, [lw.Rule("**", **options)])
            assert all(torch.equal(here[name], there[name].cpu()) for name in here), (options, dtype)


def bench_initialize() -> list[bool]:
    check_initialize()
    met = []
    for dtype in (torch.bfloat16, torch.float32):
        model = on_gpu(half_decoder, None).to(dtype)
        billions = sum(value.numel() for value in model.parameters()) / 1e9

        def fill(draw: str, model: nn.Module = model) -> None:
            with torch.no_grad():
                for value in model.parameters():
                    value.normal_(0, 0.02) if draw == "normal" else value.uniform_(-0.1, 0.1)

        for draw, rule in (("normal", NORMAL), ("uniform", [lw.Rule("**", init="uniform", low=-0.1, high=0.1)])):
            ours = seconds(lambda rule=rule, model=model: lw.initialize(model, rule))
            theirs = seconds(lambda draw=draw: fill(draw))
            name = f"{draw}, {str(dtype).removeprefix('torch.')}"
            print(f"# {name}, {billions:.2f} billion: {ours * 1e3:.2f} ms, {draw}_ {theirs * 1e3:.2f} ms")
            met.append(report(f"{draw}_ / initialize, {name}", theirs / ours, 0.5, at_least=True))
        del model
        free()
    return met


# -- check -----------------------------------------------------------------------------------------------------------


def check_findings() -> None:
    model = on_gpu(lambda: Decoder(1))
    with torch.no_grad():
        layer: Any = model.layers[0]  # type: ignore[index]
        layer.q.weight[5] = 0
        layer.k.weight[7] = layer.k.weight[9]
        layer.up.weight[3, 4] = float("nan")
    found = [(finding.code, finding.path, finding.message) for finding in lw.check(model)]
    assert found, "nothing was found"
    assert found == [(finding.code, finding.path, finding.message) for finding in lw.check(model.cpu())]


def bench_check() -> list[bool]:
    check_findings()
    model = on_gpu(decoder)
    assert not lw.check(model), "a healthy model has findings"
    measured = seconds(lambda: lw.stats(model))
    checked = seconds(lambda: lw.check(model))
    print(f"# check of 6.7 billion parameters: {checked * 1e3:.1f} ms; statistics {measured * 1e3:.1f} ms")
    return [report("check / (3 × the statistics + 20 ms)", checked / (3 * measured + 0.02), 1)]


# -- load and save ---------------------------------------------------------------------------------------------------


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(x.detach().view(torch.int16), y.detach().view(torch.int16)) for x, y in pairs)


def clear(model: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_zero_(list(model.parameters()))


def bench_load() -> list[bool]:
    from safetensors.torch import load_file, save_file

    model = on_gpu(half_decoder)
    target = on_gpu(half_decoder, None)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        ours, theirs, pickled = (f"{folder}/{name}" for name in ("ours.safetensors", "theirs.safetensors", "model.pt"))
        lw.save(model, ours)
        state = {name: value.detach() for name, value in model.state_dict().items()}
        save_file(state, theirs)
        torch.save(state, pickled)
        del state

        def by_torch() -> None:
            target.load_state_dict(torch.load(pickled, map_location="cpu", mmap=True, weights_only=True))

        tasks: dict[str, Callable[[], Any]] = {
            "leafwise, verified": lambda: lw.load(target, ours),
            "leafwise, not verified": lambda: lw.load(target, ours, verify=False),
            "leafwise, file of safetensors": lambda: lw.load(target, theirs),
            "torch.load(mmap=True)": by_torch,
            "safetensors": lambda: target.load_state_dict(load_file(theirs, device="cuda")),
        }
        times = {}
        for name, task in tasks.items():
            clear(target)
            task()
            assert same(model, target), f"{name} loaded other values"
            times[name] = seconds(task, 3)
            print(f"# load of {gigabytes(model):.1f} GB, {name}: {times[name] * 1e3:,.0f} ms")

        def onto_meta() -> Any:
            with torch.device("meta"):
                empty = half_decoder().bfloat16()
            with torch.device("cuda"):
                return lw.load(empty, ours)

        assert same(model, onto_meta()), "the meta model has other values"
        print(f"# load onto meta: {seconds(onto_meta, 3) * 1e3:,.0f} ms")
    peer = min(times["torch.load(mmap=True)"], times["safetensors"])
    return [
        report("the faster of torch and safetensors / load, verified", peer / times["leafwise, verified"], 3, True),
        report("the same / load, not verified", peer / times["leafwise, not verified"], 5, True),
    ]


def bench_save() -> list[bool]:
    from safetensors.torch import load_file, save_file

    model = on_gpu(half_decoder)
    target = on_gpu(half_decoder, None)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = f"{folder}/model.safetensors"

        def by_safetensors() -> None:
            save_file({name: value.detach() for name, value in model.state_dict().items()}, path)

        def in_background() -> None:
            started = time.perf_counter()
            saving = lw.save(model, path, background=True)
            returned.append(time.perf_counter() - started)
            saving.wait()

        returned: list[float] = []
        tasks = {
            "leafwise": lambda: lw.save(model, path),
            "leafwise, in shards": lambda: lw.save(model, f"{folder}/sharded.safetensors", shard_size="500MB"),
            "leafwise, background": in_background,
            "safetensors": by_safetensors,
            "torch.save": lambda: torch.save(model.state_dict(), f"{folder}/model.pt"),
        }

        def remove() -> None:
            for file in Path(folder).iterdir():
                file.unlink()

        lw.save(model, path)
        target.load_state_dict(load_file(path, device="cuda"))
        assert same(model, target), "the file has other values"
        times = {name: seconds(task, 3 if "leafwise" in name else 1, remove) for name, task in tasks.items()}
        for name, taken in times.items():
            print(f"# save of {gigabytes(model):.1f} GB, {name}: {taken * 1e3:,.0f} ms")
        print(f"# save(background=True) returned after {statistics.median(returned) * 1e3:,.0f} ms")
    return [report("safetensors / save", times["safetensors"] / times["leafwise"], 3, at_least=True)]


# -- clip ------------------------------------------------------------------------------------------------------------


def bench_clip() -> list[bool]:
    met = []
    rows = {
        "16 leaves of 67 million": (16, 67_108_864),
        "300 of 4 million": (300, 4_194_304),
        "20,000 of 64": (20_000, 64),
    }
    for name, (count, size) in rows.items():
        for dtype in (torch.float32, torch.bfloat16):
            leaves = [nn.Parameter(torch.zeros(size, device="cuda", dtype=dtype)) for _ in range(count)]
            model = nn.ParameterList(leaves)
            for leaf in leaves:
                leaf.grad = torch.randn_like(leaf)
            before = [leaf.grad.clone() for leaf in leaves]  # type: ignore[union-attr]
            total = nn.utils.clip_grad_norm_(leaves, 1.0)
            right = [leaf.grad.clone() for leaf in leaves]  # type: ignore[union-attr]
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad.copy_(gradient)  # type: ignore[union-attr]
            norms = lw.clip(model, 1.0)
            assert abs(norms.total / float(total) - 1) < 1e-2, (norms.total, float(total))
            for leaf, gradient in zip(leaves[:: max(1, count // 20)], right[:: max(1, count // 20)], strict=True):
                torch.testing.assert_close(leaf.grad, gradient, rtol=2e-2, atol=1e-8)
            del before, right
            for how, step in (("", 0.9), (", below the limit", 1.0)):
                # Each call lowers the limit, or nothing would be left to clip after the first one.
                limits = [0.9 * step**number if step < 1 else 1e9 for number in range(40)]
                ours = seconds(lambda model=model, limits=limits: lw.clip(model, limits.pop(0)), 15)
                theirs = seconds(
                    lambda leaves=leaves, limits=limits: nn.utils.clip_grad_norm_(leaves, limits.pop(0)).item(), 15
                )
                print(f"# clip, {name}, {dtype}{how}: {ours * 1e3:.2f} ms, torch {theirs * 1e3:.2f} ms")
                what = f"clip_grad_norm_ / clip, {name}, {str(dtype).removeprefix('torch.')}{how}"
                met.append(report(what, theirs / ours, 1, at_least=True))
            del leaves, model, leaf
            free()
    return met


BENCHMARKS = {
    "diff": bench_diff, "initialize": bench_initialize, "check": bench_check, "load": bench_load, "save": bench_save,
    "clip": bench_clip,
}  # fmt: skip


def main(names: list[str]) -> int:
    machine()
    if not torch.cuda.is_available():
        return not_run("every verb on a GPU: there is no GPU here")
    print(f"# {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {os.cpu_count()} cores; files in {FOLDER}")
    free_space = shutil.disk_usage(FOLDER).free
    if free_space < 20e9:
        print(f"# only {free_space / 1e9:.0f} GB are free in {FOLDER}; set LEAFWISE_BENCH_FOLDER", file=sys.stderr)
    met = []
    for name in names or BENCHMARKS:
        met += BENCHMARKS[name]()
        free()
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
