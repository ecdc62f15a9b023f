"""The `offload` threads and the watch over what runs on them. Owned by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from service.base.errors import StorageError
from service.base.threads import Threads
from service.tiering.copier import GivenUp, Progress
from service.tiering.metrics import TieringMetrics

P = ParamSpec("P")
T = TypeVar("T")


class Stalled(StorageError):
    """A call moved nothing for so long that nobody waits for it any more. It may still come to an end."""


class OffloadPool:
    """Runs blocking calls on bounded threads. A call that hangs keeps its thread, but not its partition.

    There are twice as many threads as callers at a time, so that hanging calls first cost spare threads. A
    call that was given up while it waited for a thread never begins: what it would do was planned for then.
    """

    def __init__(self, threads: Threads, concurrency: int, watchdog_ms: int, metrics: TieringMetrics) -> None:
        self._pool = threads.pool("offload", 2 * concurrency)
        self._watchdog_s = watchdog_ms / 1000
        self._metrics = metrics
        self._running: dict[asyncio.Future[Any], Progress] = {}

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``call(*args, **kwargs)`` on a thread. `Stalled` when it takes longer than the watchdog allows."""
        return await self.watch(lambda _: call(*args, **kwargs))

    async def watch(self, call: Callable[[Progress], T]) -> T:
        """As `run` for a call that reports its progress: only the time since the last byte counts."""
        progress = Progress()
        future = asyncio.get_running_loop().run_in_executor(self._pool, _begin, call, progress)
        self._running[future] = progress
        future.add_done_callback(self._ended)
        seen = -1
        try:
            while seen != progress.moved_bytes:
                seen = progress.moved_bytes
                done, _ = await asyncio.wait({future}, timeout=self._watchdog_s)
                if done:
                    return future.result()
        except asyncio.CancelledError:
            progress.cancelled = True
            raise
        progress.cancelled = True
        self._metrics.stalled_calls += 1
        raise Stalled(f"nothing moved for {self._watchdog_s:.0f} s")

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.pop(future, None)
        if not future.cancelled():
            future.exception()  # a call that was given up has nobody else to take its error

    async def close(self, timeout_ms: int) -> None:
        """Cancel what can be cancelled, wait for it a little, and leave the rest to its own time-outs."""
        running = set(self._running)
        for progress in self._running.values():
            progress.cancelled = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if running:
            await asyncio.wait(running, timeout=timeout_ms / 1000)


def _begin(call: Callable[[Progress], T], progress: Progress) -> T:
    """On an offload thread, at last."""
    if progress.cancelled:
        raise GivenUp("given up before it began")
    return call(progress)
