"""What the server of the viewer refuses, over real sockets: everything but the requests of its own page."""

import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.web.asking import Client, secure

import leafwise as lw


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lw.view(torch.nn.Linear(4, 2), browser=False, port=0) as view:
        yield Client(view.url)


def test_the_page_gets_what_it_asks_for(client: Client) -> None:
    page = client.get()
    assert page.status == 200
    assert page.header("content-type") == "text/html; charset=utf-8"
    assert b"<script" in page.body
    secure(page)
    summary = client.get("api/summary")
    assert summary.json()["counts"]["parameters"] == 10
    secure(summary)


# -- the token -------------------------------------------------------------------------------------------


def test_without_the_whole_token_nothing_is_answered(client: Client) -> None:
    token = client.token
    other = token[:-1] + ("A" if token[-1] != "A" else "B")
    wrong = [
        "", token[:-1], token[:1], f"{token}x", f"x{token}", other, token.swapcase(), "%00", f"{token}%00",
        f"%20{token}",
        f".{token}", f"./{token}", f"x/{token}", f"x/../{token}", f"/{token}", "%C3%A9" * len(token),
    ]  # fmt: skip
    for spelled in wrong:
        for rest in ("", "/", "/api/summary", "/app.js", "/api/start?what=stats"):
            path = f"/{spelled}{rest}"
            answer = client.send("GET", path)
            assert answer.status in (400, 404), (path, answer.status)
            assert b"parameters" not in answer.body
            assert token.encode() not in answer.body
            if answer.status == 404:
                secure(answer)


def test_each_viewer_has_another_long_token() -> None:
    tokens = set()
    for _ in range(5):
        with lw.view(torch.nn.Linear(1, 1), browser=False, port=0) as view:
            tokens.add(Client(view.url).token)
    assert len(tokens) == 5
    assert all(len(token) >= 32 for token in tokens)  # 192 bits


# -- the name of the server ------------------------------------------------------------------------------


def test_only_names_of_this_machine_with_this_port_are_answered(client: Client) -> None:
    port = client.port
    for name in ("127.0.0.1", "localhost", "[::1]", "LOCALHOST", "LocalHost"):
        answer = client.lines("GET", None, f"Host: {name}:{port}")
        assert answer.status == 200, name
    wrong = [
        "example.com", f"example.com:{port}", f"127.0.0.1.example.com:{port}", f"localhost.example.com:{port}",
        f"127.0.0.1.nip.io:{port}", f"7f000001.c0a80001.rbndr.us:{port}", f"evil@127.0.0.1:{port}",
        f"127.0.0.1:{port}@evil.com", f"127.0.0.1:{port}.evil.com", f"0.0.0.0:{port}", f"127.0.0.2:{port}",
        f"[::]:{port}", f"::1:{port}", f"2130706433:{port}", f"0x7f.1:{port}", f"127.1:{port}", "127.0.0.1",
        "localhost", f"127.0.0.1:{port + 1}", "127.0.0.1:80", f"127.0.0.1:0{port}", f"127.0.0.1:{port}:{port}",
        f"localhost.:{port}", f"127.0.0.1:{port},evil.com", f"http://127.0.0.1:{port}", "", "null",
    ]  # fmt: skip
    for name in wrong:
        answer = client.lines("GET", None, f"Host: {name}")
        assert answer.status in (400, 421), (name, answer.status)
        assert b"parameters" not in answer.body
        if answer.status == 421:
            secure(answer)


def test_a_request_must_name_the_server_once(client: Client) -> None:
    good, bad = f"Host: 127.0.0.1:{client.port}", "Host: example.com"
    for headers in ([], [good, bad], [bad, good], [good, good]):
        answer = client.lines("GET", None, *headers)
        assert answer.status in (400, 421), headers
        assert b"parameters" not in answer.body
    # A proxy's word does not count.
    forwarded = client.lines(
        "GET", None, bad, "X-Forwarded-Host: 127.0.0.1", f"X-Forwarded-For: 127.0.0.1:{client.port}"
    )
    assert forwarded.status == 421


def test_an_older_client_that_names_no_server_is_refused(client: Client) -> None:
    answer = client.raw(f"GET /{client.token}/api/summary HTTP/1.0\r\n\r\n".encode())
    assert answer.status == 421
    secure(answer)


# -- other pages in the same browser ---------------------------------------------------------------------


