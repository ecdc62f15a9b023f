"""Audit line of an act: who, what, on which thing, and what became of it; no value that may be a secret."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from service.base.printable import printable
from service.security.audit import AUDIT_LOGGER
from service.security.audited_change import MOST_NAMED, line_of_names

_log = logging.getLogger(AUDIT_LOGGER)
_MOST_CHARACTERS: Final = 512


class SignedIn(NamedTuple):
    """Person who has signed in: the name of the session in the log, and the address of the browser."""

    session: str
    host: str


class ActLine(NamedTuple):
    """Words of one line. `event` and `words` are those of a node's own line about such a change."""

    event: str
    words: str
    items: tuple[str, ...]
    outcome: str
    request: str


def tell(line: ActLine, asker: SignedIn) -> None:
    """Write the line."""
    named = [printable(item, _MOST_CHARACTERS) for item in line.items[:MOST_NAMED]]
    text = f"{line.words} ({len(line.items)}): {line_of_names(named, len(line.items))}"
    text += f"; {line.outcome}; by session {asker.session} from {asker.host}, request {line.request}"
    told = {
        "event": line.event,
        "count": len(line.items),
        "items": named,
        "outcome": line.outcome,
        **asker._asdict(),
        "request": line.request,
    }
    _log.info("%s", text, extra={"audit": told})
