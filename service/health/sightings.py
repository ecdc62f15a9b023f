"""Memory of findings: when each was first seen, for those whose begin nobody knows. [P]"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from service.health.findings import Finding

_NUMBER: Final = re.compile(r"(?<![\w./:-])[0-9]+(?![\w./:-]*\w)")
"""A number that stands alone: not one in a path, an address or a name."""


class Sightings:
    """Times at which findings were first seen. A finding that was not seen once begins anew."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], int] = {}

    def dated(self, findings: Iterable[Finding], now_ms: int) -> tuple[Finding, ...]:
        """Return the findings, those without a begin with that of their first sighting. Numbers in the words
        may change meanwhile."""
        seen: dict[tuple[str, str, str], int] = {}
        dated = []
        for one in findings:
            if one.since_ms is None:
                key = (one.anchor, one.subject, _NUMBER.sub("", one.words))
                seen[key] = self._seen.get(key, now_ms)
                one = one._replace(since_ms=seen[key])
            dated.append(one)
        self._seen = seen
        return tuple(dated)
