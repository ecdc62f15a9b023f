"""Patience of commands and the console with coordinators that are not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable

_PATIENCE_S, _PAUSE_S = 30.0, 0.1


def patience(seconds: float = _PATIENCE_S) -> Callable[[], bool]:
    """Return a call that waits a moment and says whether there is time for another try."""
    deadline = time.monotonic() + seconds

    def again() -> bool:
        time.sleep(_PAUSE_S)
        return time.monotonic() < deadline

    return again
