"""Threads as a parameter: pools, locks and sleep behind one port.

A node has one `SystemThreads`; the simulator brings threads that run when it says so. Work that blocks goes
to a pool made here, and what threads share is guarded by locks made here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol


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

    def pool(self, name: str, size: int) -> Executor:
        """At most `size` threads, named by `name`, made as they are needed; its owner shuts the pool down."""

    def lock(self) -> Lock:
        """A new lock."""

    def condition(self) -> Condition:
        """A new condition with a lock of its own."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread of a pool. Never to be called on the event loop."""


class SystemThreads:
    """The threads of this machine."""

    def pool(self, name: str, size: int) -> Executor:
        return ThreadPoolExecutor(size, thread_name_prefix=name)

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
