"""Files behind URLs: only the header is transferred. The servers are real, on loopback."""

import functools
import http.server
import json
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.files.object_store import s3_options, s3_server
from tests.files.writers import WRITERS, arrays

import leafwise as lw
from leafwise.cli import main
from leafwise.files.sources.remote import remote_errors
from leafwise.files.sources.s3 import S3Source


class RangeServer(http.server.ThreadingHTTPServer):
    """A file server that supports range requests, and counts the bytes it sends."""

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
            except OSError:  # the client has closed the connection
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["safetensors", "torch zip", "npz", "GGUF", "MXNet V2"])
def test_only_the_header_is_transferred_over_http(name: str, tmp_path: Path, server: tuple[RangeServer, str]) -> None:
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
    assert list(found.values()) == list(lw.stats(tmp_path / "model").values())
    assert found["layers.7.weight"].mean == 7
    assert counting.sent < (tmp_path / "model").stat().st_size * 1.1
    with lw.open(f"{url}/model") as tree:
        (tmp_path / "model").unlink()
        with pytest.raises(lw.FileError, match="cannot read"):
            lw.stats(tree)


def test_shards_are_read_over_http(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    WRITERS["sharded safetensors"](tmp_path / "model", big_state())
    tree = lw.open(f"{url}/model/model.safetensors.index.json")
    assert len(tree) == 20
    assert counting.sent < 60_000
    assert (tree["layers.3.weight"].numpy() == 3).all()


def test_an_address_where_nothing_can_be_read_is_an_error(server: tuple[RangeServer, str]) -> None:
    with pytest.raises(
        lw.FileError, match=r"cannot read 'http://127.0.0.1:\d+/nothing': there is no such file .* .404."
    ):
        lw.open(f"{server[1]}/nothing")
    with pytest.raises(lw.FileError, match=r"cannot read 'nonsense://x/y'"):
        lw.open("nonsense://x/y")


def test_files_in_a_memory_file_system_are_read() -> None:
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
    """An S3 server from moto, in its own process."""
    with s3_server() as port, pytest.MonkeyPatch.context() as patched:
        options = s3_options(port)
        patched.setattr(fsspec.config, "conf", {"s3": options})
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield options


@pytest.mark.slow
def test_files_on_s3_are_read_in_parts(bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("s3", **bucket)
    state = big_state()
    WRITERS["torch zip"](tmp_path / "model.pt", state)
    WRITERS["sharded safetensors"](tmp_path / "sharded", state)
    files.put(str(tmp_path / "model.pt"), "bucket/model.pt")
    files.put(str(tmp_path / "sharded"), "bucket/sharded", recursive=True)
    fetched: list[int] = []
    request = S3Source.request

    def counted(self: S3Source, start: int, stop: int) -> bytes:
        data = request(self, start, stop)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(S3Source, "request", counted)
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


@pytest.mark.slow
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


SECRET = "s3cr3t"


def with_secrets(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://me:{SECRET}@{rest}?X-Amz-Signature={SECRET}&token=%2B{SECRET}&{SECRET}#{SECRET}"


def keeps_secrets(call: Any, *args: Any, **options: Any) -> str:
    """The message and traceback of a call that fails, or the text of its result."""
    try:
        found = call(*args, **options)
    except lw.Error as error:
        said = "".join(traceback.format_exception(error))
        assert SECRET not in said
        pending: list[BaseException | None] = [error]  # tools that report errors also send what was handled meanwhile
        while pending:
            if (cause := pending.pop()) is not None:
                assert SECRET not in f"{cause!r} {cause} {vars(cause)}"
                pending += [cause.__cause__, cause.__context__]
        return str(error)
    assert SECRET not in f"{found!r} {found}"
    if hasattr(found, "json"):
        assert SECRET not in json.dumps(found.json()) + found._repr_html_()
    return str(found)


def test_the_secrets_of_a_url_are_shown_nowhere(tmp_path: Path, server: tuple[RangeServer, str]) -> None:
    counting, url = server
    model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 20))
    lw.save(model, tmp_path / "a.safetensors")
    there, gone = with_secrets(f"{url}/a.safetensors"), with_secrets(f"{url}/gone")
    for verb in (lw.open, lw.stats, lw.check, lw.ties, lw.groups, lw.verify):
        keeps_secrets(verb, there)
        said = keeps_secrets(verb, gone)
        assert said.startswith("cannot read 'http://***@127.0.0.1:")
        assert "/gone?X-Amz-Signature=***&token=***&***#***'" in said
    keeps_secrets(lw.image, there, "0.weight")
    other = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 20))
    assert "a.safetensors?X-Amz-Signature=***" in keeps_secrets(lw.diff, there, other)
    keeps_secrets(lw.diff, lw.open(there), there)
    keeps_secrets(lw.plan, model, there)
    keeps_secrets(lw.load, model, there)
    keeps_secrets(lw.save, model, there)
    with lw.open(there) as tree:
        (tmp_path / "a.safetensors").unlink()
        assert "cannot read" in keeps_secrets(lw.stats, tree)
    data = bytearray(Path(lw.save(model, tmp_path / "a.safetensors")).read_bytes())
    data[-5] ^= 1
    (tmp_path / "a.safetensors").write_bytes(data)
    assert "is damaged" in keeps_secrets(lw.verify, there)
    (tmp_path / "a.safetensors").write_bytes(b"<html>")
    assert "at byte 0" in keeps_secrets(lw.open, there)
    counting.ranges = False
    keeps_secrets(lw.open, there)
    keeps_secrets(lw.open, with_secrets("http://127.0.0.1:9/x"))
    keeps_secrets(lw.open, with_secrets("nonsense://x/y"))
    keeps_secrets(lw.open, with_secrets("memory://x/y"))


