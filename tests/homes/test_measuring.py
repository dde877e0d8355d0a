"""How tensors reach the kernels; where there is no GPU, Triton's interpreter runs what is meant for one."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.cases import assert_agree
from tests.kernels.gpu import DEVICE
from torch import nn

import leafwise as lw
from leafwise.homes.torch.gpu import launching, snapshots
from leafwise.homes.torch.home import HOME
from leafwise.homes.torch.values import measuring as torch_measuring
from leafwise.kernels import reference
from leafwise.kernels.triton import cuda

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_tables() -> Iterator[None]:
    torch_measuring._tables._kept.clear()
    yield
    torch_measuring._tables._kept.clear()


def on_gpu(values: list[torch.Tensor]) -> list[Any]:
    with np.errstate(all="ignore"):
        wait = torch_measuring.TorchMeasuring(HOME).on_gpu(values, DEVICE, True)
        assert wait is not None
        return wait()


@pytest.mark.usefixtures("triton_runs")
def test_views_of_every_kind_are_measured_on_a_gpu() -> None:
    x = torch.randn(30, 40, device=DEVICE)
    values = [x, x.T, x[:, ::3], x[1:, 5:], x.unsqueeze(0).expand(2, -1, -1), x[:0], torch.tensor(2.5, device=DEVICE)]
    for value, found in zip(values, on_gpu(values), strict=True):
        assert_agree(found, reference.measure(np.ascontiguousarray(value.cpu().numpy())), 2e-6)


@pytest.mark.usefixtures("triton_runs")
def test_a_table_is_made_again_only_when_something_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    table_of = cuda.table_of
    monkeypatch.setattr(cuda, "table_of", lambda *given: (made.append(given), table_of(*given))[1])
    values = [torch.randn(10, device=DEVICE), torch.randn(20, device=DEVICE)]
    first = on_gpu(values)
    values[0].mul_(2)
    assert on_gpu(values)[0].l1 == pytest.approx(2 * first[0].l1)
    assert len(made) == 1
    values[1] = values[1].clone()
    on_gpu(values)
    assert len(made) == 2
    values[1] = values[1][:5]
    assert [found.count for found in on_gpu(values)] == [10, 5]
    assert len(made) == 3


@pytest.fixture
def kernels_run(triton_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs use the kernels for tensors on DEVICE, which is the CPU where Triton's interpreter runs them."""
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4, bias=False)).to(DEVICE)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


def agrees(source: Any, of: Any = "value") -> Any:
    """The statistics by the kernels, after comparing them with those of the values on the CPU."""
    with np.errstate(all="ignore"):
        stats = lw.stats(source, of)
        len(stats)
    for leaf in lw.tree(source):
        value = leaf.value if of == "value" else leaf.value.grad
        if value is not None:
            array = value.detach().cpu().numpy()
            assert_agree(stats[str(leaf.path)], reference.measure(np.ascontiguousarray(array)), 2e-6)
            assert stats[str(leaf.path)].shape == tuple(leaf.value.shape)
    return stats


