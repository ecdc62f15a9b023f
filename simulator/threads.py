"""Threads as greenlets of one thread: they start when drawn, and each call that blocks takes a drawn time.

Meanwhile the loop and other threads go on, so each seed is another interleaving. A thread gives way only in
calls of this port, of the disk or of the store: between two of them it runs alone, as it were.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures import Future as JobFuture
from random import Random
from types import TracebackType
from typing import Any, Final

from greenlet import getcurrent, greenlet

from simulator.loop import Loop, Stuck
from simulator.process import Life, Process

_START_S: Final = 0.002
_GIVE_WAY_S: Final = 0.0005


class Thread:
    """One greenlet. `sleeps` counts how often it went on, so that a wake that is too late is known."""

    __slots__ = ("greenlet", "process", "sleeps")

    def __init__(self, process: Process, body: greenlet) -> None:
        self.process = process
        self.greenlet = body
        self.sleeps = 0


class _Waiter:
    """Waiter for a lock, a condition or a job: a thread, or None for the loop."""

    __slots__ = ("called", "thread")

    def __init__(self, thread: Thread | None) -> None:
        self.thread = thread
        self.called = False


class SimThreads:
    """`service.base.threads.Threads` of one process."""

    def __init__(self, loop: Loop, process: Process, random: Random) -> None:
        self._loop = loop
        self._process = process
        self._random = random
        self._threads: dict[greenlet, Thread] = {}
        self._default: Pool | None = None

    # The port

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        return Pool(self, name, size)

    def lock(self) -> Lock:
        return Lock(self)

    def condition(self) -> Condition:
        return Condition(self)

    def sleep(self, seconds: float) -> None:
        if self.current() is None:
            raise Stuck("sleep() on the event loop")
        self.spend(seconds)

    # For the disk, the store and what is below

    def default_pool(self) -> Pool:
        """Return the pool of `asyncio.to_thread`."""
        if self._default is None:
            self._default = Pool(self, "default", 8)
        return self._default

    def current(self) -> Thread | None:
        """Return the calling thread; None for the loop."""
        return self._threads.get(getcurrent())

    def spend(self, seconds: float) -> None:
        """Let `seconds` go by on the calling thread; nothing on the loop."""
        thread = self.current()
        if thread is not None:
            self._loop.wake_at(self._loop.now_s + seconds, thread)
            self._loop.hub.switch()

    def spend_up_to(self, seconds: float) -> None:
        """Let a drawn time go by, seldom none: other threads may come first."""
        if getcurrent() in self._threads:
            self.spend(self._random.random() * seconds)

    def start(self, body: Callable[[], None]) -> None:
        """Start a new thread, which begins at a random time."""

        def run() -> None:
            try:
                body()
            finally:
                del self._threads[getcurrent()]

        thread = Thread(self._process, greenlet(run, parent=self._loop.hub))
        thread.greenlet.gr_context = contextvars.copy_context()
        self._threads[thread.greenlet] = thread
        self._loop.wake_at(self._loop.now_s + self._random.random() * _START_S, thread)

    def wait(self, waiter: _Waiter, timeout: float | None = None) -> bool:
        """Wait until `call` is called with `waiter`; return False after `timeout` seconds without it."""
        deadline = None if timeout is None else self._loop.now_s + max(timeout, 0.0)
        thread = waiter.thread
        if thread is None:
            return self._loop.block_until(lambda: waiter.called, deadline)
        if not waiter.called:
            if deadline is not None:
                self._loop.wake_at(deadline, thread)
            self._loop.hub.switch()
        return waiter.called

    def call(self, waiter: _Waiter) -> None:
        waiter.called = True
        if waiter.thread is not None:
            self._loop.wake_at(self._loop.now_s + self._random.random() * _GIVE_WAY_S, waiter.thread)

    def waiter(self) -> _Waiter:
        return _Waiter(self.current())

    def choose(self, waiting: deque[_Waiter]) -> _Waiter:
        """Remove a random waiter and return it: waiters have no guaranteed order."""
        index = self._random.randrange(len(waiting))
        chosen = waiting[index]
        del waiting[index]
        return chosen


class Lock:
    """`service.base.threads.Lock`: a random waiter gets it next."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._owner: greenlet | None = None
        self._waiting: deque[_Waiter] = deque()

    def __enter__(self) -> object:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        me = getcurrent()
        if self._owner is me:
            raise Stuck("a lock is taken twice by one thread")
        self._threads.spend_up_to(_GIVE_WAY_S)
        while self._owner is not None:
            waiter = self._threads.waiter()
            self._waiting.append(waiter)
            self._threads.wait(waiter)
        self._owner = me

    def release(self) -> None:
        if self._owner is not getcurrent():
            raise Stuck("a lock is given up by one who does not hold it")
        self._owner = None
        if self._waiting:
            self._threads.call(self._threads.choose(self._waiting))

    @property
    def held_by_caller(self) -> bool:
        return self._owner is getcurrent()


