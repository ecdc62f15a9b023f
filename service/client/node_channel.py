"""A node's connections to its peers: many requests in flight, each with a deadline.

A `Channel` is one connection to one peer, made when it is needed and, after a back-off, again where it was
lost; `Channels` holds those of one purpose, by address. A call raises

- ``ConnectionRefusedError``: nothing listens there; the request was not sent
- ``UnsupportedVersion``: the peer does not serve the API in that version; the request was not sent
- ``TimeoutError``: no response in time, or no connection; the connection ends, as in Kafka's client
- any other ``OSError``: the connection was lost, or the peer sent garbage or refused the login (`PeerFailed`)

A request that was sent and not answered may have been executed; `was_sent` says whether an error leaves that
open.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any, Final, NamedTuple, Protocol

from service.base.backoff import backoff
from service.base.client_tls import TlsFailed
from service.base.errors import FirnError
from service.base.futures import retrieve_exception
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.client.async_connection import (
    AsyncConnection,
    ConnectionLimits,
    PeerFailed,
    PendingCall,
    ReceiveBudget,
    copy_of,
    garbage_from,
)
from service.client.sasl import Login
from service.client.security import PLAINTEXT, Security, renewal_s
from service.client.session import ClientSession, UndecodedResponse, Versions
from service.config.oauthbearer import OAUTHBEARER
from service.network.metrics import ChannelMetrics
from service.wire.api import decode_response_steps
from service.wire.errors import WireError

_LOG = logging.getLogger(__name__)
_SHORT_S: Final = 1.0
"""A connection that ends so soon counts as a failure, whatever ended it."""
_DRAIN_S: Final = 0.002
"""Pause between two looks at whether all requests before a reauthentication are answered."""
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


class Reachable(Protocol):
    """Address of a peer; `metadata.controller.requests.Endpoint` is one."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class ChannelOptions(NamedTuple):
    """Bounds on what a peer may cost, and how connections are secured; names in brackets are Kafka's keys."""

    client_id: str = "firn"
    request_timeout_ms: int = 30_000
    """Default of calls without a timeout (request.timeout.ms)."""
    connect_timeout_ms: int = 10_000
    """For the connection, TLS, versions and login together (socket.connection.setup.timeout.ms)."""
    backoff_ms: int = 50
    backoff_max_ms: int = 1_000
    """Before the next try to connect (reconnect.backoff.ms and its max)."""
    idle_ms: int = 540_000
    """A connection without requests is closed (connections.max.idle.ms of clients)."""
    max_response_bytes: int = 100 << 20
    memory_bytes: int = 256 << 20
    """For responses that are arriving, over all channels of one `Channels`."""
    most_in_flight: int = 64
    """Requests of one channel that are sent and not answered."""
    most_waiting: int = 1_000
    """Calls of one channel that are under way or queued; those beyond fail at once."""
    security: Security = PLAINTEXT


def no_jitter() -> float:
    """Draw the middle of the range: pauses have their nominal length."""
    return 0.5


