"""Pool of `offload` threads, and the watchdog over the calls that run on them. Owned by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from service.base.errors import StorageError
from service.base.threads import Threads
from service.tiering.copier import CallCancelled, CallProgress
from service.tiering.metrics import TieringMetrics

P = ParamSpec("P")
T = TypeVar("T")


class Stalled(StorageError):
    """A call made no progress for too long, so its result is no longer awaited. The call may still finish."""


class OffloadPool:
    """Runs blocking calls on bounded threads. A call that hangs keeps its thread, but not its partition.

    There are twice as many threads as concurrent callers, so that hanging calls first use up spare threads. A
    call that is cancelled while it waits for a thread never starts: its plan is out of date.
    """

    def __init__(
        self,
        threads: Threads,
        concurrency: int,
        watchdog_ms: int,
        metrics: TieringMetrics,
        name: str = "offload",
    ) -> None:
        self._pool = threads.pool(name, 2 * concurrency)
        self._watchdog_s = watchdog_ms / 1000
        self._metrics = metrics
        self._running: dict[asyncio.Future[Any], CallProgress] = {}

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``call(*args, **kwargs)``, run on a thread; raise `Stalled` when it exceeds the watchdog's
        time."""
        return await self.watch(lambda _: call(*args, **kwargs))

    async def watch(self, call: Callable[[CallProgress], T]) -> T:
        """Run `call`, which reports its progress: the watchdog counts only the time since the last
        progress."""
        progress = CallProgress()
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
        raise Stalled(f"no progress for {self._watchdog_s:.0f} s, the call is cancelled")

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.pop(future, None)
        if not future.cancelled():
            future.exception()  # mark the error of a cancelled call as retrieved

    async def close(self, timeout_ms: int) -> None:
        """Cancel queued calls, wait shortly for running ones, and leave the rest to their own time-outs."""
        running = set(self._running)
        for progress in self._running.values():
            progress.cancelled = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if running:
            await asyncio.wait(running, timeout=timeout_ms / 1000)


def _begin(call: Callable[[CallProgress], T], progress: CallProgress) -> T:
    """Run `call` on its offload thread, unless it was cancelled while it was queued."""
    if progress.cancelled:
        raise CallCancelled("cancelled before it started")
    return call(progress)
