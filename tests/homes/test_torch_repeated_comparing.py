"""Comparing tensors again on a device where kernels run: a GPU, or the CPU with Triton's interpreter."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import DEVICE
from torch import nn

import leafwise as lw
from leafwise.homes.torch.gpu import launching, repeated_comparing
from leafwise.inspect import value_comparison
from leafwise.kernels.triton import cuda_comparing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_runs", "on_device")]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels compare tensors on the device, and nothing was compared before."""
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    monkeypatch.setattr(repeated_comparing, "_kept", {})
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_comparing, "_CAREFUL_BLOCK", 4_096)
    with np.errstate(all="ignore"):  # the interpreter is NumPy, and warns of what a GPU does in silence
        yield


@pytest.fixture
def other_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of pairs of each comparison that began by asking about every tensor."""
    asked: list[int] = []
    compare_arrays = value_comparison.compare_arrays

    def noticing(firsts: Any, *options: Any) -> Any:
        asked.append(len(firsts))
        return compare_arrays(firsts, *options)

    monkeypatch.setattr(value_comparison, "compare_arrays", noticing)
    return asked


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 3, bias=False).bfloat16())
    layers.append(nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)]))
    layers.register_buffer("mean", torch.zeros(3))
    return layers.to(DEVICE)


def two_models() -> tuple[nn.Module, nn.Module]:
    return model(), model()


def as_on_the_cpu(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The changes of the same values, without kernels."""
    with monkeypatch.context() as context:
        context.setattr(launching, "KERNEL_DEVICES", frozenset())
        return list(lw.diff(a, b))


def assert_equal_changes(found: list[Any], right: list[Any]) -> None:
    for change, expected in zip(found, right, strict=True):
        assert change._replace(comparison=None) == expected._replace(comparison=None)
        if expected.comparison is None:
            assert change.comparison is None
        else:
            assert change.comparison[:3] == expected.comparison[:3]
            close = np.allclose(change.comparison[3:9], expected.comparison[3:9], rtol=1e-12, atol=0, equal_nan=True)
            assert close, change.path


