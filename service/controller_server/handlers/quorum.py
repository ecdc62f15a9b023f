"""Raft requests of the metadata quorum, and changes of its voters: its machine answers them all."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from service.controller_server.request_host import ControllerSide
from service.metadata.raft.messages_out import to_response
from service.metadata.raft.requests import Refusal
from service.network.request import RequestContext, Response
from service.serving.authorization import DENIED_MESSAGES
from service.serving.change_audit import audited
from service.serving.change_words import changed_voters
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
    """Handle Vote, BeginQuorumEpoch, EndQuorumEpoch, DescribeQuorum, FetchSnapshot and voter changes."""
    context.cancel_on_disconnect = False
    key = context.api_key
    answer = await side.ask_quorum(key, APIS[key].max_version, request, context.listener)
    _log_foreign_cluster(side, context, answer)
    return answer


@audited(changed_voters)
async def change_voters(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AddRaftVoter and RemoveRaftVoter."""
    return await handle(side, context, request)


def _log_foreign_cluster(side: ControllerSide, context: RequestContext, answer: Any) -> None:
    """Log a refused peer of another cluster: it retries for ever, and its operator needs to find it."""
    # A response to Fetch before version 7 has no field for the error.
    if getattr(answer, "error_code", None) is ErrorCode.inconsistent_cluster_id:
        side.refused(context, f"it does not belong to cluster {side.cluster_id}")


# Fetch names topics differently by version, so each version is decoded and encoded as it is.


def parse_fetch(version: int, frame: memoryview, position: int, most_elements: int = MAX_ELEMENTS) -> Any:
    return decode_as_is(RequestHeader(ApiKey.FETCH, version, 0, "", position), frame, most_elements)


def parse_fetch_steps(version: int, frame: memoryview, position: int) -> Generator[None, None, Any]:
    return decode_as_is_steps(RequestHeader(ApiKey.FETCH, version, 0, "", position), frame)


def refuse(context: RequestContext, request: Any, code: ErrorCode, message: str) -> Any:
    """Return the response to a request that is refused as a whole."""
    key, words = context.api_key, DENIED_MESSAGES.get(code)
    answer = to_response(key, APIS[key].max_version, Refusal(code))
    return replace(answer, error_message=words) if words and hasattr(answer, "error_message") else answer


def refuse_fetch(context: RequestContext, request: Any, code: ErrorCode, message: str) -> Response:
    """Return the response to a Fetch that is refused as a whole."""
    version = context.api_version
    header = RequestHeader(ApiKey.FETCH, version, context.correlation_id, context.client_id, 0)
    return Response([response_frame_as_is(header, to_response(ApiKey.FETCH, version, Refusal(code)))])


def handle_fetch(side: ControllerSide, context: RequestContext, request: Any) -> Awaitable[Response]:
    """Handle Fetch of the metadata log. It may wait for records, and ends when the peer disconnects."""
    context.cancel_on_disconnect = True
    header = RequestHeader(ApiKey.FETCH, context.api_version, context.correlation_id, context.client_id, 0)
    return _fetch(side, context, header, request)


async def _fetch(
    side: ControllerSide, context: RequestContext, header: RequestHeader, request: Any
) -> Response:
    answer = await side.ask_quorum(ApiKey.FETCH, header.api_version, request, context.listener)
    _log_foreign_cluster(side, context, answer)
    return Response([response_frame_as_is(header, answer)])
