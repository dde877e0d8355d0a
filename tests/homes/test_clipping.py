"""How gradients reach the kernels that clip them; where there is no GPU, Triton's interpreter runs what is for one."""

import copy
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import DEVICE
from torch import nn

import leafwise as lw
from leafwise.homes.torch.gpu import launching
from leafwise.homes.torch.training import clipping


@pytest.fixture(autouse=True)
def _kernels_run(triton_runs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    clipping._tables._kept.clear()
    with np.errstate(all="ignore"):
        yield
    clipping._tables._kept.clear()


def model(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.Conv2d(3, 4, 3).to(dtype), nn.Linear(30, 4)).to(DEVICE)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


def gradients(net: Any) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.parameters()]


def clipped_by_torch(net: Any, max_norm: float) -> tuple[float, Any]:
    twin = copy.deepcopy(net)
    for one, other in zip(twin.parameters(), net.parameters(), strict=True):
        one.grad = other.grad.clone()
    return nn.utils.clip_grad_norm_(twin.parameters(), max_norm).item(), twin


def used_kernels() -> bool:
    return len(clipping._tables._kept) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_that_of_pytorch_also_for_mixed_dtypes(dtype: torch.dtype, max_norm: float) -> None:
    net = model(dtype)
    for _ in range(2):
        total, theirs = clipped_by_torch(net, max_norm)
        norms = lw.clip(net, max_norm)
        assert norms.total == pytest.approx(total, rel=1e-5 if dtype.itemsize > 2 else 1e-3)
        for one, other in zip(gradients(net), gradients(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4 if dtype.itemsize > 2 else 2e-2, atol=1e-7)
    assert used_kernels()
    assert len(clipping._tables._kept) == 1


def test_a_flat_model_is_clipped_by_the_kernels() -> None:
    net = model()
    flat = lw.flat(net)
    packed = flat.parts[0].packed
    assert len(flat.parts) == 1
    for max_norm in (0.5, 0.25, 1e6):
        total, theirs = clipped_by_torch(net, max_norm)
        norms = lw.clip(flat if max_norm == 0.25 else net, max_norm)
        assert norms.total == pytest.approx(total, rel=1e-5)
        assert norms["1.bias"] == pytest.approx(norms.total * (net[1].bias.grad.norm() / flat.grads.norm()).item())
        for one, other in zip(gradients(net), gradients(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert len(packed._tables._kept) == 1
    flat.grads[3] = math.inf
    with pytest.raises(lw.NonFiniteError, match="not finite; nothing was changed"):
        lw.clip(net, 0.01)


def test_gradients_that_were_replaced_get_a_new_table() -> None:
    net = model()
    lw.clip(net, 0.5)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    expected = math.sqrt(sum(parameter.numel() for parameter in net.parameters()))
    assert lw.clip(net, 1e6).total == pytest.approx(expected)
    assert all(bool((gradient == 1).all()) for gradient in gradients(net))


def test_pytorch_knows_that_gradients_have_changed() -> None:
    net = model()
    versions = [gradient._version for gradient in gradients(net)]
    lw.clip(net, 0.5)
    assert all(gradient._version > version for gradient, version in zip(gradients(net), versions, strict=True))


def test_gradients_in_other_layouts_are_clipped() -> None:
    net = model()
    net[1].weight.grad = net[1].weight.grad.to(memory_format=torch.channels_last)
    net[0].weight.grad = net[0].weight.grad.T.contiguous().T
    total, theirs = clipped_by_torch(net, 0.5)
    assert lw.clip(net, 0.5).total == pytest.approx(total, rel=1e-5)
    assert used_kernels()
    for one, other in zip(gradients(net), gradients(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def with_gaps(net: Any) -> None:
    net[0].weight.grad = torch.randn(30, 40, device=DEVICE)[:, ::2]


def sharing_memory(net: Any) -> None:
    vector = torch.randn(30, device=DEVICE)
    net[0].bias.grad, net[2].bias.grad = vector, vector[:4]


def sparse(net: Any) -> None:
    net[0].weight.grad = net[0].weight.grad.to_sparse()


def complex_numbers(net: Any) -> None:
    net[0].bias = nn.Parameter(torch.ones(30, dtype=torch.complex64, device=DEVICE))
    net[0].bias.grad = torch.ones_like(net[0].bias) * (3 + 4j)


@pytest.mark.parametrize("change", [with_gaps, sharing_memory, sparse, complex_numbers])
def test_what_the_kernels_cannot_clip_is_clipped_as_before(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, twin = model(), model()
    for one in (net, twin):
        torch.manual_seed(1)
        change(one)
    norms = lw.clip(net, 0.5)
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset())
    expected = lw.clip(twin, 0.5)
    assert dict(norms) == pytest.approx(dict(expected), rel=1e-6)
    if change is sharing_memory and DEVICE.type == "cuda":
        return  # PyTorch scales the shared elements once or twice, too
    for mine, other in zip(gradients(net), gradients(twin), strict=True):
        torch.testing.assert_close(mine.to_dense(), other.to_dense(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_named_and_nothing_changes(bad: float) -> None:
    net = model()
    net[2].weight.grad[0, 0] = bad
    before = [gradient.clone() for gradient in gradients(net)]
    with pytest.raises(lw.NonFiniteError, match=r"the gradients of 2\.weight are not finite; nothing was changed"):
        lw.clip(net, 0.01)
    assert lw.clip(net, 0.01, strict=False).nonfinite == ("2.weight",)
    for gradient, old in zip(gradients(net), before, strict=True):
        torch.testing.assert_close(gradient, old, rtol=0, atol=0, equal_nan=True)


def test_doubles_whose_squares_overflow_are_clipped() -> None:
    net = nn.Linear(3, 3, dtype=torch.float64, device=DEVICE)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 1e200)
    assert lw.clip(net, 1.0).total == pytest.approx(math.sqrt(12) * 1e200)
    assert net.weight.grad[0, 0].item() == pytest.approx(1 / math.sqrt(12))


def test_norms_whose_squares_overflow_together_are_clipped() -> None:
    net = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=torch.float64, device=DEVICE)) for _ in range(2)])
    for parameter in net:
        parameter.grad = torch.full_like(parameter, 1.2e154)
    norms = lw.clip(net, 1.0)
    assert norms.total == pytest.approx(1.2e154 * math.sqrt(2))
    assert [parameter.grad.item() for parameter in net] == pytest.approx([math.sqrt(0.5)] * 2)


def test_a_table_that_was_made_in_inference_mode_is_used_outside_of_it() -> None:
    net = model()
    with torch.inference_mode():
        lw.stats(net).total  # noqa: B018
        lw.clip(net, 1e9)
    lw.stats(net).total  # noqa: B018
    assert lw.clip(net, Fraction(1, 2)).total > 0.5
    assert lw.clip(net, 1e9).total == pytest.approx(0.5, rel=1e-4)


def test_inference_tensors_are_left_to_pytorch() -> None:
    net = nn.Linear(3, 3, device=DEVICE)
    with torch.inference_mode():
        inference = torch.ones(3, device=DEVICE)
    assert not clipping._kernels_can_clip([inference], inference.device)
    assert clipping._kernels_can_clip([net.bias.detach()], net.bias.device)


def test_a_capture_of_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for options in ({}, {"per": "leaf"}):
        with pytest.raises(lw.WalkError, match="cannot clip gradients while a CUDA graph is being captured"):
            lw.clip(net, 1.0, **options)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_gradients_on_a_gpu_and_the_cpu_are_clipped_together() -> None:
    net = model()
    net[2].cpu()
    for parameter in net[2].parameters():
        parameter.grad = torch.ones_like(parameter)
    exact = math.hypot(*(gradient.double().norm().item() for gradient in gradients(net)))
    assert lw.clip(net, 0.5).total == pytest.approx(exact, rel=1e-5)
    after = math.hypot(*(gradient.double().norm().item() for gradient in gradients(net)))
    assert after == pytest.approx(0.5, rel=1e-4)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_clipping_on_another_stream_follows_what_was_queued_there() -> None:
    net = model()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for gradient in gradients(net):
            gradient.fill_(2.0)
        norms = lw.clip(net, 1.0)
    side.synchronize()
    count = sum(gradient.numel() for gradient in gradients(net))
    assert norms.total == pytest.approx(2 * math.sqrt(count), rel=1e-6)
    assert math.hypot(*(gradient.norm().item() for gradient in gradients(net))) == pytest.approx(1.0, rel=1e-5)
