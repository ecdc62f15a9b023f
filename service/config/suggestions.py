"""Suggestion of the name that was meant, for one that is unknown. [P]"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.75) -> str:
    """Return ``; did you mean 'log.segment.bytes'?`` for the closest known name, or "" where none is so
    like it (1: the same)."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return f"; did you mean '{close[0]}'?" if close else ""
