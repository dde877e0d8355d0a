"""Initial values drawn by Triton kernels have the bits that the CPU gives them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tests.kernels.gpu import DEVICE
from tests.torchrun import in_two_processes
from torch import nn

import leafwise as lw
from leafwise.core.capabilities.filling import Draw, DrawJob, Filling
from leafwise.homes.torch.gpu import launching
from leafwise.homes.torch.home import HOME
from leafwise.iterate.distributions import GeneratorKey, constant, normal, numbers, uniform, words
from leafwise.kernels.triton import cuda_drawing
from leafwise.kernels.triton.triton_drawing import close_quantiles, normal_quantiles, points_of, rough_quantiles

pytestmark = pytest.mark.usefixtures("triton_runs")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRAWS = {
    "normal": normal(0, 1),
    "normal with a mean": normal(0.01, 0.5),
    "normal with a small deviation": normal(0, 0.02),
    "cut at 2": normal(0, 1, 2.0),
    "cut at 0.1": normal(1, 0.5, 0.1),
    "cut at 5": normal(0, 3, 5.0),
    "cut at 9": normal(0, 3, 9.0),
    "uniform": uniform(-0.05, 0.05),
    "uniform from 0 to 1": uniform(0, 1),
    "constant": constant(0.1),
    "minus zero": constant(-0.0),
}
KEY = GeneratorKey.of(0, "layers.0.weight")
NVIDIA = DEVICE.type == "cuda" and torch.version.hip is None


@pytest.fixture(autouse=True)
def runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, kernels fill tensors on the CPU, and few elements at a time, because it is slow."""
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_drawing, "CAREFUL_CHUNK", 512)
        monkeypatch.setattr(cuda_drawing, "CAREFUL_BLOCK", 128)


@contextmanager
def on_the_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "KERNEL_DEVICES", frozenset())
        yield


