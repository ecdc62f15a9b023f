"""What admins change, on the controller: the brokers' own handlers, with the request's deadline.

What they answer, and in which order they check, is one thing on both sides of an Envelope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from service.controller_client.forwarding import timeout_of
from service.controller_server.request_host import Admin, ControllerSide
from service.network.request import RequestContext

Asked = Callable[[Any, RequestContext, Any], Awaitable[Any]]


def on_controller(handle: Asked) -> Asked:
    """`handle` for a controller's listener: past the request's own time nothing is decided."""

    def handled(side: ControllerSide, context: RequestContext, request: Any) -> Awaitable[Any]:
        return handle(Admin(side, side.deadline_ms(timeout_of(request))), context, request)

    return handled
