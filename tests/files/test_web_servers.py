"""Web servers as they are: without ranges, slow, lying, refusing. Each is real, on loopback."""

import gzip
import http.server
import itertools
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

import leafwise as lw
from leafwise.cli import main
from leafwise.files.sources import remote, web

Handler = http.server.BaseHTTPRequestHandler
STATE = {"a.weight": torch.arange(60_000.0).reshape(200, 300), "b": torch.ones(3)}
FILE = save(STATE)


class Server(http.server.ThreadingHTTPServer):
    """Answers each request by a function."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Handler], None]) -> None:
        self.requests: list[str] = []
        outer = self

        class Answering(Handler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # noqa: N802
                outer.requests.append(self.headers.get("Range", "all"))
                self.close_connection = True
                answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Answering)

    def handle_error(self, *_: Any) -> None:  # a client that closes the connection
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/model.safetensors"


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Handler], None]], Server]]:
    started: list[tuple[Server, threading.Thread]] = []

    def start(answer: Callable[[Handler], None]) -> Server:
        server = Server(answer)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)


@pytest.fixture(autouse=True)
def empty_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that was downloaded remains, whatever happens."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


def whole(handler: Handler, body: bytes = FILE, **headers: str) -> None:
    handler.send_response(200)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        if value:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def chunked(handler: Handler, pieces: Any) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for piece in pieces:
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def status(number: int) -> Callable[[Handler], None]:
    return lambda handler: handler.send_error(number)


Serve = Callable[[Callable[[Handler], None]], Server]


def check_opened(url: str) -> None:
    with lw.open(url) as tree:
        assert np.array_equal(tree["a.weight"].numpy(), STATE["a.weight"].numpy())
        assert tree["a.weight"].numpy((3, slice(0, 2))).tolist() == [900.0, 901.0]
        assert lw.stats(tree)["b"].mean == 1


# -- downloads -----------------------------------------------------------------------------------------------


def test_a_server_of_pythons_standard_library_is_downloaded_from(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    save_file(STATE, tmp_path / "served" / "model.safetensors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", str(tmp_path / "served")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 60).close()
                break
            except OSError:
                time.sleep(0.05)
        check_opened(f"http://127.0.0.1:{port}/model.safetensors")
    finally:
        process.terminate()
        process.wait()


def test_a_file_without_a_known_length_is_downloaded(serve: Serve) -> None:
    server = serve(lambda handler: chunked(handler, (FILE[:1000], FILE[1000:])))
    check_opened(server.url)
    assert len(server.requests) == 1
    check_opened(serve(lambda handler: whole(handler, Content_Length="")).url)  # until the connection is closed


def test_a_compressed_response_is_decompressed(serve: Serve) -> None:
    packed = gzip.compress(FILE)
    check_opened(serve(lambda handler: whole(handler, packed, Content_Encoding="gzip")).url)

    def part_of_the_compressed_form(handler: Handler) -> None:
        asked = handler.headers.get("Range")
        if asked is None:
            whole(handler, packed, Content_Encoding="gzip")
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-4095/{len(packed)}")
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", "4096")
        handler.end_headers()
        handler.wfile.write(packed[:4096])

    check_opened(serve(part_of_the_compressed_form).url)


def test_a_larger_file_than_the_limit_is_refused_before_it_is_downloaded(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = 0

    def endless(handler: Handler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        while True:
            handler.wfile.write(bytes(1 << 16))
            sent += 1 << 16

    url = serve(endless).url
    with pytest.raises(
        lw.FileError, match=r"more than the 5,000,000,000 bytes that leafwise downloads; allow more with"
    ):
        lw.open(url)
    assert sent < 64 << 20  # the buffers of the two sockets
    url = serve(whole).url
    with pytest.raises(
        lw.FileError, match=r"more than the 1,000 bytes .* lw.open\(path, max_download=…\) or --max-down"
    ):
        lw.open(url, max_download=1_000)
    assert main(["show", url, "--max-download", "1000"]) == 1
    assert "more than the 1,000 bytes" in capsys.readouterr().err
    assert main(["show", url, "--max-download", str(len(FILE))]) == 0
    with pytest.raises(lw.QueryError, match="max_download= takes a whole number above 0"):
        lw.open(url, max_download=0)


@pytest.mark.slow
def test_a_body_without_an_end_is_cut_off_at_the_limit_in_little_memory(serve: Serve) -> None:
    url = serve(lambda handler: chunked(handler, itertools.repeat(bytes(1 << 16)))).url
    bomb = gzip.compress(bytes(200_000_000), 1)
    packed = serve(lambda handler: whole(handler, bomb, Content_Encoding="gzip")).url
    for address in (url, packed):
        tracemalloc.start()
        with pytest.raises(lw.FileError, match="more than the 100,000,000 bytes"):
            lw.open(address, max_download=100_000_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 50_000_000


def test_the_shards_of_an_index_share_the_limit(serve: Serve) -> None:
    index = b'{"weight_map": {"a.weight": "1.safetensors", "c": "2.safetensors"}}'
    shards = {"/model.index.json": index, "/1.safetensors": save({"a.weight": STATE["a.weight"]}),
              "/2.safetensors": save({"c": STATE["a.weight"]})}  # fmt: skip
    server = serve(lambda handler: whole(handler, shards[handler.path]))
    url = server.url.replace("model.safetensors", "model.index.json")
    assert len(lw.open(url)) == 2
    with pytest.raises(lw.FileError, match="more than the 300,000 bytes"):
        lw.open(url, max_download=300_000)


def test_a_download_shows_its_progress_on_a_terminal(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def sized(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(FILE)))
        handler.end_headers()
        for start in range(0, len(FILE), 50_000):
            handler.wfile.write(FILE[start : start + 50_000])

    from leafwise.render import progress
    from leafwise.render.progress import Progress

    # The bar is drawn ten times a second, and here a second passes whenever it asks for the time.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    for answer, shown in ((sized, "downloading [###"), (lambda handler: chunked(handler, pieces()), "downloading  ")):
        terminal = Terminal()
        monkeypatch.setattr(Progress.__init__, "__defaults__", (terminal,))
        check_opened(serve(answer).url)
        assert shown in terminal.getvalue()
        assert terminal.getvalue().endswith("\r")  # it is removed at the end


def pieces() -> Iterator[bytes]:
    for start in range(0, len(FILE), 50_000):
        yield FILE[start : start + 50_000]


def test_a_full_disk_is_an_error_that_names_the_folder(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("leafwise.files.sources.web.local.disk.write", full)
    with pytest.raises(lw.FileError, match=r"cannot download .* to '.*temporary': No space left .*; set TMPDIR to a"):
        lw.open(serve(whole).url)


def test_a_downloaded_file_is_not_copied(serve: Serve) -> None:
    import copy

    with lw.open(serve(whole).url) as tree, pytest.raises(lw.FileError, match="downloaded to a temporary file, so"):
        copy.deepcopy(tree)
    with pytest.raises(lw.FileError, match="is closed; open it again"):
        tree["b"].numpy()


# -- lies ----------------------------------------------------------------------------------------------------


def test_a_server_that_lies_about_the_length_is_an_error(serve: Serve) -> None:
    with pytest.raises(lw.FileError, match="the connection was cut off; try again"):
        lw.open(serve(lambda handler: whole(handler, Content_Length=str(2 * len(FILE)))).url)
    with pytest.raises(lw.FileError, match=r"240,012|beyond|cut off|should"):
        lw.open(serve(lambda handler: whole(handler, Content_Length=str(len(FILE) - 9))).url)


def ranged(
    handler: Handler, shift: int = 0, total: int = len(FILE), body: int = 0, content: bytes = FILE, **headers: str
) -> None:
    first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
    start, stop = int(first), min(int(last) + 1, len(FILE))
    data = content[start : stop + body]
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start + shift}-{stop - 1 + shift}/{total}")
    handler.send_header("Content-Length", str(len(data)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def test_a_part_of_the_file_is_only_used_if_it_is_the_one_requested(serve: Serve) -> None:
    server = serve(ranged)
    check_opened(server.url)
    assert server.requests[0] == "bytes=0-4095"
    requests = iter(range(100))
    wrong = serve(lambda handler: ranged(handler, 8 * (next(requests) > 0)))
    with pytest.raises(lw.FileError, match="did not send the part of the file that was requested"):
        lw.open(wrong.url)["a.weight"].numpy()
    versions = iter(range(100))
    changing = serve(lambda handler: ranged(handler, ETag=f'"{next(versions)}"'))
    with pytest.raises(lw.FileError, match="has changed since it was opened; open it again"):
        lw.open(changing.url)["a.weight"].numpy()
    days = iter(range(10, 30))
    dated = serve(lambda handler: ranged(handler, **{"Last-Modified": f"Mon, {next(days)} Nov 2026 10:00:00 GMT"}))
    with pytest.raises(lw.FileError, match="has changed since it was opened; open it again"):
        lw.open(dated.url)["a.weight"].numpy()
    sizes = iter((len(FILE), len(FILE) + 1))
    growing = serve(lambda handler: ranged(handler, total=next(sizes)))
    with pytest.raises(lw.FileError, match="has changed since it was opened; open it again"):
        lw.open(growing.url)["a.weight"].numpy()
    short = serve(lambda handler: ranged(handler, body=-9))
    with pytest.raises(lw.FileError, match=r"4,087 of the 4,096 bytes from byte 0 on were sent; .* .5 attempts failed"):
        lw.open(short.url)["a.weight"].numpy()


@pytest.mark.parametrize("replaced", [False, True])
def test_without_a_version_the_header_is_compared_again_after_a_load(replaced: bool, serve: Serve) -> None:
    other = save({"b": torch.ones(3), "z.weight": torch.zeros(60_000).reshape(200, 300)})
    other = other.ljust(len(FILE), b" ")[: len(FILE)]  # of the same size, with another header
    requests = iter(range(100))

    def answer(handler: Handler) -> None:
        is_new = replaced and next(requests) > 0
        ranged(handler, content=other if is_new else FILE)

    target = {name: torch.zeros_like(value) for name, value in STATE.items()}
    before = {name: value.clone() for name, value in target.items()}
    server = serve(answer)
    if not replaced:
        loaded = lw.load(target, server.url)
        assert all(torch.equal(loaded[name], value) for name, value in STATE.items())
        return
    with pytest.raises(lw.Error, match="was changed while it was being read"):
        lw.load(target, server.url)
    assert all(torch.equal(target[name], value) for name, value in before.items())


def test_a_time_of_change_that_is_the_time_of_the_response_says_nothing(serve: Serve) -> None:
    seconds = iter(range(10, 60))

    def answer(handler: Handler) -> None:
        now = f"Mon, 09 Nov 2026 10:00:{next(seconds)} GMT"
        handler.date_time_string = lambda *_: now  # type: ignore[method-assign]
        ranged(handler, **{"Last-Modified": now})

    check_opened(serve(answer).url)


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (401, "the server asks for credentials (401); use a URL that contains them, or download the file first"),
        (403, "the server refuses access (403); check your permissions, and whether the URL has expired"),
        (404, "there is no such file on the server (404); check the address"),
        (418, "the server refuses the request (418); check the address"),
        (429, "the server has received too many requests (429); try again later"),
        (503, "the server has a problem (503); try again later"),
    ],
)
def test_each_refusal_of_a_server_has_its_own_message(number: int, said: str, serve: Serve) -> None:
    url = serve(status(number)).url
    with pytest.raises(lw.FileError) as caught:
        lw.open(url)
    attempts = " (5 attempts failed)" if number in (429, 503) else ""
    assert str(caught.value) == f"cannot read {url!r}: {said}{attempts}"


def test_a_refused_connection_and_an_unknown_host_have_their_own_messages() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(lw.FileError, match="the connection was refused; check the address and the port, and whether"):
        lw.open(f"http://127.0.0.1:{port}/x")
    with pytest.raises(lw.FileError, match=r"the host name nowhere.invalid cannot be resolved; check the address and"):
        lw.open("http://nowhere.invalid/x")


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SILENCE", 0.3)
    ended = threading.Event()
    silent = serve(lambda handler: ended.wait(600) and None)

    def stalls(handler: Handler) -> None:
        whole(handler, FILE[:5000], Content_Length=str(len(FILE)))
        ended.wait(600)

    def drips(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(FILE)))
        handler.end_headers()
        while not ended.wait(0.05):
            handler.wfile.write(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:  # it accepts the connection, and says nothing
        mute = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        try:
            for url in (silent.url, serve(stalls).url, serve(drips).url, mute):
                started = time.monotonic()
                with pytest.raises(lw.FileError, match="the server did not answer in time; check the address, or try"):
                    lw.open(url)
                assert time.monotonic() - started < 300  # the servers are silent for longer
        finally:
            ended.set()


def test_errors_of_tls_have_their_own_messages(serve: Serve, tmp_path: Path) -> None:
    plain = serve(whole).url.replace("http:", "https:")
    with pytest.raises(
        lw.FileError, match=r"no secure connection to the server 127.0.0.1 is possible; check whether its"
    ):
        lw.open(plain)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = serve(whole)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with pytest.raises(
        lw.FileError, match=r"the certificate of the server 127.0.0.1 cannot be verified; check the addr"
    ):
        lw.open(server.url.replace("http:", "https:"))


def test_an_empty_file_and_an_address_of_a_page_are_errors(serve: Serve) -> None:
    with pytest.raises(lw.FileError, match="the file is empty"):
        lw.open(serve(lambda handler: whole(handler, b"")).url)

    def nothing_to_send(handler: Handler) -> None:
        handler.send_response(416)
        handler.send_header("Content-Range", "bytes */0")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with pytest.raises(lw.FileError, match="the file is empty"):
        lw.open(serve(nothing_to_send).url)
    with pytest.raises(lw.FileError, match="this is an HTML page"):
        lw.open(serve(lambda handler: whole(handler, b"<!DOCTYPE html><html></html>")).url)