class Channel:
    """One connection to one peer, made when it is needed. Owned by the event loop."""

    def __init__(
        self,
        address: Reachable,
        options: ChannelOptions | None = None,
        *,
        metrics: ChannelMetrics | None = None,
        budget: ReceiveBudget | None = None,
        chance: Callable[[], float] = no_jitter,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called when a connection that was up ends, and not by this side."""
        self.name = f"{address.host}:{address.port}"
        self.metrics = metrics or ChannelMetrics()
        self._address = address
        self._options = options or ChannelOptions()
        self._budget = budget or ReceiveBudget(self._options.memory_bytes)
        self._chance = chance
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connection: AsyncConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = self._loop.time()
        self._send_order = asyncio.Lock()
        self._sending = 0
        """calls that wait until they may be sent"""
        self._renewal_s = math.inf
        """time at which the login is to be renewed"""
        self._users = 0
        self._up_since = self._idle_since = self._loop.time()
        self._closed = False
        self._warnings = RateLimitedLog(_LOG, now=self._loop.time)

    @property
    def in_flight(self) -> int:
        return len(self._connection.pending) if self._connection is not None else 0

    def idle_s(self) -> float:
        """Return the seconds since the last call ended; 0 while one is under way."""
        return 0.0 if self._users else self._loop.time() - self._idle_since

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        """Send `message` in `version`, or in the newest that both sides know; return the canonical response.

        Raises as the module says. A call that is cancelled may have been sent.
        """
        options = self._options
        if self._users >= options.most_waiting:
            raise _not_sent(ConnectionError(f"{self.name}: {self._users} calls are waiting already"))
        wait_ms = options.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._loop.time() + wait_ms / 1000
        self._users += 1
        pending: PendingCall | None = None
        try:
            pending = self._sent_at_once(api_key, version, message, deadline)
            if pending is None:
                async with asyncio.timeout_at(deadline):
                    pending = await self._send(api_key, version, message, deadline)
            answer = await pending.answer  # at the latest by the deadline
            if isinstance(answer, UndecodedResponse):
                async with asyncio.timeout_at(deadline):
                    return await self._decode_in_slices(pending, answer)
            return answer
        except TimeoutError as e:
            late = TimeoutError(f"{self.name}: {str(e) or f'nothing within {wait_ms} ms'}")
            raise (late if pending is not None else _not_sent(late)) from e
        except OSError as e:
            if pending is None:
                _not_sent(e)
            raise
        finally:
            self._users -= 1
            self._idle_since = self._loop.time()

    async def versions(self) -> Versions:
        """Return the versions that both sides know; connects if there is no connection. Raises as `call`."""
        self._users += 1
        try:
            while (connection := self._connection) is None:
                await self._connected()
            return connection.session.versions
        finally:
            self._users -= 1
            self._idle_since = self._loop.time()

    def _sent_at_once(
        self, api_key: int, version: int | None, message: Any, deadline: float
    ) -> PendingCall | None:
        """Send if nothing has to be waited for; None otherwise."""
        connection = self._connection
        if (
            connection is None
            or self._sending
            or not connection.is_ready
            or self._loop.time() >= self._renewal_s
        ):
            return None
        chosen = connection.session.version(api_key, version)
        return connection.send(api_key, chosen, message, deadline)

    async def _send(self, api_key: int, version: int | None, message: Any, deadline: float) -> PendingCall:
        """Send when there is room; calls go out in the order in which they came."""
        self._sending += 1
        try:
            return await self._send_in_order(api_key, version, message, deadline)
        finally:
            self._sending -= 1

    async def _send_in_order(
        self, api_key: int, version: int | None, message: Any, deadline: float
    ) -> PendingCall:
        while True:
            if self._connection is None:
                await self._connected()
            async with self._send_order:
                connection = self._connection
                if connection is not None:
                    await connection.room.wait()
                    await connection.writable.wait()
                if connection is None or not connection.is_open:
                    continue
                if self._loop.time() >= self._renewal_s:
                    await self._log_in_again(connection)
                    continue
                chosen = connection.session.version(api_key, version)
                return connection.send(api_key, chosen, message, deadline)

    async def _decode_in_slices(self, pending: PendingCall, response: UndecodedResponse) -> Any:
        try:
            return await Slice().go_on(
                decode_response_steps(pending.api_key, pending.version, response.frame)
            )
        except WireError as e:
            error = garbage_from(self.name, e)
            if self._connection is not None:
                self._connection.end(error)
            raise error from e

    # -- the connection

    async def _connected(self) -> None:
        """Wait for the connection that is being made, or make one. All who wait share the result."""
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
            raise copy_of(error) from error

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        retrieve_exception(opening)

    async def _open(self) -> None:
        await asyncio.sleep(self._not_before - self._loop.time())
        options = self._options
        try:
            session = ClientSession(self.name, options.client_id, await self._new_login())
        except (OSError, FirnError) as e:
            self._failed(error := self._connect_error(e))
            raise error from e
        limits = ConnectionLimits(options.most_in_flight, options.max_response_bytes)
        connection = AsyncConnection(session, self._loop, limits, self._budget, self.metrics, self._lost)
        try:
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                host, port, tls = self._address.host, self._address.port, options.security.tls
                if tls is None:
                    await self._loop.create_connection(lambda: connection, host, port)
                else:
                    from service.network.tls.dialing import connect_tls  # a node without TLS does not load it

                    await connect_tls(tls, connection, host, port)
                self.metrics.connected += 1
                await self._set_up(connection)
        except (OSError, FirnError, ValueError) as e:
            error = self._connect_error(e)
            connection.end(error)
            self._failed(error)
            raise error from e
        except BaseException:
            connection.end(ConnectionAbortedError(f"{self.name}: given up"))
            raise
        if not connection.is_open:
            self._failed(error := ConnectionResetError(f"{self.name} closed the connection"))
            raise error
        self._failures = 0
        self._up_since = self._loop.time()
        self._connection = connection

    async def _new_login(self) -> Login | None:
        credentials = self._options.security.credentials
        if credentials is None:
            return None
        if credentials.mechanism != OAUTHBEARER:
            return credentials.login()
        async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
            return await self._loop.run_in_executor(None, credentials.login)  # reads the token

    async def _set_up(self, connection: AsyncConnection) -> None:
        """Negotiate versions and log in."""
        await self._exchange(connection, connection.session.start())

    async def _log_in_again(self, connection: AsyncConnection) -> None:
        """Renew the login between two requests; whoever sends meanwhile waits. Ends the connection if it
        fails: the next one logs in afresh."""
        has_begun = False
        try:
            # What is owed has deadlines of its own, as has the caller.
            while connection.pending and connection.is_open:
                await asyncio.sleep(_DRAIN_S)
            if connection.is_open:
                has_begun = True
                async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                    login = await self._new_login()
                    assert login is not None
                    await self._exchange(connection, connection.session.log_in_again(login))
        except (OSError, FirnError) as e:
            connection.end(self._connect_error(e))
        except BaseException:
            if has_begun:  # before, others still wait for their answers: the next call renews the login
                connection.end(ConnectionAbortedError(f"{self.name}: given up"))
            raise

    async def _exchange(self, connection: AsyncConnection, outgoing: bytes | None) -> None:
        session = connection.session
        while outgoing is not None:
            frame = await connection.exchange(outgoing)
            if self._options.security.credentials is None:
                outgoing = session.set_up(frame)
            else:  # SCRAM derives a key
                outgoing = await self._loop.run_in_executor(None, session.set_up, frame)
        self._renewal_s = self._loop.time() + renewal_s(session.lifetime_ms, self._chance())

    def _connect_error(self, error: Exception) -> OSError:
        if is_refused(error):
            self.metrics.refused += 1
            return ConnectionRefusedError(ECONNREFUSED, f"nobody listens at {self.name}")
        if isinstance(error, TimeoutError):
            self.metrics.timed_out += 1
            return TimeoutError(f"no connection to {self.name} in time")
        if isinstance(error, TlsFailed):
            return PeerFailed(f"no TLS with {self.name}: {error}")
        if isinstance(error, OSError):
            return error
        if isinstance(error, ValueError):  # asyncio's error for a label that is too long, or a zero byte
            return ConnectionError(f"no host has the name of {printable(self.name)}: {error}")
        return garbage_from(self.name, error) if isinstance(error, WireError) else PeerFailed(str(error))

    def _lost(self, connection: AsyncConnection, error: Exception) -> None:
        if self._connection is not connection:
            return  # it was never up: `_open` raises
        self._connection = None
        is_short = self._loop.time() - self._up_since < _SHORT_S
        if connection.pending or isinstance(error, PeerFailed) or is_short:
            self._failed(error)
        self._on_lost()

    def _failed(self, error: Exception) -> None:
        """Delay the next try, and log what a sound peer does not do."""
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
        """Close the connection; the next call makes another one, without a pause."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(ConnectionAbortedError(f"{self.name}: {reason}"))

    async def close(self) -> None:
        """Close for good: calls in flight and calls that wait for a connection fail."""
        self._closed = True
        self.disconnect("the channel is closed")
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})


