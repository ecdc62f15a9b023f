"""ListSessions, an API of Firn's own: the open sessions of this node's listeners, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.network.open_sessions import SessionRow, list_sessions
from service.network.request import RequestContext
from service.network.server import Server
from service.wire.sessions import MOST_SESSIONS, ListSessionsRequest, ListSessionsResponse, OpenSession


class SessionHost(Protocol):
    """Interface of a node, broker or controller, to this handler."""

    servers: Callable[[], Sequence[Server]]


def handle(
    host: SessionHost, context: RequestContext, request: ListSessionsRequest
) -> ListSessionsResponse | Awaitable[ListSessionsResponse]:
    """Return the sessions behind the named connection, in the order in which they began."""
    return in_slices(_steps(host.servers(), request))


def _steps(servers: Sequence[Server], request: ListSessionsRequest) -> Steps[ListSessionsResponse]:
    most = max(1, min(request.most, MOST_SESSIONS))
    now = asyncio.get_running_loop().time()
    page = yield from list_sessions(servers, request.principal, request.after, most, now)
    return ListSessionsResponse(
        error_code=ErrorCode.none, is_last=page.is_last, sessions=tuple(map(_session, page.rows))
    )


def _session(row: SessionRow) -> OpenSession:
    context, session = row.context, row.context.session
    return OpenSession(
        connection=context.connection_id,
        principal=str(session.principal),
        host=context.client_host,
        port=context.client_port,
        listener=context.listener,
        protocol=session.protocol,
        client_id=context.client_id,
        idle_ms=int(row.idle_s * 1000),
        left_ms=-1 if row.left_s is None else int(row.left_s * 1000),
    )
