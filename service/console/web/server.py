"""HTTP server of the console: routes, access control, response headers.

All requests are GET except the two forms of the token, and those of acts (`acts/routes.py`), which are not
there without `allow_changes`. Handlers answer from desks with limited waits. The
number, age and head size of connections are limited, bodies are read of forms only, and beyond a number of
requests at the same time further ones get 503.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from aiohttp import web_exceptions
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse

from service.base.addresses import is_loopback
from service.base.errors import ConfigError, FirnError
from service.base.rate_limited_log import RateLimitedLog
from service.base.world import World
from service.console.access import HttpAccess
from service.console.access_settings import AccessSettings
from service.console.connections import Connections
from service.console.quiet import QuietLog
from service.console.web.assets import Assets
from service.console.web.desk import NO_NODE, Desk, error_text, status_of
from service.console.web.frame import PageContext, failed, login_page, page
from service.console.web.guard import Guard, TokenVerdict, is_same_origin
from service.console.web.history import SERIES
from service.console.web.pages import (
    bucket,
    cluster,
    cold,
    configuration,
    group,
    groups,
    overview,
    records,
    topic,
    topics,
    transaction,
    transactions,
)
from service.console.web.query import MOST_PARTITION, RecordRequest, exact_number_of, number_of
from service.console.web.settings import ConsoleSettings
from service.console.web.token_file import read_token
from service.console.web.transaction_filter import filter_of

if TYPE_CHECKING:
    from service.console.web.acts.routes import ActRoutes

_log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 128
CONNECTION_S: Final = 120.0
"""Age at which a connection is closed; browsers reconnect a stream of events by themselves."""
MOST_STREAMS: Final = 32
STREAM_S: Final = 100.0
"""Age at which a stream of events ends, before its connection is closed."""
MOST_ANSWERED: Final = 32
MOST_DOWNLOADS: Final = 4
_PIECE_BYTES: Final = 256 << 10
_LINE_BYTES: Final = 4096
_FIELD_BYTES: Final = 4096
_FORM_BYTES: Final = 4096
_FORM: Final = "application/x-www-form-urlencoded"
COOKIE: Final = "firn_session"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Server": "firn",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


class _Busy(Exception):
    """Too many requests at the same time."""


class _Room:
    """Limit of requests at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        if self._inside >= self._most:
            raise _Busy
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


