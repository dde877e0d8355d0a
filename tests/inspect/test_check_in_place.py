"""`lw.check` on a GPU finds the same as on the CPU, and copies only what it finds. Where there is no GPU, Triton's
interpreter searches tensors on the CPU as if they were on one."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu import DEVICE
from tests.long import short_or_long
from tools import alarms
from tools.healthy_models import Healthy
from torch import nn

import leafwise as lw
from leafwise.core.capabilities.searching import Lines
from leafwise.errors import WalkError
from leafwise.homes.torch.gpu import launching
from leafwise.homes.torch.home import HOME, TorchHome
from leafwise.homes.torch.values import searching
from leafwise.inspect.check.duplicate_rows import Duplicates, all_duplicate_rows
from leafwise.inspect.check.evidence import Evidence
from leafwise.kernels.lines import ODD
from leafwise.kernels.triton import cuda_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_runs")]
SEARCHING = searching.TorchSearching(HOME)


@contextmanager
def in_place() -> Iterator[None]:
    """Tensors on `DEVICE` are searched where they are."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
        yield


def findings_in_place(model: Any, **options: Any) -> list[Any]:
    with in_place():
        return list(lw.check(model, **options))


def moved(model: nn.Module) -> nn.Module:
    """The model on `DEVICE`, with its gradients."""
    there = copy.deepcopy(model)
    for parameter, before in zip(there.parameters(), model.parameters(), strict=True):
        parameter.grad = None if before.grad is None else before.grad.clone()
    return there.to(DEVICE)


def healthy_models() -> list[Healthy]:
    torch.manual_seed(0)
    head = nn.Linear(24, 60, bias=False)
    layers = nn.Sequential(nn.Embedding(60, 24), nn.Linear(96, 80), nn.LayerNorm(16), head)
    convolutions = nn.Sequential(nn.Conv2d(8, 12, 3), nn.ConvTranspose1d(12, 8, 5), nn.Conv2d(8, 12, 3))
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.Linear(48, 24)) for _ in range(3))
    return [Healthy("layers", layers), Healthy("convolutions", convolutions), Healthy("blocks", blocks)]


@pytest.mark.parametrize("code", sorted(alarms.FAULTS))
def test_every_planted_fault_is_found_in_place_as_on_the_cpu(code: str) -> None:
    planted_faults = 0
    for healthy in healthy_models():
        planted = alarms.FAULTS[code](healthy)
        is_lazy_or_file = code in ("LW512", "LW701", "LW702", "LW703")
        cannot_move = planted is not None and (planted.options or code == "LW304")  # optimizers, and shared memory
        if planted is None or is_lazy_or_file or (cannot_move and DEVICE.type != "cpu"):
            continue  # lazy layers cannot be copied
        options = {"select": code.partition(" ")[0], **planted.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lw.TieWarning)
            on_cpu = list(lw.check(planted.model, **options))
            there = planted.model if DEVICE.type == "cpu" else moved(planted.model)
            assert findings_in_place(there, **options) == on_cpu
            assert on_cpu
        planted_faults += 1
    assert planted_faults or is_lazy_or_file or DEVICE.type != "cpu"


def test_all_rules_find_in_place_what_they_find_on_the_cpu() -> None:
    for healthy in healthy_models():
        model = healthy.model
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
                if parameter.ndim > 1:
                    parameter[1] = parameter[3]
                    parameter[:, 2] = parameter[:, 5] * 1.0002
                    parameter[4], parameter[:, 6], parameter.grad[2:4] = 0, 0, 0
        on_cpu = list(lw.check(model))
        assert len({finding.code for finding in on_cpu}) > 3
        assert findings_in_place(moved(model)) == on_cpu


