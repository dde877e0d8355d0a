"""JAX: whole-tree statistics on a CPU, compared with a loop of jnp reductions; and on a GPU, compared with a copy.

    python benchmarks/bench_jax.py           # every section that this machine can run
    python benchmarks/bench_jax.py stats     # statistics on a CPU
    python benchmarks/bench_jax.py gpu       # statistics on a GPU; needs 40 GB of its memory
    python benchmarks/bench_jax.py kernels   # the same, after a search for the fastest way to cut the kernel
    python benchmarks/bench_jax.py variants  # other ways to write the passes of XLA

The folder of the environment variable OUT, if it is set, gets what XLA compiled on a GPU.
"""

import cProfile
import gc
import math
import os
import pstats
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from figures import exit_status, not_run, report

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
if find_spec("jax") is None:
    sys.exit(not_run("JAX is not installed"))

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from common import interleaved, machine

from leafwise.core.results.moments import COUNTS, Moments
from leafwise.kernels import reference
from leafwise.kernels.xla import device_moments, pallas_passes, passes

ROUNDS = 9
LARGE = (11_008, 4096)
GPUS = [device for device in jax.devices() if device.platform == "gpu"]


def measured(arrays: list[Any], histogram: bool = True) -> list[Moments]:
    return device_moments.measure_arrays(arrays, histogram, lambda count: None)()


# -- statistics on a CPU ---------------------------------------------------------------------------------------------


def tree(device: Any) -> dict[str, Any]:
    """The leaves of a small transformer, 0.5 GB of float32."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"embed": (32_000, 768)}
    for layer in range(12):
        shapes |= {f"{layer}.{name}": (768, 768) for name in ("q", "k", "v", "o")}
        shapes |= {f"{layer}.up": (768, 3072), f"{layer}.down": (3072, 768)}
        shapes |= {f"{layer}.norm{number}.{name}": (768,) for number in (1, 2) for name in ("scale", "bias")}
    return {
        name: jax.device_put(rng.normal(0, 0.02, shape).astype(np.float32), device) for name, shape in shapes.items()
    }


def jnp_loop(leaves: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The loop that people write: a dozen reductions of each leaf."""
    found = {}
    for name, x in leaves.items():
        finite = jnp.isfinite(x)
        found[name] = {
            "mean": float(jnp.mean(x)), "std": float(jnp.std(x)), "min": float(jnp.min(x)), "max": float(jnp.max(x)),
            "nan": int(jnp.isnan(x).sum()), "posinf": int(jnp.isposinf(x).sum()), "neginf": int(jnp.isneginf(x).sum()),
            "zeros": int((x == 0).sum()), "subnormals": int(((jnp.abs(x) < 2.0**-126) & (x != 0)).sum()),
            "l1": float(jnp.abs(x).sum()), "l2": float(jnp.linalg.norm(x.reshape(-1))), "finite": int(finite.sum()),
        }  # fmt: skip
    return found


@jax.jit
def _jitted_figures(leaves: dict[str, Any]) -> dict[str, Any]:
    return {
        name: jnp.stack([jnp.mean(x), jnp.std(x), jnp.min(x), jnp.max(x), jnp.abs(x).sum(), jnp.sqrt((x * x).sum())]
        + [flags.sum().astype(jnp.float32) for flags in (jnp.isnan(x), jnp.isinf(x), x == 0)])
        for name, x in leaves.items()
    }  # fmt: skip


def bench_stats() -> list[bool]:
    leaves = tree(jax.devices("cpu")[0])
    arrays = list(leaves.values())
    by_loop = jnp_loop(leaves)
    for name, found in zip(leaves, measured(arrays), strict=True):
        agree(found, reference.measure(np.asarray(leaves[name])), name, 1e-12)
        for field, value in by_loop[name].items():
            assert math.isclose(getattr(found, field), value, rel_tol=1e-3, abs_tol=1e-6), (name, field)
    times = interleaved(
        ROUNDS,
        loop=lambda: jnp_loop(leaves),
        jitted=lambda: jax.device_get(_jitted_figures(leaves)),
        plain=lambda: measured(arrays, False),
        histogram=lambda: measured(arrays),
    )
    size = sum(x.nbytes for x in arrays) / 1e9
    print(f"# CPU, {len(arrays)} leaves: " + ", ".join(f"{name} {size / one:.1f} GB/s" for name, one in times.items()))
    return [
        report("CPU: a loop of jnp reductions / statistics, time", times["loop"] / times["plain"], 5, at_least=True),
        report("— the same, with the histogram", times["loop"] / times["histogram"], 5, at_least=True),
    ]


