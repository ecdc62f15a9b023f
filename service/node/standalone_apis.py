"""API table of a node that is its whole cluster: it handles what brokers of a cluster forward.

The controller of this process responds, as a controller's listener does. The first such request loads the
code of those handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from service.controller_server.request_host import ControllerSide
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.api_table import BROKER_APIS
from service.serving.authorization import BY_CONTROLLER, is_allowed_on_cluster
from service.serving.served_api import Host, Served, refused_first
from service.wire.apis import APIS, ApiKey, ListenerType, served_on
from service.wire.refusals import refusal


def alone_apis(side: ControllerSide) -> Mapping[int, Served]:
    """Return the table of the listeners of a node that is alone; `side` is its controller."""
    by_controller = Served(BY_CONTROLLER, partial(_handle_by_controller, side))
    return {api.key: BROKER_APIS.get(api.key, by_controller) for api in served_on(ListenerType.BROKER)}


async def _handle_by_controller(
    side: ControllerSide, broker: Host, context: RequestContext, request: Any
) -> Any:
    key = context.api_key
    if APIS[key].is_checked_first:
        refused = await refused_first(side, context, request)
        if refused is not None:
            return refused
    is_own = key == ApiKey.UNREGISTER_BROKER and request.broker_id == side.node_id
    if is_own and is_allowed_on_cluster(side, context, AclOperation.ALTER, quiet=True):
        # A broker of a cluster would register again; this node registers once, at its start.
        why = "The only node of its cluster is registered while it runs."
        return refusal(key, request, ErrorCode.invalid_request, why)
    listener = await broker.load("service.controller_server.api_table")
    answer = listener.CONTROLLER_APIS[key].handle(side, context, request)
    return await answer if isinstance(answer, Awaitable) else answer
