"""A node's own connections to its peers: requests in flight in order, each with a deadline.

A `Channel` is one connection to one peer, made when it is asked for and again when it is lost; `Channels`
holds those of one purpose, by address. Versions are negotiated first of all. Answers come in the order of the
requests, as Kafka promises, so a peer that answers anything else has lost its mind and its connection. Of
whoever asked, each learns what happened to the request:

- ``ConnectionRefusedError``: nobody listens there; nothing was sent
- ``UnsupportedVersion``: the peer does not serve it; nothing was sent
- ``TimeoutError``: no answer in time, or no connection; the connection ends, as in Kafka's ``NetworkClient``
- any other ``OSError``: the connection was lost, or the peer answered with garbage (`PeerFailed`)

What was sent and not answered may have been done; `was_sent` tells that of an error. A peer costs one buffer,
which grows with the bytes that arrive and not with the size that is claimed, and is given away where somebody
holds a view into it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from service.base.backoff import backoff
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.client.async_connection import (
    Bounds,
    Link,
    Many,
    Memory,
    OlderVersions,
    PeerBabbles,
    PeerFailed,
    Sent,
    again,
    seen,
)
from service.network.metrics import ChannelMetrics
from service.wire.api import APIS, ApiKey, api_versions_request, common_ranges, decode_response_steps
from service.wire.errors import UnsupportedVersion, WireError

_LOG = logging.getLogger(__name__)
_SHORT_S: Final = 1.0
"""A connection that ends so soon is a failure, whatever it ended for."""
_STEP_US: Final = 400
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")

__all__ = [
    "Channel",
    "ChannelOptions",
    "Channels",
    "PeerFailed",
    "Reachable",
    "Versions",
    "is_refused",
    "was_sent",
]

Versions = dict[int, tuple[int, int]]
"""oldest and newest version that both sides know, by API key"""


class Reachable(Protocol):
    """Where a peer listens; `metadata.controller.requests.Endpoint` is one."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class ChannelOptions(NamedTuple):
    """Bounds on what a peer may cost; names in brackets are Kafka's keys."""

    client_id: str = "firn"
    request_timeout_ms: int = 30_000
    """Of calls that bring none (request.timeout.ms)."""
    connect_timeout_ms: int = 10_000
    """Until versions are negotiated (socket.connection.setup.timeout.ms)."""
    backoff_ms: int = 50
    backoff_max_ms: int = 1_000
    """Before the next try to connect (reconnect.backoff.ms and its max)."""
    idle_ms: int = 540_000
    """A connection without requests is closed (connections.max.idle.ms of clients)."""
    max_response_bytes: int = 100 << 20
    memory_bytes: int = 256 << 20
    """For answers that are arriving, over all channels of one `Channels`."""
    most_in_flight: int = 64
    """Requests of one channel that are sent and not answered."""
    most_waiting: int = 1_000
    """Calls of one channel that are under way or wait for their turn; those beyond fail at once."""


def even() -> float:
    """No chance: every pause is as long as it is told."""
    return 0.5


