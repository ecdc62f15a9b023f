"""The `remote-read` threads: urgent downloads and other work first, then read-ahead, and hedged attempts.

First attempts, and work that is no download, use at most `threads` threads; hedged attempts, and first
attempts that were overtaken by theirs, half as many more. One idle thread watches for attempts to hedge.

Ownership: any thread. Methods whose name ends in `_locked` are called with the lock held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from service.base.threads import Condition
from service.base.world import World
from service.remote.reading.download import Download
from service.remote.reading.download_attempts import DownloadAttempts

_log = logging.getLogger(__name__)

_NO_SECOND_TRY_MS: Final = 1000
"""Pause before hedging is tried again when there was no room for it."""

Work = Callable[[], None] | Download


class DownloadThreads:
    """Queue of work, and the threads that take from it. `lock` guards its state.

    `before_next` is called with the lock held whenever a thread looks for work.
    """

    def __init__(
        self,
        world: World,
        lock: Condition,
        threads: int,
        attempts: DownloadAttempts,
        before_next: Callable[[], None],
    ) -> None:
        self.is_closed = False
        self._clock = world.clock
        self._lock = lock
        self._attempts = attempts
        self._before_next = before_next
        self._threads = threads
        self._most_threads = threads + (max(threads // 2, 2) if attempts.is_hedging else 0)
        self._pool: Executor = world.threads.pool("remote-read", self._most_threads)
        self._urgent: deque[Work] = deque()
        self._prefetches: deque[Download] = deque()
        self._serving = 0
        self._idle = 0
        self._busy = 0  # threads with first attempts and other work
        self._hedging = 0  # threads with hedged attempts
        self._overtaken = 0  # threads with overtaken first attempts
        self._first: set[Work] = set()  # downloads whose first attempts keep a thread busy

    @property
    def busy(self) -> int:
        """Threads at work."""
        return self._serving - self._idle

    def add_locked(self, work: Work) -> None:
        """Queue `work` for a thread."""
        if isinstance(work, Download) and not work.urgent:
            self._prefetches.append(work)
        else:
            self._urgent.append(work)
        self._wake_locked()

    def promote_locked(self, download: Download) -> None:
        """Make a download urgent."""
        if not download.urgent:
            download.urgent = True
            if download in self._prefetches:
                self._prefetches.remove(download)
                self._urgent.append(download)

    def stop_locked(self) -> list[Work]:
        """Let the threads end; return the work that was queued."""
        self.is_closed = True
        queued = [*self._urgent, *self._prefetches]
        self._urgent.clear()
        self._prefetches.clear()
        self._lock.notify_all()
        return queued

    def join(self, timeout_s: float) -> None:
        """Wait for the threads; abandon those that still run after `timeout_s`."""
        with self._lock:
            have_ended = self._lock.wait_for(lambda: not self._serving, timeout_s)
        self._pool.shutdown(wait=have_ended)

    def _wake_locked(self) -> None:
        """Ensure that there is a thread for everything queued, and one that watches the others."""
        queued = len(self._urgent) + len(self._prefetches)
        wanted = min(self._busy + queued, self._threads)
        if self._attempts.is_hedging:
            wanted += self._hedging + self._overtaken + 1
        while self._serving < min(wanted, self._most_threads):
            self._serving += 1
            self._pool.submit(self._serve)
        self._lock.notify()

    def _serve(self) -> None:
        """Run works until `stop_locked`, as one job of the pool."""
        while True:
            with self._lock:
                if (run := self._next_locked()) is None:
                    self._serving -= 1
                    self._lock.notify_all()
                    return
            try:
                run()
            except Exception:
                # A bug. Its waiters got the error, or there are none; the thread must live on, as it is
                # counted.
                _log.exception("bug in a thread of cold reads, the thread continues")
            del run  # keep nothing alive while the thread waits

    def _next_locked(self) -> Callable[[], None] | None:
        """Wait for the next work of a thread and return it; None when the thread is to end."""
        while True:
            self._before_next()
            may_ask_first = self._busy < self._threads and (
                not self._overtaken or self._busy + self._overtaken < self._most_threads - 1
            )
            if may_ask_first and (self._urgent or self._prefetches):
                queue: deque[Any] = self._urgent or self._prefetches
                return self._first_locked(queue.popleft())
            if not may_ask_first and self._overtaken and self._urgent:
                # The last thread that is not in a dead call uses the other client at once.
                work = self._urgent.popleft()
                return self._hedged_locked(work) if isinstance(work, Download) else self._first_locked(work)
            if self.is_closed:
                return None
            attempts = self._attempts
            due_ms = None if attempts.check_ms is not None else attempts.hedge_due_ms_locked()
            if due_ms is None:
                self._wait_locked(None)  # another thread watches, or there is nothing to watch
                continue
            now_ms = self._clock.monotonic_ms()
            if due_ms <= now_ms:
                if (slow := attempts.take_slow_locked(now_ms)) is not None:
                    return self._hedged_locked(slow)
                due_ms = now_ms + _NO_SECOND_TRY_MS
            attempts.check_ms = due_ms
            self._wait_locked((due_ms - now_ms) / 1000)
            attempts.check_ms = None

    def _wait_locked(self, timeout_s: float | None) -> None:
        self._idle += 1
        self._lock.wait(timeout_s)
        self._idle -= 1

    def _first_locked(self, work: Work) -> Callable[[], None]:
        self._busy += 1
        if isinstance(work, Download):
            work.tries += 1
            self._first.add(work)
        return partial(self._run_first, work)

    def _hedged_locked(self, download: Download) -> Callable[[], None]:
        self._hedging += 1
        download.is_hedged = True
        download.tries += 1
        return partial(self._run_hedged, download)

    def _run_first(self, work: Work) -> None:
        try:
            if isinstance(work, Download):
                self._attempts.run(work)
            else:
                work()
        finally:
            with self._lock:
                if isinstance(work, Download) and work not in self._first:
                    self._overtaken -= 1
                else:
                    self._first.discard(work)
                    self._busy -= 1

    def _run_hedged(self, download: Download) -> None:
        has_won = False
        try:
            has_won = self._attempts.run_hedged(download)
        finally:
            with self._lock:
                if has_won and download in self._first:
                    # Until the first attempt ends, another thread takes the place of its thread.
                    self._first.remove(download)
                    self._busy -= 1
                    self._overtaken += 1
                    self._wake_locked()
                self._hedging -= 1
