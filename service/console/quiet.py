"""The logger that aiohttp is given: what peers can cause is not worth more than a few lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from service.base.rate_limited_log import RateLimitedLog


class QuietLog:
    """Errors of `log`, rate-limited; `now` is the loop's clock in seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._limited = RateLimitedLog(log, now=now)

    def debug(self, *_: Any, **__: Any) -> None:
        """Peers that leave and bytes that make no sense."""

    def exception(self, message: str, *args: object, exc_info: Any = None, **_: Any) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else None
        self._limited.log(logging.ERROR, message, *args, error=error)

    error = warning = exception
