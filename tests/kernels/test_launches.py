"""A kernel that is launched again skips Triton's checks, where Triton is known to allow that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from leafwise.kernels.triton import launches
from leafwise.kernels.triton.launches import Launch


class Compiled:
    """Like a compiled kernel of Triton."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *given: self.calls.append((grid, *given))


class Kernel:
    arg_names = ("x", "size", "BLOCK")

    def __init__(self, compiled: Compiled | None) -> None:
        self.compiled = compiled
        self.calls: list[Any] = []

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Compiled | None]:
        return lambda **given: (self.calls.append((grid, given)), self.compiled)[1]


def launched(kernel: Kernel, times: int = 3) -> tuple[torch.Tensor, dict[str, Any]]:
    x = torch.zeros(4)
    arguments = {"BLOCK": 128, "size": 4, "x": x}
    launch = Launch(kernel, 7, arguments, num_warps=2)
    for _ in range(times):
        launch()
    return x, arguments


def test_after_the_first_call_the_compiled_kernel_gets_the_arguments_in_the_order_of_its_signature() -> None:
    calls: list[Any] = []
    kernel = Kernel(Compiled(calls))
    x, arguments = launched(kernel)
    assert kernel.calls == [((7,), {**arguments, "num_warps": 2})]
    assert calls == [((7, 1, 1), x.data_ptr(), 4, 128)] * 2


def test_the_interpreter_is_called_in_the_ordinary_way_every_time() -> None:
    kernel = Kernel(None)
    launched(kernel)
    assert len(kernel.calls) == 3


@pytest.mark.parametrize("version", ["3.4.0", "3.10.1", "4.0.0+git123"])
def test_other_releases_of_triton_are_called_in_the_ordinary_way(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches.triton, "__version__", version)
    kernel = Kernel(Compiled([]))
    launched(kernel)
    assert len(kernel.calls) == 3
