"""What every request must have, and what every answer has: the viewer serves only the page that it opened itself.

The server listens on this machine alone, but other users of the machine, and other pages in the same browser, can also
reach it. Therefore the path begins with a random token; the Host must be this machine, so that another site cannot lead
the browser here under its own name; the Origin, if there is one, must be this server; and requests that change anything
do not exist.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LONGEST_QUERY = 16_384  # bytes of a request's query
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)


class Guard:
    """Refuses requests that do not come from the page. `frames` are the pages that may embed it, such as a notebook."""

    def __init__(self, app: App, token: str, port: int, frames: str = "'none'") -> None:
        self._app, self._token, self._port = app, token, port
        self._headers = [
            (b"content-security-policy", _POLICY.format(frames=frames).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets; the server closes the connection

        has_begun = False

        async def guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        async def refuse(status: int, text: str) -> None:
            await guarded(
                {
                    "type": "http.response.start",
                    "status": status,
                    # Closed, so that such connections do not add up.
                    "headers": [(b"content-type", b"text/plain"), (b"connection", b"close")],
                }
            )
            await guarded({"type": "http.response.body", "body": text.encode()})

        if reason := self._wrong(scope):
            await refuse(*reason)
            return
        try:
            await self._app({**scope, "path": scope["path"][len(self._token) + 1 :] or "/"}, receive, guarded)
        except asyncio.CancelledError:  # it is closed meanwhile; the server would print where each request was
            if not has_begun:
                await refuse(503, "the viewer was closed")

    def _wrong(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the text with which a request is refused; None if it is not."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = {f"{name}:{self._port}" for name in LOOPBACK}
        given = headers.get(b"host", [])
        if len(given) != 1 or given[0].decode("latin-1").lower() not in hosts:
            return 421, "this server answers only to its own address"
        for origin in headers.get(b"origin", []):
            scheme, _, host = origin.decode("latin-1").lower().partition("://")
            if scheme != "http" or host not in hosts:
                return 403, "requests from other pages are refused"
        if b"cross-site" in headers.get(b"sec-fetch-site", []) and scope["path"].rstrip("/").count("/") > 1:
            return 403, "requests from other pages are refused"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "the viewer only reads"
        if len(scope["query_string"]) > LONGEST_QUERY:
            return 414, "the query is too long"
        if any(length not in (b"0", b"") for length in headers.get(b"content-length", [])) or headers.get(
            b"transfer-encoding"
        ):
            return 413, "requests have no content"
        token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return 404, "there is nothing here; use the whole address that leafwise view printed"
        return None