def test_what_was_compared_before_is_compared_without_asking_about_it(
    other_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_models()
    leaves = len(lw.diff(a, b))
    for turn in range(3):  # with a new table, and twice with a kept one
        with torch.no_grad():
            b[0].bias[turn] += 1
            b[1].weight.mul_(1.5)
        d = lw.diff(a, b)
        assert (d.same, d.counts) == (False, {"changed": 2, "same": leaves - 2})
        assert other_way == [leaves]
        assert_equal_changes(list(d), as_on_the_cpu(a, b, monkeypatch))
        del other_way[1:]
    with torch.no_grad():
        torch._foreach_copy_(list(b.parameters()), list(a.parameters()))
    d = lw.diff(a, b)
    assert (d.same, d.counts, other_way) == (True, {"same": leaves}, [leaves])
    assert_equal_changes(list(d), as_on_the_cpu(a, b, monkeypatch))


def test_trees_are_compared_again_as_their_models_are(other_way: list[int]) -> None:
    a, b = two_models()
    first, second = lw.tree(a), lw.tree(b)
    assert lw.diff(a, b).same
    with torch.no_grad():
        b[2][1].zero_()
    assert [change.path for change in lw.diff(first, second).of("changed")] == ["2.1"]
    assert [change.path for change in lw.diff(first, b).of("changed")] == ["2.1"]
    assert len(other_way) == 1


def test_a_square_matrix_that_is_transposed_meanwhile_is_found(other_way: list[int]) -> None:
    a, b = two_models()
    assert lw.diff(a, b).same
    with torch.no_grad():
        b[0].weight.copy_(a[0].weight.t())
    d = lw.diff(a, b)
    assert d.counts == {"transposed": 1, "same": len(d) - 1}
    assert d["0.weight"].kinds == ("transposed",)
    assert d["0.weight"].comparison is None
    with torch.no_grad():
        b[0].weight[6, 0] += 1
    assert lw.diff(a, b)["0.weight"].kinds == ("changed",)
    assert len(other_way) == 1


def moved(b: Any) -> None:
    b[0].weight = nn.Parameter(b[0].weight.detach() + 1)


def moved_below(b: Any) -> None:
    b[0].weight.data = b[0].weight.data + 1


def reshaped(b: Any) -> None:
    b[0].weight.data = b[0].weight.data.view(49)


def cast(b: Any) -> None:
    b[1].weight.data = b[1].weight.data.view(torch.float16)


def strided(b: Any) -> None:
    b[0].weight.data = b[0].weight.data.t()


def negated(b: Any) -> None:
    b[2][1].data = torch._neg_view(b[2][1].data)


def freed(b: Any) -> None:
    b[0].bias.untyped_storage().resize_(0)


def replaced_buffer(b: Any) -> None:
    b.mean = torch.full((3,), 3.0, device=DEVICE)


@pytest.mark.parametrize(
    "change", [moved, moved_below, reshaped, cast, strided, negated, freed, replaced_buffer], ids=lambda it: it.__name__
)
def test_what_changed_besides_values_is_noticed(
    change: Callable[[Any], None], other_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_models()
    trees = lw.tree(a), lw.tree(b)
    assert lw.diff(a, b).same
    assert lw.diff(a, b).same  # which keeps a table
    change(b)
    d = lw.diff(a, b)
    assert not d.same
    assert len(other_way) == 2
    assert_equal_changes(list(d), as_on_the_cpu(a, b, monkeypatch))
    assert not lw.diff(*trees).same  # which were walked before


def test_a_parameter_that_a_library_marks_meanwhile_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two_models()
    assert lw.diff(a, b).same
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    assert lw.diff(a, b).same
    b[0].weight._fsdp_flattened = True
    d = lw.diff(a, b)
    assert d["0.weight"].kinds == ("unknown",)
    assert "FSDP1" in d["0.weight"].notes[0]


def test_the_same_arrays_under_other_names_are_paired_by_name(other_way: list[int]) -> None:
    x, y = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    copies = x.clone(), y.clone()
    assert lw.diff({"x": x, "y": y}, {"x": copies[0], "y": copies[1]}).same
    d = lw.diff({"x": x, "y": y}, {"y": copies[0], "x": copies[1]})
    assert [(change.path, change.kind) for change in d] == [("x", "changed"), ("y", "changed")]
    renamed = lw.diff({"x": x, "y": y}, {"x": copies[0], "z": copies[1]})
    assert (renamed["y"].kinds, renamed["y"].other) == (("renamed",), "z")
    assert len(other_way) > 2


def test_specs_are_those_of_the_arrays_that_are_there_now() -> None:
    a, b = two_models()
    trees = lw.tree(a), lw.tree(b)
    for changed_model in (a, b):
        changed_model[2][0] = nn.Parameter(torch.ones(2, 2, device=DEVICE))
    lw.diff(*trees)  # which were walked before
    d = lw.diff(a, b)
    assert d["2.0"].shape == d["2.0"].other_shape == (2, 2)
    assert lw.diff(a, b)["2.0"].shape == (2, 2)


def test_ties_are_reported_again(other_way: list[int]) -> None:
    def tied() -> nn.Module:
        layers = model()
        layers[2][1] = layers[2][0]
        return layers

    a, b, untied = tied(), tied(), model()
    with torch.no_grad():
        untied[2][1].copy_(untied[2][0])
    for _ in range(3):
        d = lw.diff(a, b)
        assert (d.same, len(d)) == (True, len(lw.tree(a)))
    assert len(other_way) == 1
    expected = list(lw.diff(a, untied))
    assert "untied" in {change.kind for change in expected}
    assert list(map(str, lw.diff(a, untied))) == list(map(str, expected))


def test_an_error_of_the_device_names_the_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two_models()
    assert lw.diff(a, b).same

    def failing(*_: Any) -> Any:
        raise RuntimeError("device lost")

    monkeypatch.setattr(cuda_comparing, "compare", failing)
    with pytest.raises(lw.WalkError, match=r"cannot compare the values of mean and \d+ more: .*device lost"):
        lw.diff(a, b)
    monkeypatch.setattr(cuda_comparing, "compare", lambda *_: failing)
    with pytest.raises(lw.WalkError, match=r"cannot compare the values of mean and \d+ more: .*device lost"):
        lw.diff(a, b)


def test_without_memory_on_the_device_values_are_compared_in_another_way(
    other_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_models()
    assert lw.diff(a, b).same

    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(repeated_comparing.cuda_comparing, "compare", short)
    assert lw.diff(a, b).same
    assert len(other_way) == 2


def test_neither_a_diff_nor_what_is_kept_keeps_models_in_memory() -> None:
    a, b = two_models()
    lw.diff(a, b)
    lw.diff(a, b)
    d = lw.diff(a, b)
    there = weakref.ref(a[0].weight), weakref.ref(b.mean)
    del a, b
    gc.collect()
    assert [ref() for ref in there] == [None, None]
    assert d.same
    assert d["0.weight"].shape == (7, 7)


def test_only_the_last_few_are_kept() -> None:
    arrays = [{"x": torch.ones(2, device=DEVICE)} for _ in range(7)]
    for other in arrays[1:]:
        assert lw.diff(arrays[0], other).same
    assert 0 < len(repeated_comparing._kept) <= repeated_comparing._MOST_KEPT