class Condition(Lock):
    """`service.base.threads.Condition`."""

    def __init__(self, threads: SimThreads) -> None:
        super().__init__(threads)
        self._sleeping: deque[_Waiter] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        assert self.held_by_caller, "wait() without the lock"
        waiter = self._threads.waiter()
        self._sleeping.append(waiter)
        self.release()
        notified = self._threads.wait(waiter, timeout)
        if not notified:
            self._sleeping.remove(waiter)
        self.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else self._threads._loop.now_s + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - self._threads._loop.now_s
            if left is not None and left <= 0:
                return result
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        assert self.held_by_caller, "notify() without the lock"
        for _ in range(min(n, len(self._sleeping))):
            self._threads.call(self._threads.choose(self._sleeping))

    def notify_all(self) -> None:
        self.notify(len(self._sleeping))


class _Result(JobFuture[Any]):
    """A job's future; waiting for it lets virtual time go by."""

    def __init__(self, threads: SimThreads) -> None:
        super().__init__()
        self._sim_threads = threads

    def _await(self, timeout: float | None) -> None:
        if not self.done():
            waiter = self._sim_threads.waiter()
            self.add_done_callback(lambda _: self._sim_threads.call(waiter))
            self._sim_threads.wait(waiter, timeout)
            if not self.done():
                raise TimeoutError

    def result(self, timeout: float | None = None) -> Any:
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)


class Pool(Executor):
    """Pool of at most `size` threads that take jobs in order of submission."""

    def __init__(self, threads: SimThreads, name: str, size: int) -> None:
        self._threads = threads
        self._name = name
        self._size = size
        self._jobs: deque[tuple[_Result, Callable[[], Any]]] = deque()
        self._running = 0
        self._closed = False
        self._closing: list[_Waiter] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture[Any]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        result = _Result(self._threads)
        self._jobs.append((result, lambda: fn(*args, **kwargs)))
        if self._running < self._size:
            self._running += 1
            self._threads.start(self._work)
        return result

    def _work(self) -> None:
        try:
            while self._jobs:
                result, call = self._jobs.popleft()
                if not result.set_running_or_notify_cancel():
                    continue
                try:
                    value = call()
                except BaseException as e:  # whatever it is, it belongs to whoever waits for the job
                    if self._threads._process.life is Life.DEAD:
                        raise
                    result.set_exception(e)
                else:
                    result.set_result(value)
                del result, call
                self._threads.spend_up_to(_GIVE_WAY_S)
        finally:
            self._running -= 1
            if not self._running:
                for waiter in self._closing:
                    self._threads.call(waiter)
                self._closing.clear()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            while self._jobs:
                self._jobs.popleft()[0].cancel()
        if wait and self._running:
            waiter = self._threads.waiter()
            self._closing.append(waiter)
            self._threads.wait(waiter)
