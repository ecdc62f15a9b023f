"""Open sessions of a node's servers: a list of them, page by page, and their end, both in steps."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from service.base.steps import Steps
from service.network.request import RequestContext
from service.network.server import Server
from service.network.server_connection import ServerConnection

_MOST_CHARACTERS = 1 << 18
"""Names in one page: clients choose their ids, and may choose long ones."""


class SessionRow(NamedTuple):
    """An open connection whose client has a session; `idle_s` since bytes moved, `left_s` until its login
    ends."""

    context: RequestContext
    idle_s: float
    left_s: float | None


class Page(NamedTuple):
    """Consecutive sessions in the order of their connections; `is_last`: there are no more."""

    rows: list[SessionRow]
    is_last: bool


def list_sessions(
    servers: Iterable[Server], principal: str | None, after: int, most: int, now: float
) -> Steps[Page]:
    """Return up to `most` sessions of a principal, or of all, behind connection `after`."""
    rows: list[SessionRow] = []
    characters = 0
    for connection in _in_order(servers):
        yield
        context = connection.session_context
        if context is None or context.connection_id <= after:
            continue
        session, name = context.session, str(context.session.principal)
        if principal is not None and name != principal:
            continue
        if len(rows) >= most or characters > _MOST_CHARACTERS:
            return Page(rows, is_last=False)
        characters += len(name) + len(context.client_id)
        left_s = None if session.expires_s is None else max(session.expires_s - now, 0.0)
        rows.append(SessionRow(context.kept(), max(now - connection.requests.last_move, 0.0), left_s))
    return Page(rows, is_last=True)


def end_sessions(servers: Iterable[Server], principal: str, own: int) -> Steps[int]:
    """Close the connections of a principal but `own`, and all that are still logging in, as they may do that
    with what is no longer valid. Return the number of sessions that ended."""
    ended = 0
    for connection in _in_order(servers):
        yield
        if connection.number == own:
            continue
        context = connection.session_context
        if context is None:
            if connection.is_logging_in:
                connection.abort()
        elif str(context.session.principal) == principal:
            connection.abort()
            ended += 1
    return ended


def _in_order(servers: Iterable[Server]) -> Iterator[ServerConnection]:
    """Yield the connections that are open now, in the order in which they came."""
    return heapq.merge(*(one.connections() for one in servers), key=_number)


def _number(connection: ServerConnection) -> int:
    return connection.number