def _not_sent(error: OSError) -> OSError:
    error.__dict__["was_sent"] = False
    return error


def was_sent(error: OSError) -> bool:
    """Return whether the request that failed with `error` may have reached the peer and been executed."""
    return not isinstance(error, ConnectionRefusedError) and bool(error.__dict__.get("was_sent", True))


def is_refused(error: Exception) -> bool:
    """Return whether nothing listens at any address of the host: of several addresses asyncio reports the
    errors in the text of one."""
    if isinstance(error, ConnectionRefusedError):
        return True
    if not isinstance(error, OSError) or error.errno is not None:
        return False
    numbers = _ERRNO.findall(str(error))
    return bool(numbers) and set(numbers) == {str(ECONNREFUSED)}


class Channels:
    """The channels of one purpose, by address. Owned by the event loop.

    A channel without calls is closed after `ChannelOptions.idle_ms`, all of them by `close`, for good.
    """

    def __init__(
        self,
        options: ChannelOptions | None = None,
        *,
        metrics: ChannelMetrics | None = None,
        chance: Callable[[], float] = no_jitter,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called when a connection that was up ends, and not by this side."""
        self.metrics = metrics or ChannelMetrics()
        self._options = options or ChannelOptions()
        self._budget = ReceiveBudget(self._options.memory_bytes)
        self._chance = chance
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._channels: dict[tuple[str, int], Channel] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return the number of channels, connected or not."""
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
        """Call the peer at `endpoint`; see `Channel.call`."""
        return await self.to(endpoint).call(api_key, version, message, timeout_ms=timeout_ms)

    def to(self, endpoint: Reachable) -> Channel:
        """Return the channel to that address."""
        if self._closed:
            raise ConnectionAbortedError("the channels are closed")
        key = (endpoint.host, endpoint.port)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(
                endpoint,
                self._options,
                metrics=self.metrics,
                budget=self._budget,
                chance=self._chance,
                on_lost=self._on_lost,
            )
            self._sweep_later()
        return channel

    def disconnect(self, endpoint: Reachable, reason: str) -> None:
        """Close the connection there, if there is one; calls in flight fail."""
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
            channel.disconnect("nobody used it")
        self._sweep_later()

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()
