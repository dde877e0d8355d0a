"""Statistics of files: every format, arrays of any layout, and files that change meanwhile."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.files.writers import WRITERS, arrays
from tests.kernels.cases import assert_agree
from tests.open_files import open_files

import leafwise as lw
from leafwise.files.reading import measuring
from leafwise.kernels import cpu, reference


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_measured(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "model", arrays())
    s = lw.stats(tmp_path / "model")
    with lw.open(tmp_path / "model") as tree:
        assert set(s) | set(s.skipped) == {str(path) for path, _ in tree.items()}
        assert len(s) > 0
        for path, row in s.items():
            assert_agree(row, reference.measure(np.ascontiguousarray(tree[path].numpy())))


def test_arrays_in_another_order_give_the_same_bits_as_in_memory(tmp_path: Path) -> None:
    x = torch.randn(300, 200, 4)
    state = {"turned": x[..., 0].clone().T, "mixed": x.permute(2, 0, 1), "cut": x[:, ::2, 1].clone().T[3:]}
    torch.save(state, tmp_path / "model.pt")
    assert lw.stats(tmp_path / "model.pt") == lw.stats(state)


def test_closing_the_tree_meanwhile_does_not_make_it_read_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({"a": torch.zeros(1_000)}, tmp_path / "a.safetensors")
    other = lw.save({"a": torch.ones(1_000)}, tmp_path / "b.safetensors")
    measure_chunks = cpu.measure_chunks
    opened = []

    def meanwhile(*given: Any, **more: Any) -> Any:
        tree.close()
        opened.append(os.open(other, os.O_RDONLY))  # gets the descriptor number that became free
        return measure_chunks(*given, **more)

    monkeypatch.setattr(cpu, "measure_chunks", meanwhile)
    tree = lw.open(path)
    with pytest.raises(lw.FileError, match="is closed"):
        lw.stats(tree)
    os.close(opened[0])


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = lw.save({"a": torch.zeros(1_000)}, tmp_path / "a.safetensors")
    lw.stats(path)
    assert open_files(tmp_path) == []


def test_arrays_that_share_memory_in_a_file_count_once(tmp_path: Path) -> None:
    shared = torch.randn(5, 4)
    torch.save({"a": shared, "b": shared.T, "c": shared[1]}, tmp_path / "model.pt")
    s = lw.stats(tmp_path / "model.pt")
    assert list(s) == ["a"]
    assert s["b"].count == s.total.count == 20


def test_many_small_arrays_are_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {f"layers.{number}": torch.full((7,), float(number)) for number in range(3_000)}
    path = lw.save(model, tmp_path / "model.safetensors")
    calls = []
    measure_chunks = cpu.measure_chunks
    monkeypatch.setattr(
        cpu,
        "measure_chunks",
        lambda runs, *rest, **more: (calls.append(len(runs)), measure_chunks(runs, *rest, **more))[1],
    )
    s = lw.stats(path)
    assert len(calls) == 1
    assert [row.mean for row in s.values()] == list(range(3_000))


def test_bundling_pieces_differently_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    sizes = (cpu.PIECE + 5, 3, 2 * cpu.PIECE, 0, 1, cpu.CHUNK)
    state = {f"a{number}": generator.normal(size=size).astype(np.float32) for number, size in enumerate(sizes)}
    np.savez(tmp_path / "a.npz", **state)
    wanted = list(lw.stats(state).values())
    assert list(lw.stats(tmp_path / "a.npz").values()) == wanted
    monkeypatch.setattr(measuring, "_BUNDLE", 1)
    assert list(lw.stats(tmp_path / "a.npz").values()) == wanted


def test_a_file_that_is_cut_off_or_changed_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    lw.save({"a": torch.randn(100_000), "b": torch.randn(10)}, path)
    data = path.read_bytes()
    with lw.open(path) as tree:
        path.write_bytes(data[:-100_000])
        with pytest.raises(lw.FileError, match=r"shorter|changed|cut off"):
            lw.stats(tree)
    path.write_bytes(data)
    with lw.open(path) as tree:
        path.write_bytes(data[:-1] + b"x")
        with pytest.raises(lw.FileError, match="was changed while it was being read"):
            lw.stats(tree)
    with lw.open(path) as tree:
        pass
    with pytest.raises(lw.FileError, match="closed"):
        lw.stats(tree)


def test_stats_closes_a_file_that_it_opened(tmp_path: Path) -> None:
    path = lw.save({"a": torch.randn(100_000)}, tmp_path / "model.safetensors")
    s = lw.stats(path)
    with pytest.raises(lw.FileError, match="closed"):
        s.tree["a"].numpy()
    assert s["a"].count == 100_000


def test_mapped_arrays_stay_valid_after_stats(tmp_path: Path) -> None:
    path = lw.save({"a": torch.arange(1_000_000, dtype=torch.float32)}, tmp_path / "model.safetensors")
    with lw.open(path) as tree:
        array = tree["a"].numpy()
        lw.stats(tree)
        assert array.sum(dtype=np.float64) == 499_999_500_000


def test_compressed_arrays_of_other_dtypes_are_left_out(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", z=np.ones(6, np.complex64), w=np.ones(3, np.float32))
    s = lw.stats(tmp_path / "a.npz")
    assert list(s) == ["w"]
    assert s.skipped == {"z": "there are no statistics of complex64"}
