"""`leafwise view`, as a shell would use it: what it prints, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.web.asking import Client, write_safetensors

from leafwise.cli import main

COMMAND = [sys.executable, "-m", "leafwise", "view"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write_safetensors(tmp_path / "model.safetensors", {"layer.weight": np.ones((4, 3), np.float32)})


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The command while it runs, and the address that it printed."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url), (url, process.communicate(timeout=300))
        assert process.stderr is not None
        assert process.stderr.readline() == "Ctrl-C ends the viewer.\n"
        yield process, url
    finally:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]", url: str, how: int) -> tuple[int, str]:
    """The exit status after a signal, and what was printed since then."""
    process.send_signal(how)
    out, err = process.communicate(timeout=300)
    with pytest.raises(ConnectionRefusedError):
        Client(url).get()
    return process.returncode, out + err


def run(*arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    """The command until it ends by itself; `code` runs before it."""
    command = [*COMMAND, *arguments]
    if code:
        call = f"import sys\n{code}\nfrom leafwise.cli import main\nsys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", call, "view", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_it_serves_a_file_until_it_is_interrupted(file: str) -> None:
    with running(file, "--no-browser") as (process, url):
        summary = Client(url).api("summary")
        assert (summary["title"], summary["counts"]["parameters"]) == ("model.safetensors", 12)
        assert ended(process, url, signal.SIGINT) == (0, "")


def test_a_scheduler_can_end_it(file: str) -> None:
    with running(file, "--no-browser") as (process, url):
        assert Client(url).get().status == 200
        assert ended(process, url, signal.SIGTERM) == (143, "")


def test_it_ends_while_a_client_is_connected(file: str) -> None:
    import socket

    with running(file, "--no-browser") as (process, url):
        client = Client(url)
        with socket.create_connection((client.host, client.port)) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\n")
            assert ended(process, url, signal.SIGINT) == (0, "")


def test_two_targets_are_compared(file: str, tmp_path: Path) -> None:
    other = write_safetensors(tmp_path / "after.safetensors", {"layer.weight": np.zeros((4, 3), np.float32)})
    with running(file, other, "--no-browser") as (process, url):
        summary = Client(url).api("summary")
        assert summary["title"] == "model.safetensors → after.safetensors"
        assert summary["views"][0] == "diff"
        assert ended(process, url, signal.SIGINT)[0] == 0


@pytest.mark.parametrize("browser", ["", "/nowhere/browser %s", "false", "sh -c 'exit 3'"])
def test_the_address_is_printed_even_if_no_browser_can_be_opened(file: str, browser: str) -> None:
    with running(file, BROWSER=browser, DISPLAY="", WAYLAND_DISPLAY="", PATH="/nowhere") as (process, url):
        assert Client(url).get().status == 200
        assert ended(process, url, signal.SIGINT)[0] == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_a_browser_is_opened_unless_it_is_not_wanted(file: str, tmp_path: Path, quiet: bool) -> None:
    script, opened = tmp_path / "browser", tmp_path / "opened"
    script.write_text(
        f'#!/bin/sh\necho "$1" > {opened}.part && cat "${{1#file://}}" >> {opened}.part && mv {opened}.part {opened}\n'
    )
    script.chmod(0o755)
    with running(file, *(["--no-browser"] if quiet else []), BROWSER=f"{script} %s") as (process, url):
        while not quiet and not opened.exists():
            assert process.poll() is None
            time.sleep(0.02)
        Client(url).api("summary")
        ended(process, url, signal.SIGINT)
    assert opened.exists() != quiet
    if not quiet:
        argument, page = opened.read_text().split("\n", 1)
        assert url in page
        assert url.rstrip("/").rpartition("/")[2] not in argument


@pytest.mark.parametrize(("option", "state"), [("--no-measure", "off"), ("--measure", "done")])
def test_values_are_read_as_asked(file: str, option: str, state: str) -> None:
    with running(file, "--no-browser", option) as (_, url):
        client = Client(url)
        while (progress := client.api("progress"))["stats"]["state"] == "running":
            time.sleep(0.02)
        assert progress["stats"]["state"] == state


def test_help_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["view", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for part in ("TARGET", "--export FILE.html", "--port N", "--no-browser", "--measure", "--no-measure", "Ctrl-C"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["a", "b", "c"], 1, "leafwise view shows one or two targets, not 3"),
        ([], 2, "the following arguments are required: TARGET"),
        (["a", "--port", "-1"], 2, "--port: a port is a number from 0 to 65535, not -1"),
        (["a", "--port", "65536"], 2, "--port: a port is a number from 0 to 65535, not 65536"),
        (["a", "--port", "web"], 2, "--port: a port is a number from 0 to 65535, not web"),
        (["a", "--port", "8_765"], 2, "--port: a port is a number from 0 to 65535, not 8_765"),
        (["a", "--port", "٣"], 2, "--port: a port is a number from 0 to 65535, not ٣"),
        (["a", "--measure", "--no-measure"], 2, "not allowed with argument"),
        (["/nowhere/model.safetensors", "--port", "0"], 1, "/nowhere/model.safetensors"),
        (["/nowhere/model.safetensors", "--export", "x.html"], 1, "/nowhere/model.safetensors"),
    ],
)
def test_what_it_cannot_do_it_says(
    arguments: Sequence[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found: object = main(["view", *arguments])
    except SystemExit as left:  # so do arguments that cannot be parsed
        found = left.code
    assert found == status
    printed = capsys.readouterr()
    assert message in printed.err
    assert "http://" not in printed.out
    assert "Traceback" not in printed.err


def test_a_missing_file_ends_the_command_and_its_server() -> None:
    ran = run("/nowhere/model.safetensors", "--no-browser", "--port", "0")  # returns, so nothing is left that serves
    assert (ran.returncode, ran.stdout) == (1, "")
    assert len(ran.stderr.splitlines()) == 1


BLOCKED = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize("blocked", ["starlette", "uvicorn", "anyio", "numpy"])
def test_without_its_packages_it_says_how_to_install_them(file: str, blocked: str) -> None:
    ran = run(file, "--no-browser", "--port", "0", code=BLOCKED.format(names=[blocked]))
    assert ran.returncode == 1, ran
    assert ran.stdout == ""
    assert "pip install 'leafwise[web]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_report_needs_no_server(file: str, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    ran = run(file, "--export", str(target), code=BLOCKED.format(names=["starlette", "uvicorn", "anyio"]))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{target}\n"
    assert target.read_text("utf-8").startswith("<!doctype html>")


def test_a_report_has_a_good_name_in_a_folder_that_exists(file: str, tmp_path: Path) -> None:
    ran = run(file, "--export", str(tmp_path / "report.pdf"))
    assert ran.returncode == 1
    assert "a report is an HTML file; use a name that ends in .html" in ran.stderr
    ran = run(file, "--export", str(tmp_path / "nowhere" / "report.html"))
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "report.html" in ran.stderr
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]
