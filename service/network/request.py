"""Interface of servers and handlers: request context, response, pending response, and limits on peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from service.base.printable import quoted
from service.network.request_meter import RequestMeter
from service.network.sender import Part
from service.security.session import Session


class Response:
    """A whole response frame, its size included, as parts in the order of the wire.

    `on_done` is called once when the parts are no longer needed: they are sent, or the connection is gone.
    `on_failed` is called before that if the disk fails to read a part, which closes the connection.
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

    Without parts nothing is sent: the request wants no response.
    """

    __slots__ = ("mute_s",)

    def __init__(self, parts: Sequence[Part], mute_s: float) -> None:
        super().__init__(parts)
        self.mute_s = mute_s


class Closing(Response):
    """A last response, or none: nothing more is read, and after `delay_s` seconds it is sent and the
    connection closed."""

    __slots__ = ("delay_s",)

    def __init__(self, parts: Sequence[Part], delay_s: float = 0.0) -> None:
        super().__init__(parts)
        self.delay_s = delay_s


class PendingResponse:
    """A response that comes later, without a task; like a future to the handler.

    `set_result` may be called within the handler's call. The caller of `set_result` gets no further request
    of this connection before it has returned to the loop.
    """

    __slots__ = ("_answer", "_error", "_is_done", "_when_done")

    weight = 0
    """Nonzero if the request is done, in order, and only its response has to wait: the connection's next
    requests of the same API are handled meanwhile, until the weights of pending responses reach a limit. Such
    a request has a context of its own (`RequestContext.kept`). 0: the next request waits for the response."""

    def __init__(self) -> None:
        self._answer: Answer = None
        self._error: Exception | None = None
        self._is_done = False
        self._when_done: Callable[[PendingResponse], None] | None = None

    def done(self) -> bool:
        return self._is_done

    def result(self) -> Answer:
        """Return the response, or raise the error instead, unless `failed` converts it."""
        return self._answer if self._error is None else self.failed(self._error)

    def failed(self, error: Exception) -> Answer:
        """Return the response for `error`."""
        raise error

    def set_result(self, answer: Answer) -> None:
        self._answer = answer
        self._notify()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._notify()

    def __await__(self) -> Generator[Any, None, Answer]:
        """Wait for the response in a task."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_done(lambda _: None if ready.done() else ready.set_result(None))
        if not self._is_done:
            yield from ready
        return self.result()

    def cancel(self) -> None:
        """Drop the response: the connection is gone."""
        self._is_done, self._when_done = True, None

    def when_done(self, callback: Callable[[PendingResponse], None]) -> None:
        """Call `callback` once, with this object, when there is a response or an error."""
        self._when_done = callback

    def _notify(self) -> None:
        self._is_done = True
        callback, self._when_done = self._when_done, None
        if callback is not None:
            callback(self)


class Owed(Response):
    """The result of a request that needed a task and is done, in order, while its response has to wait: from
    now on it is as if `response`, which has a weight, were the handler's answer."""

    __slots__ = ("response",)

    def __init__(self, response: PendingResponse) -> None:
        super().__init__((), response.cancel)
        self.response = response


