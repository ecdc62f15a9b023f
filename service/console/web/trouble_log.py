"""Log lines about a trouble that lasts: one when it begins, few while it lasts, one when it is over."""

from __future__ import annotations

import logging
from typing import Final

from service.base.clock import Clock

AGAIN_MS: Final = 15 * 60_000
"""Time between two warnings about the same trouble."""


class TroubleLog:
    """Log of one activity that fails again and again, as queries of a cluster that is away."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._since_ms: int | None = None
        self._warned_ms = 0

    def failed(self, message: str, *args: object) -> None:
        """Write a warning if the trouble is new, or if the last warning is long ago."""
        now = self._clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now
        elif now - self._warned_ms < AGAIN_MS:
            return
        else:
            message += f" (for {(now - self._since_ms) // 60_000} min now)"
        self._warned_ms = now
        self._logger.warning(message, *args)

    def over(self, message: str, *args: object) -> None:
        """Write a line if there was trouble."""
        if self._since_ms is not None:
            self._since_ms = None
            self._logger.info(message, *args)
