"""Lines about a wait that takes long: after two seconds, and then rarely."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PAUSES_S: Final = (2.0, 8.0, 20.0, 30.0)
"""Seconds before each line, counted from the one before; the last one repeats"""
LONG_S: Final = 60.0
"""Duration from which on a wait is a warning"""


@contextmanager
def wait_logged(logger: logging.Logger, words: Callable[[], str]) -> Iterator[None]:
    """Log `words` while the body of the running loop's task waits long."""
    loop = asyncio.get_running_loop()
    began, pauses = loop.time(), list(PAUSES_S)
    timer: asyncio.TimerHandle | None = None

    def tell() -> None:
        nonlocal timer
        waited_s = loop.time() - began
        level = logging.WARNING if waited_s >= LONG_S else logging.INFO
        logger.log(level, "%s (for %d s)", words(), round(waited_s))
        timer = loop.call_later(_next(pauses), tell)

    timer = loop.call_later(_next(pauses), tell)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def wait_said(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` on a thread while the body, which blocks, waits long."""
    is_over, pauses = threading.Event(), list(PAUSES_S)

    def run() -> None:
        while not is_over.wait(_next(pauses)):
            say()

    thread = threading.Thread(target=run, name="wait", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _next(pauses: list[float]) -> float:
    return pauses.pop(0) if len(pauses) > 1 else pauses[0]
