"""Requests of the metadata quorum's replicas, and of those who tend it: its machine answers them all."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from kio.schema.errors import ErrorCode

from service.controller_server.request_host import ControllerSide
from service.network.request import RequestContext, Response
from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_as_is,
    decode_as_is_steps,
    response_frame_as_is,
)
from service.wire.primitives import MAX_ELEMENTS


async def handle(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Vote, BeginQuorumEpoch, EndQuorumEpoch, DescribeQuorum, FetchSnapshot and changes of voters."""
    context.cancel_on_disconnect = False
    key = context.api_key
    answer = await side.ask_quorum(key, APIS[key].max_version, request)
    _look(side, context, answer)
    return answer


def _look(side: ControllerSide, context: RequestContext, answer: Any) -> None:
    """Who belongs to another cluster goes on asking: that is to be found."""
    # an answer to Fetch before version 7 has no place for it
    if getattr(answer, "error_code", None) is ErrorCode.inconsistent_cluster_id:
        side.refused(context, f"it does not belong to cluster {side.cluster_id}")


# Fetch: its versions name topics differently, so each is read and written as it is.


def parse_fetch(version: int, frame: memoryview, position: int, most_elements: int = MAX_ELEMENTS) -> Any:
    return decode_as_is(RequestHeader(ApiKey.FETCH, version, 0, "", position), frame, most_elements)


def parse_fetch_steps(version: int, frame: memoryview, position: int) -> Generator[None, None, Any]:
    return decode_as_is_steps(RequestHeader(ApiKey.FETCH, version, 0, "", position), frame)


def handle_fetch(side: ControllerSide, context: RequestContext, request: Any) -> Awaitable[Response]:
    """Fetch of the metadata log: it waits for records, and not for a peer that has gone."""
    context.cancel_on_disconnect = True
    header = RequestHeader(ApiKey.FETCH, context.api_version, context.correlation_id, context.client_id, 0)
    return _fetch(side, context, header, request)


async def _fetch(
    side: ControllerSide, context: RequestContext, header: RequestHeader, request: Any
) -> Response:
    answer = await side.ask_quorum(ApiKey.FETCH, header.api_version, request)
    _look(side, context, answer)
    return Response([response_frame_as_is(header, answer)])
