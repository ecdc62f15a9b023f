"""Waiting on an event loop for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return once `condition` holds; `TimeoutError` where it never does."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.003)