@pytest.mark.slow
def test_the_secrets_of_a_url_are_printed_by_no_command(
    tmp_path: Path, server: tuple[RangeServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(big_state(), tmp_path / "a.safetensors")
    lw.save(big_state(), tmp_path / "b.safetensors")
    a, b, gone = (with_secrets(f"{server[1]}/{name}") for name in ("a.safetensors", "b.safetensors", "gone"))
    leaf, out = "layers.3.weight", str(tmp_path / "out")
    for arguments in (
        ["show", a], ["show", a, "--json"], ["show", gone], ["show", a, "--where", "nothing"], ["read", a, leaf],
        ["read", a, "nothing"], ["stats", a], ["check", a, "--against", b], ["diff", a, b], ["diff", a, b, "--json"],
        ["diff", a, b, "--where", "nothing"], ["image", a, leaf], ["ties", a], ["groups", a], ["plan", a, b],
        ["verify", a], ["verify", b], ["verify", b, "--json"], ["verify", gone, "--json"], ["convert", a, f"{out}.npz"],
        ["convert", a, f"{out}.npz", "--where", "nothing"], ["convert", a, b], ["convert", a, gone],
    ):  # fmt: skip
        assert main(arguments) in (0, 1, 2)
        output = capsys.readouterr()
        assert SECRET not in output.out + output.err, arguments
    with pytest.raises(SystemExit):
        main(["show", a, "--nothing", b])
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize(
    "message",
    [
        "Access denied for me:s3cr3t",
        "FileNotFoundError: 'me:s3cr3t@bucket/model.pt'",
        "403, message='Forbidden', url=URL('https://elsewhere/x?Signature=other-s3cr3t')",
        "redirected to https://you:s3cr3t@host",
        "the token was a/s3cr3t, quoted a%2Fs3cr3t",
    ],
)
def test_secrets_in_messages_of_other_libraries_are_hidden(message: str) -> None:
    with (
        pytest.raises(lw.FileError, match="cannot read") as caught,
        remote_errors("s3://me:s3cr3t@bucket/model.pt?t=a%2Fs3cr3t"),
    ):
        raise OSError(message)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert "s3://***@bucket/model.pt?t=***" in str(caught.value)


def test_the_cause_of_an_error_without_secrets_is_kept() -> None:
    with pytest.raises(lw.FileError) as caught, remote_errors("s3://bucket/model.pt"):
        raise OSError("no such bucket")
    assert isinstance(caught.value.__cause__, OSError)


def test_the_reason_of_a_store_loses_its_final_period() -> None:
    with (
        pytest.raises(lw.FileError, match=r"does not exist$"),
        remote_errors("s3://b/a"),
    ):
        raise OSError("The specified key does not exist.")
