"""A real S3 server (moto) on loopback, and a proxy before it that fails, throttles, cuts off or changes what it passes
on."""

import http.client
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import fsspec
import pytest

SMALLEST_PART = 1_000  # bytes; S3 itself wants 5 MiB


@contextmanager
def s3_server() -> Iterator[int]:
    """An S3 server in its own process; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": str(SMALLEST_PART)},
    )
    try:
        while process.poll() is None:  # it imports much, which takes long on a busy machine
            try:
                socket.create_connection(("127.0.0.1", port), 60).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def s3_options(port: int) -> dict[str, Any]:
    """Options of s3fs for a server on loopback. botocore does not retry, so that leafwise has to."""
    return {
        "key": "test",
        "secret": "test",
        "config_kwargs": {"retries": {"max_attempts": 0}, "read_timeout": 300},
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-west-2"},
    }


class Passed:
    """A request on its way to the store, and what becomes of it. A fault may change any of this."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.status = 0  # if set, this is the response, and the store is not asked
        self.answer = b""
        self.resets_before = self.resets_after = False  # whether the connection is cut instead of a response
        self.cut_to: int | None = None  # how many bytes of the body are sent; its length is announced in full
        self.shortened_to: int | None = None  # how many bytes are sent, as if there were no more
        self.resets_hard = False  # whether the connection is cut by a reset of TCP, rather than by an end
        self.once_handled: Callable[[], None] = lambda: None  # called when the store has answered

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.path

    @property
    def is_completion(self) -> bool:
        return self.method == "POST" and "uploadId=" in self.path

    @property
    def is_read(self) -> bool:
        return self.method == "GET" and "Range" in self.headers

    def throttle(self) -> None:
        self.status = 503
        self.answer = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"

    def refuse(self, status: int, code: str) -> None:
        self.status = status
        self.answer = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


class FaultyProxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a store; `fault` is called with each of them."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.store_port = port
        self.fault: Callable[[Passed], None] = lambda passed: None
        self.seen: list[Passed] = []
        super().__init__(("127.0.0.1", 0), _Passing)

    def handle_error(self, *_: Any) -> None:  # a client that closes the connection
        pass


class _Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body of a response waits 40 ms for the head to be acknowledged
    server: FaultyProxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        passed = Passed(self.command, self.path, dict(self.headers), body)
        self.server.seen.append(passed)
        self.server.fault(passed)
        if passed.resets_before:
            self._reset(passed)
            return
        status, headers, answer = passed.status, {}, passed.answer
        if not status:
            with closing(http.client.HTTPConnection("127.0.0.1", self.server.store_port, timeout=300)) as store:
                store.request(passed.method, passed.path, passed.body, passed.headers)
                response = store.getresponse()
                status, answer = response.status, response.read()
                headers = dict(response.getheaders())
        passed.once_handled()
        if passed.resets_after:
            self._reset(passed)
            return
        if passed.shortened_to is not None:
            answer = answer[: passed.shortened_to]
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer if passed.cut_to is None else answer[: passed.cut_to])
        if passed.cut_to is not None:
            self._reset(passed)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    def _reset(self, passed: Passed) -> None:
        self.close_connection = True
        self.wfile.flush()
        with suppress(OSError):  # a client that is gone
            if passed.resets_hard:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.close(self.connection.detach())
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(port)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


class Store:
    """A bucket behind a proxy, and another way to it, without the proxy."""

    def __init__(self, proxy: FaultyProxy, port: int) -> None:
        self.proxy, self.port = proxy, port
        self.direct = fsspec.filesystem("s3", **s3_options(port))

    def names(self) -> list[str]:
        self.direct.invalidate_cache()
        return [name.removeprefix("bucket/") for name in self.direct.find("bucket")]

    def uploads(self) -> list[Any]:
        found: list[Any] = self.direct.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads", [])
        return found

    def read(self, name: str) -> bytes:
        data: bytes = self.direct.cat_file(f"bucket/{name}")
        return data

    def clear(self) -> None:
        self.works_again()
        for upload in self.uploads():
            options = {"Bucket": "bucket", "Key": upload["Key"], "UploadId": upload["UploadId"]}
            self.direct.call_s3("abort_multipart_upload", **options)
        for name in self.names():
            self.direct.rm_file(f"bucket/{name}")
        self.proxy.seen.clear()

    def works_again(self) -> None:
        self.proxy.fault = lambda passed: None


@contextmanager
def store_behind_proxy(port: int) -> Iterator[Store]:
    """A new bucket, which fsspec reaches through a proxy as s3://bucket. Only leafwise retries."""
    with faulty_proxy(port) as proxy, pytest.MonkeyPatch.context() as patched:
        options = s3_options(proxy.server_address[1])
        patched.setattr(fsspec.config, "conf", {"s3": options})
        files = fsspec.filesystem("s3", **options)
        patched.setattr(type(files), "retries", 1)
        files.mkdir("bucket")
        yield Store(proxy, port)
