"""Responses that one connection has pending: their order, their limit, and what waits behind them. [P]

A request may be done, in order, while its response has to wait: a Produce with acks=all. Its response is
queued, and further requests of the same API are handled meanwhile. What else follows waits behind the queue:

- a request of another API, as its effect could overtake those of the queue;
- the response to the current request, as responses go out in the order of requests;
- a malformed request: the responses before it are sent, then the connection ends.

`ResponseOrder.state` moves by the table `MOVES`; an illegal move raises. The shell (`request_pipeline`) owns
the responses: it tells the queue of each, and sends what `take_done` returns.

>>> class Stored:
...     weight, is_stored = 60, False
...     def done(self):
...         return self.is_stored
>>> queue, first, second = ResponseOrder(), Stored(), Stored()
>>> for response in first, second:
...     queue.add(response, ApiMetrics(), 0.0, b"P")
>>> queue.state.name
'FULL'
>>> second.is_stored = True
>>> queue.take_done()  # the first is not done: the second one waits
[]
>>> first.is_stored = True
>>> len(queue.take_done()), queue.state.name
(2, 'EMPTY')
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from service.base.errors import InvariantError
from service.network.metrics import ApiMetrics

MOST_WEIGHT: Final = 64
"""Weight of pending responses to one peer at which its next request waits."""


class QueueState(IntEnum):
    """State of the pending responses: whether a further request is handled."""

    EMPTY = 0
    """nothing is pending: a response is sent at once"""
    OPEN = 1
    """requests of the same API are handled"""
    FULL = 2
    """no request is handled until a response is sent"""
    BLOCKED = 3
    """a request or a response waits until nothing is pending; no further request is handled"""
    FAILED = 4
    """the connection ends once nothing is pending; nothing more is read"""
    CLOSED = 5
    """the connection is gone"""


EMPTY, OPEN, FULL, BLOCKED, FAILED, CLOSED = QueueState

MOVES = {
    EMPTY: frozenset({OPEN, FULL, CLOSED}),
    OPEN: frozenset({OPEN, EMPTY, FULL, BLOCKED, FAILED, CLOSED}),
    FULL: frozenset({EMPTY, OPEN, FAILED, CLOSED}),
    BLOCKED: frozenset({EMPTY, FAILED, CLOSED}),
    FAILED: frozenset({FAILED, CLOSED}),
    CLOSED: frozenset({CLOSED}),
}


class Pending(Protocol):
    """A response that comes later."""

    @property
    def weight(self) -> int:
        """Share of `MOST_WEIGHT` that the response takes up while it is pending."""

    def done(self) -> bool: ...
    def cancel(self) -> None: ...


P = TypeVar("P", bound=Pending)
B = TypeVar("B")


class Queued(NamedTuple, Generic[P]):
    """A pending response and its request's API and time."""

    response: P
    api: ApiMetrics
    asked_s: float


class ResponseOrder(Generic[P, B]):
    """Pending responses of one connection. For one thread."""

    __slots__ = ("_behind", "_weight", "api_key", "pending", "state")

    def __init__(self) -> None:
        self.state = EMPTY
        self.pending: list[Queued[P]] = []
        """in the order of the requests"""
        self.api_key = b""
        """first two bytes of the requests whose responses are pending"""
        self._weight = 0
        self._behind: B | None = None

    def add(self, response: P, api: ApiMetrics, asked_s: float, api_key: bytes) -> None:
        """Queue a response. The next request may be handled unless the state is FULL."""
        self.pending.append(Queued(response, api, asked_s))
        self.api_key = api_key
        self._weight += response.weight
        if self.state is EMPTY or self.state is OPEN:  # without a call: an acks=all Produce comes here
            self.state = FULL if self._weight >= MOST_WEIGHT else OPEN
        else:
            self._move(OPEN)

    def take_done(self) -> list[Queued[P]]:
        """Remove and return the responses that may be sent now, in order: those done, up to the first that is
        not."""
        pending, count = self.pending, 0
        for one in pending:
            if not one.response.done():
                break
            self._weight -= one.response.weight
            count += 1
        done = pending[:count]
        del pending[:count]
        if self.state is OPEN or self.state is FULL:
            self.state = FULL if self._weight >= MOST_WEIGHT else OPEN if pending else EMPTY
        return done

    def block(self, behind: B) -> None:
        """Let a request or a response wait until nothing is pending."""
        self._behind = behind
        self._move(BLOCKED)

    def fail(self, error: B) -> None:
        """Let an error wait until nothing is pending, instead of what waits already."""
        self._behind = error
        self._move(FAILED)

    def take_behind(self) -> B | None:
        """Return what waits behind the queue, if anything; called when nothing is pending."""
        behind, self._behind = self._behind, None
        if self.state is BLOCKED:
            self._move(EMPTY)
        return behind

    def close(self) -> None:
        """Cancel everything: the connection is gone."""
        for one in self.pending:
            one.response.cancel()
        self.pending.clear()
        self._behind = None
        self._move(CLOSED)

    def _move(self, state: QueueState) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"responses cannot go from {self.state.name} to {state.name}")
        self.state = state
