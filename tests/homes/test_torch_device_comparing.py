"""Comparing tensors on a device where kernels run: a GPU, or the CPU with Triton's interpreter."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import DEVICE

import leafwise as lw
from leafwise.core.capabilities.comparing import Comparing, OtherArray
from leafwise.core.results.comparison import Comparison
from leafwise.homes.torch.gpu import device_comparing, device_streams, launching, snapshots, uploading
from leafwise.homes.torch.home import HOME
from leafwise.kernels.triton import cuda_comparing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_runs")]

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Kernels compare tensors on the device. The list has the number of pairs of each launch."""
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_comparing, "_CAREFUL_BLOCK", 4_096)
    launches: list[int] = []
    compare = cuda_comparing.compare

    def noticing(table: Any, with_norms: bool = False) -> Any:
        launches.append(len(table.columns.sizes))
        return compare(table, with_norms)

    monkeypatch.setattr(cuda_comparing, "compare", noticing)
    with np.errstate(all="ignore"):  # the interpreter is NumPy, and warns of what a GPU does in silence
        yield launches


def there(tensors: Tensors) -> Tensors:
    """The same tensors on the device, with the same strides."""
    return {
        name: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE).copy_(tensor)
        for name, tensor in tensors.items()
    }


def tensors() -> tuple[Tensors, Tensors]:
    """Two sides with every kind of change."""
    torch.manual_seed(0)
    a = {
        "square": torch.randn(33, 33), "changed": torch.randn(300), "wider": torch.randn(10, 7).bfloat16(),
        "turned": torch.randn(5, 9), "channels": torch.randn(8, 3, 4, 4).to(memory_format=torch.channels_last),
        "whole": torch.arange(10), "empty": torch.zeros(0), "scalar": torch.tensor(3.0),
        "strided": torch.randn(3, 4).t(), "float8": torch.randn(77).to(torch.float8_e4m3fn),
        "complex": torch.randn(5, dtype=torch.complex64), "nan": torch.randn(30), "narrower": torch.randn(40),
        "turned and narrower": torch.randn(6, 4), "huge": torch.randn(9, dtype=torch.float64) * 1e200,
        "flags": torch.tensor([True, False, True]), "reshaped": torch.randn(4, 6), "whole and float": torch.ones(4),
    }  # fmt: skip
    b = {name: tensor.clone() for name, tensor in a.items()}
    b["square"] = a["square"].t().contiguous()
    b["changed"][7] += 1
    b["wider"] = a["wider"].float()
    b["turned"] = a["turned"].t().contiguous()
    b["channels"][0, 0, 0, 0] += 1
    b["whole"][3] = 99
    b["strided"] = a["strided"].contiguous()
    b["complex"][1] = 0
    b["nan"] = torch.full((30,), math.nan)
    b["narrower"] = a["narrower"].bfloat16()
    b["turned and narrower"] = a["turned and narrower"].t().bfloat16().contiguous()
    b["huge"] = -a["huge"]
    b["reshaped"] = torch.randn(6, 4)
    b["whole and float"] = torch.ones(4, dtype=torch.int32)
    return a, b


def changes(a: Any, b: Any) -> dict[str, tuple[tuple[str, ...], Comparison | None]]:
    return {change.path: (change.kinds, change.comparison) for change in lw.diff(a, b)}


def assert_equal_changes(found: dict[str, Any], right: dict[str, Any]) -> None:
    assert found.keys() == right.keys()
    for path, (kinds, comparison) in right.items():
        found_kinds, found_comparison = found[path]
        assert found_kinds == kinds, path
        if comparison is None:
            assert found_comparison is None, path
            continue
        assert found_comparison[:3] == comparison[:3], path
        assert np.allclose(found_comparison[3:9], comparison[3:9], rtol=1e-12, atol=0, equal_nan=True), path


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """The changes on the CPU, without kernels."""
    found = changes(*tensors())
    assert {kind for kinds, _ in found.values() for kind in kinds} == {
        "same", "changed", "cast", "transposed", "reshaped",
    }  # fmt: skip
    return found


def test_a_diff_on_the_device_is_that_on_the_cpu(on_device: list[int], right: dict[str, Any]) -> None:
    a, b = tensors()
    assert_equal_changes(changes(there(a), there(b)), right)
    # Contiguous tensors in one launch, copies of the others in a second; the rest are transposed.
    assert on_device[:2] == [15, 1]


def test_nothing_is_launched_where_kernels_cannot_run(
    on_device: list[int], right: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({"mps"}))
    a, b = tensors()
    assert_equal_changes(changes(there(a), there(b)), right)
    assert on_device == []


