"""Waits of acts for what a cluster does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def is_met(within_s: float, condition: Callable[[], bool], *, every_s: float) -> bool:
    """Return whether the condition is met within so many seconds; look every `every_s`."""
    for _ in range(round(within_s / every_s)):
        if condition():
            return True
        await asyncio.sleep(every_s)
    return condition()