def test_requests_from_other_pages_are_refused(client: Client) -> None:
    port = client.port
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert client.get("api/summary", headers={"Origin": f"http://{name}:{port}"}).status == 200
    wrong = [
        "null", "https://example.com", "http://example.com", f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
        "http://127.0.0.1", "http://localhost", f"http://127.0.0.1.evil.com:{port}",
        f"http://evil.com#127.0.0.1:{port}",
        f"http://127.0.0.1:{port}@evil.com", f"http://user@127.0.0.1:{port}", f"file://127.0.0.1:{port}", "file://", "",
        "*", f"chrome-extension://127.0.0.1:{port}", f"127.0.0.1:{port}", f"//127.0.0.1:{port}", "http://[",
        "http://[::1",
        f"http://127.0.0.1:{port}, http://evil.com",
    ]  # fmt: skip
    for origin in wrong:
        for method, route in (("GET", "api/summary"), ("GET", ""), ("POST", "api/start?what=stats")):
            answer = client.get(route, method, headers={"Origin": origin})
            assert answer.status == 403, (origin, method, answer.status)
            assert b"parameters" not in answer.body
            secure(answer)


def test_a_second_origin_does_not_help(client: Client) -> None:
    own, evil = f"Origin: http://127.0.0.1:{client.port}", "Origin: https://example.com"
    for origins in ((own, evil), (evil, own)):
        assert client.lines("GET", None, f"Host: 127.0.0.1:{client.port}", *origins).status == 403


def test_a_link_on_another_page_may_open_the_page_but_ask_nothing(client: Client) -> None:
    across = {"Sec-Fetch-Site": "cross-site"}
    assert client.get("", headers=across).status == 200
    for route in ("api/summary", "api/tile", "app.js", "api/nothing"):
        answer = client.get(route, headers=across)
        assert answer.status == 403, route
        secure(answer)
    for site in ("same-origin", "none"):
        assert client.get("api/summary", headers={"Sec-Fetch-Site": site}).status == 200


# -- methods, contents, sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "BREW"])
def test_there_are_only_requests_that_read(client: Client, method: str) -> None:
    for route in ("", "api/summary", "api/start?what=stats", "app.js", "nothing"):
        answer = client.get(route, method)
        assert answer.status == 405, route
        secure(answer)


def test_no_tunnel_is_opened(client: Client) -> None:
    for target in ("example.com:443", f"/{client.token}/"):
        answer = client.lines("CONNECT", target, f"Host: 127.0.0.1:{client.port}")
        assert answer.status in (400, 404, 405)


def test_a_request_in_the_form_for_proxies_gets_nothing_else(client: Client) -> None:
    for target in (f"http://example.com/{client.token}/api/summary", "http://example.com/", "*"):
        answer = client.lines("GET", target, f"Host: 127.0.0.1:{client.port}")
        assert answer.status in (400, 404)
        assert b"parameters" not in answer.body


def test_a_request_with_a_content_is_refused(client: Client) -> None:
    for method, route in (("POST", "api/start?what=stats"), ("GET", "api/summary"), ("POST", "api/summary")):
        answer = client.send(method, f"/{client.token}/{route}", body=b"x")
        assert answer.status == 413
        secure(answer)
    host = f"Host: 127.0.0.1:{client.port}"
    chunked = client.lines("POST", f"/{client.token}/api/start?what=stats", host, "Transfer-Encoding: chunked")
    assert chunked.status == 413
    for length in ("-1", "1, 1", "9" * 30, "0x0", "abc"):
        answer = client.lines("POST", f"/{client.token}/api/start?what=stats", host, f"Content-Length: {length}")
        assert answer.status in (400, 413), length


def test_reading_is_not_posting_and_starting_is_not_reading(client: Client) -> None:
    for route in ("", "app.js", "api/summary", "api/rows"):
        answer = client.get(route, "POST")
        assert answer.status == 405, route
        secure(answer)
    answer = client.get("api/start", what="stats")
    assert answer.status == 405
    secure(answer)
    assert client.get("api/start", "POST", what="stats").status == 200


def test_head_is_answered_without_content(client: Client) -> None:
    for route in ("", "api/summary", "nothing"):
        asked, head = client.get(route), client.get(route, "HEAD")
        assert (head.status, head.body) == (asked.status, b"")
        secure(head)


def test_a_long_query_is_refused(client: Client) -> None:
    longest = 16_384
    start = "query="
    for extra, status in ((0, 200), (1, 414)):
        answer = client.send("GET", f"/{client.token}/api/rows?{start}{'a' * (longest - len(start) + extra)}")
        assert answer.status == status, extra
        secure(answer)


