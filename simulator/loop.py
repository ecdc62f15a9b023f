"""An event loop under virtual time: nothing waits, time jumps to what comes next.

Ready callbacks run in order. Timers run by their time, those of the same time in a drawn order. Threads
(`simulator/threads.py`) are greenlets that ask to be woken; the loop wakes them between its turns. Code on
the loop that blocks for a thread, as a lock can make it, lets threads alone run until it may go on, as the
real thing would. Futures and tasks are hashed by number, so that no set of them depends on addresses.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent, greenlet

from simulator.process import CURRENT, Life, Process

if TYPE_CHECKING:
    from simulator.network import Network
    from simulator.threads import Thread

_MOST_TURNS_AT_ONE_TIME: Final = 200_000
_NEVER_EARLY_S: Final = 1e-9
"""Added to timers: a callback must not find that its time, by its own clock, has not come yet."""


class Stuck(Exception):
    """No event is left, or too many events happen without time passing."""


class _Numbers:
    """Serial numbers for hashing; each loop starts them again."""

    count = itertools.count()


class Future(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_Numbers.count)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, coro: Any, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self._number = next(_Numbers.count)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class Loop(asyncio.BaseEventLoop):
    """The loop of a whole world; each node's callbacks bear its process in their context."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        _Numbers.count = itertools.count(1)
        self._draw = random.random
        self._now_s = 0.0
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._wakes: list[tuple[float, float, int, Thread, int]] = []
        self._order = itertools.count()
        self._turns = 0
        self.hub: greenlet = getcurrent()
        self.network: Network | None = None
        self.default_pool: Callable[[Process], Any] | None = None
        self.after_turn: Callable[[], None] | None = None
        """looks whether all is right; what it raises ends the history"""
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    # What asyncio asks

    @property
    def now_s(self) -> float:
        """The world's own time."""
        return self._now_s

    def time(self) -> float:
        """Return the time by the clock of the calling process, which may run fast or slow."""
        process = CURRENT.get(None)
        return self._now_s if process is None or process.rate == 1.0 else self._now_s * process.rate

    def create_future(self) -> Future:
        return Future(loop=self)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        process = CURRENT.get(None)
        at_s = when if process is None or process.rate == 1.0 else when / process.rate + _NEVER_EARLY_S
        return self._at(at_s, when, callback, args, context)

    def _at(
        self,
        at_s: float,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback: `at_s` by the world's clock, `when` by the caller's."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (at_s, self._draw(), next(self._order), handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are left where they are, and skipped."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread has to wake the loop."""

    def run_forever(self) -> None:
        self.hub = getcurrent()
        super().run_forever()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        if executor is None:
            assert self.default_pool is not None, "there are no threads"
            executor = self.default_pool(CURRENT.get())
        return super().run_in_executor(executor, func, *args)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        assert self.network is not None, "there is no network"
        return self.network.listen(protocol_factory, host, port, kw.get("start_serving", True))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        assert self.network is not None, "there is no network"
        return await self.network.connect(protocol_factory, host, port)

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._jump()
        self._turns += 1
        if self._turns > _MOST_TURNS_AT_ONE_TIME:
            raise Stuck(f"{self._turns} turns without time going on: {[str(h) for h in list(ready)[:3]]}")
        timers = self._timers
        while timers and timers[0][0] <= self._now_s:
            handle = heapq.heappop(timers)[3]
            if not handle.cancelled():
                ready.append(handle)
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())
        while self._wakes and self._wakes[0][0] <= self._now_s:
            self._wake_next()
        if self.after_turn is not None:
            self.after_turn()

    # Time

    def _jump(self) -> None:
        timers, wakes = self._timers, self._wakes
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers and not wakes:
            raise Stuck("nothing is left that could happen")
        soonest = min(heap[0][0] for heap in (timers, wakes) if heap)
        if soonest > self._now_s:
            self._now_s = soonest
            self._turns = 0

    def _run_handle(self, handle: Any) -> None:
        if handle._cancelled:
            return
        process: Process | None = handle._context.get(CURRENT, None)
        if process is not None:
            if process.life is not Life.RUNNING:
                if process.life is Life.STOPPED:
                    process.held.append(lambda: self._ready.append(handle))  # type: ignore[attr-defined]
                return
            process.has_run = True
        handle._run()

    # Threads

    def wake_at(self, when: float, thread: Thread) -> None:
        """Let `thread` go on at `when`, unless something else let it go on before."""
        entry = (max(when, self._now_s), self._draw(), next(self._order), thread, thread.sleeps)
        heapq.heappush(self._wakes, entry)

    def _wake_next(self) -> None:
        when, _, _, thread, sleeps = heapq.heappop(self._wakes)
        if when > self._now_s:
            self._now_s = when
            self._turns = 0
        if thread.sleeps != sleeps:
            return  # it goes on already
        process = thread.process
        if process.life is Life.RUNNING:
            process.has_run = True
            thread.sleeps += 1
            thread.greenlet.switch()
        elif process.life is Life.STOPPED:
            process.held.append(lambda: self.wake_at(self._now_s, thread))

    def block_until(self, done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Block the loop itself, as a lock that a thread holds does: threads alone run meanwhile."""
        assert getcurrent() is self.hub, "only the loop is blocked so"
        while not done():
            if deadline is not None and (not self._wakes or self._wakes[0][0] > deadline):
                self._now_s = max(self._now_s, deadline)
                return False
            if not self._wakes:
                raise Stuck("the loop waits for a thread, and no thread can go on")
            self._wake_next()
        return True


def _make_task(loop: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> Any:
    return Task(coro, loop=loop, **options)
