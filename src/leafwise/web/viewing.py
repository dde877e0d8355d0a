"""`lw.view`: the viewer, in a browser."""

import atexit
import html
import os
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from leafwise.core.path import escape, shown_url
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import ArgumentError, Error

if TYPE_CHECKING:
    from leafwise.web.serving import Server
    from leafwise.web.session import Session

_INSTALL = "the viewer needs the packages starlette, uvicorn and numpy: pip install 'leafwise[web]'"


class View:
    """A viewer that is running; see `lw.view`. A notebook displays it.

    `url` is its address. `wait()` waits until it is closed, `close()` closes it, and `with` closes it at the end.
    `export(path)` writes what it shows as one HTML file.

    >>> import torch, leafwise as lw
    >>> with lw.view(torch.nn.Linear(4, 2), browser=False) as view:
    ...     view.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, server: "Server", session: "Session", files: ExitStack) -> None:
        self._server, self._session, self._files = server, session, files
        self._closed = False

    @property
    def url(self) -> str:
        """The address of the page. It contains a token: whoever has it can see what you see."""
        return self._server.url

    def wait(self) -> None:
        """Waits until the viewer is closed, or until Ctrl-C."""
        try:
            self._server.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Ends the viewer, and closes the files that it opened. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._server.close()
        self._session.close()
        self._files.close()

    def export(self, path: "str | os.PathLike[str]", *, progress: bool = False) -> str:
        """Writes what the viewer shows as one HTML file that needs no server and no network, and returns its path."""
        from leafwise.web.export import check_name, write_report

        check_name(path)  # before anything is read
        self._session.measure_again()  # so that its numbers and its pictures are those of the same moment
        return write_report(self._session, path, progress)

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.url
        return escape(f"<leafwise view of {', '.join(self._session.names)}: {state}>")

    def _repr_html_(self) -> str:
        if self._closed:
            return "<p>This viewer is closed.</p>"
        address = self.url  # only letters, digits and punctuation that HTML allows
        return (
            f'<iframe src="{address}" title="leafwise" style="width:100%;height:640px;border:0"></iframe>'
            f'<p><a href="{address}" target="_blank" rel="noreferrer">Open the viewer in a window of its own</a></p>'
        )


def view(
    source: Any,
    other: Any = None,
    *,
    port: int | None = None,
    browser: bool | None = None,
    measure: bool | None = None,
) -> View:
    """Opens a page in the browser that shows a model or checkpoint: its tree, sizes, values, statistics and findings.

    `source` is anything that `lw.tree` takes. With `other`, the two are compared. The page comes from a server in this
    process, which only this machine can reach, and which ends with the process, or with `close()`. It only reads.

    - `port` is the first port to try; the default is 8765, and if it is in use, the next free one is taken.
    - `browser=False` opens no browser: `view.url` is the address. In a notebook, the page is part of the output, and a
      browser is opened only if `browser=True`.
    - `measure=True` measures and checks all values in the background, `measure=False` only leaves that are opened. By
      default, everything in memory and files up to 8 GiB on this machine are measured.

    A model in memory is shown as it is at the moment: values are read again whenever they are drawn. Needs the packages
    of `leafwise[web]`.

    >>> import torch, leafwise as lw
    >>> view = lw.view(torch.nn.Linear(4, 2), browser=False)
    >>> view.close()
    """
    _check_port(port)
    sources = [source] if other is None else [source, other]
    in_notebook = _is_notebook()
    started = start_view(sources, [_name(shown) for shown in sources], port, measure, in_notebook)
    if browser or (browser is None and not in_notebook):
        open_browser(started.url)
    return started


def start_view(
    sources: Sequence[Any], names: Sequence[str], port: int | None, measure: bool | None, in_notebook: bool = False
) -> View:
    """Starts a viewer and opens no browser. The server starts first, in the meantime the sources are opened."""
    waiting: Future[Session] = Future()
    with _installed():
        from leafwise.web.serving import Server
    # The Content-Security-Policy decides who may embed the page: a notebook on this machine.
    frames = "http://127.0.0.1:* http://localhost:*" if in_notebook else "'none'"
    server = Server(waiting, port, frames)
    files = ExitStack()
    try:
        trees = [files.enter_context(opened(source, "view")) for source in sources]
        session = import_module("leafwise.web.session").Session(trees, names, measure)
    except BaseException as error:
        waiting.set_exception(error if isinstance(error, Exception) else Error("stopped"))
        server.close()
        files.close()
        raise
    waiting.set_result(session)
    return View(server, session, files)


def exported(sources: Sequence[Any], names: Sequence[str], path: str, measure: bool | None, progress: bool) -> str:
    """Writes a report without starting a server, and returns its path. By default everything on this machine is
    measured, however large it is."""
    with _installed():
        from leafwise.web.export import check_name, write_report
        from leafwise.web.session import Session
        from leafwise.web.watched_files import is_local

    check_name(path)  # before anything is read
    with ExitStack() as files:
        trees = [files.enter_context(opened(source, "view")) for source in sources]
        session = Session(trees, names, all(map(is_local, trees)) if measure is None else measure)
        files.callback(session.close)
        return write_report(session, path, progress)


@contextmanager
def _installed() -> Iterator[None]:
    """Says what to install if a package is missing."""
    try:
        if find_spec("numpy") is None:  # it is imported late, when the page is already there
            raise ModuleNotFoundError(name="numpy")
        yield
    except ModuleNotFoundError as error:
        if error.name in ("starlette", "uvicorn", "anyio", "numpy"):
            raise Error(_INSTALL) from error
        raise


def open_browser(url: str) -> None:
    """Opens a page in the browser, if there is one, without waiting for it.

    The browser gets the path of a file that leads to the address, and that only this user can read: the arguments of
    its process can be read by every user of the machine."""

    def show() -> None:
        with suppress(Exception):  # a browser that is missing or broken is not our problem: the address is printed
            folder = tempfile.mkdtemp(prefix="leafwise-view-")  # with mode 0700
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            page = Path(folder, "open.html")
            page.touch(0o600)
            page.write_text(_REDIRECT.format(html.escape(url)), "utf-8")
            webbrowser.open(page.as_uri())

    Thread(target=show, name="leafwise-browser", daemon=True).start()


_REDIRECT = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0; url={0}"><title>leafwise</title><a href="{0}">Open the viewer</a>\n'
)


def _check_port(port: Any) -> None:
    if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65_536):
        raise ArgumentError(f"port= takes a number from 0 to 65535, not {port!r}")


def _name(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return shown_url(os.fspath(source))
    t = source if isinstance(source, Tree) else None
    root = t.columns.node_objects[0] if t is not None else source
    path = getattr(root, "path", None) if t is not None and t.is_file else None
    name = shown_url(str(path)) if path else type(root).__name__
    return f"{name}: {t.path}" if t is not None and t.root else name


def _is_notebook() -> bool:
    """Whether this runs in the kernel of a notebook, which displays results."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
