"""A real Dask cluster of several processes on this machine, which reads local files and an S3 server."""

import asyncio
import gc
import logging
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.executors import saved_pair, tasks_of
from tests.files.object_store import s3_server

import leafwise as lw
from leafwise.cli import main

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, Any]]:
    """An S3 server from moto, in its own process; processes that are started later know it from the environment."""
    with s3_server() as port, pytest.MonkeyPatch.context() as patched:
        url = f"http://127.0.0.1:{port}"
        options = {"key": "test", "secret": "test", "endpoint_url": url, "client_kwargs": {"region_name": "us-west-2"}}
        patched.setattr(fsspec.config, "conf", {"s3": options})
        patched.setenv("FSSPEC_S3_KEY", "test")
        patched.setenv("FSSPEC_S3_SECRET", "test")
        patched.setenv("FSSPEC_S3_ENDPOINT_URL", url)
        patched.setenv("AWS_DEFAULT_REGION", "us-west-2")
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield options


@pytest.fixture(scope="module")
def cluster(storage: dict[str, Any]) -> Iterator[Any]:
    with two_workers() as started:
        yield started


def two_workers() -> Any:
    """A cluster of two workers, each in a process of its own, which the cluster replaces when it dies."""
    return distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",  # any port: other clusters on this machine may use the usual one
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture
def own_client() -> Iterator[Any]:
    """A cluster for one test that kills a worker: Dask does not always replace it, so others could not rely on two."""
    with two_workers() as started, distributed.Client(started, set_as_default=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as connected:
        yield connected


def test_a_cluster_gives_the_same_results_as_one_process(client: Any, tmp_path: Path) -> None:
    first, second = saved_pair(tmp_path)
    executor = client.get_executor()
    with tasks_of(1 << 20):
        got, expected = lw.stats(first, executor=executor), lw.stats(first)
        assert repr(got.json()) == repr(expected.json())
        assert repr(lw.diff(first, second, executor=executor).json()) == repr(lw.diff(first, second).json())
        assert list(lw.check(second, executor=executor)) == list(lw.check(second))
        assert lw.verify(first, executor=executor) == lw.verify(first)
        lw.edit(first, tmp_path / "one.safetensors", cast={"layers.**": "float16"}, saturate=True)
        out = tmp_path / "two.safetensors"
        lw.edit(first, out, cast={"layers.**": "float16"}, saturate=True, executor=executor)
    assert out.read_bytes() == (tmp_path / "one.safetensors").read_bytes()


def test_a_client_is_refused_with_what_to_pass_instead(client: Any, tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(lw.QueryError, match=r"pass client\.get_executor\(\)"):
        lw.stats(path, executor=client)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["stats", "edit"])
def test_a_worker_is_killed_and_the_result_is_the_same(own_client: Any, verb: str, tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    lw.save({f"{number}": torch.randn(1 << 20, generator=generator) for number in range(24)}, path)
    victim = next(iter(own_client.run(os.getpid).values()))
    killed = threading.Event()
    counted = 0

    def kill_a_worker(nbytes: int) -> None:
        nonlocal counted
        counted += nbytes
        if counted > (20 << 20) and not killed.is_set():  # in the middle of the work
            killed.set()
            os.kill(victim, 9)

    from leafwise.core.work.executor_tasks import Workers

    workers = Workers(own_client.get_executor(), kill_a_worker)
    with tasks_of(1 << 20):
        if verb == "stats":
            from leafwise.inspect.stats.statistics import stats_of

            assert repr(stats_of(path, workers=workers).json()) == repr(lw.stats(path).json())
        else:
            from leafwise.checkpoint.editing.planning import EditOptions, prepared

            options = EditOptions(cast="bfloat16", shard_size="9MB")
            with prepared(path, tmp_path / "two.safetensors", options, by_workers=True) as job:
                job.write(workers=workers)
            lw.edit(path, tmp_path / "one.safetensors", cast="bfloat16", shard_size="9MB")
            pairs = zip(sorted(tmp_path.glob("one-*")), sorted(tmp_path.glob("two-*")), strict=True)
            assert all(first.read_bytes() == second.read_bytes() for first, second in pairs)
            assert lw.verify(tmp_path / "two.safetensors").ok
    assert killed.is_set()


def test_checkpoints_on_s3_are_one_fleet(
    client: Any, cluster: Any, storage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = fsspec.filesystem("s3", **storage)
    for run in ("a", "b"):
        folder = tmp_path / run
        folder.mkdir()
        saved_pair(folder)
        (folder / "second.pt").unlink()
    (tmp_path / "c").mkdir()
    (tmp_path / "c/model.safetensors").write_bytes(b"nonsense" * 40)
    files.put(f"{tmp_path}/", "bucket/runs/", recursive=True)
    pattern = "s3://bucket/runs/**"
    with tasks_of(1 << 20):
        fleet = lw.stats(pattern, executor=client.get_executor())
        assert list(fleet) == ["s3://bucket/runs/a", "s3://bucket/runs/b"]
        assert list(fleet.errors) == ["s3://bucket/runs/c"]
        expected = lw.stats(str(tmp_path / "a/first.safetensors"))
        assert repr(fleet["s3://bucket/runs/a"].json()) == repr(expected.json())
        assert lw.verify("s3://bucket/runs/[ab]", executor=client.get_executor()).ok
        differences = lw.diff("s3://bucket/runs/a", "s3://bucket/runs/b", executor=client.get_executor())
        assert differences.same
    assert main(["stats", pattern, "--dask", cluster.scheduler_address]) == 1
    printed = capsys.readouterr().out
    assert "s3://bucket/runs/b" in printed
    assert "3 checkpoints · 1 error" in printed


def test_an_object_that_was_replaced_is_an_error_that_names_it(client: Any, storage: dict[str, Any]) -> None:
    from safetensors.torch import save

    url = "s3://bucket/replaced/model.safetensors"
    for value in (1.0, 2.0):
        with fsspec.open(url, "wb", **storage) as file:
            file.write(save({"w": torch.full((1000,), value)}))
        if value == 1.0:
            opened = lw.open(url)
    with pytest.raises(lw.FileError, match=r"replaced/model.safetensors' on the worker .* is not the file"):
        lw.stats(opened, executor=client.get_executor())


def test_an_object_that_is_replaced_while_a_worker_has_it_open_is_an_error(storage: dict[str, Any]) -> None:
    from safetensors.torch import save

    url = "s3://bucket/open/model.safetensors"
    files = fsspec.filesystem("s3", **storage)
    files.pipe_file(url, save({"w": torch.full((100_000,), 1.0)}))
    with ThreadPoolExecutor(1) as executor, lw.open(url) as opened:
        assert lw.stats(opened, executor=executor).total.mean == 1
        files.pipe_file(url, save({"w": torch.full((100_000,), 2.0)}))
        with pytest.raises(lw.FileError, match=r"open/model.safetensors' .*was replaced since it was opened"):
            lw.stats(opened, executor=executor)


@pytest.mark.parametrize("options", [{}, {"cast": "bfloat16", "saturate": True, "shard_size": "1MB"}])
def test_a_cluster_edits_a_checkpoint_on_s3(client: Any, options: dict[str, Any], tmp_path: Path) -> None:
    source, _ = saved_pair(tmp_path)
    url = str(lw.edit(source, "s3://bucket/edited/model.safetensors", shard_size="2MB").path)
    lw.edit(source, tmp_path / "one.safetensors", **options)
    with tasks_of(1 << 20):
        lw.edit(url, tmp_path / "two.safetensors", executor=client.get_executor(), **options)
    ones, twos = (sorted(tmp_path.glob(f"{name}*.safetensors")) for name in ("one", "two"))
    assert [path.read_bytes() for path in ones] == [path.read_bytes() for path in twos]
    assert (len(ones) > 1) == ("shard_size" in options)
    with pytest.raises(lw.QueryError, match=r"cannot write 's3://bucket/new.safetensors' with executor="):
        lw.edit(url, "s3://bucket/new.safetensors", executor=client.get_executor(), **options)


def test_the_command_line_uses_a_cluster(
    client: Any, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lw.save({"w": torch.randn(50, 50)}, tmp_path / "a.safetensors"))
    address = cluster.scheduler_address
    assert main(["verify", path, "--dask", address]) == 0
    assert main(["check", path, "--dask", address, "--fail-on", "error"]) == 0
    assert main(["diff", path, path, "--dask", address]) == 0
    assert main(["stats", path, "--dask", address]) == 0
    assert main(["edit", path, "-o", f"{tmp_path}/b.safetensors", "--cast", "float16", "--dask", address]) == 0
    assert lw.open(tmp_path / "b.safetensors")["w"].dtype == "float16"
    assert "every checksum matches" in capsys.readouterr().out


def test_the_command_line_uses_a_cluster_where_an_event_loop_runs_as_in_a_notebook(
    client: Any, cluster: Any, tmp_path: Path
) -> None:
    path = str(lw.save({"w": torch.randn(50, 50)}, tmp_path / "a.safetensors"))

    async def in_a_cell() -> int:
        return main(["verify", path, "--dask", cluster.scheduler_address])

    with ThreadPoolExecutor(1) as thread:  # this one may run the loop of a browser test
        assert thread.submit(lambda: asyncio.run(in_a_cell())).result() == 0


def test_a_cluster_that_does_not_answer_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leafwise.cli.workers._PATIENCE", 1)
    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main(["verify", path, "--dask", f"tcp://127.0.0.1:{port}"]) == 1
    assert f"cannot reach a Dask cluster at 'tcp://127.0.0.1:{port}'" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["nonsense", "", "http://127.0.0.1:8787"])
def test_an_address_that_is_none_is_an_error_at_once(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors"))
    begun: list[object] = []
    monkeypatch.setattr(distributed, "Client", lambda *arguments, **options: begun.append(arguments))
    assert main(["verify", path, "--dask", address]) == 1
    assert begun == []  # the client of Dask would need 40 seconds to close
    gc.collect()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert f"cannot reach a Dask cluster at {address!r}: " in lines[0]


def test_a_server_that_is_not_a_scheduler_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the dashboard: it accepts the connection, and waits for a request."""
    monkeypatch.setattr("leafwise.cli.workers._PATIENCE", 1)
    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert main(["verify", path, "--dask", f"tcp://127.0.0.1:{server.getsockname()[1]}"]) == 1
    assert "not that of the dashboard" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cluster_without_workers_is_waited_for_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafwise.cli import workers

    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors"))
    options: dict[str, Any] = {"processes": False, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=0, threads_per_worker=1, **options) as cluster:
        caution = workers.caution

        def caution_and_add_a_worker(text: str) -> None:
            caution(text)
            cluster.scale(1)

        monkeypatch.setattr(workers, "caution", caution_and_add_a_worker)
        assert main(["verify", path, "--dask", cluster.scheduler_address]) == 0
    assert "has no workers; waiting for one" in capsys.readouterr().err