class Channel:
    """One connection to one peer, made when it is needed. Owned by the event loop."""

    def __init__(
        self,
        address: Reachable,
        options: ChannelOptions | None = None,
        *,
        metrics: ChannelMetrics | None = None,
        memory: Memory | None = None,
        chance: Callable[[], float] = even,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost`: a connection that was up has ended, and not by this side."""
        self.name = f"{address.host}:{address.port}"
        self.metrics = metrics or ChannelMetrics()
        self._address = address
        self._options = options or ChannelOptions()
        self._memory = memory or Memory(self._options.memory_bytes)
        self._chance = chance
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._versions: Versions = {}
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = self._loop.time()
        self._turn = asyncio.Lock()
        self._users = 0
        self._up_since = self._idle_since = self._loop.time()
        self._closed = False
        self._warnings = RateLimitedLog(_LOG, now=self._loop.time)

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    @property
    def in_flight(self) -> int:
        return len(self._link.sent) if self._link is not None else 0

    def idle_s(self) -> float:
        """For how long nobody has used it; 0 while somebody does."""
        return 0.0 if self._users else self._loop.time() - self._idle_since

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        """The canonical answer to `message` in `version`, or in the newest that both sides know. Raises as
        the module says; cancelled, it may have been sent."""
        options = self._options
        if self._users >= options.most_waiting:
            raise _not_sent(ConnectionError(f"{self.name}: {self._users} calls are waiting already"))
        wait_ms = options.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._loop.time() + wait_ms / 1000
        self._users += 1
        sent: Sent | None = None
        try:
            async with asyncio.timeout_at(deadline):
                sent = await self._send(api_key, version, message, deadline)
                answer = await sent.answer
                if isinstance(answer, Many):
                    return await self._in_slices(sent, answer.frame)
                return answer
        except TimeoutError as e:
            late = TimeoutError(f"{self.name}: {e or f'nothing within {wait_ms} ms'}")
            raise (late if sent is not None else _not_sent(late)) from e
        except OSError as e:
            if sent is None:
                _not_sent(e)
            raise
        finally:
            self._users -= 1
            self._idle_since = self._loop.time()

    async def versions(self) -> Versions:
        """What both sides know, by API key; connects where that is not done yet. Raises as `call`."""
        self._users += 1
        try:
            while self._link is None:
                await self._connected()
            return self._versions
        finally:
            self._users -= 1
            self._idle_since = self._loop.time()

    async def _send(self, api_key: int, version: int | None, message: Any, deadline: float) -> Sent:
        """In one's turn: calls go out in the order in which they came."""
        while True:
            if self._link is None:
                await self._connected()
            async with self._turn:
                link = self._link
                if link is not None:
                    await link.room.wait()
                    await link.writable.wait()
                if link is None or not link.is_open:
                    continue
                chosen = self._chosen(api_key, version)
                return link.send(api_key, chosen, self._options.client_id, message, deadline)

    def _chosen(self, api_key: int, version: int | None) -> int:
        low, high = self._versions.get(api_key, (0, -1))
        if high < 0 or (version is not None and not low <= version <= high):
            wanted = "any version" if version is None else f"version {version}"
            knows = f", but {low} to {high}" if high >= 0 else ""
            raise UnsupportedVersion(f"{self.name} does not serve {wanted} of {APIS[api_key].name}{knows}")
        return high if version is None else version

    async def _in_slices(self, sent: Sent, frame: memoryview) -> Any:
        try:
            return await Slice().go_through(
                decode_response_steps(sent.api_key, sent.version, frame), _STEP_US
            )
        except WireError as e:
            error = PeerFailed(f"{self.name} answers with garbage: {e}")
            if self._link is not None:
                self._link.end(error)
            raise error from e

    # -- the connection

    async def _connected(self) -> None:
        """Wait for the connection that is being made, or make one. All who wait share how it ends."""
        if self._closed:
            raise ConnectionAbortedError(f"{self.name}: the channel is closed")
        if self._opening is None:
            self._opening = self._loop.create_task(self._open(), name=f"channel to {self.name}")
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        await asyncio.wait({opening})
        if opening.cancelled():
            raise ConnectionAbortedError(f"{self.name}: the channel is closed")
        if (error := opening.exception()) is not None:
            assert isinstance(error, Exception)
            raise again(error) from error

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        seen(opening)

    async def _open(self) -> None:
        await asyncio.sleep(self._not_before - self._loop.time())
        bounds = Bounds(self._options.most_in_flight, self._options.max_response_bytes)
        link = Link(self.name, self._loop, bounds, self._memory, self.metrics, self._lost)
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                await self._loop.create_connection(lambda: link, self._address.host, self._address.port)
                self.metrics.connected += 1
                self._versions = await self._negotiated(link)
        except (OSError, WireError, ValueError) as e:
            error = self._why(e)
            link.end(error)
            self._failed(error)
            raise error from e
        except BaseException:
            link.end(ConnectionAbortedError(f"{self.name}: given up"))
            raise
        if not link.is_open:
            self._failed(error := ConnectionResetError(f"{self.name} closed the connection"))
            raise error
        self._failures = 0
        self._up_since = self._loop.time()
        self._link = link

    def _why(self, error: Exception) -> OSError:
        if is_refused(error):
            self.metrics.refused += 1
            return ConnectionRefusedError(ECONNREFUSED, f"nobody listens at {self.name}")
        if isinstance(error, TimeoutError):
            self.metrics.timed_out += 1
            return TimeoutError(f"no connection to {self.name} in time")
        if isinstance(error, OSError):
            return error
        if isinstance(error, ValueError):  # what asyncio makes of a label that is too long, or of a zero byte
            return ConnectionError(f"no host has the name of {printable(self.name)}: {error}")
        return PeerFailed(f"{self.name}: {error}")

    async def _negotiated(self, link: Link) -> Versions:
        """Versions of both sides. A peer older than our ApiVersions answers in version 0 (KIP-511)."""
        message = api_versions_request()
        deadline = self._loop.time() + self._options.connect_timeout_ms / 1000
        version = APIS[ApiKey.API_VERSIONS].max_version
        for _ in range(2):
            sent = link.send(ApiKey.API_VERSIONS, version, self._options.client_id, message, deadline)
            answer = await sent.answer
            if isinstance(answer, Many):
                raise PeerBabbles("more APIs than there are")
            if not isinstance(answer, OlderVersions):
                if answer.error_code != ErrorCode.none:
                    raise PeerBabbles(f"ApiVersions was answered with error {int(answer.error_code)}")
                return common_ranges(answer)
            version = min(max(answer.newest, 0), version - 1)
        raise PeerBabbles("ApiVersions was refused twice")

    def _lost(self, link: Link, error: Exception) -> None:
        if self._link is not link:
            return  # it was never up: whoever opened it knows
        self._link = None
        if link.sent or isinstance(error, PeerFailed) or self._loop.time() - self._up_since < _SHORT_S:
            self._failed(error)
        self._on_lost()

    def _failed(self, error: Exception) -> None:
        """Wait before the next try; a line for what a sound peer does not do."""
        self._failures += 1
        options = self._options
        pause_ms = backoff(
            self._failures,
            first=options.backoff_ms,
            longest=options.backoff_max_ms,
            jitter=0.2,
            uniform=self._chance(),
        )
        self._not_before = self._loop.time() + pause_ms / 1000
        if isinstance(error, PeerFailed):
            self.metrics.garbage += 1
            self._warnings.warning("left %s: %s", self.name, printable(error))
        elif not isinstance(error, ConnectionRefusedError | TimeoutError):
            self.metrics.lost += 1

    def disconnect(self, reason: str) -> None:
        """End the connection as it is; the next call makes another one."""
        link, self._link = self._link, None  # it is no failure that would have to be waited for
        if link is not None:
            link.end(ConnectionAbortedError(f"{self.name}: {reason}"))

    async def close(self) -> None:
        """No more calls: what is in flight, and who waits for a connection, fails."""
        self._closed = True
        self.disconnect("the channel is closed")
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})


def _not_sent(error: OSError) -> OSError:
    error.__dict__["was_sent"] = False
    return error


def was_sent(error: OSError) -> bool:
    """Whether the request that failed with `error` may have reached the peer, and may have been done."""
    return not isinstance(error, ConnectionRefusedError) and bool(error.__dict__.get("was_sent", True))


def is_refused(error: Exception) -> bool:
    """Whether nobody listens there, at any address of the host: asyncio puts what it was told of several
    into words alone."""
    if isinstance(error, ConnectionRefusedError):
        return True
    if not isinstance(error, OSError) or error.errno is not None:
        return False
    numbers = _ERRNO.findall(str(error))
    return bool(numbers) and set(numbers) == {str(ECONNREFUSED)}


class Channels:
    """The channels of one purpose, by address: `Peers` of whoever asks. Owned by the event loop.

    Those that nobody uses are closed after a while; so are all by `close`, for good.
    """

    def __init__(
        self,
        options: ChannelOptions | None = None,
        *,
        metrics: ChannelMetrics | None = None,
        chance: Callable[[], float] = even,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called whenever a connection ends that was up, and not by this side."""
        self.metrics = metrics or ChannelMetrics()
        self._options = options or ChannelOptions()
        self._memory = Memory(self._options.memory_bytes)
        self._chance = chance
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._channels: dict[tuple[str, int], Channel] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Channels, connected or not."""
        return len(self._channels)

    async def call(
        self,
        endpoint: Reachable,
        api_key: int,
        version: int | None,
        message: Any,
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        """As `Channel.call`, to whoever listens there."""
        return await self.to(endpoint).call(api_key, version, message, timeout_ms=timeout_ms)

    def to(self, endpoint: Reachable) -> Channel:
        """The channel to that address."""
        if self._closed:
            raise ConnectionAbortedError("the channels are closed")
        key = (endpoint.host, endpoint.port)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(
                endpoint,
                self._options,
                metrics=self.metrics,
                memory=self._memory,
                chance=self._chance,
                on_lost=self._on_lost,
            )
            self._sweep_later()
        return channel

    def disconnect(self, endpoint: Reachable, reason: str) -> None:
        """End the connection there, if there is one; whoever waits for an answer is told."""
        channel = self._channels.get((endpoint.host, endpoint.port))
        if channel is not None:
            channel.disconnect(reason)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._channels:
            self._sweeper = self._loop.call_later(self._options.idle_ms / 4000, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        idle = [
            (key, channel)
            for key, channel in self._channels.items()
            if channel.idle_s() * 1000 >= self._options.idle_ms
        ]
        for key, channel in idle:
            del self._channels[key]
            self.metrics.idle_closed += 1
            channel.disconnect("nobody used it")
        self._sweep_later()

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()