def test_tensors_are_compared_with_a_file_on_either_side(
    on_device: list[int], right: dict[str, Any], tmp_path: Path
) -> None:
    a, b = tensors()
    lw.save(a, tmp_path / "a.safetensors")
    lw.save(b, tmp_path / "b.safetensors")
    assert_equal_changes(changes(there(a), tmp_path / "b.safetensors"), right)
    assert_equal_changes(changes(tmp_path / "a.safetensors", there(b)), right)
    assert max(on_device) > 10


def test_small_buffers_give_the_same_result(on_device: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_streams, "_STAGING", 1 << 18)
    monkeypatch.setattr(uploading, "BUFFER", 1 << 16)
    a = {"long": torch.randn(200_000), "short": torch.randn(5), "same": torch.ones(70_000)}
    b = {name: tensor.clone() for name, tensor in a.items()}
    b["long"][199_999] += 1
    b["short"][0] = 7
    arrays = {name: tensor.numpy() for name, tensor in b.items()}
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset())
    expected = changes(a, b)
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    assert_equal_changes(changes(there(a), arrays), expected)
    assert len(on_device) > 2
    assert_equal_changes(changes(arrays, there(a)), changes(arrays, {name: x.numpy() for name, x in a.items()}))


def test_values_that_come_in_pieces_are_streamed_in_order(on_device: list[int], tmp_path: Path) -> None:
    a = {"x": torch.randn(70_000), "y": torch.arange(9)}
    np.savez_compressed(tmp_path / "a.npz", **{name: tensor.numpy() for name, tensor in a.items()})
    assert lw.diff(there(a), tmp_path / "a.npz").same
    a["x"][69_999] += 1
    assert lw.diff(there(a), tmp_path / "a.npz").counts == {"changed": 1, "same": 1}
    assert on_device


@pytest.mark.parametrize("count", [3, 5])
def test_pieces_of_another_length_than_the_shape_says_are_an_error(count: int, on_device: list[int]) -> None:
    other = OtherArray((4,), "float32", 4, None, lambda: [np.zeros(count, np.float32)])
    with pytest.raises(ValueError, match="values than the shape says"):
        HOME.capability(Comparing).compare_on_device([torch.zeros(4, device=DEVICE)], [other], lambda count: None)