def agree(found: Moments, right: Moments, name: str, precision: float = 2e-6) -> None:
    for count in COUNTS:
        assert getattr(found, count) == getattr(right, count), (name, count, found, right)
    assert (found.min, found.max) == (right.min, right.max) or not right.finite, (name, found, right)
    assert found.histogram == right.histogram, (name, found, right)
    for field, digits in (("std", 10 * precision), ("l1", precision), ("l2", precision)):
        measured_value, expected = getattr(found, field), getattr(right, field)
        both_nan = math.isnan(measured_value) and math.isnan(expected)  # there is no finite value
        noise = 1e-16 * abs(right.mean) if field == "std" else 0.0
        assert both_nan or math.isclose(measured_value, expected, rel_tol=digits, abs_tol=noise), (name, field)
    if right.finite:
        assert abs(found.mean - right.mean) <= precision * right.l1 / right.finite, (name, found, right)


# -- statistics on a GPU ---------------------------------------------------------------------------------------------


def check_gpu() -> bool:
    """Compares results on the GPU with the reference."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300_007).astype(np.float32)
    cases: dict[str, Any] = {}
    floats = [np.float16, ml_dtypes.bfloat16, np.float64]
    floats += [
        getattr(ml_dtypes, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    ]
    for dtype in floats:
        cases[np.dtype(dtype).name] = x.astype(dtype)
        cases[f"some {np.dtype(dtype).name}"] = x[:5_000].astype(dtype)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(name)
        cases[name] = rng.integers(limits.min, limits.max, 300_007, dtype=name, endpoint=True)
    sick, sparse = x.copy(), x.copy()
    sick[[7, 70_000, 70_001]] = np.nan, np.inf, -np.inf
    sparse[::3] = 0
    cases |= {
        "float32": x, "bool": x > 0, "not finite": sick, "sparse": sparse, "all nan": np.full_like(x, np.nan),
        "zeros": np.zeros_like(x), "constant": np.full_like(x, 0.1), "far from zero": x + np.float32(1e6),
        "huge": x * np.float32(1e30), "tiny": x * np.float32(1e-30), "subnormal": x * np.float32(1e-40),
        "one subnormal": np.concatenate([abs(x), np.array([1e-42], np.float32)]),
        "huge doubles": x.astype(np.float64) * 1e200, "subnormal doubles": x.astype(np.float64) * 1e-310,
        "half": np.arange(1 << 16, dtype=np.uint16).view(np.float16), "empty": x[:0], "one": x[:1],
        "brain": np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16), "matrix": x[:300_000].reshape(500, 600),
        "e8m0": np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu),
        "int4": rng.integers(-8, 8, 999).astype(ml_dtypes.int4),
    }  # fmt: skip
    with jax.enable_x64(True):
        arrays = [jax.device_put(array, GPUS[0]) for array in cases.values()]
    wrong = []
    for (name, array), found in zip(cases.items(), measured(arrays), strict=True):
        right = reference.measure(array.astype(np.int8) if name == "int4" else array)
        try:
            agree(found, right, name)
        except AssertionError as error:
            wrong.append(name)
            print(f"# WRONG: {error}")
    for error in device_moments._kernel_errors:
        print(f"# the Pallas kernel failed:\n{error}")
    kernel = report("GPU: errors of the Pallas kernel", len(device_moments._kernel_errors), 0)
    return report("GPU: arrays with wrong results", len(wrong), 0) and kernel


def on_gpu(task: Callable[[], Any], times: int = 5) -> float:
    """The median time of a task in milliseconds, when several are enqueued at once."""
    jax.block_until_ready(task())
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready([task() for _ in range(times)])
        found.append((time.perf_counter() - start) * 1e3 / times)
    return statistics.median(found)


def wall(task: Callable[[], Any]) -> float:
    """The median time of a call in milliseconds."""
    task()
    found = []
    gc.collect()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        kept = task()
        found.append((time.perf_counter() - start) * 1e3)
        del kept
    return statistics.median(found)


def copy_ceiling() -> float:
    """Bytes read and written by a copy, in GB/s."""
    source = jnp.zeros(1 << 30, jnp.float32, device=GPUS[0])
    negate = jax.jit(lambda x: -x)
    return 2 * source.nbytes / 1e6 / on_gpu(lambda: negate(source), 2)


@partial(jax.jit, static_argnums=0)
def _normal(shape: tuple[int, ...], key: Any) -> Any:
    return jax.random.normal(key, shape, jnp.bfloat16) * jnp.bfloat16(0.02)


def normal(shape: tuple[int, ...], number: int) -> Any:
    return _normal(shape, jax.random.key(number))


def seven_billion() -> list[Any]:
    shapes: list[tuple[int, ...]] = [(32_000, 4096), (32_000, 4096), *[(4096,)] * 65]
    shapes += [(4096, 4096)] * 128 + [LARGE] * 64 + [(4096, 11_008)] * 32
    return [normal(shape, number) for number, shape in enumerate(shapes)]


def started(arrays: list[Any], histogram: bool) -> list[Any]:
    """What is on its way to the host after the passes began."""
    return [device_moments._started(group.arrays, histogram) for group in device_moments._grouped(arrays)]


def bench_compiling() -> list[bool]:
    """A thousand leaves of forty shapes: the first call compiles, the second does not."""
    shapes = [(256 + 8 * number, 512 if number % 4 else 16) for number in range(40)]
    met = []
    for histogram in (False, True):
        arrays = [
            jnp.full(shapes[number % 40], 0.5 + number % 7, jnp.bfloat16, device=GPUS[0]) for number in range(1000)
        ]
        jax.block_until_ready(arrays)
        start = time.perf_counter()
        measured(arrays, histogram)
        first = time.perf_counter() - start
        again = wall(partial(measured, arrays, histogram))
        what = "with the histogram" if histogram else "all but the histogram"
        met += [report(f"1,000 leaves of 40 shapes, {what}: first call, s", first, 30)]
        print(f"# — every later call: {again:.1f} ms; {os.cpu_count()} cores")
        shapes = [(rows + 4, columns) for rows, columns in shapes]  # for which nothing is compiled yet
    return met


def bench_gpu() -> list[bool]:
    print(f"# {GPUS[0].device_kind}, JAX {jax.__version__}")
    return [check_gpu(), *bench_compiling(), *bench_seven_billion()]


def bench_seven_billion(other_ways: bool = False) -> list[bool]:
    ceiling = copy_ceiling()
    print(f"# copy ceiling, read + write: {ceiling:.0f} GB/s")
    arrays = seven_billion()
    jax.block_until_ready(arrays)
    gigabytes = sum(x.nbytes for x in arrays) / 1e9
    met = []
    for histogram in (False, True):
        spent = time_passes(arrays, histogram, "")
        what = "with the histogram" if histogram else "all but the histogram"
        share = gigabytes / spent * 1e3 / ceiling
        met.append(report(f"GPU, 7B, {what}: GB/s / copy ceiling", share, 0.2 if histogram else 0.6, at_least=True))
    print_profile(partial(started, arrays, True), "to begin the passes with the histogram")
    print_profile(partial(measured, arrays, True), "all, with the histogram")
    write_compiled(arrays)
    arrays[5] = arrays[5].at[7].set(math.nan)
    print(f"# one small leaf with a NaN: {wall(partial(measured, arrays)):.2f} ms")
    if other_ways:
        time_other_ways(arrays)
    return met


def time_other_ways(arrays: list[Any]) -> None:
    """Fewer arrays in one compiled function; and no command buffers, so that each kernel is launched on its own."""
    for histogram in (False, True):
        device_moments._ARRAYS_AT_ONCE = 16
        time_passes(arrays, histogram, ", 16 at once")
        device_moments._ARRAYS_AT_ONCE = 64
        pallas_passes.COMPILER_OPTIONS["xla_gpu_enable_command_buffer"] = ""
        pallas_passes.compiled.cache_clear()
        failed_before = len(device_moments._kernel_errors)
        time_passes(arrays, histogram, ", without command buffers")
        for error in device_moments._kernel_errors[failed_before:]:
            print(f"# — that was XLA, because the kernel failed:\n{error}")
        del device_moments._kernel_errors[failed_before:]
        pallas_passes.COMPILER_OPTIONS.clear()
        pallas_passes.compiled.cache_clear()


def time_passes(arrays: list[Any], histogram: bool, how: str) -> float:
    """Prints the times of the passes over arrays, and returns the one of the passes alone, in milliseconds."""
    gigabytes = sum(x.nbytes for x in arrays) / 1e9
    begin = time.perf_counter()
    jax.block_until_ready(started(arrays, histogram))
    first = time.perf_counter() - begin
    passes = on_gpu(partial(started, arrays, histogram))
    host = wall(partial(started, arrays, histogram))
    whole = wall(partial(measured, arrays, histogram))
    print(
        f"# 7B, {len(arrays)} leaves, histogram {histogram}{how}: passes {passes:.2f} ms "
        f"({gigabytes / passes * 1e3:.0f} GB/s), to begin them {host:.2f} ms, all {whole:.2f} ms; "
        f"the first time {first:.1f} s",
        flush=True,
    )
    return passes


def print_profile(task: Callable[[], Any], what: str) -> None:
    """Where the host spends its time."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(5):
        task()
    profile.disable()
    print(f"# the host, {what}, five times:")
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(18)


