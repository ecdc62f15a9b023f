"""Supervisor of background tasks: the failure of one ends the node.

An error that escapes a task is a bug, or the environment allows no guarantee any more. It ends the node with
a log line and exit code 1; no task ever stops silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class NodeEnds(Exception):
    """The node was stopped while it waited for other nodes. Not a failure."""


class Supervisor:
    """Owner of the node's tasks and of the reason for which it stops. Owned by the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = asyncio.Event()
        self.failure: BaseException | None = None
        self.why = ""
        """words for the log about a stop in order"""

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the node stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"task {task.get_name()}", error)

    def fail(self, what: str, error: BaseException) -> None:
        """Stop the node because of `error`; the first reason counts."""
        log.critical("%s failed, the node stops: %s", what, error, exc_info=error)
        self.failure = self.failure or error
        self._stopped.set()

    def stop(self, signal_name: str = "") -> None:
        """Stop the node in order, as SIGTERM asks."""
        if signal_name and not self._stopped.is_set():
            self.why = f" in order: {signal_name}"
        self._stopped.set()

    async def stopped(self) -> None:
        await self._stopped.wait()

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
