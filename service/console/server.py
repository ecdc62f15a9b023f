"""The HTTP listener of a node: `/metrics`, `/healthz`, `/readyz`, `/version`, `/turns`, `/tiering`.

It runs on the node's loop, with limits that keep its clients from costing the node much: at most
`MOST_CONNECTIONS`, each for at most `CONNECTION_S`, small request heads, bodies unread, responses written as
fast as they are received, and one text for all requests for metrics within a second. Where it has a token,
everything but `/healthz` takes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from aiohttp import web_exceptions
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse

from service.base.errors import ConfigError
from service.base.release import release
from service.base.slices import Slice
from service.base.turns import LongTurn
from service.base.types import TopicIdPartition
from service.base.world import World
from service.console.accepting import accepts_gzip, prefers_openmetrics
from service.console.access import HttpAccess
from service.console.access_settings import AccessSettings
from service.console.connections import Connections
from service.console.health_families import of_health
from service.console.measuring import of_build
from service.console.metrics_text import OPENMETRICS, PLAIN, TextFormat, compressed, render
from service.console.ports import ObservedNode
from service.console.process import memory_limit, of_process, open_descriptors, start_time_s
from service.console.quiet import QuietLog
from service.console.sample import Sample
from service.health.findings import as_json
from service.health.kinds import HTTP
from service.health.readiness import NodeHealth

_log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 32
CONNECTION_S: Final = 30.0
"""Age at which a connection is closed, whatever it does: scrapers connect again."""
_LINE_BYTES: Final = 2048
_FIELD_BYTES: Final = 4096
_MOST_TOLD: Final = 1000
"""Most entries of each list of `/tiering`."""
_AGE_S: Final = 1.0
"""Greatest age of the content of `/metrics` and `/readyz`."""
LISTENER_KEY: Final = "firn.http.listener"


class Console:
    """Listener of one node. Owned by the event loop."""

    def __init__(
        self, node: ObservedNode, world: World, access: AccessSettings, *, most_partitions: int
    ) -> None:
        """Read certificate and token. Raises `ConfigError`."""
        self._node = node
        self._clock = world.clock
        self._access = HttpAccess(access, world)
        self._most_partitions = most_partitions
        self._making: dict[tuple[TextFormat, bool], asyncio.Task[list[bytes]]] = {}
        self._texts: dict[tuple[TextFormat, bool], tuple[float, list[bytes]]] = {}
        """by format, and whether it is compressed: when it was made, and the text"""
        self._health: NodeHealth | None = None
        self._checked_at = float("-inf")
        self._release = release()
        self._memory_limit = memory_limit()
        self._started_s = start_time_s()
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Server | None = None
        self._connections = Connections(
            self._serve,
            most=MOST_CONNECTIONS,
            age_s=CONNECTION_S,
            access_log=None,
            logger=QuietLog(_log, self._loop.time),
            max_line_size=_LINE_BYTES,
            max_field_size=_FIELD_BYTES,
            lingering_time=0,
            keepalive_timeout=CONNECTION_S,
            loop=self._loop,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises `ConfigError` if the address cannot be bound."""
        self._access.start(host)
        try:
            self._listening = await self._loop.create_server(
                self._access.protocols(self._connections),
                host,
                port,
                backlog=MOST_CONNECTIONS,
                family=socket.AF_UNSPEC,
            )
        except OSError as e:
            raise ConfigError(f"{LISTENER_KEY}: {host}:{port}: {e.strerror or e}") from e
        found: int = self._listening.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._listening is not None:
            self._listening.close()
        await self._connections.end()
        self._access.close()
        for making in tuple(self._making.values()):
            making.cancel()

    async def _serve(self, request: BaseRequest) -> StreamResponse:
        # From Python 3.12 on aiohttp handles 256 KiB of requests in one go where no answer waits.
        await asyncio.sleep(0)
        is_open = request.path == "/healthz"
        if not is_open and not self._access.admits(request.headers.get("Authorization", "")):
            return Response(status=401, headers={"WWW-Authenticate": 'Bearer realm="firn"'}, text="a token\n")
        if request.method not in ("GET", "HEAD"):
            raise web_exceptions.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/healthz":
                return Response(text="ok\n")
            case "/readyz":
                return self._readyz()
            case "/version":
                return _json(self._release._asdict())
            case "/turns":
                return self._turns()
            case "/tiering":
                return self._tiering(request.query.get("topic"))
        return Response(status=404, text="/metrics, /healthz, /readyz, /version, /turns or /tiering\n")

    async def _metrics(self, request: BaseRequest) -> StreamResponse:
        asked = request.headers
        text_format = PLAIN
        if prefers_openmetrics(",".join(asked.getall("Accept", ()))):
            text_format = OPENMETRICS
        is_gzip = accepts_gzip(",".join(asked.getall("Accept-Encoding", ())))
        text = await self._scraped(text_format, is_gzip=is_gzip)
        headers = {"Content-Type": text_format.content_type, "Vary": "Accept, Accept-Encoding"}
        if is_gzip:
            headers["Content-Encoding"] = "gzip"
        response = StreamResponse(headers=headers)
        response.content_length = sum(map(len, text))
        await response.prepare(request)
        last = b""
        if request.method == "GET":
            *blocks, last = text
            piece = Slice()
            for block in blocks:
                if piece.is_over():  # a peer on this machine takes them all at once
                    await piece.next_turn()
                # Waits until the peer has received most of it.
                await response.write(block)
        # Waits as well, but only if it has something to write: the next request follows.
        await response.write_eof(last)
        return response

    async def _scraped(self, text_format: TextFormat, *, is_gzip: bool) -> list[bytes]:
        """Return the text, not older than `_AGE_S`; whoever asks while it is made gets the same."""
        key = text_format, is_gzip
        found = self._texts.get(key)
        if found is not None and self._loop.time() - found[0] <= _AGE_S:
            return found[1]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = self._loop.create_task(self._make(*key), name="metrics")
        return await asyncio.shield(making)

    async def _make(self, text_format: TextFormat, is_gzip: bool) -> list[bytes]:
        try:
            if is_gzip:
                text = await compressed(await self._scraped(text_format, is_gzip=False))
            else:
                descriptors = await Slice().go_on(open_descriptors())
                more = (
                    *of_build(self._release, self._node.identity),
                    *of_process(self._memory_limit, self._started_s, descriptors),
                    *self._of_access(),
                    *of_health(self._judged()),
                )
                text = await render(
                    self._node,
                    self._clock.now_ms(),
                    most_partitions=self._most_partitions,
                    more=more,
                    text_format=text_format,
                )
            self._texts[text_format, is_gzip] = self._loop.time(), text
            return text
        finally:
            del self._making[text_format, is_gzip]

    def _of_access(self) -> Iterable[Sample]:
        if self._access.tls is not None:
            yield Sample("firn_tls_certificate_days", self._access.tls.days_left(), (self._access.name,))

    def _judged(self) -> NodeHealth:
        """Return the health of the node and of this listener, at most `_AGE_S` old."""
        if self._health is None or self._loop.time() - self._checked_at > _AGE_S:
            found = self._node.health(self._clock.now_ms())
            parts = (*found.parts, HTTP) if self._access.has_files else found.parts
            self._health = NodeHealth(parts, (*found.findings, *self._access.findings()))
            self._checked_at = self._loop.time()
        return self._health

    def _readyz(self) -> Response:
        health = self._judged()
        checks = {one.what: {"state": one.state.value, "why": one.why} for one in health.checks}
        findings = [as_json(one) for one in health.findings]
        told = {"ready": health.is_ready, "checks": checks, "findings": findings}
        return _json(told, 200 if health.is_ready else 503)

    def _turns(self) -> Response:
        now_s, turns = self._loop.time(), self._node.turns
        longest = [_turn(one, now_s) for one in turns.longest]
        return _json({"longest": longest, "latest": [_turn(one, now_s) for one in turns.latest]})

    def _tiering(self, topic: str | None) -> Response:
        """Return the partitions that do not tier, are not merged or keep a cut from being complete, and
        failing steps for the prefix, each with its reason.

        `topic`: id of the only topic to return, or None.
        """
        cold = self._node.cold
        metrics = cold.tiering if cold is not None else None
        partitions: list[dict[str, object]] = []
        prefix: list[dict[str, object]] = []
        if metrics is not None:
            stopped = (
                {"topic_id": str(tip.topic_id), "topic": tip.topic, "partition": tip.partition, "why": why}
                for tip, why in {
                    **metrics.unmerged,
                    **metrics.cut_keeper.overdue(self._clock.now_ms()),
                    **metrics.reasons,
                }.items()
                if topic in (None, str(tip.topic_id))
            )
            partitions = list(islice(stopped, _MOST_TOLD))
            failing: Iterator[dict[str, object]] = (
                {"step": task.value, "why": why}
                for (task, at), why in metrics.failing.items()
                if not isinstance(at, TopicIdPartition)
            )
            prefix = list(islice(failing, _MOST_TOLD))
        return _json({"partitions": partitions, "prefix": prefix})


def _turn(one: LongTurn, now_s: float) -> dict[str, object]:
    return {
        "took_ms": round(1000 * one.took_s, 1),
        "cpu_ms": round(1000 * one.cpu_s, 1),
        "ended_s_ago": round(now_s - one.ended_s, 1),
        "who": one.who,
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(status=status, text=json.dumps(value) + "\n", content_type="application/json")


@asynccontextmanager
async def serving(
    node: ObservedNode, world: World, *, listener: str, access: AccessSettings, most_partitions: int
) -> AsyncIterator[str]:
    """Serve the listener `host:port` of `node` while the context lasts; yield its URL.

    An empty host is the loopback interface. Raises `ConfigError`.
    """
    host, _, port = listener.rpartition(":")
    console = Console(node, world, access, most_partitions=most_partitions)
    bare = host.strip("[]") or "127.0.0.1"
    try:
        found = await console.start(bare, int(port))
        url = f"{access.scheme}://{f'[{bare}]' if ':' in bare else bare}:{found}"
        _log.info("metrics and health on %s", url)
        yield url
    finally:
        await console.close()