def write_compiled(arrays: list[Any]) -> None:
    """Counts the kernels of the passes, and writes what XLA made of them to the folder OUT."""
    large = next(x for x in arrays if x.shape == LARGE)
    on_cpu = large.device.platform == "cpu"
    by_tiling, four = pallas_passes.pass_of_tiling, (large,) * 4
    passes: dict[str, Callable[[], Any]] = {
        "first": lambda: passes.first_pass.lower((large,), False),
        "window": lambda: passes.window_pass.lower(large, np.int32(80)),
        "kernel": lambda: by_tiling.lower(four, False, pallas_passes.TILING, on_cpu),
        "histogram": lambda: by_tiling.lower(four, True, pallas_passes.TILING_WITH_HISTOGRAM, on_cpu),
    }
    for name, lower in passes.items():
        try:
            with jax.enable_x64(True):
                text = lower().compile().as_text()
        except Exception as error:  # of the kernel, which was printed before
            print(f"# {name}: {type(error).__name__}")
            continue
        entry = text[text.index("ENTRY") :]
        kernels = entry.count(" fusion(") + entry.count(" reduce(") + entry.count(" custom-call(")
        print(f"# {name}: {kernels} kernels")
        if "OUT" in os.environ:
            (Path(os.environ["OUT"]) / f"{name}.hlo.txt").write_text(text, encoding="utf-8")


