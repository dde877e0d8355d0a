"""Statistics on a GPU, in bfloat16: 7 billion parameters in 291 leaves, and 20,000 small leaves.

    python benchmarks/bench_stats_gpu.py

Needs 40 GB of GPU memory; without a GPU, nothing is measured.
"""

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from common import machine
from figures import exit_status, not_run, report

import leafwise as lw
from leafwise.core.results.moments import COUNTS, Moments
from leafwise.homes.torch.gpu.snapshots import snapshot
from leafwise.kernels import reference

ROUNDS = 15
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def agree(found: Moments, right: Moments, name: str) -> None:
    """Counts, extremes and histograms must be equal; sums may differ by rounding in float32 over short runs."""
    for count in COUNTS:
        assert getattr(found, count) == getattr(right, count), (name, count)
    assert (found.min, found.max) == (right.min, right.max) or not right.finite, name
    assert found.histogram == right.histogram, name
    for field in ("std", "l1", "l2"):
        measured, expected = getattr(found, field), getattr(right, field)
        both_nan = math.isnan(measured) and math.isnan(expected)  # there is no finite value
        assert both_nan or math.isclose(measured, expected, rel_tol=3e-6), (name, field, measured, expected)
    if right.finite:
        assert abs(found.mean - right.mean) <= 1e-6 * right.l1 / right.finite, (name, found.mean, right.mean)


def check() -> None:
    """Compares results on the GPU with the reference, for all arrays in one launch and for each alone."""
    torch.manual_seed(0)
    x = torch.randn(300_007, device="cuda")
    cases = {str(dtype): x.to(dtype) for dtype in DTYPES}
    sick = x.clone()
    sick[7], sick[70_000], sick[70_001] = math.nan, math.inf, -math.inf
    sparse = x.clone()
    sparse[::3] = 0
    cases |= {
        "not finite": sick, "sparse": sparse, "all nan": torch.full_like(x, math.nan), "zeros": torch.zeros_like(x),
        "constant": torch.full_like(x, 0.1), "far from zero": x + 1e6, "huge": x * 1e30, "tiny": x * 1e-30,
        "subnormal": x * 1e-40, "huge doubles": x.double() * 1e200, "tiny doubles": x.double() * 1e-200,
        "empty": x[:0].clone(), "one": x[:1].clone(), "odd address": x.clone()[3:],
        "transposed": x[:300_000].clone().view(500, 600).T, "every other": x.clone()[::2],
    }  # fmt: skip
    together = lw.stats(cases)
    for name, tensor in cases.items():
        wide = tensor.double() if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point else tensor
        array = (wide.float() if tensor.dtype is torch.bfloat16 else wide).cpu().numpy()
        right = reference.measure(array)
        # Subnormals are counted in the dtype that was measured.
        below = torch.finfo(tensor.dtype).smallest_normal if tensor.dtype.is_floating_point else 0
        small = int(((wide.abs() < below) & (wide != 0)).sum()) if below else 0
        right = replace(right, subnormals=small)
        agree(together[name], right, name)
        agree(lw.stats({"x": tensor})["x"], right, f"{name}, alone")


