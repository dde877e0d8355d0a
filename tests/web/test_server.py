"""The server of the viewer: its port and its end, arguments that make no sense, values that JSON lacks, hostile names,
and files that change while they are shown."""

import gc
import json
import os
import resource
import shutil
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from tests.forked import Commands
from tests.web.asking import Client, inert, secure, write_safetensors
from tests.web.pages import until
from torch import nn

import leafwise as lw
from leafwise.web import app, jobs, serving, watched_files
from leafwise.web.answers import whole


def done(client: Client) -> dict[str, Any]:
    """The progress when everything that was started has ended."""
    while True:
        progress: dict[str, Any] = client.api("progress")
        jobs = [progress[name] for name in ("stats", "findings", "diff") if progress[name] is not None]
        if all(job["state"] != "running" for job in jobs):
            return progress
        time.sleep(0.02)


# -- the port --------------------------------------------------------------------------------------------


def occupied() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def other_addresses() -> list[tuple[int, str]]:
    """Addresses of this machine on which nothing may listen."""
    found = {(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")}
    for family, probe in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))  # nothing is sent
                found.add((family, sock.getsockname()[0]))
        except OSError:
            pass  # it has no such network
    try:
        for family, _, _, _, address in socket.getaddrinfo(socket.gethostname(), None):
            found.add((family, str(address[0])))
    except OSError:
        pass
    return sorted((int(family), address) for family, address in found if address != "127.0.0.1")


def test_only_this_machine_can_reach_it() -> None:
    with lw.view(torch.nn.Linear(2, 2), browser=False, port=0) as view:
        client = Client(view.url)
        assert client.host == "127.0.0.1"
        for family, address in other_addresses():
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(5)
                with pytest.raises(OSError):  # noqa: PT011  refused, or there is no such network
                    sock.connect((address, client.port))


def test_a_port_that_is_in_use_is_left_alone() -> None:
    with occupied() as sock:
        port = sock.getsockname()[1]
        with lw.view(torch.nn.Linear(2, 2), browser=False, port=port) as view:
            taken = Client(view.url)
            assert port < taken.port < port + 100
            assert taken.get().status == 200
            with lw.view(torch.nn.Linear(3, 3), browser=False, port=port) as second:
                assert Client(second.url).port > taken.port


def test_if_no_port_is_free_the_message_says_which_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with occupied() as sock:
        port = sock.getsockname()[1]
        monkeypatch.setattr(serving, "_PORTS", 1)
        before = threading.active_count()
        with pytest.raises(lw.Error, match=rf"no port from {port} to {port} can be used: Address already in use; name"):
            lw.view(torch.nn.Linear(2, 2), browser=False, port=port)
        assert threading.active_count() == before


@pytest.mark.parametrize("port", [-1, 65_536, 1 << 40, "8765", 8765.0, True, float("nan")])
def test_a_port_is_a_number(port: Any) -> None:
    with pytest.raises(lw.ArgumentError, match="port= takes a number from 0 to 65535, not"):
        lw.view(torch.nn.Linear(2, 2), browser=False, port=port)


def test_one_or_two_sources_are_shown() -> None:
    models = [torch.nn.Linear(2, 2) for _ in range(3)]
    for count in (0, 3):
        with pytest.raises(TypeError, match="positional argument"):
            lw.view(*models[:count], browser=False, port=0)  # type: ignore[misc]