class ConsoleServer:
    """Server of one console. Owned by the event loop."""

    def __init__(self, settings: ConsoleSettings, world: World) -> None:
        settings.check()
        self._settings = settings
        self._world = world
        self._loop = asyncio.get_running_loop()
        self._access = HttpAccess(
            AccessSettings(
                "the console",
                certificate=settings.certificate,
                certificate_option="--tls-cert",
                key=settings.key,
                most_handshakes=MOST_CONNECTIONS,
            ),
            world,
        )
        self._is_sealed = settings.certificate is not None
        self.desk = Desk(settings, world)
        self._assets = Assets()
        self._version = version("firn-log")
        self._guard = Guard(
            settings.token, lambda: world.new_uuid().hex + world.new_uuid().hex, world.clock.monotonic_ms
        )
        self._open_streams: dict[asyncio.Timeout, BaseRequest] = {}
        if settings.token_file is not None:
            self._access.watch("keeps its old token", partial(self._look_at_token, settings.token_file))
        self._warnings = RateLimitedLog(_log, now=self._loop.time)
        self._quiet = QuietLog(_log, self._loop.time)
        self._answered, self._streams = _Room(MOST_ANSWERED), _Room(MOST_STREAMS)
        self._downloads = _Room(MOST_DOWNLOADS)
        self._listening: asyncio.Server | None = None
        self._acts: ActRoutes | None = None
        if settings.allow_changes:
            from service.console.web.acts.routes import ActRoutes  # not loaded where nothing may change

            self._acts = ActRoutes(self.desk.kafka, world, self._guard, is_sealed=self._is_sealed)
        self._routes: dict[str, Handler] = {
            "/": self._overview,
            "/cluster": self._cluster,
            "/topics": self._topics,
            "/topic": self._topic,
            "/records": self._records,
            "/records/download": self._download,
            "/groups": self._groups,
            "/group": self._group,
            "/transactions": self._transactions,
            "/transactions/hanging": self._hanging,
            "/transaction": self._transaction,
            "/bucket": self._bucket,
            "/cold": self._cold,
            "/configuration": self._configuration,
            "/events": self._events,
            "/series": self._series,
        }
        self._connections = Connections(
            self._serve,
            most=MOST_CONNECTIONS,
            age_s=CONNECTION_S,
            access_log=None,
            logger=self._quiet,
            # A request ends when its client has left.
            handler_cancellation=True,
            max_line_size=_LINE_BYTES,
            max_field_size=_FIELD_BYTES,
            lingering_time=0,
            keepalive_timeout=30,
            loop=self._loop,
        )

    async def start(self) -> int:
        """Listen; return the port. Raises `ConfigError` if the address cannot be bound."""
        host, port = self._settings.host, self._settings.port
        self._access.start(host)
        if self._acts is not None:
            _log.info("whoever has the token may change the cluster (--allow-changes)")
            if not (self._is_sealed or is_loopback(host)):
                _log.warning("the token that allows changes comes over connections that are not encrypted")
        try:
            self._listening = await self._loop.create_server(
                self._access.protocols(self._connections),
                host,
                port,
                backlog=MOST_CONNECTIONS,
                family=socket.AF_UNSPEC,
            )
        except OSError as e:
            raise ConfigError(f"--port: {host}:{port}: {e.strerror or e}") from e
        await self.desk.start()
        found: int = self._listening.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._connections.end()
        self._access.close()
        if self._acts is not None:
            self._acts.close()
        await self.desk.close()

    # -- every request

    async def _serve(self, request: BaseRequest) -> StreamResponse:
        await asyncio.sleep(0)  # as `console/server.py`
        try:
            response = await self._answer(request)
        except web_exceptions.HTTPException as e:
            response = Response(status=e.status, text=e.text or "")
        except _Busy:
            response = Response(
                status=503, headers={"Retry-After": "2"}, text="too many requests: try again in a moment\n"
            )
        except ConnectionError:
            raise  # the client has left
        except Exception as e:
            self._quiet.exception("%s cannot be answered", request.path, exc_info=e)
            response = Response(status=500, text="A bug of the console: see its log.\n")
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        if not self._guard.admits_host(request.headers.get("Host", "")):
            return Response(status=421, text="This console is for names of its own machine.\n")
        if request.method == "POST" and request.path in ("/login", "/logout"):
            return await (self._login(request) if request.path == "/login" else self._logout(request))
        if self._acts is not None and request.path in self._acts.paths:
            return await self._act(self._acts, request)
        if request.method not in ("GET", "HEAD"):
            return Response(status=405, headers={"Allow": "GET, HEAD"}, text="GET or HEAD\n")
        asset = self._assets.find(request.path)
        if asset is not None:
            return asset.response()
        if (refused := self._refused(request)) is not None:
            return refused
        handler = self._routes.get(request.path)
        if handler is None:
            text = page(
                self._context(request),
                "No such page",
                "",
                failed("No such page", "It is not one of this console's."),
            )
            return _html(text, 404)
        if handler in (self._events, self._download):
            return await handler(request)
        with self._answered.entered():
            return await handler(request)

    async def _act(self, acts: ActRoutes, request: BaseRequest) -> Response:
        """Answer a form of an act, or what it sends: only to who has signed in."""
        if request.method not in ("GET", "HEAD", "POST"):
            return Response(status=405, headers={"Allow": "GET, HEAD, POST"}, text="GET, HEAD or POST\n")
        if request.method == "POST" and acts.is_foreign(request):
            return Response(status=403, text="This form was not sent by a page of this console.\n")
        if (refused := self._refused(request)) is not None:
            return refused
        secret, is_new = request.cookies.get(COOKIE), False
        if secret is None or not self._guard.knows_session(secret):
            # A program, or a proxy, has sent the token itself. Its forms need a session all the same.
            if request.method == "POST":
                return Response(status=403, text="Open the form first: it begins a session.\n")
            secret, is_new = self._guard.open_session(), True
        with self._answered.entered():
            response = await acts.answer(request, self._context(request), secret)
        if is_new:
            self._set_session(response, secret)
        return response

    def _context(self, request: BaseRequest) -> PageContext:
        return PageContext(
            self._settings.bootstrap, self._settings.url, self._assets.addresses, self._world.clock.now_ms(),
            self._version, self._guard.asks and COOKIE in request.cookies, self._acts is not None,
        )  # fmt: skip

    def _refused(self, request: BaseRequest) -> Response | None:
        """Return None if the request has access, else the refusal."""
        if self._guard.knows_session(request.cookies.get(COOKIE)):
            return None
        token = _bearer(request)
        verdict = self._guard.judge_token(request.remote or "", token)
        return (
            None if verdict is TokenVerdict.WELCOME else self._ask_token(request, verdict, token is not None)
        )

    def _ask_token(self, request: BaseRequest, verdict: TokenVerdict, was_tried: bool) -> Response:
        if was_tried:
            self._warnings.warning(
                "%s: %s token", request.remote, "one more" if verdict is TokenVerdict.TOO_OFTEN else "a wrong"
            )
        if verdict is TokenVerdict.TOO_OFTEN:
            text = login_page(self._context(request), "Too many wrong tokens. Wait a minute.", "/")
            response = _html(text, 429)
            response.headers["Retry-After"] = "60"
            return response
        wrong = "This is not the token." if was_tried else None
        if wrong is None and request.method == "POST":
            wrong = "Nothing was done: the session has ended."
        to = request.path if self._is_page(request.path) else "/"
        response = _html(login_page(self._context(request), wrong, to), 401)
        response.headers["WWW-Authenticate"] = 'Bearer realm="firn"'
        return response

    async def _login(self, request: BaseRequest) -> Response:
        size = request.content_length
        is_form = size is not None and size <= _FORM_BYTES and request.content_type == _FORM
        if not is_form or not _is_same_origin(request):
            return Response(status=400, text="not a form of this console\n")
        try:
            form = await request.post()
        except (ValueError, LookupError):
            return Response(status=400, text="not a form of this console\n")
        token, to = form.get("token"), form.get("to")
        verdict = self._guard.judge_token(request.remote or "", token if isinstance(token, str) else "")
        if verdict is not TokenVerdict.WELCOME:
            return self._ask_token(request, verdict, was_tried=True)
        response = Response(
            status=303, headers={"Location": to if isinstance(to, str) and self._is_page(to) else "/"}
        )
        self._set_session(response, self._guard.open_session())
        return response

    def _is_page(self, path: str) -> bool:
        return path in self._routes or (self._acts is not None and path in self._acts.pages)

    def _set_session(self, response: Response, secret: str) -> None:
        response.set_cookie(
            COOKIE, secret, httponly=True, samesite="Strict", path="/", secure=self._is_sealed
        )

    async def _logout(self, request: BaseRequest) -> Response:
        if _is_same_origin(request) and (secret := request.cookies.get(COOKIE)):
            self._guard.close_session(secret)
            self._end_streams()
            if self._acts is not None:
                self._acts.forget(secret)
        response = Response(status=303, headers={"Location": "/"})
        response.del_cookie(COOKIE, secure=self._is_sealed)
        return response

    def _look_at_token(self, path: str) -> None:
        """Read the token's file again. Runs on a thread."""
        token = read_token(path)
        if not self._guard.is_token(token):
            self._loop.call_soon_threadsafe(self._change_token, token, path)

    def _change_token(self, token: str, path: str) -> None:
        _log.info("--token-file: %s has a new token: who has signed in has to do so anew", path)
        self._guard.change_token(token)
        self._end_streams()

    def _is_still_welcome(self, request: BaseRequest) -> bool:
        """Return whether a request that was let in would be now."""
        session = request.cookies.get(COOKIE)
        return self._guard.knows_session(session) or self._guard.is_token(_bearer(request))

    def _end_streams(self) -> None:
        """End the streams of sessions that have ended."""
        for ends, request in self._open_streams.items():
            if not self._is_still_welcome(request) and not ends.expired():
                ends.reschedule(self._loop.time())

    # -- pages

    async def _overview(self, request: BaseRequest) -> Response:
        return _html(overview.render(self._context(request), await self.desk.find_overview()))

    async def _cluster(self, request: BaseRequest) -> Response:
        found = await self.desk.cluster.find()
        return _html(cluster.render(self._context(request), found), 503 if found.problem else 200)

    async def _topics(self, request: BaseRequest) -> Response:
        query = request.query
        found = await self.desk.find_topics(
            query.get("q", "")[:249], number_of(query.get("page"), 1), query.get("sort", "")
        )
        return _html(topics.render(self._context(request), found), 503 if found.problem else 200)

    async def _topic(self, request: BaseRequest) -> Response:
        query = request.query
        written = query.get("partition")
        partition = exact_number_of(written, MOST_PARTITION) if written else None
        name = query.get("name", "")[:249]
        if not name:
            found = topic.TopicPage("A topic", problem="The address names no topic.", status=404)
        elif written and partition is None:
            found = topic.TopicPage(name, problem=f"{written[:40]!r} is no partition.", status=404)
        else:
            page_number = number_of(query.get("page"), 1)
            found = await self.desk.find_topic(name, page_number, partition, query.get("scale", ""))
        return _html(topic.render(self._context(request), found), found.status)

    async def _groups(self, request: BaseRequest) -> Response:
        query = request.query
        found = await self.desk.groups.find_groups(
            query.get("q", "")[:249], number_of(query.get("page"), 1), query.get("sort", "")
        )
        return _html(groups.render(self._context(request), found), 503 if found.problem else 200)

    async def _group(self, request: BaseRequest) -> Response:
        query = request.query
        found = await self.desk.groups.find_group(query.get("id", ""), number_of(query.get("page"), 1))
        return _html(group.render(self._context(request), found), found.status)

    async def _transactions(self, request: BaseRequest) -> Response:
        query = request.query
        wanted, problem = filter_of(query)
        found = await self.desk.transactions.find_list(wanted, problem, number_of(query.get("page"), 1))
        return _html(transactions.render(self._context(request), found), found.status)

    async def _transaction(self, request: BaseRequest) -> Response:
        found = await self.desk.transactions.find_one(request.query.get("id", ""))
        return _html(transaction.render(self._context(request), found), found.status)

    async def _hanging(self, request: BaseRequest) -> Response:
        query = request.query
        older_ms = number_of(query.get("older"), transactions.AGES[0][0])
        found = await self.desk.transactions.find_hanging(query.get("topic", "")[:249], older_ms)
        return _html(transactions.render_hanging(self._context(request), found), found.status)

    async def _records(self, request: BaseRequest) -> Response:
        query = RecordRequest(request.query)
        found = await self.desk.find_records(query.form, query.ask, query.problem)
        return _html(records.render(self._context(request), found), found.status)

    async def _download(self, request: BaseRequest) -> StreamResponse:
        query, part = RecordRequest(request.query), request.query.get("part")
        if query.ask is None:
            return Response(status=400, text=f"{query.problem or 'which topic?'}\n")
        if query.download is None or part not in ("key", "value", "lines"):
            return Response(status=404, text="no such record\n")
        with self._downloads.entered():
            try:
                found = await self.desk.download(query.download, part)
            except (FirnError, OSError) as e:
                return Response(status=status_of(e), text=f"{error_text(e)}\n")
            if found is None:
                return Response(status=404, text="no such record\n")
            return await _send_file(request, *found)

    async def _bucket(self, request: BaseRequest) -> Response:
        found = await self.desk.find_bucket(request.query.get("topic"))
        return _html(bucket.render(self._context(request), found))

    async def _cold(self, request: BaseRequest) -> Response:
        return _html(cold.render(self._context(request), await self.desk.find_cold()))

    async def _configuration(self, request: BaseRequest) -> Response:
        query = request.query
        node = number_of(query["node"], NO_NODE) if query.get("node") else None
        name = query["topic"][:249] if query.get("topic") else None
        found = await self.desk.find_configuration(
            node, name, query.get("q", "")[:100], query.get("set") == "1"
        )
        return _html(configuration.render(self._context(request), found), found.status)

    # -- live

    async def _series(self, request: BaseRequest) -> Response:
        return _json(self.desk.watch.history.columns())

    async def _events(self, request: BaseRequest) -> StreamResponse:
        """Send events: the newest point of the charts, at which the script refreshes the page."""
        if request.method != "GET":
            return Response(status=405, headers={"Allow": "GET"})
        with self._streams.entered():
            response = StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
            try:
                await response.prepare(request)
                await response.write(b"retry: 1000\n\n")
                async with asyncio.timeout(STREAM_S) as ends:
                    self._open_streams[ends] = request
                    try:
                        await self._send_ticks(request, response)
                    finally:
                        del self._open_streams[ends]
            except (ConnectionError, TimeoutError):
                return response  # the client has left, will reconnect, or has signed out
            return response

    async def _send_ticks(self, request: BaseRequest, response: StreamResponse) -> None:
        """Send an event for each sample, until the session is over."""
        while True:
            await self.desk.watch.next_tick()
            if not self._is_still_welcome(request):
                return
            point = self.desk.watch.newest
            event = None if point is None else dict(zip(SERIES, point, strict=True))
            await response.write(b"event: look\ndata: " + json.dumps(event).encode() + b"\n\n")


