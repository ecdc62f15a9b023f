"""EndSessions, an API of Firn's own: closes the connections of a principal at this node."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.printable import printable
from service.base.slices import Slice
from service.metadata.publisher import Publisher
from service.network.open_sessions import end_sessions
from service.network.request import RequestContext
from service.serving.handlers.list_sessions import SessionHost
from service.wire.sessions import EndSessionsRequest, EndSessionsResponse

_log = logging.getLogger(__name__)
PATIENCE_S: Final = 5.0
"""Time for the metadata to come."""


class EndingHost(SessionHost, Protocol):
    """Interface of a node, broker or controller, to this handler."""

    @property
    def metadata(self) -> Publisher: ...


async def handle(
    host: EndingHost, context: RequestContext, request: EndSessionsRequest
) -> EndSessionsResponse:
    """Close the connections once this node knows the credentials with which they might log in again.

    REQUEST_TIMED_OUT where it does not come to know them; the connections are closed all the same. The one
    that asks stays.
    """
    knows = await _catch_up(host.metadata, request.metadata_offset)
    ended = await Slice().go_on(end_sessions(host.servers(), request.principal, context.connection_id))
    _log.info(
        "ended %d sessions of %s, as %s asked",
        ended,
        printable(request.principal),
        printable(context.session),
    )
    if knows:
        return EndSessionsResponse(error_code=ErrorCode.none, ended=ended)
    return EndSessionsResponse(
        error_code=ErrorCode.request_timed_out,
        error_message=f"{ended} sessions were ended, but this node does not know the newest credentials yet.",
        ended=ended,
    )


async def _catch_up(metadata: Publisher, offset: int) -> bool:
    """Return whether the metadata has come to `offset` in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await metadata.published(offset)
    except (TimeoutError, StorageError, RequestError):
        return False
    return True
