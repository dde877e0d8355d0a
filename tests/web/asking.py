"""Requests to a viewer, as a page, another program or an attacker would send them, and files with any names."""

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Answer(NamedTuple):
    """What came back. The names of headers are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        """The content, as strict JSON: Python also reads NaN, which no browser does."""
        assert self.header("content-type") == "application/json", (self.status, self.headers, self.body[:200])
        return json.loads(self.body.decode("utf-8"), parse_constant=_no_constant)


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


class Client:
    """Requests to the viewer at an address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port, self.token = parts.hostname, parts.port, parts.path.strip("/")

    def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """A request with a path as it is. The usual headers are added, unless they are given."""
        connection = HTTPConnection(self.host, self.port, timeout=300)
        try:
            given = {name.lower() for name in headers or ()}
            connection.putrequest(method, path, skip_host="host" in given, skip_accept_encoding=True)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None and not given & {"content-length", "transfer-encoding"}:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, [(n.lower(), v) for n, v in response.getheaders()], response.read())
        finally:
            connection.close()

    def get(
        self, route: str = "", method: str = "GET", headers: Mapping[str, str] | None = None, **asked: Any
    ) -> Answer:
        """A request of the page, with the token. `from_` stands for `from`."""
        query = urlencode({name.rstrip("_"): value for name, value in asked.items()}, quote_via=quote)
        return self.send(method, f"/{self.token}/{route}{'?' + query if query else ''}", headers)

    def api(self, route: str, **asked: Any) -> Any:
        """The data of an answer, which must be a good one."""
        answer = self.get(f"api/{route}", **asked)
        assert answer.status == 200, (route, asked, answer.status, answer.body[:500])
        return answer.json()

    def raw(self, data: bytes) -> Answer:
        """Bytes as they are; the answer is read until the server closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=300) as sock:
            received = b""
            try:
                sock.sendall(data)
                while part := sock.recv(1 << 16):
                    received += part
            except ConnectionError:  # closed while there was still something to be sent
                pass
        if not received:
            return Answer(0, [], b"")
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Answer(int(first.split()[1]), headers, body)

    def lines(self, method: str = "GET", path: str | None = None, *headers: str) -> Answer:
        """A request with exactly these lines of headers."""
        path = f"/{self.token}/api/summary" if path is None else path
        text = "\r\n".join((f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""))
        return self.raw(text.encode("latin-1"))


def secure(answer: Answer) -> None:
    """Whether an answer has the headers that every answer has, each once."""
    for name, value in SECURITY.items():
        assert answer.header(name) == value, (answer.status, name, answer.headers)
    policy = answer.header("content-security-policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy
    assert answer.header("server") is None  # names no versions
    assert answer.header("access-control-allow-origin") is None


def strings(data: Any) -> Iterator[str]:
    """Every text in the data of an answer, of any depth."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def inert(data: Any) -> None:
    """Whether no text of an answer contains characters that hide, reverse or forge text."""
    for text in strings(data):
        raw = {char for char in text if not char.isprintable()}
        assert not raw, (sorted(map(ascii, raw)), ascii(text)[:300])


def write_safetensors(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> str:
    """A file with any names, also such as the library refuses to write."""
    kinds = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, value in arrays.items():
        array = np.ascontiguousarray(value)
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kinds[str(array.dtype)], "shape": list(np.shape(value)), "data_offsets": span}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)