# -- beginning and end -----------------------------------------------------------------------------------


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("leafwise-")]


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a viewer waits for its threads as long as it takes: a few seconds may not suffice on a busy machine.
    It still gives clients a second."""

    class PatientThread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout if timeout is None or timeout <= 1 else 300)

    monkeypatch.setattr(serving, "Thread", PatientThread)
    monkeypatch.setattr(jobs, "Thread", PatientThread)


@pytest.mark.usefixtures("_patient")
def _half_open(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(b"GET / HTTP/1.1\r\nHost: ")
    return sock


def _is_closed(sock: socket.socket) -> bool:
    sock.settimeout(60)  # only for what never happens
    with sock:
        try:
            return sock.recv(1) == b""
        except ConnectionError:
            return True


def test_connections_without_a_request_do_not_keep_others_out() -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1_200, most_files // 3)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 3 * count), most_files)
    )
    with lw.view(nn.Linear(2, 2), browser=False, port=0) as view:
        held = [_half_open(urlsplit(view.url).port or 0) for _ in range(count)]
        client = Client(view.url)
        assert client.api("summary")
        assert all(map(_is_closed, held[: count - serving._MOST_WAITING - 10]))
        for sock in held:
            sock.close()


def test_a_request_that_never_ends_is_given_up_and_a_slow_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SECONDS_FOR_REQUEST", 0.2)
    with lw.view(nn.Linear(2, 2), browser=False, port=0) as view:
        assert _is_closed(_half_open(urlsplit(view.url).port or 0))
        assert _is_closed(socket.create_connection(("127.0.0.1", urlsplit(view.url).port or 0)))
        monkeypatch.undo()
        assert Client(view.url).api("summary")


def test_a_connection_that_was_refused_is_closed() -> None:
    with lw.view(nn.Linear(2, 2), browser=False, port=0) as view:
        port = urlsplit(view.url).port
        answer = b""
        with socket.create_connection(("127.0.0.1", port or 0)) as sock:
            sock.sendall(f"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            while part := sock.recv(4096):
                answer += part
        assert answer.startswith(b"HTTP/1.1 404")


def test_the_browser_gets_no_token_in_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can read them."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with lw.view(nn.Linear(2, 2), browser=True, port=0) as view:
        page = Path(unquote(urlsplit(until(lambda: opened)[0]).path))
        token = urlsplit(view.url).path.strip("/")
        assert token not in opened[0]
        assert view.url in page.read_text("utf-8")
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700


def test_closing_frees_the_port_and_ends_the_threads(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"w": np.ones((4, 4), np.float32)})
    before = own_threads()
    opened = len(os.listdir("/proc/self/fd"))
    view = lw.view(path, browser=False, port=0)
    client = Client(view.url)
    done(client)
    assert len(own_threads()) > len(before)
    assert repr(view) == f"<leafwise view of {path}: {view.url}>"
    view.close()
    view.close()
    assert own_threads() == before
    assert repr(view) == f"<leafwise view of {path}: closed>"
    assert view._repr_html_() == "<p>This viewer is closed.</p>"
    with pytest.raises(ConnectionRefusedError):
        client.get()
    with lw.view(torch.nn.Linear(2, 2), browser=False, port=client.port) as again:
        assert Client(again.url).port == client.port
        assert Client(again.url).token != client.token
        assert client.get().status == 404  # the token of the one that was closed
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= opened


@pytest.mark.usefixtures("_patient")
def test_closing_does_not_wait_for_clients_or_computations(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    view = lw.view(model, browser=False, port=0)
    client = Client(view.url)
    with socket.create_connection((client.host, client.port)) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: view._server._server.server_state.connections)
        view.close()
    assert not [name for name in own_threads() if name == "leafwise-server"]


def test_waiting_ends_when_it_is_closed_by_another_thread() -> None:
    view = lw.view(torch.nn.Linear(2, 2), browser=False, port=0)
    threading.Timer(0.2, view.close).start()
    view.wait()
    with pytest.raises(ConnectionRefusedError):
        Client(view.url).get()


def test_two_viewers_do_not_know_of_each_other() -> None:
    first, second = torch.nn.Linear(3, 5), torch.nn.Conv2d(1, 2, 3)
    with (
        lw.view(first, browser=False, port=0) as one,
        lw.view(second, browser=False, port=0) as two,
    ):
        a, b = Client(one.url), Client(two.url)
        assert a.api("summary")["title"] == "Linear"
        assert b.api("summary")["title"] == "Conv2d"
        assert a.send("GET", f"/{b.token}/").status == 404
        assert b.send("GET", f"/{a.token}/").status == 404
        one.close()
        assert b.get().status == 200


def test_a_source_that_cannot_be_opened_leaves_no_server(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 100)
    before = own_threads()
    for source in (damaged, tmp_path / "missing.safetensors", object()):
        with pytest.raises(lw.Error):
            lw.view(source, browser=False, port=0)
        with pytest.raises(lw.Error):
            lw.view(torch.nn.Linear(2, 2), source, browser=False, port=0)
    assert own_threads() == before


def test_a_tree_of_the_caller_stays_open(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"w": np.arange(4, dtype=np.float32)})
    with lw.open(path) as t:
        with lw.view(t, browser=False, port=0) as view:
            assert Client(view.url).api("summary")["title"] == "a.safetensors"
        assert np.asarray(t["w"].value).tolist() == [0, 1, 2, 3]


def test_a_notebook_may_embed_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.web import viewing

    opened: list[str] = []
    monkeypatch.setattr(viewing, "open_browser", opened.append)
    with lw.view(torch.nn.Linear(2, 2), port=0) as view:
        assert opened == [view.url]
        policy = Client(view.url).get().header("content-security-policy")
        assert policy is not None
        assert policy.endswith("frame-ancestors 'none'")
    monkeypatch.setattr(viewing, "_is_notebook", lambda: True)
    with lw.view(torch.nn.Linear(2, 2), port=0) as view:
        assert opened[1:] == []
        policy = Client(view.url).get().header("content-security-policy")
        assert policy is not None
        assert policy.endswith("frame-ancestors http://127.0.0.1:* http://localhost:*")
        assert f'<iframe src="{view.url}"' in view._repr_html_()


# -- time ------------------------------------------------------------------------------------------------


def test_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    quick = whole.summary

    def slow(session: Any) -> Any:
        go_on.wait(300)
        return quick(session)

    monkeypatch.setattr(app, "SECONDS", 0.1)
    monkeypatch.setattr(whole, "summary", slow)
    with lw.view(torch.nn.Linear(2, 2), browser=False, port=0) as view:
        client = Client(view.url)
        for _ in range(10):  # more than are computed at the same time
            answer = client.get("api/summary")
            assert answer.status == 503
            assert answer.json() == {"error": "this took longer than 0.1 seconds"}
            secure(answer)
        go_on.set()
        monkeypatch.setattr(app, "SECONDS", 60)
        assert client.get("api/summary").status == 200


def test_slow_answers_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()
    quick = whole.summary

    def slow(session: Any) -> Any:
        begun.set()
        go_on.wait(300)
        return quick(session)

    monkeypatch.setattr(whole, "summary", slow)
    with lw.view(torch.nn.Linear(2, 2), browser=False, port=0) as view:
        client = Client(view.url)
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(client.get("api/summary").status))
        thread.start()
        assert begun.wait(300)
        assert client.api("rows")["total"] == 3
        assert client.get("app.js").status == 200
        assert not found
        go_on.set()
        thread.join(300)
        assert found == [200]


def test_an_error_in_an_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(session: Any) -> Any:
        raise ValueError("at \x1b[31m http://me:secret@host/x")

    monkeypatch.setattr(whole, "summary", wrong)
    with lw.view(torch.nn.Linear(2, 2), browser=False, port=0) as view:
        answer = Client(view.url).get("api/summary")
        assert answer.status == 500
        assert answer.json() == {"error": "ValueError: at \\u001b[31m http://***@host/x"}
        secure(answer)
        assert Client(view.url).api("rows")["total"] == 3


# -- arguments -------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """A model with one leaf of every kind that answers differ for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(300, 20)
        self.conv = torch.nn.Conv2d(3, 8, 5)
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("complex", torch.ones(3, 3, dtype=torch.complex64))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lw.view(Model(), browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        yield client


@pytest.fixture(scope="module")
def pair() -> Iterator[Client]:
    with lw.view(Model(), Model(), browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        yield client


NOT_WHOLE = (
    "-1", "-0", "+1", "1.0", "1e3", "x", "", " ", " 1", "1 ", "0x10", "٣", "３", "²", "Ⅷ", "1_000", "1,000", "nan",
    "inf", "None", "true", "9" * 19, "9" * 20, "9" * 5_000, str(1 << 63), "\0", "1\0", "\u202e1", "[]", "0;1",
)  # fmt: skip
NOT_A_LIMIT = (
    "nan", "inf", "-inf", "-1", "0", "-0.0", "0.0", "", "x", "1e400", "1e-400", "-1e-300", "Infinity", "NaN", "1,5",
    "0x1p3",
    "1\0", "٣",
)  # fmt: skip
NO_LEAF = (
    "", "linear", "conv", "nowhere", "linear.", ".", "..", "linear..weight", "linear.weight ", "LINEAR.WEIGHT", "*",
    "linear.*", '"', '"linear.weight', "linear/weight", "\0", "\u202e", "a" * 10_000, "𝔩inear.weight",
    "../../etc/passwd",
    "linear.weight.weight", "0", "[0]", "None",
)  # fmt: skip


def refused(client: Client, route: str, method: str = "GET", **asked: Any) -> None:
    """Whether a request is refused with a message that can be shown, and that shows no code."""
    answer = client.get(f"api/{route}", method, **asked)
    secure(answer)
    data = answer.json()
    inert(data)
    assert answer.status in (400, 422), (route, asked, answer.status, data)
    assert set(data) == {"error"}
    assert data["error"]
    assert "Traceback" not in data["error"]
    assert len(data["error"]) <= 2_000


@pytest.mark.parametrize("value", NOT_WHOLE, ids=lambda value: ascii(value)[:30])
def test_numbers_are_whole_and_not_negative(client: Client, pair: Client, value: str) -> None:
    for route in ("rows", "findings", "table"):
        refused(client, route, from_=value)
        refused(client, route, count=value)
    for route in ("diff", "plan"):
        refused(pair, route, from_=value)
        refused(pair, route, count=value)
    refused(client, "rows", depth=value)
    refused(client, "find", path="linear.weight", depth=value)
    if value not in ("", "1,000"):  # these are lists of numbers
        refused(client, "rows", toggled=value)
        refused(client, "rows", toggled=f"1,{value}")
        refused(client, "find", path="linear.weight", toggled=value)
    tile = {"path": "linear.weight", "layout": "matrix", "z": 0, "y": 0, "x": 0, "limit": 1}
    for name in ("z", "y", "x"):
        refused(client, "tile", **tile | {name: value})
    place = {"path": "linear.weight", "layout": "matrix", "row": 0, "column": 0}
    for name in ("row", "column"):
        refused(client, "value", **place | {name: value})


@pytest.mark.parametrize("limit", NOT_A_LIMIT, ids=lambda value: ascii(value)[:30])
def test_the_limit_of_a_scale_is_positive_and_finite(client: Client, limit: str) -> None:
    refused(client, "tile", path="linear.weight", layout="matrix", z=0, y=0, x=0, limit=limit)


@pytest.mark.parametrize("limit", ["1e-320", "5e-324", "1.7e308", "1"])
def test_every_other_limit_draws_a_tile(client: Client, limit: str) -> None:
    answer = client.get("api/tile", path="linear.weight", layout="matrix", z=0, y=0, x=0, limit=limit)
    assert answer.status == 200
    assert answer.body.startswith(b"\x89PNG\r\n\x1a\n")
    assert answer.header("content-type") == "image/png"
    secure(answer)


@pytest.mark.parametrize("path", NO_LEAF, ids=lambda path: ascii(path)[:30])
def test_what_is_not_a_leaf_cannot_be_opened(client: Client, path: str) -> None:
    for route in ("leaf", "statistics", "norms"):
        refused(client, route, path=path)
    refused(client, "scale", path=path, layout="matrix")
    refused(client, "tile", path=path, layout="matrix", z=0, y=0, x=0, limit=1)
    refused(client, "value", path=path, layout="matrix", row=0, column=0)
    if path not in ("", "linear", "conv"):  # nodes can be found
        refused(client, "find", path=path)
        refused(client, "map", path=path)


@pytest.mark.parametrize(
    "layout",
    ["", "Matrix", "filters", "strip", "nothing", "__class__", "\0", "a" * 5_000],
    ids=lambda value: ascii(value)[:30],
)
def test_a_leaf_is_drawn_only_in_its_own_layouts(client: Client, layout: str) -> None:
    refused(client, "scale", path="linear.weight", layout=layout)
    refused(client, "tile", path="linear.weight", layout=layout, z=0, y=0, x=0, limit=1)
    refused(client, "value", path="linear.weight", layout=layout, row=0, column=0)


@pytest.mark.parametrize("path", ["scalar", "empty", "complex"])
def test_a_leaf_that_cannot_be_drawn_says_why(client: Client, path: str) -> None:
    facts = client.api("leaf", path=path)
    assert facts["views"] == []
    assert facts["no_view"]
    for layout in ("matrix", "strip", "filters"):
        refused(client, "scale", path=path, layout=layout)
        refused(client, "tile", path=path, layout=layout, z=0, y=0, x=0, limit=1)
        refused(client, "value", path=path, layout=layout, row=0, column=0)
    assert client.api("norms", path=path) is None


def test_tiles_and_values_outside_of_a_leaf_are_refused(client: Client) -> None:
    [view] = client.api("leaf", path="linear.weight")["views"]
    assert (view["rows"], view["columns"], view["levels"]) == (20, 300, 2)
    tile = {"path": "linear.weight", "layout": "matrix", "limit": 1}
    for z, y, x in (
        (2, 0, 0),
        (60, 0, 0),
        (0, 1, 0),
        (0, 0, 2),
        (1, 0, 1),
        (1, 1, 0),
        (0, 1 << 62, 0),
        (0, 0, 1 << 62),
    ):
        refused(client, "tile", z=z, y=y, x=x, **tile)
    for row, column in ((20, 0), (0, 300), (1 << 62, 0), (0, 1 << 62)):
        refused(client, "value", path="linear.weight", layout="matrix", row=row, column=column)


def test_unknown_names_are_refused(client: Client, pair: Client) -> None:
    for name in ("", "nothing", "Bytes", "__class__", "tree,path", "\u202ebytes"):
        refused(client, "rows", sort=name)
        refused(client, "map", path="", color=name)
        refused(client, "start", "POST", what=name)
        if name:
            refused(client, "findings", level=name)
            refused(pair, "diff", kind=name)
            refused(pair, "diff", sort=name)
            # The table says it beside its columns, like a query that is wrong.
            assert client.api("table", sort=name)["error"].startswith("there is no column")
    refused(client, "map", path="", color="change")  # nothing is compared
    refused(client, "diff")
    refused(client, "plan")
    refused(client, "start", "POST", what="diff")


def test_missing_arguments_are_named(client: Client) -> None:
    for route, names in {
        "find": ["path"], "map": ["path"], "leaf": ["path"], "statistics": ["path"], "norms": ["path"],
        "scale": ["path", "layout"], "tile": ["path", "layout", "z", "y", "x", "limit"],
        "value": ["path", "layout", "row", "column"],
    }.items():  # fmt: skip
        given = {"path": "linear.weight", "layout": "matrix", "limit": 1} | dict.fromkeys(
            ("z", "y", "x", "row", "column"), 0
        )
        for missing in names:
            answer = client.get(f"api/{route}", **{name: given[name] for name in names if name != missing})
            assert answer.status == 400, (route, missing)
            assert answer.json()["error"].startswith(f"{missing}= ")
    answer = client.get("api/start", "POST")
    assert (answer.status, answer.json()) == (400, {"error": "what= is missing"})


def test_too_many_toggled_nodes_are_refused(client: Client) -> None:
    assert client.api("rows", toggled=",".join(map(str, range(2_000))))["total"]
    refused(client, "rows", toggled=",".join(map(str, range(2_001))))


def test_windows_beyond_the_end_are_empty_and_large_ones_are_cut(client: Client) -> None:
    for route in ("rows", "findings", "table"):
        whole_list = client.api(route, from_=0, count=500)
        assert client.api(route, from_=10**6, count=5)["rows"] == []
        assert client.api(route, from_=1 << 62, count=1 << 62)["rows"] == []
        assert client.api(route, from_=0, count=0)["rows"] == []
        assert client.api(route, from_=0, count=1 << 62)["rows"] == whole_list["rows"]


@pytest.mark.parametrize(
    "query",
    [
        "nothing:1", "role:", "ndim:x", "ndim:٣", "ndim:-1", "ndim:9999", "tied:maybe", "[", "a" * 1_001,
        "dtype:float3",
        ":", "kind:zebra", "\0", "\u202e", "role:[", "section:nowhere", "owner:[[", "?", "re:(", "a:b:c", "trainable:",
    ],
    ids=lambda query: ascii(query)[:30],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_explained_or_finds_nothing(client: Client, pair: Client, query: str) -> None:
    for asker, route in ((client, "rows"), (client, "table"), (pair, "diff")):
        data = asker.api(route, query=query)
        inert(data)
        assert data["error"] or data["total"] == 0, (route, data)
    assert client.api("find", path="linear.weight", query=query)["index"] is None


def test_arguments_that_are_given_twice_or_unknown_do_no_harm(client: Client) -> None:
    for query in ("path=conv.weight&path=linear.weight", "path=linear.weight&unknown=1", "&&path=linear.weight&=&x"):
        answer = client.send("GET", f"/{client.token}/api/leaf?{query}")
        assert answer.status == 200
        assert answer.json()["path"] in ("linear.weight", "conv.weight")
    for query in ("path=%ff%fe", "path=%ed%b2%80", "path=%", "path=%zz", "path=%00", "%ff=%ff"):
        answer = client.send("GET", f"/{client.token}/api/leaf?{query}")
        assert answer.status in (400, 422)
        inert(answer.json())


def test_routes_that_do_not_exist_are_not_found(client: Client) -> None:
    for route in (
        "api",
        "api/",
        "api/nothing",
        "api/rows/",
        "api/rows/x",
        "API/rows",
        "api/__init__",
        "docs",
        "openapi.json",
    ):
        answer = client.get(route)
        assert answer.status == 404, route
        secure(answer)


# -- values that JSON lacks ------------------------------------------------------------------------------


def strange_leaves() -> dict[str, torch.Tensor]:
    inf, nan = float("inf"), float("nan")
    return {
        "nan": torch.full((3, 4), nan),
        "inf": torch.tensor([[inf, -inf], [1.0, nan]]),
        "neginf": torch.full((3, 3), -inf),
        "one_nan": torch.tensor([nan]),
        "scalar": torch.tensor(1.5),
        "scalar_nan": torch.tensor(nan),
        "empty": torch.zeros(0),
        "empty_matrix": torch.zeros(3, 0, 2),
        "bool": torch.tensor([[True, False], [False, True]]),
        "int8": torch.tensor([[-128, 127], [0, 1]], dtype=torch.int8),
        "int64": torch.tensor([[-(2**63), 2**63 - 1], [0, 1]]),
        "uint64": torch.from_numpy(np.array([[2**64 - 1, 0], [1, 2**63]], np.uint64)),
        "uint8": torch.arange(6, dtype=torch.uint8).reshape(2, 3),
        "complex": torch.full((2, 2), complex(nan, inf)),
        "float8": torch.tensor([[1.0, -448.0], [nan, 0.0]]).to(torch.float8_e4m3fn),
        "float8_inf": torch.tensor([[1.0, inf], [nan, 0.0]]).to(torch.float8_e5m2),
        "float16": torch.tensor([[65504.0, -inf], [6e-8, nan]], dtype=torch.float16),
        "bfloat16": torch.tensor([[3e38, -3e38], [1e-40, 0.0]], dtype=torch.bfloat16),
        "huge": torch.tensor([[1.7e308, -1.7e308], [1.7e308, 5e-324]], dtype=torch.float64),
        "tiny": torch.full((4, 4), 5e-324, dtype=torch.float64),
        "zeros": torch.zeros(5, 5),
        "one": torch.ones(1, 1, 1, 1),
        "meta": torch.empty(4, 4, device="meta"),
        "filters": torch.full((2, 3, 3, 3), nan),
    }


@pytest.fixture(scope="module")
def strange() -> Iterator[Client]:
    with lw.view(strange_leaves(), browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        yield client


@pytest.mark.parametrize("name", strange_leaves())
def test_every_answer_about_a_strange_leaf_is_json(strange: Client, name: str) -> None:
    facts = strange.api("leaf", path=name)
    assert facts["size"] == strange_leaves()[name].numel()
    statistics = strange.api("statistics", path=name)
    if statistics["skipped"] is None:
        numbers = {one["name"]: one["value"] for one in statistics["numbers"]}
        array = strange_leaves()[name].to(torch.float64).numpy()
        assert statistics["nan"] == np.isnan(array).sum()
        assert statistics["posinf"] == np.isposinf(array).sum()
        assert statistics["neginf"] == np.isneginf(array).sum()
        assert statistics["zeros"] == (array == 0).sum()
        finite = array[np.isfinite(array)]
        if finite.size:
            assert numbers["min"] == pytest.approx(float(finite.min()))
            assert numbers["max"] == pytest.approx(float(finite.max()))
    answer = strange.get("api/norms", path=name)
    assert answer.status in (200, 422)
    inert(answer.json())
    for view in facts["views"]:
        scale = strange.api("scale", path=name, layout=view["layout"])
        assert 0 < scale["limit"] < float("inf")
        for level in range(view["levels"]):
            tile = strange.get(
                "api/tile", path=name, layout=view["layout"], z=level, y=0, x=0, limit=repr(scale["limit"])
            )
            assert tile.status == 200, tile.body
        value = strange.api("value", path=name, layout=view["layout"], row=0, column=0)
        assert value["text"] or value["index"] is None


def test_lists_of_strange_leaves_are_json(strange: Client) -> None:
    inert(strange.api("summary"))
    for sort in ("tree", "path", "bytes", "size", "dtype", "std", "absmax", "zeros", "change"):
        for descending in (0, 1):
            data = strange.api("rows", sort=sort, descending=descending, depth=9, count=500)
            assert len(data["rows"]) == len(strange_leaves()) + (sort == "tree")
            inert(data)
    for color in ("dtype", "role", "health", "magnitude"):
        inert(strange.api("map", path="", color=color))
    table = strange.api("table", count=500)
    for column in table["columns"]:
        inert(strange.api("table", sort=column["name"], descending=1, count=500))
    inert(strange.api("findings", count=500))


def test_two_strange_trees_are_compared_as_json() -> None:
    changed = {name: value.clone() for name, value in strange_leaves().items() if name != "meta"}
    changed["zeros"][0] = float("nan")
    with lw.view({k: v for k, v in strange_leaves().items() if k != "meta"}, changed, browser=False, port=0) as view:
        client = Client(view.url)
        assert done(client)["diff"]["state"] == "done"
        data = client.api("diff", kind="*", count=500)
        inert(data)
        assert data["total"] == len(changed)
        for change in data["rows"]:
            inert(client.api("leaf", path=change["path"]))
        for sort in ("tree", "change"):
            inert(client.api("diff", sort=sort, descending=1))
        inert(client.api("plan", count=500))
        inert(client.api("map", path="", color="change"))


def test_huge_plain_values_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "values.pt"
    values = {
        "int": 10**300, "text": "x" * 10**6, "nan": float("nan"), "none": None, "bytes": b"\0\xff", "list": [1, [2.5]],
        "tensor": torch.ones(2),
    }  # fmt: skip
    torch.save(values, path)
    with lw.view(path, browser=False, port=0) as view:
        data = Client(view.url).api("rows", depth=9)
        inert(data)
        assert max(len(row["value"] or "") for row in data["rows"]) < 1_000
        assert {"int", "text", "nan", "none"} <= {row["name"] for row in data["rows"]}


# -- hostile names ---------------------------------------------------------------------------------------

HOSTILE = [
    "<img src=x onerror=alert(1)>", '"><script>alert(1)</script>', "javascript:alert(1)", "</script><b>", "{{7*7}}",
    "${7}",
    "a\x1b[31mb", "a\x00b", "a\nb", "a\r\nSet-Cookie: x=1", "a\tb", "\x7f", "\x85", "\u2028", "\u2029", "\u202eevil",
    "\u2066x\u2069", "\u200bx", "\ufeffx", "\U000e0041", "\xad", " ", "  ", "a b", "a+b", "a%2fb", "a&b=c", "a#b",
    "a?b",
    "a/b", "a\\b", "..", ".", "", "é", "日本", "🔥", "e\u0301", "'", '"', '\\"', "null", "__proto__", "constructor",
    "a,b", "a;b", "0", "-1", "*", "[x]",
]  # fmt: skip


@pytest.mark.parametrize("live", [False, True], ids=["file", "live"])
def test_hostile_names_are_inert_and_can_be_opened(tmp_path: Path, live: bool) -> None:
    names = HOSTILE + (["\udc80", "a\ud800b"] if live else [])
    values = {name: np.full((2, 3), number, np.float32) for number, name in enumerate(names, 1)}
    source: Any = (
        {"top": {name: torch.from_numpy(value) for name, value in values.items()}}
        if live
        else write_safetensors(tmp_path / "a.safetensors", values, {"<b>\x1b": "\u202e<script>"})
    )
    with lw.view(source, browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        for route in ("summary", "progress", "findings"):
            inert(client.api(route))
        inert(client.api("table", count=500))
        inert(client.api("map", path=""))
        rows = client.api("rows", depth=20, count=500)["rows"]
        inert(rows)
        found = set()
        for row in rows:
            place = client.api("find", path=row["path"], depth=20)
            assert client.api("rows", depth=20, from_=place["index"], count=1)["rows"][0]["path"] == row["path"]
            if row["kind"] == "node":
                assert client.api("map", path=row["path"])["path"] == row["path"]
            if row["kind"] != "leaf":
                continue
            inert(client.api("leaf", path=row["path"]))
            numbers = {one["name"]: one["value"] for one in client.api("statistics", path=row["path"])["numbers"]}
            found.add(numbers["max"])
            assert numbers["max"] == numbers["min"] == float(client.api(
                "value", path=row["path"], layout="matrix", row=1, column=2
            )["text"])  # fmt: skip
        assert found == set(range(1, len(names) + 1))  # each leaf is another one


def test_names_that_are_long_or_deep_do_not_break_it(tmp_path: Path) -> None:
    long = "x" * 100_000
    path = write_safetensors(
        tmp_path / "a.safetensors", {long: np.ones(2, np.float32), "y" * 5_000: np.ones(3, np.float32)}
    )
    with lw.view(path, browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        for route in ("summary", "rows", "table", "findings"):
            inert(client.api(route))
        inert(client.api("map", path=""))
        assert client.api("leaf", path="y" * 5_000)["size"] == 3
        answer = client.get("api/leaf", path=long)  # longer than an address may be
        assert answer.status in (0, 400, 414)


@pytest.mark.slow
def test_a_tree_of_five_thousand_levels_can_be_shown() -> None:
    deep = ".".join(["d"] * 5_000)
    tree: Any = torch.ones(2, 2)
    for _ in range(5_000):
        tree = {"d": tree}
    with lw.view({**tree, "w": torch.ones(2)}, browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        data = client.api("rows", depth=1 << 20, count=500)
        assert data["total"] == 5_002
        place = client.api("find", path=deep)
        assert len(place["toggled"]) == 4_999  # all nodes above it but the root
        assert client.api("leaf", path=deep)["shape"] == [2, 2]
        for at in ("", "d", ".".join(["d"] * 4_990)):
            cell = client.api("map", path=at)["cell"]
            assert cell["bytes"] == (24 if at == "" else 16)
            while children := [child for child in cell.get("children", ()) if child["path"].startswith("d")]:
                [cell] = children
                assert cell["bytes"] == 16
            assert cell["kind"] == ("leaf" if len(at) > 1 else "more")
            crumbs = client.api("map", path=at)["crumbs"]
            assert (crumbs[0]["path"], crumbs[-1]["path"]) == ("", at)
            assert len(crumbs) <= 51
            assert client.api("map", path=cell["path"])["cell"]["bytes"] == 16  # where it goes on


# -- files that change while they are shown --------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, Path]]:
    """A viewer that reads values only when it is asked, and looks at its files each time."""
    monkeypatch.setattr(watched_files, "_EVERY", 0)
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones((512, 512), np.float32), "b": np.full((512, 512), 2, np.float32)})
    with lw.view(path, browser=False, port=0, measure=False) as view:
        yield Client(view.url), path


def ask_all(client: Client) -> list[int]:
    """Asks for everything that reads values; each must be answered somehow, and never with a traceback."""
    statuses = []
    for path in ("a", "b"):
        for route, asked in (
            ("leaf", {}), ("statistics", {}), ("norms", {}), ("scale", {"layout": "matrix"}),
            ("tile", {"layout": "matrix", "z": 1, "y": 0, "x": 0, "limit": 1}),
            ("value", {"layout": "matrix", "row": 511, "column": 511}),
        ):  # fmt: skip
            answer = client.get(f"api/{route}", path=path, **asked)
            secure(answer)
            if answer.status != 200:
                assert answer.json()["error"]
                assert "Traceback" not in answer.json()["error"]
            statuses.append(answer.status)
    for what in ("stats", "findings"):
        assert client.get("api/start", "POST", what=what).status == 200
    for job in done(client).values():
        if isinstance(job, dict) and job["state"] == "failed":
            assert job["message"]
    return statuses


def test_a_file_that_is_not_touched_gives_no_warning(shown: tuple[Client, Path]) -> None:
    client, _ = shown
    assert set(ask_all(client)) == {200}
    assert client.api("progress")["warning"] is None


def test_a_file_that_was_removed_is_still_shown(shown: tuple[Client, Path]) -> None:
    client, path = shown
    path.unlink()
    assert set(ask_all(client)) == {200}
    assert client.api("progress")["warning"] == (
        "model.safetensors was removed or replaced by another file. What you see is the file that was opened."
    )


def test_a_file_that_was_replaced_is_still_shown_as_it_was(shown: tuple[Client, Path], tmp_path: Path) -> None:
    client, path = shown
    write_safetensors(tmp_path / "new", {"a": np.zeros((512, 512), np.float32), "b": np.zeros((512, 512), np.float32)})
    os.replace(tmp_path / "new", path)
    assert set(ask_all(client)) == {200}
    assert client.api("value", path="b", layout="matrix", row=3, column=3)["text"] == "2"
    assert "was removed or replaced by another file" in client.api("progress")["warning"]


def test_a_file_that_was_rewritten_in_place_gives_a_warning(shown: tuple[Client, Path]) -> None:
    client, path = shown
    time.sleep(0.05)  # so that the time of the change is another one
    write_safetensors(path, {"a": np.zeros((512, 512), np.float32), "b": np.zeros((512, 512), np.float32)})
    ask_all(client)
    warning = client.api("progress")["warning"]
    assert warning is not None
    assert warning.startswith("model.safetensors changed while it was shown: what you see may be wrong.")


@pytest.fixture(scope="module")
def truncating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs truncating.py in processes of their own, which have imported what takes long."""
    imports = ["pytest", "torch", "leafwise.web.app", "leafwise.web.serving", "leafwise.web.answers"]
    folder = tmp_path_factory.mktemp("truncating")
    commands = Commands("tests.web.truncating", imports, folder, OMP_NUM_THREADS="2")  # values are measured in threads
    yield commands
    commands.close()


@pytest.mark.parametrize("kind", ["safetensors", "pt", "npz", "folder"])
@pytest.mark.parametrize("keep", [0, 100, 300_000])
def test_a_file_that_is_cut_short_gives_a_warning_and_ends_nothing(
    tmp_path: Path, kind: str, keep: int, truncating: Commands
) -> None:
    values = {"a": np.ones((512, 512), np.float32), "b": np.full((512, 512), 2, np.float32)}
    path = tmp_path / f"model.{kind}"
    if kind == "safetensors":
        write_safetensors(path, values)
    elif kind == "pt":
        torch.save({name: torch.from_numpy(value) for name, value in values.items()}, path)
    elif kind == "npz":
        np.savez(path, **values)
    else:
        path.mkdir()
        path = Path(write_safetensors(path / "model.safetensors", values))
    ran = truncating.run(path, str(keep), cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-2_000:])
    assert "changed while it was shown" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_a_folder_that_was_removed_is_still_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "_EVERY", 0)
    folder = tmp_path / "model"
    folder.mkdir()
    names = {}
    for number in range(5):
        file = f"model-{number}.safetensors"
        write_safetensors(folder / file, {f"layer{number}.w": np.full((4, 4), number, np.float32)})
        names[f"layer{number}.w"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with lw.view(folder, browser=False, port=0) as view:
        client = Client(view.url)
        done(client)
        assert client.api("progress")["warning"] is None
        shutil.rmtree(folder)
        warning = client.api("progress")["warning"]
        assert "and 2 more was removed" in warning
        for number in range(5):
            answer = client.get("api/value", path=f"layer{number}.w", layout="matrix", row=0, column=0)
            assert answer.status in (200, 422, 500)
            assert answer.status != 200 or answer.json()["text"] == str(number)
