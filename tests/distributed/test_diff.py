"""`lw.diff` of sharded models on real ranks, compared with the same models in one process."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.models import Net, fsdp, sharded_models
from tests.distributed.ranks import run_ranks
from tests.distributed.test_stats import plant_nonfinite, said, whole_state
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import leafwise as lw

COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
EXACT = ("size", "changed", "nonfinite", "nonfinite_changed", "largest")
ROUNDED = ("distance", "norm", "other_norm", "cosine", "relative_l2")


def assert_same_changes(d: Any, expected: Any, where: object) -> None:
    assert d.counts == expected.counts, (where, d.counts, expected.counts)
    assert [change.path for change in d] == [change.path for change in expected], where
    for change, other in zip(d, expected, strict=True):
        assert (change.kinds, change.other, change.notes) == (other.kinds, other.other, other.notes), (
            where,
            change.path,
        )
        assert (change.comparison is None) == (other.comparison is None), (where, change.path)
        if change.comparison is None:
            continue
        for name in (*EXACT, *ROUNDED):
            value, target = getattr(change.comparison, name), getattr(other.comparison, name)
            same = value == target or (value != value and target != target)
            is_near = name in ROUNDED and value == pytest.approx(target, rel=1e-9, abs=1e-12)
            assert same or is_near, (where, change.path, name, value, target)


def changed_a_little(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A copy in which some leaves differ in their first value, and others in their last."""
    changed = {name: value.clone() for name, value in state.items()}
    for number, (name, value) in enumerate(state.items()):
        flat = changed[name].view(-1)
        if value.is_floating_point() and number % 3 == 0:
            flat[0] += 0.5
        elif value.is_floating_point() and number % 3 == 1 and value.numel() > 1:
            flat[-1] = float("nan")
    return changed


def against_files_and_models(count: int, folder: Path) -> list[Any]:
    results = []
    for number, (name, model) in enumerate(sharded_models(count).items()):
        plant_nonfinite(model)
        state = whole_state(model)
        changed = changed_a_little(state)
        for form in ("safetensors", "npz", "pt"):
            path = folder / f"{number}.{form}"
            if distributed.get_rank() == 0:
                if form == "npz":
                    np.savez_compressed(path, **{key: value.numpy() for key, value in changed.items()})
                elif form == "pt":
                    torch.save(changed, path)
                else:
                    lw.save(changed, path)
            distributed.barrier()
            for pair in ((model, path), (path, model)):
                d = lw.diff(*pair)
                plain = [state if side is model else side for side in pair]
                assert_same_changes(d, _in_order(lw.diff(*plain), d), (name, form, pair[0] is model))
        d = lw.diff(model, changed)
        assert_same_changes(d, _in_order(lw.diff(state, changed), d), name)
        assert lw.diff(model, state).same
        assert lw.diff(state, model).same
        assert lw.diff(model, model).same
        results.append((d.counts, [repr(change.comparison) for change in d]))
    return results


class _in_order(list):  # type: ignore[type-arg] # noqa: N801
    """The changes of one diff in the order of another: the leaves of a model and of its state dict may be listed in
    different orders."""

    def __init__(self, d: Any, like: Any) -> None:
        super().__init__(d[change.path] for change in like)
        self.counts = d.counts


@COUNTS
def test_a_sharded_model_against_a_file_is_the_whole_model_against_the_file(count: int, tmp_path: Path) -> None:
    results = run_ranks(count, against_files_and_models, count, tmp_path)
    assert all(result == results[0] for result in results)
    assert all(counts["changed"] >= 3 for counts, _ in results[0]), [counts for counts, _ in results[0]]


def every_kind() -> None:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    square, wide, long = torch.randn(6, 6), torch.randn(3, 8), torch.randn(40)
    first = {
        "same": square, "changed": square, "turned": square, "wide": wide, "reshaped": wide, "cast": wide,
        "cast, changed": wide, "other size": wide, "old name": long, "gone": torch.ones(5), "bits": torch.arange(9),
        "bools": torch.tensor([True, False, True]), "nearly turned": square, "old matrix": torch.randn(5, 4),
    }  # fmt: skip
    nearly = square.t().clone()
    nearly[2, 3] += 1
    second = {
        "same": square, "changed": square + 1, "turned": square.t().contiguous(), "wide": wide.t().contiguous(),
        "reshaped": wide.reshape(4, 6), "cast": wide.to(torch.bfloat16), "cast, changed": wide.double() + 1e-9,
        "other size": torch.ones(7), "new name": long, "more": torch.zeros(2, 2), "bits": torch.arange(9) + 1,
        "bools": torch.tensor([True, True, True]), "nearly turned": nearly,
        "new matrix": first["old matrix"].t().contiguous(),
    }  # fmt: skip

    first, second = ({name: value.clone() for name, value in state.items()} for state in (first, second))

    def split(state: dict[str, torch.Tensor], axis: int) -> dict[str, Any]:
        return {
            name: distribute_tensor(value, mesh, [Shard(axis % value.ndim)], src_data_rank=None)
            for name, value in state.items()
        }

    expected = lw.diff(first, second)
    assert {"same", "changed", "transposed", "reshaped", "cast", "renamed", "added", "removed"} <= set(expected.counts)
    assert expected["nearly turned"].kinds == ("changed",), expected["nearly turned"]
    for axis in (0, 1):
        for other in (second, split(second, axis), split(second, 1 - axis)):
            assert_same_changes(lw.diff(split(first, axis), other), expected, axis)
        assert_same_changes(lw.diff(first, split(second, axis)), expected, axis)
    assert lw.diff(split(first, 0), second, values=False).counts == lw.diff(first, second, values=False).counts


