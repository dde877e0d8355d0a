"""How tensors reach the kernels; where there is no GPU, Triton's interpreter runs what is meant for one."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.cases import assert_agree
from tests.kernels.gpu import DEVICE

import leafwise as lw
from leafwise.homes.torch import launching
from leafwise.homes.torch import measuring as torch_measuring
from leafwise.homes.torch.home import HOME
from leafwise.kernels import cuda, reference


@pytest.fixture(autouse=True)
def _no_tables() -> Iterator[None]:
    torch_measuring._tables.clear()
    yield
    torch_measuring._tables.clear()


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


@pytest.mark.usefixtures("triton_runs")
def test_few_tables_are_kept() -> None:
    values = [torch.randn(3, device=DEVICE) for _ in range(20)]
    for value in values:
        on_gpu([value])
    assert len(torch_measuring._tables) == 8


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
