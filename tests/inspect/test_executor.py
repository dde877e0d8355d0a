"""With executor=, statistics, differences and findings have the same bits as in one process, whatever the cuts."""

from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.executors import Shuffled, changed, processes, saved_pair, state, tasks_of
from tests.files.writers import WRITERS, arrays

import leafwise as lw


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with processes() as executor:
        yield executor


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved_pair(tmp_path_factory.mktemp("pair"))


def facts(stats: Any) -> Any:
    """Everything about statistics, with each bit of the numbers."""
    rows = [repr((path, row.dtype, row.shape, row.numbers(), row.histogram)) for path, row in stats.items()]
    return rows, repr(stats.total.numbers()), stats.nonfinite, stats.skipped


@settings(max_examples=12)
@given(nbytes=st.integers(1, 8 << 20), seed=st.integers(0, 1 << 30), histogram=st.booleans())
def test_any_cut_in_any_order_gives_the_same_statistics(
    pair: tuple[str, str], nbytes: int, seed: int, histogram: bool
) -> None:
    for path in pair:
        with Shuffled(seed) as executor, tasks_of(nbytes):
            got = lw.stats(path, histogram=histogram, executor=executor)
        assert facts(got) == facts(lw.stats(path, histogram=histogram))


@pytest.mark.slow
@settings(max_examples=12)
@given(nbytes=st.integers(1, 8 << 20), seed=st.integers(0, 1 << 30))
def test_any_cut_in_any_order_gives_the_same_differences(pair: tuple[str, str], nbytes: int, seed: int) -> None:
    with Shuffled(seed) as executor, tasks_of(nbytes):
        got = lw.diff(*pair, executor=executor)
    expected = lw.diff(*pair)
    assert repr(got.json()) == repr(expected.json())
    assert list(map(repr, (change.comparison for change in got))) == [repr(change.comparison) for change in expected]
    kinds = {"changed", "cast", "transposed", "renamed", "reshaped", "added", "removed", "same"}
    assert set(got.counts) == kinds


@settings(max_examples=4)
@given(nbytes=st.integers(1, 8 << 20), seed=st.integers(0, 1 << 30))
def test_any_cut_in_any_order_gives_the_same_findings(pair: tuple[str, str], nbytes: int, seed: int) -> None:
    with Shuffled(seed) as executor, tasks_of(nbytes):
        got = lw.check(pair[0], against=pair[1], executor=executor)
    expected = lw.check(pair[0], against=pair[1])
    assert list(got) == list(expected)
    assert {"LW101", "LW110", "LW113"} <= set(got.codes)
    assert (got.checked, got.rules, got.skipped) == (expected.checked, expected.rules, expected.skipped)


def test_processes_that_share_nothing_give_the_same_results(pool: Executor, pair: tuple[str, str]) -> None:
    with tasks_of(1 << 20):
        for path in pair:
            assert facts(lw.stats(path, executor=pool)) == facts(lw.stats(path))
            assert list(lw.check(path, executor=pool)) == list(lw.check(path))
        assert repr(lw.diff(*pair, executor=pool).json()) == repr(lw.diff(*pair).json())
        same = lw.diff(pair[0], pair[0], executor=pool)
        assert same.same


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_read_by_workers(name: str, pool: Executor, tmp_path: Path) -> None:
    path, other = tmp_path / "model", tmp_path / "other"
    values = arrays()
    WRITERS[name](path, values)
    WRITERS[name](other, {**values, "0.weight": values["0.weight"] + 1})
    assert facts(lw.stats(path, executor=pool)) == facts(lw.stats(path))
    got, expected = lw.diff(path, other, executor=pool), lw.diff(path, other)
    assert repr(got.json()) == repr(expected.json())
    assert got["0.weight"].kind == "changed"
    assert lw.verify(path, executor=pool) == lw.verify(path)


def test_matrices_of_low_rank_are_found_by_workers(pool: Executor, tmp_path: Path) -> None:
    path = lw.save({"w": torch.randn(80, 2) @ torch.randn(2, 90)}, tmp_path / "model.safetensors")
    got = lw.check(path, select="LW116", executor=pool)
    assert list(got) == list(lw.check(path, select="LW116"))
    assert got.codes == {"LW116": 1}


def test_a_part_of_a_checkpoint_is_measured(pool: Executor, pair: tuple[str, str]) -> None:
    with lw.open(pair[0]) as t:
        part = lw.stats(t["layers"], executor=pool)
        assert list(part) == [f"layers.{number}.weight" for number in range(4)]
        assert facts(part) == facts(lw.stats(t["layers"]))
        some = lw.stats(t.select("**.weight"), executor=pool)
    assert facts(some) == facts(lw.stats(pair[0]).select("**.weight"))


def test_quantized_values_are_measured_by_workers(pool: Executor, tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = lw.stats(path, executor=pool)
    assert facts(got) == facts(lw.stats(path))
    assert got["w"].count == 64 * 256


def test_statistics_of_a_file_that_is_truncated_meanwhile_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    lw.save({"w": torch.ones(1 << 20)}, path)
    with lw.open(path) as t, Shuffled() as executor:
        with path.open("r+b") as file:
            file.truncate(1 << 21)
        with pytest.raises(lw.FileError, match=r"model\.safetensors"):
            lw.stats(t, executor=executor)


def test_a_file_that_is_replaced_meanwhile_is_an_error_that_names_it(pool: Executor, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    lw.save({"w": torch.ones(1 << 10)}, path)
    with lw.open(path) as t:
        lw.save({"w": torch.zeros(1 << 10)}, path)
        with pytest.raises(lw.FileError, match=r"model.safetensors' on the worker .* is not the file that was opened"):
            lw.stats(t, executor=pool)


def test_a_file_that_workers_cannot_reach_is_an_error_that_says_so(pool: Executor) -> None:
    import fsspec
    from safetensors.torch import save

    with fsspec.open("memory://only-here/model.safetensors", "wb") as file:
        file.write(save(arrays()))
    with pytest.raises(lw.FileError, match=r"on the worker .*workers must reach every file under the same path"):
        lw.stats("memory://only-here/model.safetensors", executor=pool)


def test_remote_files_have_the_same_results_as_local_ones(tmp_path: Path) -> None:
    import fsspec

    first, second = saved_pair(tmp_path)
    for path in tmp_path.iterdir():
        with fsspec.open(f"memory://fleet/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    urls = "memory://fleet/first.safetensors.index.json", "memory://fleet/second.pt"
    with Shuffled() as executor, tasks_of(1 << 20):
        assert facts(lw.stats(urls[0], executor=executor)) == facts(lw.stats(first))
        got = lw.diff(*urls, executor=executor)
    expected = lw.diff(first, second)
    assert [repr(change) for change in got] == [repr(change) for change in expected]
    assert [repr(change.comparison) for change in got] == [repr(change.comparison) for change in expected]


def test_an_error_names_the_leaf_or_the_file(tmp_path: Path) -> None:
    assert state().keys() - changed().keys() == {"layers.2.weight", "scalar"}  # what the tests above rely on
    with Shuffled() as executor:
        with pytest.raises(lw.QueryError, match="no leaf in common"):
            lw.diff(
                lw.save({"a": torch.ones(2)}, tmp_path / "a.safetensors"),
                lw.save({"b": torch.zeros(3)}, tmp_path / "b.safetensors"),
                executor=executor,
            )
        with pytest.raises(lw.FileError, match=r"cannot open .*nowhere"):
            lw.stats(tmp_path / "nowhere", executor=executor)
