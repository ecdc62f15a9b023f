"""What a handler is asked and what it answers: the request's context, the response, and bounds on peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from service.base.printable import quoted
from service.network.sender import Part


class Response:
    """A whole response frame, its size included, as parts that follow each other on the wire.

    `on_done` is called once when nobody needs the parts any more: they are out, or the connection is gone.
    `on_failed` is called before that when the disk did not give a part, with which the connection ends.
    """

    __slots__ = ("on_done", "on_failed", "parts")

    def __init__(
        self,
        parts: Sequence[Part],
        on_done: Callable[[], None] | None = None,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        self.parts = parts
        self.on_done = on_done
        self.on_failed = on_failed


class Throttled(Response):
    """A response after which the connection's next request waits for `mute_s` seconds (KIP-219).

    Without parts nothing is sent: it was a request that wants no answer.
    """

    __slots__ = ("mute_s",)

    def __init__(self, parts: Sequence[Part], mute_s: float) -> None:
        super().__init__(parts)
        self.mute_s = mute_s


class Promise:
    """An answer that comes later, and for which no task is made: as a future to whoever gives it.

    `set_result` may be called within the handler's call already. Whoever gives an answer is asked nothing
    before it has returned to the loop.
    """

    __slots__ = ("_answer", "_error", "_is_done", "_when_done")

    weight = 0
    """Where what was asked is done, in its order, and the answer alone has to wait: the connection's next
    requests of the same API are handled meanwhile, until the answers that it is owed weigh too much. Such a
    promise has a context of its own (`RequestContext.kept`). 0: whoever is next waits for it."""

    def __init__(self) -> None:
        self._answer: Answer = None
        self._error: Exception | None = None
        self._is_done = False
        self._when_done: Callable[[Promise], None] | None = None

    def done(self) -> bool:
        return self._is_done

    def result(self) -> Answer:
        """Raises what came instead of an answer, unless `failed` knows better."""
        return self._answer if self._error is None else self.failed(self._error)

    def failed(self, error: Exception) -> Answer:
        """The answer that `error` makes."""
        raise error

    def set_result(self, answer: Answer) -> None:
        self._answer = answer
        self._tell()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._tell()

    def __await__(self) -> Generator[Any, None, Answer]:
        """For a task that has time to wait."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_done(lambda _: None if told.done() else told.set_result(None))
        if not self._is_done:
            yield from told
        return self.result()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._is_done, self._when_done = True, None

    def when_done(self, tell: Callable[[Promise], None]) -> None:
        """Call `tell` once the answer is there, or something instead of it."""
        self._when_done = tell

    def _tell(self) -> None:
        self._is_done = True
        tell, self._when_done = self._when_done, None
        if tell is not None:
            tell(self)


class RequestContext:
    """Who asks. One per connection; the dispatcher fills in the request's own fields, which the next request
    overwrites.
    """

    __slots__ = (
        "api_key", "api_version", "cancel_on_disconnect", "client_host", "client_id", "client_port",
        "connection_id", "correlation_id", "ends_with_peer", "has_left", "hurry", "listener",
    )  # fmt: skip

    def __init__(self, connection_id: int, client_host: str, client_port: int, listener: str) -> None:
        self.connection_id = connection_id
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener
        self.client_id = ""
        self.api_key = -1
        self.api_version = -1
        self.correlation_id = 0
        self.cancel_on_disconnect = False
        self.ends_with_peer = False
        """It is long, and has changed nothing yet: nobody goes on with it when its peer sends no more."""
        self.has_left = False
        """The peer has closed its side of the connection, or the connection has ended."""
        self.hurry: Callable[[], None] | None = None
        """Of a request that waits for nothing but time or news: another one waits behind it."""

    def kept(self) -> RequestContext:
        """Who asks this, as long as somebody wants to know."""
        own = RequestContext(self.connection_id, self.client_host, self.client_port, self.listener)
        own.client_id, own.api_key, own.api_version = self.client_id, self.api_key, self.api_version
        own.correlation_id = self.correlation_id
        return own

    def __str__(self) -> str:
        return (
            f"{self.client_host}:{self.client_port} on {self.listener} (client id {quoted(self.client_id)}, "
            f"API key {self.api_key} version {self.api_version}, correlation id {self.correlation_id})"
        )


Answer = Response | None
Later = Awaitable[Answer]
Handler = Callable[[RequestContext, memoryview], Answer | Later]
Gone = Callable[[RequestContext], None]
"""Told of a connection that has ended."""
Describe = Callable[[RequestContext, memoryview | None], str]
"""What a request asks for and who asks, in words: for the few that held the loop. Without the request it was
answered later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what peers may cost; names in brackets are Kafka's configuration keys."""

    max_request_bytes: int = 104857600
    """Greatest request (socket.request.max.bytes)."""
    idle_ms: int = 600_000
    """A connection that moves no byte for so long is closed (connections.max.idle.ms)."""
    request_memory_bytes: int = 256 << 20
    """Memory for requests that arrive or wait, over all connections (in the role of
    queued.max.request.bytes).
    """
    read_timeout_ms: int = 30_000
    """Time for a request to arrive, and more for the bytes that did (`pace`)."""
    send_timeout_ms: int = 60_000
    """Time for a response to be taken, and more for the bytes that were."""
