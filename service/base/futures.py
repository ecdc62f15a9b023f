"""Callbacks for asyncio's futures."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve_exception(answer: asyncio.Future[Any]) -> None:
    """Mark a future's exception as retrieved: its caller may have been cancelled before it failed."""
    if not answer.cancelled():
        answer.exception()
