"""Admin APIs on the controller: the brokers' own handlers, with the request's deadline.

So the responses and the order of checks are the same on both sides of an Envelope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from service.controller_client.forwarding import timeout_of
from service.controller_server.request_host import Admin, ControllerSide
from service.network.request import RequestContext

AdminHandler = Callable[[Any, RequestContext, Any], Awaitable[Any]]


def on_controller(handle: AdminHandler) -> AdminHandler:
    """Adapt a broker's `handle` to a controller: nothing is decided after the request's own timeout."""

    def handled(side: ControllerSide, context: RequestContext, request: Any) -> Awaitable[Any]:
        return handle(Admin(side, side.deadline_ms(timeout_of(request))), context, request)

    return handled