def _bearer(request: BaseRequest) -> str | None:
    """Return the token that a program sends with its request."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def _is_same_origin(request: BaseRequest) -> bool:
    return is_same_origin(request.headers.get("Origin"), request.headers.get("Host"))


def _html(text: str, status: int = 200) -> Response:
    return Response(status=status, text=text, content_type="text/html")


def _json(value: object) -> Response:
    return Response(text=json.dumps(value), content_type="application/json")


async def _send_file(request: BaseRequest, data: bytes, name: str) -> StreamResponse:
    """Send a download, as fast as it is received. `name` contains no foreign text."""
    response = StreamResponse(
        headers={
            **HEADERS,
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{name}"',
        }
    )
    response.content_length = len(data)
    await response.prepare(request)
    if request.method == "GET":
        for at in range(0, len(data), _PIECE_BYTES):
            await response.write(data[at : at + _PIECE_BYTES])
    await response.write_eof()
    return response


@asynccontextmanager
async def console(settings: ConsoleSettings, world: World) -> AsyncIterator[tuple[str, ConsoleServer]]:
    """Run a console while the context lasts; yield its URL and server."""
    server = ConsoleServer(settings, world)
    try:
        port = await server.start()
        host = settings.host
        scheme = "http" if settings.certificate is None else "https"
        yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", server
    finally:
        await server.close()
