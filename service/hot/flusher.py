"""Order of flushes: requested ones first, then background ones, then those that ``flush.ms`` demands.

Owned by the loop. Flushes that are requested while all threads are busy share the next job, group by group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.timing_wheel import Timer, TimingWheel
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.metrics import HotMetrics
from service.hot.state import LogOffline

_log = logging.getLogger(__name__)

_GROUP: Final = 8
_CHECK_MS: Final = 1000
"""Interval at which a log under ``flush.messages`` is checked, as acks=0 requests no flush."""
_NEVER_MS: Final = 2**62


class FlushListener(Protocol):
    """The maintenance of the logs, as the flusher needs it."""

    def is_in_use(self, log: LocalLog) -> bool:
        """Return whether the log is in use and its directory works."""

    def flushed(self, log: LocalLog) -> None:
        """The log's recovery point may have moved."""

    def flush_failed(self) -> None:
        """An fsync may have failed: check the latches."""


class _Job(NamedTuple):
    log: LocalLog
    up_to: int | None
    done: Future[None]


class _Check(NamedTuple):
    """The next check of a log under ``flush.ms`` or ``flush.messages``, and the interval to the one after."""

    timer: Timer
    interval_ms: int


class Flusher:
    """Flushes logs on `log-io` threads."""

    def __init__(self, io: LogIo, clock: Clock, listener: FlushListener, metrics: HotMetrics) -> None:
        self._io = io
        self._clock = clock
        self._listener = listener
        self._metrics = metrics
        self._jobs: deque[_Job] = deque()
        self._busy = 0
        self._requested: dict[LocalLog, asyncio.Future[None]] = {}
        self._waiting: dict[LocalLog, None] = {}
        self._timed: dict[LocalLog, _Check] = {}
        self._wheel = TimingWheel(clock.monotonic_ms())

    # On request

    async def flush(self, log: LocalLog) -> None:
        """Return once everything appended to `log` until now is durable.

        Concurrent callers share an fsync. `StorageError` if the disk refuses, or the log is not in use.
        """
        target = log.log_end_offset
        while log.durability.is_cut or log.recovery_point < min(target, log.log_end_offset):
            if not self._listener.is_in_use(log):
                raise LogOffline(f"{log.tip} is not here any more")
            running = self._requested.get(log)
            if running is None:
                running = self._requested[log] = self._submit(log, None)
                running.add_done_callback(lambda _: self._requested.pop(log, None))
            try:
                await asyncio.shield(running)
            except StorageError:
                self._listener.flush_failed()
                raise
            self._listener.flushed(log)

    def _submit(self, log: LocalLog, up_to: int | None) -> asyncio.Future[None]:
        done: Future[None] = Future()
        self._jobs.append(_Job(log, up_to, done))
        self._start_jobs()
        running, began_ms = asyncio.wrap_future(done), self._clock.monotonic_ms()
        running.add_done_callback(partial(self._count, began_ms))
        return running

    def _count(self, began_ms: int, flush: asyncio.Future[None]) -> None:
        self._metrics.flush_time.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        if not flush.cancelled() and flush.exception() is not None:
            self._metrics.flush_errors += 1

    def _start_jobs(self) -> None:
        while self._jobs and self._busy < self._io.size:
            share = -(-len(self._jobs) // (self._io.size - self._busy))
            group = [self._jobs.popleft() for _ in range(min(share, _GROUP))]
            self._busy += 1
            self._io.run(_flush_group, group).add_done_callback(self._group_done)

    def _group_done(self, job: asyncio.Future[None]) -> None:
        self._busy -= 1
        if not job.cancelled():
            job.result()
            self._start_jobs()

    # In the background

    @property
    def has_waiting(self) -> bool:
        """Return whether `flush_waiting` has something to do."""
        return bool(self._waiting)

    def enqueue(self, log: LocalLog) -> None:
        """Flush `log` in the background: a sealed segment or a side file waits for it."""
        self._waiting[log] = None

    def forget(self, log: LocalLog) -> None:
        """Remove a log that is not in use any more."""
        self._waiting.pop(log, None)
        self._cancel_check(log)

    async def flush_waiting(self) -> list[LocalLog]:
        """Flush the logs that wait, a few at a time, so that a requested flush need not wait for all of them.

        Returns those to be retried.
        """
        waiting, self._waiting = list(self._waiting), {}
        again: list[LocalLog] = []
        step = self._io.size
        for first in range(0, len(waiting), step):
            logs = [log for log in waiting[first : first + step] if self._listener.is_in_use(log)]
            jobs = [self.flush_quietly(log, log.active_base_offset) for log in logs]
            done = await asyncio.gather(*jobs)
            again += [log for log, is_done in zip(logs, done, strict=True) if not is_done]
        return again

    async def flush_quietly(self, log: LocalLog, up_to: int) -> bool:
        """Flush `log`, and log errors; returns False if the caller is to retry later."""
        try:
            await self._submit(log, up_to)
        except StorageError as e:
            self._listener.flush_failed()
            if log.failure is None and self._listener.is_in_use(log):
                _log.error("cannot flush %s, retrying: %s", log.tip, e)
                return False
        self._listener.flushed(log)
        return True

    # By time

    def configured(self, log: LocalLog) -> None:
        """Apply the settings of a log that is new, or whose settings have changed."""
        config = log.config
        interval_ms = min(config.flush_ms, _NEVER_MS if config.flush_messages > _NEVER_MS else _CHECK_MS)
        known = self._timed.get(log)
        if interval_ms >= _NEVER_MS:
            self._cancel_check(log)
        elif known is None or interval_ms < known.interval_ms:
            self._schedule_check(log, log.durability.last_flush_ms + interval_ms, interval_ms)
        else:
            self._timed[log] = known._replace(interval_ms=interval_ms)

    def _schedule_check(self, log: LocalLog, at_ms: int, interval_ms: int) -> None:
        self._cancel_check(log)
        self._timed[log] = _Check(self._wheel.add(at_ms, log), interval_ms)

    def _cancel_check(self, log: LocalLog) -> None:
        check = self._timed.pop(log, None)
        if check is not None:
            self._wheel.cancel(check.timer)

    async def flush_due(self) -> None:
        """Flush logs whose unflushed records have waited for ``flush.ms``; checks only logs that have such a
        setting, once an interval."""
        now_ms = self._clock.monotonic_ms()
        for item in self._wheel.advance(now_ms):
            log = cast("LocalLog", item)
            check = self._timed.get(log)
            if check is None or check.timer.is_waiting or not self._listener.is_in_use(log):
                continue  # removed or reconfigured while a log before it was flushed
            overdue = now_ms - log.durability.last_flush_ms >= log.config.flush_ms
            self._schedule_check(log, now_ms + check.interval_ms, check.interval_ms)
            if log.failure is None and log.unflushed_records and (overdue or log.flush_due):
                await self.flush_quietly(log, log.log_end_offset)


def _flush_group(group: Sequence[_Job]) -> None:
    """Flush a group of logs on a `log-io` thread; each future completes once its log is flushed."""
    for log, up_to, done in group:
        if not done.set_running_or_notify_cancel():
            continue
        try:
            log.durability.flush(up_to)
        except BaseException as e:  # for the caller that waits for it
            done.set_exception(e)
        else:
            done.set_result(None)
