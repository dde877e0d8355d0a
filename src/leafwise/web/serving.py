"""The server: it listens on this machine alone, in a thread, on the first free port."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from leafwise.errors import Error
from leafwise.web.session import Session

PORT = 8765  # the first one that is tried
_PORTS = 100
HOST = "127.0.0.1"


def listening_socket(port: int | None) -> socket.socket:
    """A socket on this port, or on the first free one after it. None begins at the usual port; 0 takes any free one."""
    first = PORT if port is None else port
    last_error: OSError | None = None
    for number in range(first, min(first + _PORTS, 65_536)) if first else [0]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, number))
            sock.listen(128)
            return sock
        except OSError as error:
            sock.close()
            last_error = error
    reason = last_error.strerror if last_error is not None else "there is none"
    raise Error(f"no port from {first} to {first + _PORTS - 1} is free: {reason}; name another one with port=")


class Server:
    """Serves one session until it is closed. The address contains the token."""

    def __init__(self, session: "Future[Session]", port: int | None = None, frames: str = "'none'") -> None:
        import uvicorn

        from leafwise.web.app import make_app
        from leafwise.web.guard import Guard

        self._socket = listening_socket(port)
        self.port: int = self._socket.getsockname()[1]
        self._token = secrets.token_urlsafe(24)
        guard = Guard(make_app(session.result), self._token, lambda: self.port, frames)
        config = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            limit_concurrency=100,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._server = _QuietServer(config)
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._serve, name="leafwise-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self._token}/"

    def _serve(self) -> None:
        try:
            # A loop of its own: in a notebook, the main thread has another one.
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as error:
            self._failure = error

    def wait(self, until: Callable[[float], object] | None = None) -> None:
        """Waits until the server has ended. Ctrl-C is not lost: it is noticed at the latest after half a second."""
        while self._thread.is_alive():
            self._thread.join(0.5)
        if self._failure is not None:
            raise Error(f"the server has stopped: {self._failure}") from self._failure

    def close(self) -> None:
        """Ends the server; requests that are being answered have a second to finish."""
        self._server.should_exit = True
        self._thread.join(1)
        self._server.force_exit = True
        self._thread.join(4)
        self._socket.close()


def _QuietServer(config: "object") -> "object":  # noqa: N802
    """A server that leaves signals to the program that it is part of."""
    import contextlib

    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):  # type: ignore[no-untyped-def]
            yield

    return Quiet(config)  # type: ignore[arg-type]
