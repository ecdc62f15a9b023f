"""Lines of the audit log about changes: one for each set of changes, with their number and the first names.

They are at INFO, beside those of the authorizer's answers (`audit`), with the same logger. A line is cut: it
names `MOST_NAMED` things at most, however many one request changes.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import NamedTuple

from service.base.printable import printable, quoted
from service.security.audit import AUDIT_LOGGER
from service.security.audited_change import MOST_NAMED, AuditedChange, line_of_names
from service.security.session import NODE_ITSELF, Session

_log = logging.getLogger(AUDIT_LOGGER)


class Requester(NamedTuple):
    """Client that asked for a change."""

    principal: str
    host: str
    client_id: str

    @staticmethod
    def of(session: Session, client_id: str) -> Requester | None:
        """Return the client of a session; None for the node itself."""
        if session is NODE_ITSELF:
            return None
        return Requester(printable(session.principal), session.host, printable(client_id))


def tell(change: AuditedChange, asker: Requester | None = None) -> None:
    """Write the line of a set of changes, unless it is empty. `asker`: None for the cluster itself."""
    if not change.number or not _log.isEnabledFor(logging.INFO):
        return
    named = list(islice(change.items, MOST_NAMED))
    text = f"{change.words} ({change.number}): {line_of_names(named, change.number)}"
    told: dict[str, object] = {"event": change.event, "count": change.number, "items": named}
    if asker is not None:
        text += f"; by {asker.principal} from {asker.host}, client id {quoted(asker.client_id)}"
        told.update(asker._asdict())
    _log.info("%s", text, extra={"audit": told})
