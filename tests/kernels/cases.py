"""Arrays on which statistics may go wrong, and how two results are compared."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from leafwise.core.results.moments import COUNTS, NUMBERS, Moments

FLOATS = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2, "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn, "float6_e3m2fn": ml_dtypes.float6_e3m2fn,
}  # fmt: skip
WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


def cases() -> dict[str, Any]:
    """By name. A block of the C code is 4,096 elements: some are shorter, some just longer."""
    rng = np.random.default_rng(8)
    normal = rng.normal(size=9_001)
    found: dict[str, Any] = {}
    for name, dtype in FLOATS.items():
        with np.errstate(all="ignore"):
            found[f"normal {name}"] = (normal if name != "float8_e8m0fnu" else np.abs(normal)).astype(dtype)
    for name in WHOLE:
        if name == "bool":
            found[name] = rng.integers(0, 2, 5_000).astype(bool)
            continue
        limits = np.iinfo(name)
        found[name] = rng.integers(limits.min, limits.max, 5_000, dtype=name, endpoint=True)
        found[f"{name} ends"] = np.array([limits.min, limits.max, 0, 1], name)
    found["int64 beside powers of two"] = np.array([2**53 + 1, 2**60 - 1, -(2**60) + 1, 2**62, -(2**63)], np.int64)
    found["uint64 beside powers of two"] = np.array([2**64 - 1, 2**63, 2**63 - 1, 2**60 - 1], np.uint64)
    found["empty"] = np.zeros(0, np.float32)
    found["empty of whole numbers"] = np.zeros(0, np.int64)
    for size in (1, 2, 3, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 8191):
        found[f"{size} elements"] = normal[:size].astype(np.float32)
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = FLOATS[name]
        found[f"all nan {name}"] = np.full(5_000, np.nan, dtype)
        found[f"all inf {name}"] = np.full(70, np.inf, dtype)
        found[f"all -inf {name}"] = np.full(70, -np.inf, dtype)
        found[f"zeros {name}"] = np.zeros(4_100, dtype)
        found[f"negative zeros {name}"] = np.zeros(33, dtype) * dtype(-1)
        mixed = normal.astype(dtype)
        mixed[[0, 4_096, 9_000]] = np.nan
        mixed[[1, 77]] = np.inf
        mixed[[2, 5_000, 5_001]] = -np.inf
        found[f"mixed {name}"] = mixed
        sparse = normal.astype(dtype)
        sparse[::3] = 0
        found[f"sparse {name}"] = sparse
        # The extremes of 16-bit floats are found in their bits, where the sign comes first.
        found[f"all positive {name}"] = (np.abs(normal[:4_130]) + 0.5).astype(dtype)
        found[f"all negative {name}"] = -found[f"all positive {name}"]
        found[f"negative and zero {name}"] = np.concatenate([found[f"all negative {name}"], np.zeros(1, dtype)])
        found[f"one negative {name}"] = np.concatenate([found[f"all positive {name}"], -np.ones(1, dtype)])
        for size in (1, 31, 33, 1_023, 1_056):
            found[f"{size} of {name}"] = -np.abs(normal[:size]).astype(dtype)
        tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        found[f"subnormals {name}"] = (np.arange(-40, 40) * tiny).astype(dtype)
        largest = float(ml_dtypes.finfo(dtype).max)
        found[f"largest {name}"] = np.array([largest, -largest, largest / 2] * 50).astype(dtype)
    signs = np.zeros(100, np.float16)
    signs[80] = -0.0
    found["zeros of both signs"] = signs
    opposite = np.full(8_192, -1.2e308)
    opposite[:4_096] = np.nan
    opposite[0] = 1.7e308
    found["opposite ends"] = opposite
    found["a few of the smallest"] = np.repeat([0.0, 5e-324, 0.0, 5e-324], [2_096, 2_000, 1_996, 2_100])
    found["constant"] = np.full(5_000, 0.1, np.float32)
    found["far from zero"] = (1e6 + normal * 0.25).astype(np.float32)
    found["very far from zero"] = 1e9 + normal
    found["as far as can be told"] = 1e8 + normal * 1e-3
    found["constant doubles"] = np.full(10_001, 1e10 / 3)
    found["as far apart as can be"] = np.array([1.0, -1.0] * 2_500) * np.finfo(np.float64).max
    found["largest constant"] = np.full(10, np.finfo(np.float64).max)
    found["farther than the spread can be told"] = np.full(4_097, 16_777_216.0, np.float32) + (np.arange(4_097) % 2) * 2
    found["one far from the others"] = np.concatenate([np.zeros(4_096), [1e8]]).astype(np.float32)
    found["squares overflow"] = normal * 1e200
    found["squares vanish"] = normal * 1e-200
    found["squares overflow in 32 bits"] = (normal * 1e30).astype(np.float32)
    found["squares vanish in 32 bits"] = (normal * 1e-30).astype(np.float32)
    found["sums of both signs overflow"] = normal * 1e307
    found["sums overflow"] = np.full(5_000, 1.5e308)
    found["large and small blocks"] = np.concatenate(
        [normal[:4_096] * 1e-250, np.zeros(4_096), normal[:4_096] * 1e-180]
    )
    found["many magnitudes"] = np.ldexp(rng.uniform(1, 2, 6_000), rng.integers(-160, 140, 6_000)).astype(np.float64)
    found["many magnitudes in 32 bits"] = np.ldexp(rng.uniform(1, 2, 6_000), rng.integers(-148, 128, 6_000)).astype(
        np.float32
    )
    return found


def assert_agree(found: Moments, right: Moments, precision: float = 1e-13) -> None:
    """Counts, extremes and histograms are equal; sums agree up to some digits of what was added up."""
    for name in (*COUNTS, "min", "max"):
        assert same(getattr(found, name), getattr(right, name)), name
    assert found.histogram == right.histogram
    for name in set(NUMBERS) - {"min", "max", "mean", "mean_rest", "std"}:
        assert math.isclose(getattr(found, name), getattr(right, name), rel_tol=precision), name
    if not right.finite:
        assert math.isnan(found.mean)
        assert math.isnan(found.std)
        return
    # How large the values are: large ones of both signs may add up to a small mean. Their sum may be infinite, their
    # extremes are not.
    scale = right.l1 / right.finite if math.isfinite(right.l1) else max(abs(right.min), abs(right.max))
    assert abs(found.mean - right.mean) <= precision * scale, (found.mean, right.mean)
    # What is known up to a digit of the magnitudes does not tell smaller spreads.
    noise = max(precision / 1_000, 1e-16) * abs(right.mean)
    assert math.isclose(found.std, right.std, rel_tol=precision * 10, abs_tol=noise), (found.std, right.std)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