def expected(draw: Draw, some: Any, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of words, as `TorchFilling.draw` computes them on the CPU."""
    x = torch.from_numpy(np.ascontiguousarray(some)).double().add_(0.5).mul_(2.0**-31)
    if draw.shape == "normal":
        x.mul_(draw.narrow).erfinv_().mul_(math.sqrt(2))
    x = x.mul_(draw.scale).add_(draw.shift) if draw.scale else torch.full_like(x, draw.shift)
    return torch.empty(x.shape, dtype=dtype).copy_(x)


def drawn(value: torch.Tensor, draw: Draw, whole: Any = None, first: Any = None) -> torch.Tensor:
    """A tensor filled by kernels, as the part of an array of shape `whole` that begins at `first`."""
    shape = tuple(value.shape) or (1,)
    job = DrawJob(value, KEY, whole or shape, first or (0,) * len(shape), shape, draw)
    with np.errstate(all="ignore"):  # the interpreter is NumPy, and warns where a GPU does not
        assert HOME.capability(Filling).draw_together([job], lambda count: None) == [True]
    return value.cpu()


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.int32 if value.element_size() == 4 else torch.int16)


def assert_same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert torch.equal(bits(a), bits(b))


# -- the functions of a kernel ---------------------------------------------------------------------------


@triton.jit
def _quantiles(table, parameters, nodes, exact, close, doubts, rough, BLOCK: tl.constexpr, NVIDIA: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    some = tl.load(table + offsets)
    narrow = tl.load(parameters)
    tl.store(exact + offsets, normal_quantiles(points_of(some), narrow))
    beyond = (1.0 - narrow).to(tl.float32)
    quantiles, doubt = close_quantiles(some, nodes, narrow)
    tl.store(close + offsets, quantiles)
    tl.store(doubts + offsets, doubt)
    tl.store(rough + offsets, rough_quantiles(some, narrow.to(tl.float32), beyond, NVIDIA))


def extreme_words() -> Any:
    """Words at both ends, in the middle, at the powers of two from them, halfway between nodes of the table, and many
    others."""
    steps = np.concatenate([[1 << power, (1 << power) - 1, (1 << power) + 1] for power in range(31)])
    halfway = np.concatenate([(1 + (np.arange(256) + 0.5) / 256) * 2**power for power in range(14, 31)]).astype(int)
    near = np.concatenate([np.arange(600), steps, halfway])
    some = np.concatenate([near, -1 - near, (1 << 31) - 1 - near, near - (1 << 31)])
    some = np.concatenate([some, words(KEY, 0, -len(some) % 1024 + 4096)])
    return np.clip(some, -(1 << 31), (1 << 31) - 1).astype(np.int32)


@pytest.mark.parametrize("cut", [None, 0.01, 0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0])
def test_quantiles_are_exact_in_64_bits_and_bounded_in_32(cut: float | None) -> None:
    draw = normal(0, 1, cut)
    some = extreme_words()
    exact, close, rough = (torch.zeros(len(some), dtype=torch.float64, device=DEVICE) for _ in range(3))
    doubts = torch.zeros(len(some), dtype=torch.int32, device=DEVICE)
    table, parameters = torch.from_numpy(some).to(DEVICE), torch.tensor([draw.narrow], dtype=torch.float64).to(DEVICE)
    nodes = torch.from_numpy(cuda_drawing.table_of_quantiles()).to(DEVICE)
    _quantiles[(len(some) // 1024,)](
        table, parameters, nodes, exact, close, doubts, rough, BLOCK=1024, NVIDIA=NVIDIA, enable_fp_fusion=False
    )  # fmt: skip
    true = torch.from_numpy(numbers(draw, some))  # not `erfinv`, which is less exact on some processors
    assert ((exact.cpu() - true) / true).abs().max() < 16 * 2.0**-53
    assert torch.equal(exact.cpu().float(), true.float())
    # `draw_whole_chunks` relies on these bounds.
    certain = doubts.cpu() == 0
    assert certain[true.abs() < 4.47].all()
    assert ((close.cpu() - true) / true).abs()[certain].max() < 2.0**-41
    assert ((rough.cpu() - true) / true).abs().max() < 2.0**-20


# -- bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_distribution_has_the_same_bits(draw: Draw, dtype: torch.dtype) -> None:
    value = torch.zeros(1999, dtype=dtype, device=DEVICE)
    assert_same(drawn(value, draw), expected(draw, words(KEY, 0, 1999), dtype))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 255, 256, 257, 511, 2_055])
def test_every_size_is_filled_to_its_end_and_not_further(size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        memory = torch.full([size + 64], 77.0, dtype=dtype, device=DEVICE)
        drawn(memory[32 : 32 + size], DRAWS["normal"])
        memory = memory.cpu()
        assert_same(memory[32 : 32 + size], expected(DRAWS["normal"], words(KEY, 0, size), dtype))
        assert (memory[:32] == 77).all()
        assert (memory[32 + size :] == 77).all()


@pytest.mark.parametrize("offset", [1, 3, 4, 8])
def test_memory_that_is_not_aligned_has_the_same_bits(offset: int) -> None:
    memory = torch.zeros(2000, dtype=torch.bfloat16, device=DEVICE)
    assert_same(
        drawn(memory[offset : offset + 1500], DRAWS["normal"]),
        expected(DRAWS["normal"], words(KEY, 0, 1500), torch.bfloat16),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "draw",
    [
        normal(1.00390625, 1e-9),  # next to a number between two of bfloat16, so that none is certain in 32 bits
        normal(1.0, 1e-30),
        normal(0, 1e-38),
        normal(0, 1e-41),
        normal(1e-42, 1e-44),
        normal(0, 1e-300),
        normal(0, 3e4),
        normal(6e4, 3e3),
        normal(0, 1e38),
        normal(-2e38, 1e38),
        normal(3e38, 1e30),
        normal(0, 1e300),
        uniform(-1e-44, 1e-44),
        uniform(-3e38, 3e38),
        uniform(-1e308, 1e308),
        uniform(1, 1 + 1e-6),
    ],
)
def test_extreme_scales_have_the_same_bits(draw: Draw, dtype: torch.dtype) -> None:
    value = torch.zeros(512, dtype=dtype, device=DEVICE)
    assert_same(drawn(value, draw), expected(draw, words(KEY, 0, 512), dtype))


def test_an_array_of_several_chunks_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_drawing, "CHUNK", 512)
    monkeypatch.setattr(cuda_drawing, "CAREFUL_CHUNK", 1024)
    for draw in (DRAWS["normal"], DRAWS["uniform"], DRAWS["constant"]):
        memory = torch.zeros(3001, device=DEVICE)
        exact = expected(draw, words(KEY, 0, 3000), torch.float32)
        assert_same(drawn(memory[:3000], draw), exact)
        assert_same(drawn(memory[1:], draw), exact)


def test_words_of_very_large_arrays_are_right() -> None:
    whole = (1 << 36,)
    for first in ((1 << 35) + 8, (1 << 35) + 5):
        value = torch.zeros(700, device=DEVICE)
        got = drawn(value, DRAWS["normal"], whole, (first,))
        assert_same(got, expected(DRAWS["normal"], words(KEY, first, 700), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_part_of_an_array_in_any_order_in_memory_has_the_same_bits(dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    for _ in range(25):
        dims = int(random.integers(1, 5))
        whole = tuple(int(size) for size in random.integers(1, 14, dims))
        first = tuple(int(random.integers(0, size)) for size in whole)
        shape = tuple(int(random.integers(1, size - start + 1)) for size, start in zip(whole, first, strict=True))
        order = random.permutation(dims)
        padded = [int(shape[axis] + random.integers(0, 3)) for axis in order]  # the array has gaps in memory
        memory = torch.full(padded, 77.0, dtype=dtype, device=DEVICE)
        inside = memory[tuple(slice(0, shape[axis]) for axis in order)]
        view = inside.permute(*np.argsort(order).tolist())
        before = memory.clone()
        all_numbers = expected(DRAWS["normal"], words(KEY, 0, math.prod(whole)), dtype).reshape(whole)
        part = tuple(slice(start, start + size) for start, size in zip(first, shape, strict=True))
        got = drawn(view, DRAWS["normal"], whole, first)
        assert_same(got, all_numbers[part])
        view.copy_(torch.full_like(view, 77.0))
        assert torch.equal(memory, before), "memory outside of the view was changed"


# -- lw.initialize ---------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Leaves of every form that kernels fill, and some that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 24, padding_idx=7)
        self.fc = nn.Linear(24, 70, dtype=torch.bfloat16)
        self.conv = nn.Conv2d(6, 10, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = nn.ConvTranspose2d(6, 10, 3)
        self.norm = nn.LayerNorm(24, dtype=torch.float16)
        self.scalar = nn.Parameter(torch.zeros(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.wide = nn.Parameter(torch.zeros(33, 5).t())
        self.every_other = nn.Parameter(torch.zeros(20, 30)[:, ::2])
        self.double = nn.Linear(4, 5, dtype=torch.float64)
        self.eight = nn.Parameter(torch.zeros(300).to(torch.float8_e4m3fn), requires_grad=False)
        self.orthogonal = nn.Linear(9, 9)


RULES = [
    lw.Rule("{scalar,empty,wide,every_other,eight}", init="normal", std=0.5),
    lw.Rule("fc.weight", init="truncated_normal", std=0.02),
    lw.Rule("orthogonal.weight", init="orthogonal"),
    lw.Rule("norm.bias", init=lambda leaf, others: torch.full([24], float(others["weight"].numpy()[0]))),
]


def test_a_model_gets_the_same_bits_as_on_the_cpu() -> None:
    with on_the_cpu():
        there = lw.initialize(Mixed(), RULES, seed=3)
    counted: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        draw_all = cuda_drawing.draw_all

        def counting(targets: list[Any], device: Any) -> bool:
            counted.append(len(targets))
            return draw_all(targets, device)

        patch.setattr(cuda_drawing, "draw_all", counting)
        here = lw.initialize(Mixed().to(DEVICE), RULES, seed=3)
    assert len(counted) == 2, "the first leaves were drawn at once, and so were the others"
    assert sum(counted) == 13
    for (name, value), other in zip(here.named_parameters(), there.parameters(), strict=True):
        assert torch.equal(value.detach().cpu().double(), other.detach().double()), name
    assert not here.embed.weight[7].any()
    assert here.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_part_of_a_model_on_the_cpu_is_drawn_there() -> None:
    """Where some leaves are on a device without kernels, they are drawn by the other code."""
    with on_the_cpu():
        there = lw.initialize(nn.Linear(30, 20))
    model = nn.Linear(30, 20)
    model.weight = nn.Parameter(model.weight.to(DEVICE))
    lw.initialize(model)
    assert torch.equal(model.weight.cpu(), there.weight)
    assert torch.equal(model.bias, there.bias)


def test_progress_counts_every_element() -> None:
    counts: list[int] = []
    value = torch.zeros(30, 20, device=DEVICE)
    job = DrawJob(value, KEY, (30, 20), (0, 0), (30, 20), DRAWS["normal"])
    other = job._replace(value=torch.zeros(30, 20, dtype=torch.float64, device=DEVICE))
    assert HOME.capability(Filling).draw_together([job, other], counts.append) == [True, False]
    assert counts == [600]


def test_what_kernels_cannot_fill_is_left_to_other_code() -> None:
    expanded = torch.zeros(5, device=DEVICE).expand(4, 5)
    many_axes = torch.zeros(3, 3, 3, 3, 3, device=DEVICE)[:, ::2, :, ::2, ::2].permute(3, 1, 4, 2, 0)
    with torch.inference_mode():
        inference = torch.zeros(4, 5, device=DEVICE)

    class Special(torch.Tensor):
        pass

    values = [
        expanded,
        many_axes,
        inference,
        torch.zeros(4, 5, device=DEVICE).as_subclass(Special),
        torch.zeros(4, 5, dtype=torch.complex64, device=DEVICE),
        torch.zeros(4, 5, dtype=torch.complex64, device=DEVICE).conj().imag,
    ]
    for value in values:
        shape = tuple(value.shape)
        job = DrawJob(value, KEY, shape, (0,) * len(shape), shape, DRAWS["normal"])
        assert HOME.capability(Filling).draw_together([job], lambda count: None) == [False]


def test_autograd_notices_new_values() -> None:
    weight = nn.Parameter(torch.ones(3, 4, device=DEVICE))
    loss = (weight * weight).sum()
    model = nn.Module()
    model.weight = weight
    lw.initialize(model, [lw.Rule("**", init="normal")])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_a_c_compiler_other_code_draws_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_cpu():
        there = lw.initialize(nn.Linear(30, 20))

    def draw_all(targets: Any, device: Any) -> bool:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(cuda_drawing, "draw_all", draw_all)
    launching._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="did not find a C compiler: initial values .* drawn by PyTorch operations"):
        here = lw.initialize(nn.Linear(30, 20).to(DEVICE))
    assert torch.equal(here.weight.cpu(), there.weight)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_captured_graph_is_refused() -> None:
    model = nn.Linear(30, 20).to(DEVICE)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        model.weight.detach().add_(0)  # PyTorch warns of an empty graph
        with pytest.raises(lw.Error, match="cannot initialize while a CUDA graph is being captured"):
            lw.initialize(model)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_stream_of_ones_own_is_used() -> None:
    with on_the_cpu():
        there = lw.initialize(nn.Linear(900, 700), seed=4)
    model = nn.Linear(900, 700).to(DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        lw.initialize(model, seed=4)
        copied = model.weight.detach().clone()
    stream.synchronize()
    assert torch.equal(copied.cpu(), there.weight)


SCRIPT = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
import leafwise as lw
import tests.kernels.gpu  # prepares the interpreter
from leafwise.homes.torch.gpu import launching
from leafwise.kernels.triton import cuda_drawing

distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))

def build():
    embed = nn.Embedding(10, 7, padding_idx=7)
    return nn.ModuleDict({"embed": embed, "fc": nn.Linear(6, 5), "conv": nn.Conv2d(4, 6, 3)})

whole = lw.initialize(build())
launching.KERNEL_DEVICES = frozenset({"cpu"})
cuda_drawing.CAREFUL_CHUNK = cuda_drawing.CAREFUL_BLOCK = 128  # the interpreter is slow
calls = []
draw_all = cuda_drawing.draw_all
cuda_drawing.draw_all = lambda targets, device: (calls.append(len(targets)), draw_all(targets, device))[1]
for placement in (Shard(0), Shard(1), Replicate()):
    model = build()
    for module in model.values():
        for name, parameter in list(module.named_parameters()):
            here = placement if parameter.dim() > 1 else Shard(0)
            setattr(module, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [here])))
    lw.initialize(model)
    for (name, one), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(one.full_tensor(), other), (name, placement)
assert calls == [5, 5, 5], calls
print(f"rank {distributed.get_rank()} done\\n", end="")
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="runs in the interpreter")
def test_parts_of_sharded_leaves_have_the_same_bits(tmp_path: Path) -> None:
    in_two_processes(SCRIPT, tmp_path)
