"""Files behind URLs: only the bytes of the header travel. Real servers on loopback."""

import functools
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.files.writers import WRITERS, arrays

import leafwise as lw


class RangeServer(http.server.ThreadingHTTPServer):
    """A server of files that gives parts, and counts what it gives."""

    sent = 0
    ranges = True


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: RangeServer

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        asked = self.headers.get("Range") if self.server.ranges else None
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(data)) if last else len(data)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
            data = data[start:stop]
        else:
            self.send_response(200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for start in range(0, len(data), 1 << 16):
            part = data[start : start + (1 << 16)]
            self.server.sent += len(part)
            try:
                self.wfile.write(part)
            except OSError:  # whoever asked has heard enough
                return

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[RangeServer, str]]:
    found = RangeServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found, f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    thread.join()
    found.server_close()


def big_state() -> dict[str, torch.Tensor]:
    return {f"layers.{number}.weight": torch.full((256, 256), float(number)) for number in range(20)}


@pytest.mark.parametrize("name", ["safetensors", "torch zip", "npz", "GGUF", "MXNet V2"])
def test_only_the_header_travels_over_http(name: str, tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    state = big_state()
    WRITERS[name](tmp_path / "model", state)
    size = (tmp_path / "model").stat().st_size
    with lw.open(f"{url}/model") as tree:
        tree.text()
        assert len(tree) == 20
        header = counting.sent
        assert header < size / 20
        values = tree["layers.7.weight"].numpy()
        assert np.array_equal(values, state["layers.7.weight"].numpy())
        assert counting.sent - header < 400_000
        before = counting.sent
        if name != "GGUF":
            assert tree["layers.9.weight"].numpy((3, slice(0, 5))).tolist() == [9.0] * 5
            assert counting.sent - before < 40_000


def test_statistics_over_http_read_everything_once(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    state = big_state()
    WRITERS["safetensors"](tmp_path / "model", state)
    found = lw.stats(f"{url}/model")
    assert [row._moments for row in found.values()] == [row._moments for row in lw.stats(tmp_path / "model").values()]
    assert found["layers.7.weight"].mean == 7
    assert counting.sent < (tmp_path / "model").stat().st_size * 1.1
    with lw.open(f"{url}/model") as tree:
        (tmp_path / "model").unlink()
        with pytest.raises(lw.FileError, match="cannot read"):
            lw.stats(tree)


def test_shards_over_http(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    WRITERS["sharded safetensors"](tmp_path / "model", big_state())
    tree = lw.open(f"{url}/model/model.safetensors.index.json")
    assert len(tree) == 20
    assert counting.sent < 60_000
    assert (tree["layers.3.weight"].numpy() == 3).all()


def test_servers_that_are_not_there_or_give_no_parts(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    with pytest.raises(lw.FileError, match=r"cannot read 'http://127.0.0.1:\d+/nothing'"):
        lw.open(f"{url}/nothing")
    with pytest.raises(lw.FileError, match=r"cannot read 'http://127.0.0.1:9/x'"):
        lw.open("http://127.0.0.1:9/x")
    save_file(big_state(), tmp_path / "model")
    counting.ranges = False
    with pytest.raises(lw.FileError, match=r"does not give parts of a file|cannot read"):
        lw.open(f"{url}/model")
    with pytest.raises(lw.FileError, match=r"cannot read 'nonsense://x/y'"):
        lw.open("nonsense://x/y")


def test_a_server_that_gives_no_parts_is_not_heard_out(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    counting.ranges = False
    (tmp_path / "model").write_bytes(bytes(8) + bytes(128 << 20))
    with pytest.raises(lw.FileError, match="does not give parts of a file; download it first"):
        lw.open(f"{url}/model")
    assert counting.sent < 64 << 20  # what the buffers of the two sockets hold
    save_file({"a": torch.ones(2)}, tmp_path / "small")  # which comes whole with the first question
    assert lw.open(f"{url}/small")["a"].numpy().tolist() == [1.0, 1.0]


def test_memory_file_system() -> None:
    files = fsspec.filesystem("memory")
    with files.open("/folder/model.safetensors", "wb") as file:
        from safetensors.torch import save

        file.write(save(arrays()))
    tree = lw.open("memory://folder/model.safetensors")
    assert np.array_equal(tree["0.weight"].numpy(), arrays()["0.weight"].numpy())
    assert len(lw.open("memory://folder")) == 4
    assert lw.open("memory://folder").text().startswith("safetensors")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """An S3 server of moto, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    options = {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-west-2"},
    }
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fsspec.config, "conf", {"s3": options})
            fsspec.filesystem("s3", **options).mkdir("bucket")
            yield options
    finally:
        process.terminate()
        process.wait()


def test_s3(bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("s3", **bucket)
    state = big_state()
    WRITERS["torch zip"](tmp_path / "model.pt", state)
    WRITERS["sharded safetensors"](tmp_path / "sharded", state)
    files.put(str(tmp_path / "model.pt"), "bucket/model.pt")
    files.put(str(tmp_path / "sharded"), "bucket/sharded", recursive=True)
    fetched: list[int] = []
    cat_file = type(files).cat_file

    def counted(self: Any, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        data = cat_file(self, path, start=start, end=end, **options)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(type(files), "cat_file", counted)
    size = os.path.getsize(tmp_path / "model.pt")
    tree = lw.open("s3://bucket/model.pt")
    assert len(tree) == 20
    assert sum(fetched) < size / 40
    assert (tree["layers.3.weight"].numpy() == 3).all()
    assert sum(fetched) < size / 10
    folder = lw.open("s3://bucket/sharded")
    assert json.dumps(folder.json())
    assert len(folder) == 20
    with pytest.raises(lw.FileError, match=r"cannot read 's3://bucket/none.pt'"):
        lw.open("s3://bucket/none.pt")


@pytest.mark.parametrize("onto_meta", [False, True], ids=["live", "meta"])
def test_a_model_is_loaded_over_http_once_and_checked(
    onto_meta: bool, tmp_path: Path, server: tuple[RangeServer, str]
) -> None:
    counting, url = server
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 20))
    path = Path(lw.save(model, tmp_path / "a.safetensors"))
    with torch.device("meta" if onto_meta else "cpu"):
        target = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 20))
    lw.load(target, f"{url}/a.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), target.parameters(), strict=True))
    assert counting.sent < 1.1 * path.stat().st_size
    assert lw.verify(f"{url}/a.safetensors").leaves == 4
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    before = target[0].weight.detach().clone()
    other = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 20))
    for into in (target, other):
        with pytest.raises(lw.ChecksumError, match=r"1.bias is damaged"):
            lw.load(into, f"{url}/a.safetensors")
    assert torch.equal(target[0].weight, before)
