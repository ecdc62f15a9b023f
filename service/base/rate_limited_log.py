"""Rate limit for log lines that a peer can cause, with a count of the suppressed ones."""

from __future__ import annotations

import logging
from collections.abc import Callable


class RateLimitedLog:
    """Logger that writes at most `burst` lines per `interval_s` seconds, whatever their text.

    The next line after that tells how many were suppressed. `now` returns monotonic seconds. For one thread.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        burst: int = 10,
        interval_s: float = 10.0,
        now: Callable[[], float],
    ) -> None:
        self._logger = logger
        self._burst = burst
        self._interval_s = interval_s
        self._now = now
        self._since = now()
        self._written = 0
        self.suppressed = 0

    def log(self, level: int, message: str, *args: object, error: BaseException | None = None) -> None:
        """Write the line, with `error`'s traceback if given, or count it as suppressed."""
        now = self._now()
        if now - self._since >= self._interval_s:
            self._since, self._written = now, 0
        if self._written >= self._burst:
            self.suppressed += 1
            return
        self._written += 1
        if self.suppressed:
            message += f" ({self.suppressed} lines like this were left out)"
            self.suppressed = 0
        self._logger.log(level, message, *args, exc_info=error)

    def warning(self, message: str, *args: object) -> None:
        self.log(logging.WARNING, message, *args)