def on_device(task: Callable[[], Any]) -> float:
    """The median time on the device, in milliseconds."""
    for _ in range(3):
        task()
    times = []
    for _ in range(ROUNDS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        task()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def on_host(task: Callable[[], Any]) -> float:
    """The median time until the call returns, in milliseconds, starting with an idle device."""
    gc.disable()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = task()
        times.append((time.perf_counter() - start) * 1e3)
        kept() if callable(kept) else len(kept)
        del kept  # freeing thousands of numbers must not be timed
    gc.enable()
    return statistics.median(times)


def item_loop(tensors: list[torch.Tensor]) -> float:
    """The time of the loop that people write, in milliseconds: one number of one tensor at a time."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for x in tensors:
        _ = [one.item() for one in (x.min(), x.max(), x.mean(), x.float().std(), x.norm(), torch.isnan(x).sum())]
    return (time.perf_counter() - start) * 1e3


def seven_billion() -> list[torch.Tensor]:
    shapes: list[tuple[int, ...]] = [(32_000, 4096), (32_000, 4096), *[(4096,)] * 65]
    shapes += [(4096, 4096)] * 128 + [(11_008, 4096)] * 64 + [(4096, 11_008)] * 32
    return [(torch.randn(shape, device="cuda") * 0.02).bfloat16() for shape in shapes]


def prepared(tensors: list[torch.Tensor]) -> Any:
    """The table of tensors, to measure the kernels without a walk."""
    from leafwise.core.memory.runs import Run
    from leafwise.kernels.triton import cuda

    return cuda.table_of([Run(x.data_ptr(), x.numel(), "bfloat16") for x in tensors], torch.device("cuda"))


def copy_ceiling() -> float:
    source = torch.empty(4_000_000_000, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 8 / on_device(lambda: target.copy_(source)) * 1e3


def bench_large() -> bool:
    from leafwise.kernels.triton import cuda

    tensors = seven_billion()
    gigabytes = sum(x.nbytes for x in tensors) / 1e9
    table = prepared(tensors)
    plain = on_device(lambda: cuda.measure(table, False))
    histogram = on_device(lambda: cuda.measure(table, True))
    launch = on_host(lambda: cuda.measure(table, False))
    launch_histogram = on_host(lambda: cuda.measure(table, True))
    tree = lw.tree({str(number): x for number, x in enumerate(tensors)})
    whole = on_host(lambda: lw.stats(tree, histogram=False))
    loop = item_loop(tensors)
    print(f"# 7B, {len(tensors)} leaves, {gigabytes:.1f} GB: {plain:.2f} ms, with histogram {histogram:.2f} ms")
    print(f"# host {launch:.2f} and {launch_histogram:.2f} ms, lw.stats of a tree {whole:.2f} ms; loop {loop:.0f} ms")
    met = [
        report("7B, all but the histogram, GB/s", gigabytes / plain * 1e3, 3_800, at_least=True),
        report("7B, with the histogram, GB/s", gigabytes / histogram * 1e3, 1_500, at_least=True),
        report("7B, host time of a call, ms", launch, 0.3),
    ]
    for x in tensors:
        x.view(-1)[:: 1 << 16] = math.nan
    unhealthy = on_device(lambda: cuda.measure(table, False))
    for x in tensors:
        x.fill_(0.5).view(-1)[::2] = 0.50390625
    far = on_device(lambda: cuda.measure(table, False))
    speeds = [f"{gigabytes / one * 1e3:.0f} GB/s" for one in (unhealthy, far)]
    print(f"# a NaN in every chunk: {speeds[0]}; values with a mean far larger than their spread: {speeds[1]}")
    return all(met)


def bench_small() -> bool:
    from leafwise.kernels.triton import cuda

    tensors = [torch.randn(256, 512, device="cuda").bfloat16() for _ in range(20_000)]
    table = prepared(tensors)
    plain = on_device(lambda: cuda.measure(table, False))
    histogram = on_device(lambda: cuda.measure(table, True))
    launch = on_host(lambda: cuda.measure(table, False))
    tree = lw.tree({str(number): x for number, x in enumerate(tensors)})
    whole, check = on_host(lambda: lw.stats(tree, histogram=False)), on_host(lambda: snapshot(tensors))
    print(f"# lw.stats of a tree that has not moved: {whole:.2f} ms on the host, {check:.2f} ms of which to check that")
    loop = item_loop(tensors)
    print(
        f"# 20,000 leaves: {plain:.2f} ms, with histogram {histogram:.2f} ms; host {launch:.2f} ms; loop {loop:.0f} ms"
    )
    return all(
        [
            report("20,000 leaves of 256×512, ms", plain, 1.7),
            report("— the .item() loop / that", loop / plain, 2_000, at_least=True),
            report("— host time of a call, ms", launch, 0.3),
        ]
    )


def main() -> int:
    machine()
    if not torch.cuda.is_available():
        return not_run("statistics on a GPU: there is no GPU here")
    import triton

    print(f"# {torch.cuda.get_device_name()}, triton {triton.__version__}")
    check()
    print(f"# copy ceiling, read + write: {copy_ceiling():.0f} GB/s")
    met = [bench_large()]
    torch.cuda.empty_cache()
    met.append(bench_small())
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