def test_every_kind_of_change_is_found_also_between_two_shardings() -> None:
    run_ranks(2, every_kind)


def odd_meshes() -> None:
    """Meshes of the same shape with the ranks in another order, and copies beside shards."""
    value = torch.arange(24.0).view(6, 4)
    forward, backward = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [3, 1, 2, 0])
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    sharded = [
        {"w": distribute_tensor(value, mesh, placements, src_data_rank=None)}
        for mesh, placements in [
            (forward, [Shard(0)]), (backward, [Shard(0)]), (two, [Replicate(), Shard(1)]), (two, [Shard(0), Shard(0)]),
            (two, [Replicate(), Replicate()]),
        ]
    ]  # fmt: skip
    for first in sharded:
        for second in sharded:
            assert lw.diff(first, second).same
            changed = {"w": second["w"] + 0}
            changed["w"].to_local().add_(1)
            d = lw.diff(first, changed)
            assert (d["w"].kind, d["w"].comparison.changed, d["w"].comparison.largest) == ("changed", 24, 1.0)


def test_meshes_in_another_order_and_copies() -> None:
    run_ranks(4, odd_meshes)


def only_own_bytes(folder: Path) -> tuple[int, int]:
    """How many bytes of the file this rank reads, and how many it has of the model."""
    from leafwise.kernels import comparing

    model = fsdp(Net(16, 32, 8), init_device_mesh("cpu", (2,)))
    path, state = folder / "model.safetensors", whole_state(model)
    if distributed.get_rank() == 0:
        lw.save(state, path)
    distributed.barrier()
    kept, read = comparing.compare_parts, []

    def counted(pairs: Any, parts: Any, always: bool, threads: Any) -> Any:
        read.extend((part.stop - part.start) * 4 for part in parts if pairs[part.pair][1].file >= 0)
        return kept(pairs, parts, always, threads)

    comparing.compare_parts = counted
    assert lw.diff(model, path).same
    return sum(read), sum(value.to_local().nbytes for value in model.parameters())


def test_each_rank_reads_only_its_own_part_of_the_file(tmp_path: Path) -> None:
    for number, (read, own) in enumerate(run_ranks(2, only_own_bytes, tmp_path)):
        assert read == own + (0 if number else 32)  # the first rank also compares the buffer, which is whole


def not_comparable() -> None:
    mesh = init_device_mesh("cpu", (2,))
    whole = {"a": torch.ones(3, 3), "b": torch.ones(2)}
    pending = {"a": DTensor.from_local(torch.ones(3, 3), mesh, [Partial()]), "b": torch.ones(2)}
    d = lw.diff(pending, whole)
    assert (d["a"].kind, d["b"].kind) == ("unknown", "same")
    assert "Partial" in d["a"].notes[-1]


def told_differences(case: str, folder: Path) -> str:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    state = whole_state(model)
    path = folder / f"{rank}.safetensors"
    lw.save({**state, "head.bias": torch.ones(4)} if rank and case == "file" else state, path)
    if case == "truncated" and rank:
        with lw.open(path) as t:
            os.truncate(path, path.stat().st_size - 100)
            return said(lambda: lw.diff(model, t))
    return said(lambda: lw.diff(model, path))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("file", "lw.diff stopped at head.bias: rank 1 has 3 float32, shard(0) over 2 ranks and head.bias 4 float32"),
        ("truncated", "rank 1 failed: FileError: "),
    ],
)
def test_a_rank_with_another_file_is_named(case: str, message: str, tmp_path: Path) -> None:
    texts = run_ranks(2, told_differences, case, tmp_path)
    assert texts[0].startswith(message), texts


def test_leaves_that_cannot_be_compared_are_unknown() -> None:
    run_ranks(2, not_comparable)


def one_dies() -> str:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    state = whole_state(model)
    if distributed.get_rank():
        os._exit(9)
    return said(lambda: lw.diff(model, state))


def test_a_rank_that_died_is_an_error() -> None:
    message, _ = run_ranks(2, one_dies, dies={1})
    assert message.startswith("cannot reach every one of the ranks 0, 1: ")
