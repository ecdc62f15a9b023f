"""Threads as a parameter: pools, locks and sleep behind one port.

A node has one `SystemThreads`; the simulator brings threads that run when it says so. Work that blocks goes
to a pool made here, and what threads share is guarded by locks made here.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Lock(Protocol):
    """A lock that does not let its holder in again."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Condition(Lock, Protocol):
    """A lock that can be waited at; `wait`, `notify` and `notify_all` while holding it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Until notified: True; or until `timeout` seconds are over: False."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until `predicate` is true, as it is then; at most `timeout` seconds."""

    def notify(self, n: int = 1) -> None:
        """Wake `n` that wait."""

    def notify_all(self) -> None:
        """Wake all that wait."""


class Threads(Protocol):
    """Where the threads of a node come from."""

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        """At most `size` threads, named by `name`, made as they are needed; its owner shuts the pool down.

        `nice`: so much lower than the others' is their priority (Linux; elsewhere a thread has none).
        """

    def lock(self) -> Lock:
        """A new lock."""

    def condition(self) -> Condition:
        """A new condition with a lock of its own."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread of a pool. Never to be called on the event loop."""


class SystemThreads:
    """The threads of this machine."""

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        return ThreadPool(name, size, nice)

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ThreadPool(Executor):
    """As `ThreadPoolExecutor`, but a process may end while one of its threads hangs.

    A call to a store that is away can take a minute to fail; a node that was told to stop has then shut
    everything down, and must not wait for it. Whoever needs his work done waits in `shutdown`.
    """

    def __init__(self, name: str, size: int, nice: int = 0) -> None:
        self._name = name
        self._size = size
        self._nice = nice
        self._lock = threading.Lock()
        self._spare = 0
        """threads without work, less the work that waits"""
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_shut = False
        self._is_told = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """`RuntimeError` after `shutdown`, and where the system gives us no thread and there is none yet."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError(f"the pool {self._name} is shut down")
            if self._spare <= 0 and len(self._threads) < self._size:
                self._start_one()
            self._spare -= 1
            self._work.put((future, partial(fn, *args, **kwargs)))
        return future

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            if not self._threads:
                raise
            if not self._is_told:  # each piece of work tries again
                self._is_told = True
                _log.warning("%s goes on with %d threads: %s", self._name, len(self._threads), e)
        else:
            self._threads.append(thread)
            self._spare += 1

    def _serve(self) -> None:
        if self._nice:
            _be_nice(self._nice)
        while True:
            item = self._work.get()
            if item is None:
                return
            future, call = item
            result, error = None, None
            if is_wanted := future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as e:
                    error = e  # it belongs to who waits for it; the thread lives on
            with self._lock:  # before anybody hears of it, who may have more work for this thread
                self._spare += 1
            if error is not None:
                future.set_exception(error)
            elif is_wanted:
                future.set_result(result)
            del item, future, call, result, error  # nothing is kept alive while the thread waits

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; `wait` until what was taken is done."""
        with self._lock:
            self._is_shut = True
            while cancel_futures:
                try:
                    item = self._work.get_nowait()
                except Empty:
                    break
                if item is not None:
                    item[0].cancel()
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _be_nice(by: int) -> None:
    """Lower the priority of the calling thread. That needs no right, but a sandbox may refuse it."""
    if sys.platform != "linux":
        return  # it would be the whole process's
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + by)
    except OSError as e:
        _log.warning("%s keeps its priority: %s", threading.current_thread().name, e)