@pytest.mark.parametrize("code", ["LW116", "LW202"])
def test_products_are_computed_in_place(code: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(72, 64), nn.Linear(64, 72), nn.Conv2d(8, 64, 3))
    for layer in net:
        nn.init.orthogonal_(layer.weight, 2.0)
    options: dict[str, Any] = {"select": code}
    if code == "LW202":
        options["init"] = [lw.Rule("**.weight", init="orthogonal", gain=2.0), lw.Rule("**.bias", init="zeros")]
    for number in range(3):
        on_cpu = [(finding.level, finding.path) for finding in lw.check(net, **options)]
        found = findings_in_place(moved(net), **options)
        assert [(finding.level, finding.path) for finding in found] == on_cpu
        with torch.no_grad():
            weight = net[number].weight.view(net[number].weight.shape[0], -1)
            weight[:] = torch.randn(weight.shape[0], 3) @ torch.randn(3, weight.shape[1])
            weight *= 2.0 * min(weight.shape) ** 0.5 / weight.norm()  # the norm of an orthogonal matrix
    assert len(on_cpu) >= 2


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed axes": lambda x: x.permute(*range(x.ndim - 1, -1, -1)).contiguous().permute(*range(x.ndim - 1, -1, -1)),
    "a part of more": lambda x: torch.cat([torch.full_like(x[:, :1], 7), x], 1)[:, 1:],
    "every second": lambda x: x.repeat_interleave(2, 0)[::2],
}


@st.composite
def matrices(draw: Any) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
    shape = [draw(st.integers(2, 30)), draw(st.integers(2, 30)), *shape]
    seed, scale = draw(st.integers(0, 10_000)), 10.0 ** draw(st.integers(-4, 3))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    for _ in range(draw(st.integers(0, 4))):
        axis, noise = draw(st.integers(0, 1)), draw(st.sampled_from([0, 0, 1e-5, 3e-4, 1e-2]))
        first, second = (draw(st.integers(0, shape[axis] - 1)) for _ in range(2))
        x.select(axis, first).copy_(x.select(axis, second) * (1 + noise))
    if draw(st.booleans()):
        x.select(draw(st.integers(0, 1)), 0).zero_()
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2fnuz"]))
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x).to(getattr(torch, dtype))


def duplicates(tensors: list[torch.Tensor]) -> list[Duplicates]:
    """The duplicates among the rows and columns of each matrix."""
    leaves = [leaf for leaf in Evidence(lw.tree(dict(enumerate(tensors)))).leaves if leaf.is_matrix]
    return all_duplicate_rows([(leaf, axis) for leaf in leaves for axis in (0, 1)])


@settings(max_examples=short_or_long(10, 20))
@given(st.lists(matrices(), min_size=1, max_size=2))
def test_any_duplicate_rows_are_found_in_place_as_on_the_cpu(values: list[torch.Tensor]) -> None:
    on_cpu = duplicates(values)
    with in_place():
        assert duplicates([value.to(DEVICE) for value in values]) == on_cpu


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu",
    "int64", "int32", "int16", "int8", "uint8", "bool",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_of_zeros_are_found_in_place(dtype: str) -> None:
    x = torch.randn(13, 40, 3)
    x[5], x[:, 8], x[:, 9] = 0, 0, -0.0
    x[11] = 0
    x[11, 30, 1] = 1
    x[0, :] = 2.0**-127 if dtype == "float8_e8m0fnu" else 1
    values = x.abs().clamp(2.0**-127, 1) if dtype == "float8_e8m0fnu" else x  # which has neither zero nor a sign
    there = values.to(getattr(torch, dtype)).to(DEVICE)
    lines = [Lines(tensor, axis) for tensor in (there, there[:, ::2].transpose(0, 2)) for axis in (0, 1, 2)]
    with in_place():
        found = SEARCHING.zero_lines(lines)
    assert found is not None
    for line, flags in zip(lines, found, strict=True):
        others = tuple(axis for axis in range(3) if axis != line.axis)
        assert (flags == ~(HOME.read(line.value) != 0).any(others)).all()
    assert found[0].any() == (dtype != "float8_e8m0fnu")


