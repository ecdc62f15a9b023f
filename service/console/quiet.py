"""Rate-limited logger for aiohttp, whose messages peers can cause."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from service.base.rate_limited_log import RateLimitedLog


class QuietLog:
    """Logs errors to `log`, rate-limited; `now` is the loop's clock in seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._limited = RateLimitedLog(log, now=now)

    def debug(self, *_: Any, **__: Any) -> None:
        """Drop messages about peers that leave and malformed bytes."""

    def exception(self, message: str, *args: object, exc_info: Any = None, **_: Any) -> None:
        """Log an error of ours; that a peer has left, or speaks no HTTP, is none."""
        if isinstance(exc_info, ConnectionError | HttpProcessingError):
            return
        error = exc_info if isinstance(exc_info, BaseException) else None
        self._limited.log(logging.ERROR, message, *args, error=error)

    error = warning = exception