def test_an_error_of_the_device_names_the_leaves(on_device: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with more checks")

    monkeypatch.setattr(cuda_comparing, "compare", gone)
    a = there({"x": torch.ones(3), "y": torch.ones(3)})
    with pytest.raises(
        lw.WalkError, match="cannot compare the values of x and 1 more: RuntimeError: CUDA error: an illegal"
    ):
        lw.diff(a, there({"x": torch.ones(3), "y": torch.ones(3)}))


def test_a_truncated_file_is_an_error(on_device: list[int], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    a = {"x": torch.randn(100_000)}
    lw.save(a, path)
    with lw.open(path) as t:
        os.truncate(path, path.stat().st_size - 1_000)
        with pytest.raises(lw.FileError, match="the file ends here"):
            lw.diff(there(a), t)


def test_without_pinned_memory_values_are_compared_on_the_cpu(
    on_device: list[int], right: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uploading, "pinned_pool", lambda device, buffers: None)
    a, b = tensors()
    lw.save(b, tmp_path / "b.safetensors")
    assert_equal_changes(changes(there(a), tmp_path / "b.safetensors"), right)
    assert on_device == []


def test_without_memory_on_the_device_values_are_compared_in_pieces(
    on_device: list[int], right: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*args: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("out of memory")

    a, b = tensors()
    lw.save(b, tmp_path / "b.safetensors")
    monkeypatch.setattr(device_comparing, "_free", lambda device: 0)
    assert_equal_changes(changes(there(a), there(b)), right)
    assert_equal_changes(changes(there(a), tmp_path / "b.safetensors"), right)
    monkeypatch.setattr(cuda_comparing, "table_of", full)
    assert_equal_changes(changes(there(a), there(b)), right)


def test_a_matrix_is_transposed_only_if_all_of_it_is(on_device: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_comparing, "_BAND_ELEMENTS", 512)
    x = torch.randn(64, 64)
    y = x.t().contiguous()
    assert lw.diff(there({"x": x}), there({"x": y}))["x"].kinds == ("transposed",)
    y[63, 62] += 1
    change = lw.diff(there({"x": x}), there({"x": y}))["x"]
    assert change.kinds == ("changed",)
    assert change.comparison is not None
    assert change.comparison.changed == int((x != y).sum())


def test_views_of_one_memory_are_compared(on_device: list[int]) -> None:
    base = torch.randn(100, device=DEVICE)
    pairs = {"every other": base[::2], "expanded": base[:1].expand(50), "odd address": base[3:53]}
    others = {"every other": base[1::2], "expanded": base[:50], "odd address": base[3:53].clone()}
    d = lw.diff(pairs, others)
    assert [change.kind for change in d] == ["changed", "changed", "same"]
    for name in ("every other", "expanded"):
        comparison = d[name].comparison
        assert comparison is not None
        assert comparison.changed == int((pairs[name] != others[name]).sum())
        assert math.isclose(comparison.distance, float((pairs[name].double() - others[name].double()).norm()))


def test_a_table_is_made_again_when_a_tensor_moves(on_device: list[int]) -> None:
    a, b = there({"x": torch.ones(5), "y": torch.ones(5)}), there({"x": torch.ones(5), "y": torch.ones(5)})
    assert lw.diff(a, b).same
    kept = a["y"]  # so that its memory is not used again
    a["y"] = torch.zeros(5, device=DEVICE)
    assert lw.diff(a, b).counts == {"changed": 1, "same": 1}
    b["x"][2] = 4
    assert lw.diff(a, b).counts == {"changed": 2}
    assert bool(kept.all())


def test_progress_counts_the_bytes_of_the_first_side(on_device: list[int], tmp_path: Path) -> None:
    from leafwise.core.pairing.row_pairs import Side
    from leafwise.inspect.value_comparison import compare_values

    a, b = tensors()
    lw.save(b, tmp_path / "b.safetensors")
    for second in (lw.tree(there(b)), lw.open(tmp_path / "b.safetensors")):
        sides = Side(lw.tree(there(a))), Side(second)
        rows = [dict(zip(side.names, side.rows, strict=True)) for side in sides]
        pairs = [(sides[0].array(rows[0][name]), sides[1].array(rows[1][name])) for name in rows[0]]
        counted: list[int] = []
        compare_values(pairs, counted.append)
        assert sum(counted) == sum(first.spec.nbytes for first, _ in pairs)


def test_values_are_not_compared_while_a_graph_is_captured(
    on_device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    a = {"x": torch.ones(3, device=DEVICE)}
    with pytest.raises(lw.WalkError, match="cannot compare values while a CUDA graph is being captured"):
        lw.diff(a, a)


def test_equal_leaves_are_found_on_the_device(on_device: list[int]) -> None:
    x = torch.randn(6, 4)
    a = {"x": x, "same": x.clone(), "turned": x.t().contiguous(), "other": x.flip(0), "flat": x.reshape(-1).clone()}
    found = lw.ties(there(a), equal_untied=True).equal_untied
    assert found is not None
    names = [([str(leaf.path) for leaf in group.leaves], group.op) for group in found]
    assert names == [(["x", "same"], "same"), (["x", "turned"], "transpose")]
    assert on_device


def test_fingerprints_do_not_depend_on_where_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes.torch.home import TorchHome
    from leafwise.homes.torch.values import comparing

    capability = comparing.TorchComparing(TorchHome())
    a, _ = tensors()
    expected = {name: capability.fingerprint(tensor) for name, tensor in a.items()}
    monkeypatch.setattr(comparing, "is_elsewhere", lambda value: True)
    assert {name: capability.fingerprint(tensor) for name, tensor in there(a).items()} == expected


def test_one_tensor_without_memory_among_many_is_reported(on_device: list[int]) -> None:
    a, b = ({f"w{number}": torch.ones(3, 4, device=DEVICE) for number in range(40)} for _ in range(2))
    a["w7"].untyped_storage().resize_(8)
    d = lw.diff(a, b)
    assert d.counts == {"unknown": 1, "same": 39}
    assert "its memory was freed" in d["w7"].notes[0]


def test_layouts_are_those_that_pytorch_reports() -> None:
    matrix = torch.ones(3, 4)
    values = [matrix, matrix.t(), matrix[1:, :2], torch.ones(2, 1, 5), torch.tensor(1.0), torch.ones(0, 3), matrix[2:]]
    values += [torch.ones(5, dtype=torch.bfloat16)[1:], torch.ones(2, 2, dtype=torch.complex64)]
    layouts = snapshots.layouts(values)
    if layouts is None:
        pytest.skip("the library in C is not built, or PyTorch does not describe tensors")
    for value, address, item_bytes, _, size, is_contiguous, rows, columns in zip(values, *layouts, strict=True):
        assert address == value.data_ptr() or not value.numel()
        assert (item_bytes, size) == (value.element_size(), value.numel())
        assert bool(is_contiguous) == value.is_contiguous()
        assert (rows, columns) == (tuple(value.shape) if value.dim() == 2 else (0, 0))
    assert snapshots.layouts([matrix, torch.ones(2, device="meta")]) is None


def test_without_memory_for_a_transpose_the_pair_is_compared_in_another_way(
    on_device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(6, 4)
    a, b = there({"x": x}), there({"x": x.t().contiguous()})
    expected = lw.diff(a, b)["x"].kinds
    assert expected == ("transposed",)

    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device_comparing, "how_transposed", short)
    assert lw.diff(a, b)["x"].kinds == expected
