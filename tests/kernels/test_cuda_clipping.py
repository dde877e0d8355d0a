"""Clipping by the Triton kernels, on a GPU or in Triton's interpreter, against sums in 64 bits."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import CHUNK, DEVICE

from leafwise.core.memory.runs import Run
from leafwise.kernels.triton import cuda_clipping
from leafwise.kernels.triton.cuda_clipping import PreparedClip, overlap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("triton_runs"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_clipping, "table_of", partial(cuda_clipping.table_of, chunk=CHUNK))


def runs(tensors: list[torch.Tensor]) -> list[Run]:
    return [Run(one.data_ptr(), one.numel(), str(one.dtype).removeprefix("torch.")) for one in tensors]


def prepared(tensors: list[torch.Tensor]) -> PreparedClip:
    return PreparedClip(runs(tensors), DEVICE)


def norms_in_full(tensors: list[torch.Tensor]) -> list[float]:
    return [tensor.double().norm().item() for tensor in tensors]


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """As the kernels round: in the dtype for doubles, otherwise in 32 bits first."""
    if tensor.dtype == torch.float64:
        return tensor * factor
    return (tensor.float() * torch.tensor(factor, dtype=torch.float32, device=tensor.device)).to(tensor.dtype)


def random(size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * scale).to(dtype).to(DEVICE)


CASES: dict[str, Any] = {
    "float32": lambda: [random(2 * CHUNK + 5), random(CHUNK), random(7)],
    "bfloat16": lambda: [random(2 * CHUNK + 3, torch.bfloat16), random(9, torch.bfloat16)],
    "float16": lambda: [random(CHUNK + 1, torch.float16)],
    "float64": lambda: [random(CHUNK + 1, torch.float64), random(CHUNK, torch.float64, 1e100)],
    "mixed": lambda: [
        random(CHUNK), random(CHUNK + 2, torch.bfloat16), random(CHUNK, torch.float16), random(5, torch.float64),
        random(0), torch.zeros(CHUNK, device=DEVICE), random(CHUNK + 1)[1:], random(1),
    ],
    "squares too small for 32 bits": lambda: [random(CHUNK, scale=1e-30), random(6, scale=1e-30)],
    "squares too large for 32 bits": lambda: [random(CHUNK, scale=1e25), random(6, scale=1e25)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_norms_are_exact_and_every_element_is_scaled(name: str) -> None:
    gradients = CASES[name]()
    clipping = prepared(gradients)
    for share in (0.3, 0.25, 5.0):  # the third time, nothing has to change
        before = [gradient.clone() for gradient in gradients]
        exact = norms_in_full(gradients)
        limit = math.hypot(*exact) * share
        norms = clipping.clip(limit)
        assert norms == pytest.approx(exact, rel=1e-6, abs=1e-300)
        factor = min(1.0, limit / math.hypot(*norms))
        for gradient, old in zip(gradients, before, strict=True):
            expected = scaled(old, factor)
            rounding = 0 if share > 1 else 2.0 ** {2: -7, 4: -22, 8: -40}[gradient.element_size()]
            torch.testing.assert_close(gradient, expected, rtol=rounding, atol=0)
            assert share < 1 or torch.equal(gradient, old)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [5, CHUNK + 3])
def test_nothing_changes_if_a_norm_is_not_finite(bad: float, place: int) -> None:
    gradients = [random(CHUNK + 9), random(11)]
    gradients[0][place] = bad
    before = [gradient.clone() for gradient in gradients]
    norms = prepared(gradients).clip(0.01)
    assert not math.isfinite(norms[0])
    assert norms[1] == pytest.approx(before[1].double().norm().item())
    for gradient, old in zip(gradients, before, strict=True):
        torch.testing.assert_close(gradient, old, rtol=0, atol=0, equal_nan=True)


def test_zeros_and_empty_arrays_have_the_norm_zero() -> None:
    gradients = [torch.zeros(CHUNK, device=DEVICE), torch.zeros(0, device=DEVICE), torch.zeros(3, device=DEVICE)]
    assert prepared(gradients).clip(1.0) == [0.0, 0.0, 0.0]
    assert prepared(gradients[1:2]).clip(1.0) == [0.0]
    assert not any(gradient.any() for gradient in gradients)


def test_two_runs_give_the_same_bits() -> None:
    one, other = ([random(3 * CHUNK + 1), random(CHUNK, torch.bfloat16)] for _ in range(2))
    assert prepared(one).clip(0.5) == prepared(other).clip(0.5)
    assert all(map(torch.equal, one, other))


def test_a_limit_in_64_bits_is_not_rounded_to_32() -> None:
    [gradient] = gradients = [torch.full((4,), 1.0, dtype=torch.float64, device=DEVICE)]
    prepared(gradients).clip(2.0 * (1 - 1e-12))
    assert gradient[0].item() == pytest.approx(1 - 1e-12, rel=1e-15)


def test_arrays_that_share_memory_are_found() -> None:
    x = torch.zeros(10, device=DEVICE)
    assert not overlap(runs([x[5:], x[:5], x[:0]]))
    assert overlap(runs([x[:6], x[5:]]))
    assert overlap(runs([x, x]))
    assert not overlap([])


def test_norms_of_arrays_of_many_chunks_are_those_of_numpy() -> None:
    gradients = [random(size) for size in (1, 3 * CHUNK, 0, CHUNK - 1, CHUNK + 1)]
    expected = [np.linalg.norm(gradient.double().cpu().numpy()) for gradient in gradients]
    assert prepared(gradients).clip(1e9) == pytest.approx(expected, rel=1e-6)
