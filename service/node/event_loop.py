"""The event loop of a node's process, and the watch over how long its turns take.

A turn is the time between two calls of `select`; measuring it costs 0.7 µs. A thread checks the clock 40
times a second and interrupts a long turn by a signal: the handler records task, function and line, so that
also a turn without a request has a name in the log.

The handler runs on the loop's thread, which may walk its own stack. Another thread must not: while it walks
the frames, a garbage collection that it triggers may let the loop continue and free them, which ends the
process by a segmentation fault.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import signal
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import FrameType
from typing import Any, Final

from service.base.threads import Threads
from service.base.turns import LONG_S, NO_TURN, NOTICED_S, TurnSample, TurnTimes
from service.node.long_turns import LongTurnLog

_CHECK_S: Final = LONG_S / 2
_PACKAGE: Final = str(Path(__file__).parents[1])
MOST_EVENTS: Final = 32
"""Ready sockets that one turn of the loop handles."""
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_SIGNAL: Final = signal.SIGURG
"""Ignored by default: it may arrive after the watch has removed its handler."""
_DEPTH: Final = 3
"""Functions of this package that name a long turn, the innermost first."""


class MeasuredSelector(selectors.DefaultSelector):
    """Selector that records in `turns` when each turn begins and ends."""

    def __init__(self, turns: TurnTimes, now: Callable[[], float], cpu_now: Callable[[], float]) -> None:
        super().__init__()
        self._turns = turns
        self._now = now
        self._cpu_now = cpu_now
        epoll = getattr(self, "_selector", None)
        self._poll: Callable[[float, int], list[tuple[int, int]]] | None = getattr(epoll, "poll", None)
        self._keys: Mapping[int, selectors.SelectorKey] = vars(self).get("_fd_to_key", {})
        self._select = super().select if self._poll is None else self._few

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now = self._now()
        turns = self._turns
        took = now - turns.began
        if took > NOTICED_S:
            turns.note_turn(took, now, self._cpu_now() - turns.cpu_began)
        histogram = turns.histogram
        if took >= 0:
            histogram.counts[bisect_left(histogram.bounds, took)] += 1
            histogram.total += took
        if timeout is not None and timeout <= 0:
            # Callbacks are ready: if this call is slow, another thread held the interpreter, and that counts.
            turns.began, turns.cpu_began = now, self._cpu_now()
            ready = self._select(timeout)
            turns.ready = len(ready)
            return ready
        turns.began = NO_TURN
        ready = self._select(timeout)
        turns.began, turns.cpu_began, turns.ready = self._now(), self._cpu_now(), len(ready)
        return ready

    def _few(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Do what `EpollSelector.select` does, for at most `MOST_EVENTS` events.

        A turn handles all events that it gets, even a thousand peers with a request each. The kernel returns
        the remaining events first the next time.
        """
        assert self._poll is not None
        if timeout is None:
            timeout = -1
        elif timeout > 0:
            timeout = math.ceil(timeout * 1e3) * 1e-3  # it waits in milliseconds, and not for less
        else:
            timeout = 0
        ready, keys = [], self._keys
        try:
            found = self._poll(timeout, MOST_EVENTS)
        except InterruptedError:
            return []
        for fd, events in found:
            key = keys.get(fd)
            if key is not None:
                mask = (_WRITE if events & ~select.EPOLLIN else 0) | (
                    _READ if events & ~select.EPOLLOUT else 0
                )
                ready.append((key, mask & key.events))
        return ready


def new_loop(
    turns: TurnTimes, now: Callable[[], float], cpu_now: Callable[[], float]
) -> asyncio.AbstractEventLoop:
    """Make an event loop that records its turns in `turns`. `now`: the loop's clock, in seconds; `cpu_now`:
    the CPU time of the thread that runs it."""
    loop = asyncio.SelectorEventLoop(MeasuredSelector(turns, now, cpu_now))
    loop.time = now  # type: ignore[method-assign]  # the same clock, read once per request: one call less
    return loop


class LoopWatch:
    """Names and logs long turns of the running loop, from `start` to `close`."""

    def __init__(
        self, turns: TurnTimes, threads: Threads, thread_id: int, name_of: Callable[[asyncio.Task[Any]], str]
    ) -> None:
        """`thread_id`: the loop's thread, the process's main one: signals interrupt no other. `name_of`
        describes a task's purpose."""
        self._turns = turns
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._thread_id = thread_id
        self._pool: Executor | None = None
        self._long = LongTurnLog(self._loop.call_later)
        self._stopped = False
        self._name_of = name_of
        self._handler: Any = signal.SIG_DFL
        """the signal's handler before `start`"""

    def start(self) -> None:
        self._turns.on_long = self._long.note
        self._handler = signal.signal(_SIGNAL, self._on_signal)
        self._pool = self._threads.pool("loop-watch", 1)
        self._pool.submit(self._watch_turns)

    def close(self) -> None:
        self._stopped = True
        self._turns.on_long = None
        self._long.tell()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            signal.signal(_SIGNAL, self._handler)

    def _watch_turns(self) -> None:
        """Send the loop's thread a signal in each long turn, once. Runs on a thread of its own."""
        turns, interrupted = self._turns, 0.0
        while not self._stopped:
            self._threads.sleep(_CHECK_S)
            began = turns.began
            if began != interrupted and self._loop.time() - began > _CHECK_S:
                interrupted = began
                signal.pthread_kill(self._thread_id, _SIGNAL)

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Record the task and the functions that run now. Interrupts the loop's thread at any point."""
        began = self._turns.began
        if self._loop.time() - began <= _CHECK_S:
            return  # that turn is over
        where = ", called by ".join(_functions(frame))
        task = asyncio.current_task(self._loop)

        def who() -> str:
            return f"{'a callback' if task is None else self._name_of(task)} in {where}"

        self._turns.note_sample(TurnSample(began, who))


def _functions(frame: FrameType | None) -> Iterable[str]:
    """Return the innermost functions of this package on the stack of `frame`; the innermost of all if it has
    none."""
    ours: list[str] = []
    innermost = frame
    while frame is not None and len(ours) < _DEPTH:
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE) and code.co_filename != __file__:
            file = code.co_filename[len(_PACKAGE) + 1 :]
            ours.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
        frame = frame.f_back
    if not ours and innermost is not None:
        ours.append(innermost.f_code.co_qualname)
    return ours
