"""Tasks that nobody awaits, and that end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class TaskSet:
    """The tasks of one owner. Owned by the event loop, whose exception handler gets what fails."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[object, object, None], name: str) -> None:
        """Run `work` as a task of this name."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": f"the task {task.get_name()!r} failed", "exception": error, "task": task}
            )

    async def close(self) -> None:
        """Cancel the tasks, and wait until they have ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
