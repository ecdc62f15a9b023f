"""Threads as a parameter: pools, locks and sleep behind one port.

A node has one `SystemThreads`; the simulator has threads that run when it schedules them. Blocking work runs
in a pool made here, and locks made here guard what threads share.
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
    """A lock that is not reentrant."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Condition(Lock, Protocol):
    """A lock with a condition; hold it to call `wait`, `notify` and `notify_all`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; return False if `timeout` seconds pass first."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate` is true, at most `timeout` seconds; return its last value."""

    def notify(self, n: int = 1) -> None:
        """Wake `n` waiting threads."""

    def notify_all(self) -> None:
        """Wake all waiting threads."""


class Threads(Protocol):
    """Port to the threads of a node."""

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        """Return a pool of at most `size` threads, started as needed; the caller shuts it down.

        `name`: prefix of the threads' names. `nice`: added to the threads' nice value (Linux only).
        """

    def lock(self) -> Lock:
        """Return a new lock."""

    def condition(self) -> Condition:
        """Return a new condition with a lock of its own."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread of a pool. Must not be called on the event loop."""


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
    """`ThreadPoolExecutor` whose threads do not keep the process from ending.

    A call to an unreachable store can take a minute to fail. A node that stops has shut everything down by
    then and must not wait for the call. Callers that need their work done wait in `shutdown`.
    """

    def __init__(self, name: str, size: int, nice: int = 0) -> None:
        self._name = name
        self._size = size
        self._nice = nice
        self._lock = threading.Lock()
        self._spare = 0
        """idle threads, less the queued work"""
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_shut = False
        self._is_told = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. `RuntimeError` after `shutdown`, or if the first thread cannot be started."""
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
            if not self._is_told:  # each `submit` tries again, so log once
                self._is_told = True
                _log.warning("%s continues with %d threads: %s", self._name, len(self._threads), e)
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
                    error = e  # the future carries it; the thread goes on
            with self._lock:  # before the result is set: its reader may submit more work
                self._spare += 1
            if error is not None:
                future.set_exception(error)
            elif is_wanted:
                future.set_result(result)
            del item, future, call, result, error  # an idle thread keeps nothing alive

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work; `wait` until the queued work is done."""
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
    """Raise the nice value of the calling thread. That needs no privilege, but a sandbox may refuse it."""
    if sys.platform != "linux":
        return  # elsewhere the nice value belongs to the process
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + by)
    except OSError as e:
        _log.warning("%s keeps its priority: %s", threading.current_thread().name, e)