class PeerContext:
    """Client of a connection, and header of its request, whoever the client may be: no `Handler` takes it.

    One per connection; the fields of the request are overwritten by the next one.
    """

    __slots__ = (
        "api_key", "api_version", "cancel_on_disconnect", "client_host", "client_id", "client_port",
        "connection_id", "correlation_id", "ends_with_peer", "has_left", "hurry", "listener", "meter",
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
        """Whether the request is long and has changed nothing yet: it is cancelled when its peer leaves."""
        self.has_left = False
        """Whether the peer has closed its side of the connection, or the connection has ended."""
        self.hurry: Callable[[], None] | None = None
        """Set by a request that only waits for time or news: called when another request waits behind it."""
        self.meter: RequestMeter | None = None
        """counts what the request uses, where its client has a quota"""

    def __str__(self) -> str:
        return (
            f"{self.client_host}:{self.client_port} on {self.listener} (client id {quoted(self.client_id)}, "
            f"API key {self.api_key} version {self.api_version}, correlation id {self.correlation_id})"
        )


class RequestContext(PeerContext):
    """Context of a client whose session has begun. The dispatcher sets the request's fields."""

    __slots__ = ("session",)

    def __init__(
        self, connection_id: int, client_host: str, client_port: int, listener: str, session: Session
    ) -> None:
        super().__init__(connection_id, client_host, client_port, listener)
        self.session = session

    def kept(self) -> RequestContext:
        """Return a copy that the next request does not overwrite."""
        own = RequestContext(
            self.connection_id, self.client_host, self.client_port, self.listener, self.session
        )
        own.client_id, own.api_key, own.api_version = self.client_id, self.api_key, self.api_version
        own.correlation_id, own.meter = self.correlation_id, self.meter
        return own


def authenticated(peer: PeerContext, session: Session) -> RequestContext:
    """Return the context of the requests that follow a login of `peer`."""
    context = RequestContext(peer.connection_id, peer.client_host, peer.client_port, peer.listener, session)
    context.has_left = peer.has_left
    context.client_id, context.api_key, context.api_version = peer.client_id, peer.api_key, peer.api_version
    context.correlation_id = peer.correlation_id
    return context


Answer = Response | None
Later = Awaitable[Answer]
Handler = Callable[[RequestContext, memoryview], Answer | Later]


class AnsweredRun(NamedTuple):
    """Requests behind one another that were handled at once: how many, the position behind them, and the
    parts of their responses, `size` bytes in all. `on_failed`: as of `Response`."""

    requests: int
    stop: int
    answers: Sequence[Part]
    size: int
    on_failed: Callable[[], None] | None = None


RunHandler = Callable[[RequestContext, memoryview, int, int], AnsweredRun | None]
"""Called on the loop with received bytes, and the part of them that begins with a whole request and its size.
Handles those requests, from the first on, that it can answer at once; None if the first one is for the
`Handler`. The bytes are used again afterwards."""


class LoggedIn(Response):
    """The response that completes a login: requests from now on have `context`, and go to `handler`."""

    __slots__ = ("context", "handler")

    def __init__(self, parts: Sequence[Part], context: RequestContext, handler: Handler) -> None:
        super().__init__(parts)
        self.context = context
        self.handler = handler


class TokensFollow(Response):
    """The response that begins a login anew: until `LoggedIn` messages have `most_bytes` at most."""

    __slots__ = ("most_bytes",)

    def __init__(self, parts: Sequence[Part], most_bytes: int) -> None:
        super().__init__(parts)
        self.most_bytes = most_bytes


class Gate(Protocol):
    """Handler of a connection until its session begins."""

    @property
    def context(self) -> PeerContext: ...
    def handle(self, context: PeerContext, frame: memoryview) -> Answer | Later:
        """Handle a message of the login. `LoggedIn` and `Closing` end it."""

    def unmuted(self, last_read: float) -> None:
        """Note that a pause is over; bytes were read at `last_read` at the latest."""


Gone = Callable[[RequestContext], None]
"""Called when the connection of a client with a session has ended."""
Describe = Callable[[PeerContext, memoryview | None], str]
"""Formats a request and its client, for requests that held the loop long; without the request for those that
are answered later."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits on the cost of peers; names in brackets are Kafka's configuration keys."""

    max_request_bytes: int = 104857600
    """Largest request (socket.request.max.bytes)."""
    idle_ms: int = 600_000
    """Time after which an idle connection is closed (connections.max.idle.ms)."""
    request_memory_bytes: int = 256 << 20
    """Memory for requests that arrive or wait, over all connections (in the role of
    queued.max.request.bytes).
    """
    read_timeout_ms: int = 30_000
    """Time for a request to arrive, plus time for its bytes (`transfer_timeout`)."""
    send_timeout_ms: int = 60_000
    """Time for a response to be received, plus time for its bytes."""