# -- variants --------------------------------------------------------------------------------------------------------


def bench_kernels() -> list[bool]:
    """Searches for the fastest way to cut the Pallas kernel, and measures with it."""
    from jax_variants import TILINGS, TILINGS_WITH_HISTOGRAM

    print(f"# {GPUS[0].device_kind}, JAX {jax.__version__}")
    check_gpu()
    ceiling = copy_ceiling()
    arrays = tuple(normal(LARGE, number) for number in range(16))
    best = {}
    for histogram, tilings in ((False, TILINGS), (True, TILINGS_WITH_HISTOGRAM)):
        stop = time.perf_counter() + 75
        speeds: dict[pallas_passes.Tiling, float] = {}
        for tiling in tilings:
            if time.perf_counter() > stop:
                print(f"# not tried, because time is up: {tiling}")
                continue
            speeds[tiling] = bench_tiling(tiling, histogram, arrays, ceiling)
        best[histogram] = max(speeds, key=speeds.__getitem__)
        print(f"# the fastest, histogram {histogram}: {best[histogram]}, {speeds[best[histogram]]:.0f} GB/s")
    del arrays
    pallas_passes.TILING, pallas_passes.TILING_WITH_HISTOGRAM = best[False], best[True]
    device_moments._kernel_errors.clear()  # those of other tilings
    return [check_gpu(), *bench_seven_billion(other_ways=True), *bench_compiling()]


