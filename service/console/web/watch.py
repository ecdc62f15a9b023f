"""Sampling of the nodes' HTTP listeners every few seconds, each for itself: one that hangs delays no other.

Each sample makes a connection of its own: a listener that takes no more of them must not look well on an old
one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from service.base.clock import Clock
from service.base.errors import FirnError
from service.client.node_http import NodeHttp
from service.console.figures import Between, Figures, without_partitions
from service.console.web.history import History, NodeSample, Point
from service.console.web.trouble_log import TroubleLog
from service.health.findings import from_json

_log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
TIMEOUT_S: Final = 4.0
MOST_BYTES: Final = 64 << 20
MOST_TURNS: Final = 20
FIND_WAIT_S: Final = 1.0
NODE_WAIT_S: Final = 1.0
"""Longest wait of a round for one node; what comes later is shown with the next round."""
_FIND_EVERY: Final = 15
"""Samples between two queries of the nodes' listeners."""
_FIND_AGAIN: Final = 4
"""The same while a node's listener is not known: it may be back."""


class NodeListener(NamedTuple):
    """HTTP listener of a node; `problem` is the reason if it is unknown."""

    node_id: int | None
    url: str | None
    problem: str | None = None


_NONSENSE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
Find = Callable[[], Awaitable[Sequence[NodeListener]]]


class NodeMonitor:
    """Metrics of all nodes and their history. Owned by the event loop."""

    def __init__(self, find: Find, clock: Clock, http: NodeHttp) -> None:
        self._find = find
        self._clock = clock
        self._http = http
        self._listeners: Sequence[NodeListener] = ()
        self._finding: asyncio.Future[Sequence[NodeListener]] | None = None
        self._asked: dict[NodeListener, asyncio.Task[NodeSample]] = {}
        self._last: dict[NodeListener, NodeSample] = {}
        self._samples: dict[str, Figures] = {}
        self._versions: dict[str, str] = {}
        self._trouble = TroubleLog(_log, clock)
        self._ticked = asyncio.Event()
        self.nodes: Sequence[NodeSample] = ()
        self.history = History()
        self.ticks = 0
        self.newest: Point | None = None

    def _session(self) -> aiohttp.ClientSession:
        """Return a session for one sample, with the token and the trusted certificates."""
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            headers=self._http.headers,
            connector=aiohttp.TCPConnector(ssl=True if self._http.tls is None else self._http.tls),
        )

    async def run(self) -> None:
        """Sample until cancelled."""
        try:
            while True:
                await self.sample()
                await asyncio.sleep(EVERY_S)
        finally:
            if self._finding is not None:
                self._finding.cancel()
            for task in self._asked.values():
                task.cancel()

    async def sample(self) -> None:
        """Sample all nodes once."""
        every = _FIND_AGAIN if any(one.url is None for one in self._listeners) else _FIND_EVERY
        if self._finding is None and (self.ticks % every == 0 or not self._listeners):
            self._finding = asyncio.ensure_future(self._find())
        if self._finding is not None:
            # Brokers that hang must not delay the sampling of known ones.
            await asyncio.wait([self._finding], timeout=FIND_WAIT_S)
            if self._finding.done():
                done, self._finding = self._finding, None
                try:
                    self._listeners = done.result()
                    self._trouble.over("the cluster answers again")
                except (FirnError, OSError) as e:
                    self._trouble.failed("waiting for a broker that answers: %s", e)
        self._forget_others()
        self.nodes = await asyncio.gather(*(self._in_time(one) for one in self._listeners))
        self.newest = self.history.add(self._clock.now_ms(), self.nodes)
        self.ticks += 1
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    async def next_tick(self) -> None:
        """Wait for the next sample."""
        await self._ticked.wait()

    def _forget_others(self) -> None:
        """Drop what belongs to listeners that are not there any more."""
        for gone in self._asked.keys() - set(self._listeners):
            self._asked.pop(gone).cancel()
        self._last = {one: sample for one, sample in self._last.items() if one in self._listeners}

    async def _in_time(self, listener: NodeListener) -> NodeSample:
        """Return a new sample of a node; the last one while it does not answer, until it fails."""
        asked = self._asked.get(listener)
        if asked is None:
            asked = self._asked[listener] = asyncio.ensure_future(self._node(listener))
        await asyncio.wait([asked], timeout=NODE_WAIT_S)
        if asked.done():
            self._asked.pop(listener, None)  # the same may be given twice
            self._last[listener] = asked.result()
        return self._last.get(listener) or NodeSample(listener.node_id, None, None, None, "no sample yet")

    async def _node(self, listener: NodeListener) -> NodeSample:
        url = listener.url
        if url is None:
            return NodeSample(listener.node_id, None, None, None, listener.problem)
        try:
            async with self._session() as session:
                now = await self._figures(session, url)
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            self._samples.pop(url, None)
            return NodeSample(listener.node_id, url, None, None, f"{url}: {_reason(e)}")
        except _NONSENSE as e:
            self._samples.pop(url, None)
            words = f"{url}: not the response of a node ({type(e).__name__}: {e})"
            return NodeSample(listener.node_id, url, None, None, words)
        between = Between(self._samples.get(url), now)
        self._samples[url] = now
        return NodeSample(listener.node_id, url, self._versions.get(url), between, None)

    async def _figures(self, session: aiohttp.ClientSession, url: str) -> Figures:
        text = await _get(session, f"{url}/metrics")
        health = _health(json.loads(await _get(session, f"{url}/readyz", also=503)))
        turns = _turns(json.loads(await _get(session, f"{url}/turns")))
        if url not in self._versions or self.ticks % _FIND_EVERY == 0:
            self._versions[url] = str(json.loads(await _get(session, f"{url}/version"))["version"])
        text = without_partitions(text)  # no page shows them, and there may be very many
        return Figures(asyncio.get_running_loop().time(), text, health, turns)


def _reason(error: Exception) -> str:
    """Return why a listener does not answer, without what aiohttp's text has beside it."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return f"cannot connect: {os.strerror(error.os_error.errno)}"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def _health(said: Any) -> Mapping[str, Any]:
    """Check the shape of `/readyz`. Raises `ValueError`, `KeyError`, `TypeError`."""
    checks = {
        str(what): {"state": one["state"], "why": one["why"]} for what, one in dict(said["checks"]).items()
    }
    return {"ready": said["ready"] is True, "checks": checks, "findings": from_json(said.get("findings", ()))}


def _turns(said: Any) -> Sequence[Mapping[str, Any]]:
    """Check the shape of the longest turns of `/turns`. Raises as `_health` does."""
    return [
        {"took_ms": float(one["took_ms"]), "ended_s_ago": float(one["ended_s_ago"]), "who": str(one["who"])}
        for one in said["longest"][:MOST_TURNS]
    ]


async def _get(session: aiohttp.ClientSession, url: str, also: int = 200) -> str:
    """Get a text. Raises `ValueError` for one that is too long or has another status."""
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status not in (200, also):
            raise ValueError(f"{answer.status} {answer.reason}")
        data = bytearray()
        while len(data) <= MOST_BYTES and (more := await answer.content.read(1 << 20)):
            data += more
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        return data.decode("utf-8", "replace")
