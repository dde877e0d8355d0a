"""Snapshots of tensors: equal as long as everything but the values is, in C and in Python."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import DEVICE
from torch import nn

from leafwise.homes.torch.gpu import snapshots
from leafwise.homes.torch.gpu.snapshots import are_plain, same, snapshot


@pytest.fixture(params=["C", "Python"], autouse=True)
def _in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(snapshots, "_function", lambda name: None)


def tensors() -> list[torch.Tensor]:
    x = torch.arange(48.0, device=DEVICE)
    return [
        x, x.view(6, 8), x.view(6, 8).T, x[::2], x[:0], x[0], x.bfloat16(), x.double(), x > 3, x.to(torch.complex64),
        x.to(torch.float8_e4m3fn), x.to(torch.uint8), x.view(1, 2, 3, 1, 2, 2, 2), nn.Parameter(x), x.int(),
        *[x.view([1] * number + [48]) for number in range(9, 14)],
    ]  # fmt: skip


def test_the_same_tensors_are_the_same_whatever_their_values() -> None:
    values = tensors()
    before = snapshot(values)
    assert before is not None
    values[0].mul_(2)
    assert same(before, snapshot(values))
    assert same(before, snapshot([value.detach() for value in values]))


@pytest.mark.parametrize("number", range(20))
def test_any_tensor_that_is_elsewhere_is_noticed(number: int) -> None:
    values = tensors()
    before = snapshot(values)
    values[number] = torch.empty(49, device=DEVICE)[1:]
    assert not same(before, snapshot(values))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.view(3, 4), lambda x: x.T, lambda x: x[:3], lambda x: x.view(torch.int32), lambda x: x.view(-1),
        lambda x: x.as_strided((4, 3), (1, 4)), lambda x: x.unsqueeze(0), lambda x: x[:0],
    ],
)  # fmt: skip
def test_another_shape_dtype_or_stride_at_the_same_address_is_noticed(change: Any) -> None:
    x = torch.arange(12.0, device=DEVICE).view(4, 3)
    before = snapshot([x])
    assert not same(before, snapshot([change(x)]))
    assert not same(before, snapshot([x, x]))


def test_tensors_without_memory_have_no_snapshot() -> None:
    x = torch.ones(3, device=DEVICE)
    assert snapshot([x, x.to_sparse()]) is None
    assert not same(None, None)
    assert snapshot([x]) is not None  # after an error, too


def test_snapshots_of_different_kinds_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device=DEVICE)
    one = snapshot([x])
    monkeypatch.setattr(snapshots, "_function", lambda name: None)
    assert same(one, snapshot([x])) is not isinstance(one, np.ndarray)


def test_a_subclass_is_not_plain() -> None:
    class Marked(torch.Tensor):
        pass

    x = torch.ones(3)
    assert are_plain([x, nn.Parameter(x), nn.Buffer(x)])
    assert not are_plain([x, x.as_subclass(Marked)])
