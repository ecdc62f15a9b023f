"""Suggestion of the name that was meant, for one that is unknown. [P]"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'log.segment.bytes'?`` for the closest known name, or ""."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f"; did you mean '{close[0]}'?" if close else ""