def test_huge_requests_are_refused_and_the_server_goes_on(client: Client) -> None:
    host = f"Host: 127.0.0.1:{client.port}"
    for data in (
        f"GET /{client.token}/ HTTP/1.1\r\n{host}\r\nX: {'a' * (1 << 20)}\r\n\r\n",
        f"GET /{client.token}/ HTTP/1.1\r\n{host}\r\n" + "".join(f"X-{n}: a\r\n" for n in range(50_000)) + "\r\n",
        f"GET /{'a' * (1 << 20)} HTTP/1.1\r\n{host}\r\n\r\n",
        "a" * (1 << 20),
    ):
        answer = client.raw(data.encode())
        assert answer.status in (0, 400, 404, 413, 414, 431), data[:30]  # 0: the connection was closed
    assert client.get().status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"\r\n" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
        b"GET /%ff%fe%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\nConnection: close\n\n",
    ],
)  # fmt: skip
def test_what_is_not_http_is_refused_and_the_server_goes_on(client: Client, data: bytes) -> None:
    with socket.create_connection((client.host, client.port), timeout=300) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while part := sock.recv(1 << 16):
            received += part
    assert b"Traceback" not in received
    assert not received or int(received.split()[1]) in (400, 404, 421), received[:100]
    assert client.get().status == 200


def test_smuggled_requests_are_not_answered(client: Client) -> None:
    second = f"GET /{client.token}/api/summary HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n"
    data = (
        f"POST /{client.token}/api/start?what=stats HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nConnection: close\r\n"
        f"Content-Length: {len(second)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
    )
    answer = client.raw(data.encode())
    assert answer.status in (400, 413)
    assert b"parameters" not in answer.body


def test_web_sockets_are_refused(client: Client) -> None:
    upgrade = (
        f"Host: 127.0.0.1:{client.port}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )  # fmt: skip
    for path in (f"/{client.token}/api/summary", f"/{client.token}/ws", "/"):
        data = "\r\n".join((f"GET {path} HTTP/1.1", *upgrade, "", "")).encode()
        with socket.create_connection((client.host, client.port), timeout=300) as sock:
            sock.sendall(data)
            first = sock.recv(1 << 16).split(b"\r\n")[0]
        assert not first.startswith(b"HTTP/1.1 101"), path


def test_clients_that_send_nothing_do_not_keep_others_waiting(client: Client) -> None:
    silent = [socket.create_connection((client.host, client.port), timeout=300) for _ in range(30)]
    try:
        for number, sock in enumerate(silent):
            sock.sendall(b"GET / HTTP/1.1\r\nHost:"[: number % 20])
        assert client.get().status == 200
    finally:
        for sock in silent:
            sock.close()


def test_many_requests_at_once_are_answered_or_put_off(client: Client) -> None:
    found: list[int] = []

    def ask() -> None:
        found.extend(client.get("api/rows").status for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(found) == 100
    assert set(found) == {200}


# -- files -----------------------------------------------------------------------------------------------


def test_only_the_files_of_the_page_are_served(client: Client) -> None:
    for name, kind in (("", "text/html"), ("app.js", "text/javascript"), ("app.css", "text/css")):
        answer = client.get(name)
        assert answer.status == 200, name
        assert answer.header("content-type") == f"{kind}; charset=utf-8"
        secure(answer)
    # Whoever has the address, but not the slash at its end, is not led elsewhere.
    assert client.send("GET", f"/{client.token}").status == 200


CLIMBS = [
    "../", "..%2f", "%2e%2e/", "%2e%2e%2f", "%2E%2E%2F", ".%2e/", "..%5c", "..\\", "%252e%252e%252f", "..%c0%af",
    "%c0%ae%c0%ae/", "....//", "..;/", ".../", "..%00/", "/", "//", "%2f", "%2F%2F", "./", "%2e/", "\\", "%5c",
    "file:///",
    "http://127.0.0.1/", "page/../", "app.js/../", "api/../", "app.js/", "static/", "assets/",
]  # fmt: skip


@pytest.mark.parametrize("climb", CLIMBS)
def test_no_spelling_of_a_path_leads_out_of_the_page(client: Client, climb: str) -> None:
    for name in (
        "etc/passwd", "app.py", "guard.py", "__init__.py", "session.py", "../app.py", "page/app.js", "index.html",
        "app.js.map", "src/main.tsx", "package.json", ".npmrc", ".env",
    ):  # fmt: skip
        for times in (1, 2, 8):
            answer = client.send("GET", f"/{client.token}/{climb * times}{name}")
            assert answer.status == 404, (climb, name)
            assert b"root:" not in answer.body
            assert b"import" not in answer.body
            assert client.token.encode() not in answer.body
            secure(answer)


def test_nothing_in_the_query_of_a_file_changes_what_is_served(client: Client) -> None:
    plain = client.get("app.js").body
    assert client.send("GET", f"/{client.token}/app.js?../../etc/passwd").body == plain
    assert client.send("GET", f"/{client.token}/app.js?name=guard.py").body == plain
