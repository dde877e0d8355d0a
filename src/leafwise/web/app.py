"""The requests of the page, each answered by the session: what they may ask, and what they get."""

import json
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leafwise.core.path import escape, without_secrets
from leafwise.errors import Error
from leafwise.web import asset
from leafwise.web.answers import comparison, lines, map, tables, whole
from leafwise.web.lines import LineRequest
from leafwise.web.session import Session

SECONDS = 60  # for one request
_REQUESTS_AT_ONCE = 6  # requests that are computed at the same time
_MOST_TOGGLED = 2_000
_ASSETS = {"index.html": "text/html", "app.js": "text/javascript", "app.css": "text/css"}


class BadRequestError(Exception):
    """An argument is missing or invalid."""


def make_app(session: Callable[[], Session]) -> Starlette:
    """The application. `session` returns the session, and may wait for it."""
    limiter = anyio.CapacityLimiter(_REQUESTS_AT_ONCE)

    def route(name: str, work: Callable[[Session, "_Arguments"], Any], method: str = "GET") -> Route:
        async def answered(request: Request) -> Response:
            arguments = _Arguments(request)
            try:
                with anyio.fail_after(SECONDS):
                    result = await run_sync(lambda: work(session(), arguments), abandon_on_cancel=True, limiter=limiter)
            except TimeoutError:
                return _error(503, f"this took longer than {SECONDS} seconds")
            except BadRequestError as error:
                return _error(400, str(error))
            except Error as error:
                return _error(422, str(error))
            except (OSError, MemoryError) as error:
                return _error(500, str(error) or type(error).__name__)
            except Exception as error:
                return _error(500, f"{type(error).__name__}: {error}")
            return result if isinstance(result, Response) else _json(result)

        return Route(f"/api/{name}", answered, methods=[method])

    pages = Starlette(
        routes=[
            Route("/", partial(_asset, "index.html")),
            *(Route(f"/{name}", partial(_asset, name)) for name in ("app.js", "app.css")),
            route("summary", lambda session, _: whole.summary(session)),
            route("totals", lambda session, _: whole.totals(session)),
            route("progress", lambda session, _: whole.progress(session)),
            route("start", lambda session, asked: session.start(asked.text("what")), "POST"),
            route("rows", lambda session, asked: lines.rows(session, asked.lines(), *asked.window())),
            route("find", lambda session, asked: lines.find(session, asked.text("path"), asked.lines())),
            route("map", lambda session, asked: map.treemap(session, asked.text("path"), asked.text("color", "dtype"))),
            route("leaf", lambda session, asked: _leaf().leaf(session, asked.text("path"))),
            route("statistics", lambda session, asked: _leaf().statistics(session, asked.text("path"))),
            route("norms", lambda session, asked: _leaf().norms(session, asked.text("path"))),
            route("scale", lambda session, asked: _leaf().scale(session, asked.text("path"), asked.text("layout"))),
            route("tile", _tile),
            route("value", _value),
            route("findings", _findings),
            route("table", _table),
            route("diff", _diff),
            route("plan", _plan),
        ]
    )
    pages.router.redirect_slashes = False  # the address without its token would lead nowhere
    return pages


def _leaf() -> ModuleType:
    """NumPy is imported with the first leaf that is opened: until then, the page is already there."""
    from leafwise.web.answers import leaf_page

    return leaf_page


def _tile(session: Session, asked: "_Arguments") -> Response:
    place = asked.text("path"), asked.text("layout")
    data, sampled = _leaf().tile(
        session, *place, asked.whole("z", 60), asked.whole("y"), asked.whole("x"), asked.limit()
    )
    headers = {"x-sampled": str(sampled)} if sampled > 1 else None
    return Response(data, media_type="image/png", headers=headers)


def _value(session: Session, asked: "_Arguments") -> Any:
    return _leaf().value(session, asked.text("path"), asked.text("layout"), asked.whole("row"), asked.whole("column"))


def _findings(session: Session, asked: "_Arguments") -> Any:
    return tables.findings(session, asked.text("level", ""), asked.text("code", ""), *asked.window())


def _table(session: Session, asked: "_Arguments") -> Any:
    return tables.table(
        session, asked.text("query", ""), asked.text("sort", ""), asked.yes("descending"), *asked.window()
    )


def _diff(session: Session, asked: "_Arguments") -> Any:
    return comparison.diff(
        session,
        asked.text("kind", ""),
        asked.text("query", ""),
        asked.text("sort", ""),
        asked.yes("descending"),
        *asked.window(),
    )


def _plan(session: Session, asked: "_Arguments") -> Any:
    return comparison.plan(session, asked.text("status", ""), asked.text("query", ""), *asked.window())


class _Arguments:
    """The arguments in the query of a request."""

    def __init__(self, request: Request) -> None:
        self._given = request.query_params

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise BadRequestError(f"{name}= is missing")
        return value

    def whole(self, name: str, most: int = 1 << 62, default: int | None = None) -> int:
        text = self._given.get(name)
        if text is None and default is not None:
            return default
        if text is None or not _is_whole(text) or int(text) > most:
            raise BadRequestError(f"{name}= takes a whole number from 0 to {most:,}")
        return int(text)

    def yes(self, name: str) -> bool:
        return self._given.get(name, "") in ("1", "true", "yes")

    def window(self) -> tuple[int, int]:
        return self.whole("from", default=0), self.whole("count", default=100)

    def limit(self) -> float:
        try:
            number = float(self.text("limit").encode("ascii"))
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise BadRequestError("limit= takes a positive number")
        return number

    def lines(self) -> LineRequest:
        numbers = [number for number in self.text("toggled", "").split(",") if number]
        if len(numbers) > _MOST_TOGGLED or not all(_is_whole(number, 11) for number in numbers):
            raise BadRequestError(f"toggled= takes at most {_MOST_TOGGLED:,} numbers")
        return LineRequest(
            self.text("query", "").strip(),
            self.text("sort", "tree"),
            self.yes("descending"),
            self.whole("depth", 1 << 20, 1),
            tuple(sorted({int(number) for number in numbers})),
        )


def _is_whole(text: str, longest: int = 19) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= longest


def _json(data: Any) -> Response:
    # Not NaN: JSON.parse would refuse the whole answer. The separators save a tenth.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "backslashreplace"), media_type="application/json")


def _error(status: int, message: str) -> Response:
    text = escape(without_secrets(message))[:2_000]
    return Response(json.dumps({"error": text}), status, media_type="application/json")


async def _asset(name: str, request: Request) -> Response:
    return Response(asset(name), media_type=f"{_ASSETS[name]}; charset=utf-8")