@pytest.mark.usefixtures("kernels_run")
@pytest.mark.parametrize("in_c", [True, False])
def test_a_model_that_has_not_moved_is_not_checked_again(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(snapshots, "_function", lambda name: None)
    net = model()
    tree = lw.tree(net)
    agrees(net), agrees(net, "grad")
    asked: list[Any] = []
    monkeypatch.setattr(torch_measuring.TorchMeasuring, "cannot_measure", lambda _, value: asked.append(value) or "")
    for source in (net, tree):
        agrees(source), agrees(source, "grad")
    assert asked == []
    with torch.no_grad():
        net[0].weight.mul_(3)
    agrees(tree)
    assert asked == []
    net[0].weight.data = net[0].weight.data.clone()
    agrees(tree)
    assert len(asked) == 8  # all of them, once
    agrees(tree)
    assert len(asked) == 8


@pytest.mark.usefixtures("kernels_run")
@pytest.mark.parametrize("in_c", [True, False])
def test_what_changes_in_place_is_noticed(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(snapshots, "_function", lambda name: None)
    net = model()
    tree = lw.tree(net)
    weight = net[2].weight
    agrees(tree)
    address = weight.data_ptr()
    for change in (
        lambda data: data.view(30, 4),  # another shape
        lambda data: data.T,  # other strides
        lambda data: data[:7],  # fewer elements
        lambda data: data.view(torch.int32),  # another dtype
    ):
        weight.requires_grad_(False).data = change(weight.data)
        assert weight.data_ptr() == address
        agrees(tree)
        agrees(tree)
    net[1].running_mean = torch.ones(30, device=DEVICE)  # another buffer
    assert agrees(tree)["1.running_mean"].mean == 1
    weight.data = torch.empty(0, device=DEVICE)
    assert agrees(tree)["2.weight"].count == 0


@pytest.mark.usefixtures("kernels_run")
def test_leaves_without_a_gradient_are_skipped_again() -> None:
    net = model()
    net[0].bias.grad = None
    for _ in range(3):
        assert agrees(net, "grad").skipped.keys() >= {"0.bias"}
    net[0].bias.grad, net[0].weight.grad = torch.ones(30, device=DEVICE), None
    assert agrees(net, "grad").skipped.keys() >= {"0.weight"}
    assert agrees(net, "grad")["0.bias"].mean == 1


@pytest.mark.usefixtures("kernels_run")
def test_tensors_of_a_subclass_are_checked_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Marked(torch.Tensor):
        pass

    values = {"a": torch.ones(3, device=DEVICE).as_subclass(Marked), "b": torch.ones(3, device=DEVICE)}
    agrees(values)
    asked: list[Any] = []
    monkeypatch.setattr(torch_measuring.TorchMeasuring, "cannot_measure", lambda _, value: asked.append(value) or "")
    agrees(values)
    assert len(asked) == 2


@pytest.mark.usefixtures("kernels_run")
def test_results_of_several_calls_at_once_are_kept_apart() -> None:
    x = torch.ones(5000, device=DEVICE)
    with np.errstate(all="ignore"):
        before = lw.stats({"x": x})
        x.mul_(2)
        after = lw.stats({"x": x})
    x.mul_(2)
    assert (before["x"].mean, after["x"].mean) == (1, 2)


def test_a_capture_of_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(lw.WalkError, match="cannot measure values while a CUDA graph is being captured"):
        lw.stats({"x": torch.ones(3, device=DEVICE)})


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_model_on_a_gpu_and_the_cpu_keeps_the_order_of_its_leaves() -> None:
    values = {
        str(number): torch.full((3,), float(number), device="cuda" if number % 2 else "cpu") for number in range(6)
    }
    for _ in range(2):
        stats = lw.stats(values)
        assert [stats[str(number)].mean for number in range(6)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_another_stream_waits_for_nothing_else_and_has_its_own_tables() -> None:
    x = torch.ones(1 << 24, device="cuda")
    side = torch.cuda.Stream()
    lw.stats({"x": x})
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(3)
        on_side = lw.stats({"x": x})
        x.mul_(2)
    del x
    torch.cuda.empty_cache()
    reused = torch.zeros(1 << 24, device="cuda")
    assert on_side["x"].mean == 3
    assert len(torch_measuring._tables._kept) == 2
    del reused


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_tensor_that_is_freed_before_the_result_is_read_was_measured() -> None:
    x = torch.ones(1 << 26, device="cuda")
    columns = torch.ones(1 << 13, 1 << 13, device="cuda")[:, ::2]  # measured as a copy
    stats = lw.stats({"x": x, "columns": columns})
    del x, columns
    for _ in range(4):
        torch.full((1 << 26,), 7.0, device="cuda")
    del stats.tree
    assert (stats._waiting.moments[0].mean, stats._waiting.moments[1].mean) == (1, 1)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_real_capture_is_refused_and_goes_on() -> None:
    x = torch.ones(10, device="cuda")
    lw.stats({"x": x})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(lw.WalkError, match="while a CUDA graph is being captured"):
            lw.stats({"x": x})
        x.add_(1)
    graph.replay()
    assert lw.stats({"x": x})["x"].mean == 2


@pytest.mark.usefixtures("triton_runs")
def test_few_tables_are_kept() -> None:
    values = [torch.randn(3, device=DEVICE) for _ in range(20)]
    for value in values:
        on_gpu([value])
    assert len(torch_measuring._tables._kept) == 8


@pytest.mark.parametrize("name", ["mps", "xpu", "cpu", "meta"])
def test_kernels_run_only_on_cuda(name: str) -> None:
    assert not launching.runs_kernels(torch.device(name))


def test_what_lies_on_another_device_comes_by_way_of_the_cpu() -> None:
    values = [torch.randn(50), torch.randn(4, 5).T, torch.randn(9).bfloat16()]
    found = torch_measuring._copied_to_cpu(values, True)()
    assert found == torch_measuring._on_cpu(values, True)()


def test_results_from_several_devices_keep_the_order_of_the_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_measuring, "_copied_to_cpu", lambda values, _: lambda: list(map(torch.numel, values)))
    values = [torch.randn(1), torch.empty(20, device="meta"), torch.randn(3), torch.empty(40, device="meta")]
    found: list[Any] = torch_measuring.TorchMeasuring(HOME).measure(values, True, lambda count: None)()
    assert [one if isinstance(one, int) else one.count for one in found] == [1, 20, 3, 40]


def test_that_triton_is_missing_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    launching._has_triton.cache_clear()
    launching._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="Triton is not installed: values of tensors on a GPU are processed on"):
        assert not launching._has_triton()
    assert not launching._has_triton()
    launching._has_triton.cache_clear()


def test_that_triton_finds_no_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    launching._warn_once.cache_clear()
    monkeypatch.setattr(cuda, "measure", fails)
    with pytest.warns(UserWarning, match="Triton did not find a C compiler"):
        assert torch_measuring.TorchMeasuring(HOME).on_gpu([torch.ones(3, device=DEVICE)], DEVICE, True) is None
    assert torch_measuring.TorchMeasuring(HOME).on_gpu([torch.ones(3, device=DEVICE)], DEVICE, True) is None


def test_that_triton_cannot_write_what_it_compiles_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/home/me/.triton")

    launching._warn_once.cache_clear()
    monkeypatch.setattr(cuda, "measure", fails)
    with pytest.warns(UserWarning, match="Triton cannot write /home/me/.triton; set TRITON_CACHE_DIR"):
        assert torch_measuring.TorchMeasuring(HOME).on_gpu([torch.ones(3, device=DEVICE)], DEVICE, True) is None


def test_the_bytes_that_were_measured_are_counted() -> None:
    counted: list[int] = []
    torch_measuring.TorchMeasuring(HOME).measure(
        [torch.zeros(10), torch.zeros(6, dtype=torch.int64)], False, counted.append
    )
    assert sum(counted) == 88
    assert lw.stats({"a": torch.zeros(3)}, progress=True).total.count == 3


@pytest.mark.usefixtures("triton_runs")
def test_a_negated_view_is_not_taken_for_the_tensor_that_it_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    x = torch.tensor([3.0, 1.0], device=DEVICE)
    with np.errstate(all="ignore"):
        assert lw.stats({"x": x})["x"].max == 3
        assert lw.stats({"x": torch._neg_view(x)})["x"].max == -1
        assert lw.stats({"x": x})["x"].max == 3
        assert lw.stats({"x": torch.tensor([[1 + 3j]], device=DEVICE).conj().imag})["x"].max == -3
