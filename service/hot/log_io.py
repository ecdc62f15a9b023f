"""The threads of a log manager (`log-io`, `log-append`, `log-cleaner`): work in groups, few at once.

A job for each of ten thousand logs would fill the pool's queue, and a requested flush would wait for all of
them. So work on many logs is cut into groups, and no more groups are submitted than there are threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from service.base.threads import Threads

GROUP: Final = 32
"""Items of many that one job handles, before other jobs get the thread."""

T = TypeVar("T")
R = TypeVar("R")


class LogIo:
    """One pool. Owned by the loop."""

    def __init__(self, threads: Threads, size: int, name: str = "log-io", *, nice: int = 0) -> None:
        """`nice`: see `Threads.pool`."""
        self.size = size
        self._pool = threads.pool(name, size, nice=nice)
        self._running: set[Future[Any]] = set()

    def run(self, job: Callable[..., R], *args: object) -> asyncio.Future[R]:
        """Run `job` on a thread."""
        running = self._pool.submit(job, *args)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return asyncio.wrap_future(running)

    async def run_all(
        self, job: Callable[[Sequence[T]], Sequence[R]], things: Sequence[T], group: int = GROUP
    ) -> list[R]:
        """Run `job` on all `things`, a group at a time on each thread; returns the results in order.

        Raises the first error once all running groups have ended.
        """
        groups = [things[first : first + group] for first in range(0, len(things), group)]
        found: list[Sequence[R]] = [()] * len(groups)
        numbers = iter(range(len(groups)))

        async def work() -> None:
            for number in numbers:
                found[number] = await self.run(job, groups[number])

        workers = [work() for _ in range(min(self.size, len(groups)))]
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return [one for group in found for one in group]

    async def finish(self) -> None:
        """Wait for running jobs, also those of cancelled tasks; then end the pool."""
        running = [asyncio.wrap_future(job) for job in tuple(self._running)]
        await asyncio.gather(*running, return_exceptions=True)
        self._pool.shutdown(wait=False)
