"""The server: it listens on this machine alone, in a thread, on the first free port."""

import asyncio
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from leafwise.errors import Error
from leafwise.web.app import make_app
from leafwise.web.guard import Guard
from leafwise.web.session import Session

PORT = 8765  # the first one that is tried
_PORTS = 100
HOST = "127.0.0.1"


def listening_socket(port: int | None) -> socket.socket:
    """A socket on this port, or on the first free one after it. None begins at the usual port; 0 takes any free one."""
    first = PORT if port is None else port
    last = min(first + _PORTS - 1, 65_535) if first else 0
    for number in range(first, last + 1):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # So that a port can be used again right after a viewer was closed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, number))
            sock.listen(128)
            return sock
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
    raise Error(f"no port from {first} to {last} can be used: {reason}; name another one with port=")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the program that it is part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_MOST_WAITING = 200  # connections that have not sent a whole request yet
_SECONDS_FOR_REQUEST = 10


class _Protocol(H11Protocol):
    """Connections that send no request, or send it slowly, are closed: after some seconds, or, if there are many, the
    oldest first. Every program on this machine can make them, and they must not keep the page out."""

    _waiting: ClassVar[WeakKeyDictionary[Any, dict["_Protocol", None]]] = WeakKeyDictionary()  # by server, in order

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        waiting = self._waiting.setdefault(self.server_state, {})
        waiting[self] = None
        if len(waiting) > _MOST_WAITING:
            next(iter(waiting))._give_up()
        self._limit = self.loop.call_later(_SECONDS_FOR_REQUEST, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self._limit.cancel()
        self._waiting.get(self.server_state, {}).pop(self, None)


class Server:
    """Serves one session until it is closed; requests wait until there is one. The address contains the token."""

    def __init__(self, session: "Future[Session]", port: int | None = None, frames: str = "'none'") -> None:
        self._socket = listening_socket(port)
        self.port: int = self._socket.getsockname()[1]
        self._token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            Guard(make_app(session.result), self._token, self.port, frames),
            http=_Protocol,  # also where another parser is installed, which has no limit for headers
            proxy_headers=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            log_level="critical",  # what others send to the port is not the user's problem
            limit_concurrency=1_000,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=64 << 10,
        )
        self._server = _Uvicorn(config)
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._serve, name="leafwise-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self._token}/"

    def _serve(self) -> None:
        try:
            # A loop of its own: in a notebook, the main thread has another one.
            asyncio.run(self._listen())
        except BaseException as error:
            self._failure = error

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._complain)
        await self._server.serve(sockets=[self._socket])

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._server.should_exit:  # a client that connects at the moment of the end is not an error
            loop.default_exception_handler(context)

    def wait(self) -> None:
        """Waits until the server has ended. Ctrl-C is noticed at the latest after half a second."""
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