def test_many_values_in_one_place_are_searched_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_lines, "_CHUNK", 128)
    monkeypatch.setattr(cuda_lines, "_ZERO_BLOCK", 128)
    monkeypatch.setattr(cuda_lines, "_REPEATS", 7)
    x = torch.randn(50, 333, device=DEVICE)
    x[17], x[:, 300] = 0, 0
    with in_place():
        found = SEARCHING.zero_lines([Lines(x, 0), Lines(x[:0], 1), Lines(x, 1)])
    assert found is not None
    assert [flags.nonzero()[0].tolist() for flags in found] == [[17], list(range(333)), [300]]


def test_lines_are_sorted_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_lines, "_MOST_LINES", 100)
    values = [torch.randn(70, 30, device=DEVICE) for _ in range(5)]
    for number, value in enumerate(values):
        value[number] = value[60 + number]
    with in_place():
        found = SEARCHING.near_lines([Lines(value, 0, 0.25) for value in values])
    assert found is not None
    assert {number: lines.tolist() for number, lines in found.items()} == {n: [n, 60 + n] for n in range(5)}


@pytest.fixture
def one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines of a matrix share a cell."""
    onto, odd, shifts = cuda_lines._constants(DEVICE)
    monkeypatch.setattr(cuda_lines, "_constants", lambda device: (onto, torch.zeros_like(odd), shifts))
    monkeypatch.setattr("leafwise.kernels.lines.ODD", np.zeros_like(ODD))


@pytest.mark.usefixtures("one_cell")
def test_two_lines_that_share_a_cell_by_chance_are_not_suspects() -> None:
    x = torch.randn(2, 40, device=DEVICE)
    with in_place():
        assert SEARCHING.near_lines([Lines(x, 0)]) == {}
        x[1] = x[0]
        found = SEARCHING.near_lines([Lines(x, 0)])
    assert found is not None
    assert {number: lines.tolist() for number, lines in found.items()} == {0: [0, 1]}


# PyTorch sorts up to 32 and up to 128 keys differently on a GPU, and the order of equal keys depends on it.
@pytest.mark.usefixtures("one_cell")
@pytest.mark.parametrize("shape", [(3, 12), (20, 12), (60, 40), (300, 20)])
def test_equal_lines_are_found_whatever_else_is_in_their_cell(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    x[-1] = x[0]
    expected = [Duplicates([[0, shape[0] - 1]], []), Duplicates([], [])]
    assert duplicates([x]) == expected
    with in_place():
        assert duplicates([x.to(DEVICE)]) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float8_e5m2", "float8_e4m3fn"])
def test_places_of_nan_are_found_in_place(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.homes.torch.values.searching._ELEMENTS_AT_ONCE", 64)
    x = torch.randn(40, 5, 3)
    x[3, 2, 1] = x[3, 2, 2] = x[39, 4, 2] = float("nan")
    x[0, 0, 0] = float("inf")  # which float8_e4m3fn does not have
    for value in (x, x.transpose(0, 2)):
        there = value.to(getattr(torch, dtype)).to(DEVICE)
        on_cpu = lw.stats({"x": there.cpu()}).nonfinite
        with in_place():
            assert lw.stats({"x": there}).nonfinite == on_cpu
            assert SEARCHING.nonfinite(there, 2).tolist() == SEARCHING.nonfinite(there, 9).tolist()[:2]


def test_a_baseline_elsewhere_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 6, device=DEVICE)
    assert SEARCHING.same_rows(x, x.cpu().numpy()) is None
    y = x.clone()
    y[4:9] += 1
    monkeypatch.setattr("leafwise.homes.torch.values.searching._ELEMENTS_AT_ONCE", 30)
    found = SEARCHING.same_rows(x, y)
    assert found is not None
    assert found.tolist() == [0, 1, 2, 3, *range(9, 20)]


def healthy_net(layers: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(500, 32), *(nn.Linear(32, 24) for _ in range(layers))).to(DEVICE)


def test_nothing_of_a_healthy_model_is_copied_and_all_leaves_are_searched_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = healthy_net()
    launches: list[str] = []

    class Counting:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(cuda_lines, name)

        def __getitem__(self, grid: Any) -> Any:
            launches.append(self.name)
            return self.kernel[grid]

    for name in ("line_cells", "near_pairs", "nonzero_lines"):
        monkeypatch.setattr(cuda_lines, name, Counting(name))
    monkeypatch.setattr(TorchHome, "read", lambda *_: pytest.fail("values were read"))
    copied: list[int] = []
    to_cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (copied.append(self.nbytes), to_cpu(self))[1])
    assert findings_in_place(net) == []
    assert launches.count("line_cells") == 1
    assert set(launches) <= {"line_cells", "near_pairs"}
    assert sum(copied) < 1_000


def test_only_the_lines_that_are_found_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    net = healthy_net(4)
    with torch.no_grad():
        net[0].weight[300] = net[0].weight[17]
        net[2].weight[5] = 0
    copied: list[int] = []
    to_cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (copied.append(self.nbytes), to_cpu(self))[1])
    found = findings_in_place(net)
    assert [finding.code for finding in found] == ["LW110", "LW113"]
    assert sum(copied) < 2_000 < net[0].weight.nbytes / 30


@pytest.mark.parametrize("name", ["near_lines", "zero_lines"])
def test_values_are_read_if_the_device_has_no_memory_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = healthy_net(4)
    with torch.no_grad():
        net[0].weight[300] = net[0].weight[17]
        net[2].weight[5] = 0
    expected = list(lw.check(copy.deepcopy(net).cpu()))

    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda_lines, name, fails)
    assert findings_in_place(net) == expected
    monkeypatch.setattr(searching, "_line_sums", fails)
    assert findings_in_place(net) == expected


def test_values_are_read_where_triton_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    net = healthy_net(4)
    with torch.no_grad():
        net[0].weight[300] = net[0].weight[17]

    def fails(*_: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    launching._warn_once.cache_clear()
    monkeypatch.setattr(cuda_lines, "near_lines", fails)
    with pytest.warns(UserWarning, match="rows and columns of tensors on a GPU are compared on the CPU"):
        assert [finding.code for finding in findings_in_place(net)] == ["LW113"]


def test_a_check_during_the_capture_of_a_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with in_place(), pytest.raises(WalkError, match=r"cannot .* while a CUDA graph is being captured"):
        lw.check(healthy_net(1))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_a_model_on_two_devices_is_searched_where_each_part_is() -> None:
    net = healthy_net(4)
    with torch.no_grad():
        net[0].weight[300] = net[0].weight[17]
        net[2].weight[5] = net[2].weight[9]
    expected = list(lw.check(copy.deepcopy(net).cpu()))
    net[0].cpu()
    assert list(lw.check(net)) == expected


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_values_written_on_the_current_stream_are_searched_after_they_are_written() -> None:
    net = healthy_net(4)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(100_000_000)
        net[0].weight[300] = net[0].weight[17]
        assert [finding.code for finding in lw.check(net)] == ["LW113"]


def test_copies_of_leaves_are_compared_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.homes.torch.values.searching._ELEMENTS_AT_ONCE", 100)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 24), nn.Linear(16, 24))
    with torch.no_grad():
        net[1].weight.copy_(net[0].weight.T)
        net[2].weight.copy_(net[0].weight)
        net[3].weight.copy_(net[0].weight.flatten().roll(1).view(24, 16))  # the same statistics
    on_cpu = list(lw.check(net))
    assert [finding.path for finding in on_cpu if finding.code == "LW303"] == ["1.weight", "2.weight"]
    for name in ("same_bytes", "transposed"):
        monkeypatch.setattr(f"leafwise.kernels.streams.{name}", lambda *_: pytest.fail("values were read"))
    assert findings_in_place(moved(net)) == on_cpu


def test_rows_of_another_dtype_are_not_the_same() -> None:
    torch.manual_seed(0)
    net = nn.Embedding(6, 8).to(DEVICE)
    before = copy.deepcopy(net).bfloat16()
    with torch.no_grad():
        net.weight[2] = before.weight[2] = 0
        net.weight[0] += 1
    with in_place():
        found = list(lw.check(net, against=before, select="LW115"))
    assert found == list(lw.check(copy.deepcopy(net).cpu(), against=copy.deepcopy(before).cpu(), select="LW115")) == []