def bench_tiling(tiling: pallas_passes.Tiling, histogram: bool, arrays: tuple[Any, ...], ceiling: float) -> float:
    """Prints what a tiling gives, and returns its speed: 0 if it fails."""
    name = f"histogram {histogram}, " + ", ".join(f"{field} {value}" for field, value in tiling._asdict().items())
    on_cpu = arrays[0].device.platform == "cpu"
    try:
        with jax.enable_x64(True):
            right = jax.device_get(passes.first_pass(arrays[:1], False))
            begin = time.perf_counter()
            run = pallas_passes.pass_of_tiling.lower(arrays, histogram, tiling, on_cpu).compile()
            seconds = time.perf_counter() - begin
        found = jax.device_get(run(arrays))
        spent = on_gpu(lambda: run(arrays))
    except Exception:  # the others are still worth knowing
        print(f"# {name}: failed\n{traceback.format_exc()}", flush=True)
        return 0.0
    total, l1, square = found.sums[0] - right.sums[0]
    is_right = (found.counts[0] == right.counts[0]).all() and (found.extremes[0] == right.extremes[0]).all()
    is_right = is_right and max(abs(total), abs(l1)) <= 2e-6 * right.sums[0, 1]
    is_right = is_right and abs(square) <= 2e-6 * right.sums[0, 2]
    if histogram:
        is_right = is_right and (found.bins.sum(-1) == arrays[0].size).all()
    speed = sum(x.nbytes for x in arrays) / 1e6 / spent
    print(f"# {name}: {speed:.0f} GB/s, {speed / ceiling:.2f} of a copy; compiled in {seconds:.1f} s", end="")
    print("" if is_right else f", WRONG: {found.counts[0]} {found.sums[0]} {right}", flush=True)
    return speed if is_right else 0.0


def bench_variants() -> list[bool]:
    from jax_variants import HISTOGRAMS, SUMS

    ceiling = copy_ceiling()
    print(f"# copy ceiling, read + write: {ceiling:.0f} GB/s")
    arrays = [normal(LARGE, number) for number in range(16)]
    with jax.enable_x64(True):
        lowest = jax.device_put(np.int32(87), GPUS[0])  # the largest values are below 0.25
    for name, variant in SUMS.items():
        bench_variant(f"sums: {name}", variant, next(iter(SUMS.values())), arrays, (), ceiling)
    for name, variant in HISTOGRAMS.items():
        bench_variant(f"histogram: {name}", variant, next(iter(HISTOGRAMS.values())), arrays, (lowest,), ceiling)
    return []


def bench_variant(
    name: str, variant: Callable[..., Any], first: Callable[..., Any], arrays: list[Any], extra: Any, ceiling: float
) -> None:
    try:
        with jax.enable_x64(True):
            right = np.asarray(jax.jit(first)(arrays[0], *extra), np.float64)
            begin = time.perf_counter()
            run = jax.jit(variant).lower(arrays[0], *extra).compile()
            seconds = time.perf_counter() - begin
            found = np.asarray(run(arrays[0], *extra), np.float64)
        spent = on_gpu(lambda: [run(x, *extra) for x in arrays], 1)
    except Exception as error:  # the others are still worth knowing
        print(f"# {name}: {type(error).__name__}: {str(error)[:200]}")
        return
    # Extremes in the bits are integers, so only the other five results are compared.
    is_close = (
        np.allclose(found[:5], right[:5], rtol=1e-5, atol=1e-6 * right[3]) if not extra else (found == right).all()
    )
    speed = sum(x.nbytes for x in arrays) / 1e6 / spent
    print(f"# {name}: {speed:.0f} GB/s, {speed / ceiling:.2f} of a copy; compiled in {seconds:.2f} s", end="")
    print("" if is_close else ", WRONG")


SECTIONS: dict[str, Callable[[], list[bool]]] = {
    "stats": bench_stats,
    "gpu": bench_gpu,
    "kernels": bench_kernels,
    "variants": bench_variants,
}
NEED_GPU = {"gpu", "kernels", "variants"}


def main() -> int:
    machine()
    asked = sys.argv[1:]
    if unknown := set(asked) - set(SECTIONS):
        sys.exit(f"no section {', '.join(sorted(unknown))}; there are: {', '.join(SECTIONS)}")
    met: list[bool] = []
    for name in asked or ["stats", "gpu"]:
        if name in NEED_GPU and not GPUS:
            not_run(f"{name}: there is no GPU here, or JAX cannot use it")
            continue
        met += SECTIONS[name]()
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
