"""Requests that brokers of a cluster forward to its controller, on a node that is its whole cluster.

Answered as a controller's listener does, by the controller of this process. The code of those handlers is
loaded by the first such request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from service.controller_server.request_host import ControllerSide
from service.network.request import RequestContext
from service.serving.api_table import BROKER_APIS
from service.serving.served_api import Host, Served
from service.wire.apis import ApiKey, ListenerType, served_on
from service.wire.refusals import refusal


def alone_apis(side: ControllerSide) -> Mapping[int, Served]:
    """The table of the listeners of a node that is alone; `side` is its controller."""
    by_controller = Served(partial(_answered, side))
    return {api.key: BROKER_APIS.get(api.key, by_controller) for api in served_on(ListenerType.BROKER)}


async def _answered(side: ControllerSide, broker: Host, context: RequestContext, request: Any) -> Any:
    key = context.api_key
    if key == ApiKey.UNREGISTER_BROKER and request.broker_id == side.node_id:
        # Brokers of a cluster register again; this one is registered by its own controller, once.
        why = "The only node of its cluster is registered while it runs."
        return refusal(key, request, ErrorCode.invalid_request, why)
    listener = await broker.load("service.controller_server.api_table")
    answer = listener.CONTROLLER_APIS[key].handle(side, context, request)
    return await answer if isinstance(answer, Awaitable) else answer
