"""Responses that a shard owes, by ticket. Owned by the event loop."""

from __future__ import annotations

from typing import Any

from service.base.errors import RequestError
from service.coordinator.answers import refuse
from service.coordinator.ports import ResponseSink
from service.coordinator.shard import CoordinatorResult, DeferredReply


class Tickets:
    """Sinks of the requests that have no response yet."""

    __slots__ = ("_last", "_sinks")

    def __init__(self) -> None:
        self._sinks: dict[int, ResponseSink] = {}
        self._last = 0

    def add(self, sink: ResponseSink) -> int:
        """Return the ticket of a new request."""
        self._last = ticket = self._last + 1
        self._sinks[ticket] = sink
        return ticket

    def respond(self, ticket: int, response: object) -> None:
        """Send the response of a ticket, once; does nothing if its caller is gone or has one."""
        sink = self._sinks.pop(ticket, None)
        if sink is None or sink.done():
            return
        if isinstance(response, RequestError):
            refuse(sink, response)
        else:
            sink.set_result(response)

    def fail(self, decision: CoordinatorResult[Any], ticket: int | None, error: RequestError) -> None:
        """Send `error` to whoever would get a response with the commit of `decision`, a request's or not."""
        if ticket is not None:
            self.respond(ticket, error)
        for effect in decision.effects:
            if isinstance(effect, DeferredReply):
                self.respond(effect.ticket, error)

    def refuse_all(self, error: RequestError) -> None:
        """Send `error` to all."""
        for ticket in tuple(self._sinks):
            self.respond(ticket, error)
