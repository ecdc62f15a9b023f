"""Who is flushed when: whoever asks first, then what waits in the background, then what ``flush.ms`` says.

Owned by the loop. Flushes that are asked for while all threads are busy share the next job, group by group.
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
_LOOK_MS: Final = 1000
"""How often a log under ``flush.messages`` is looked at: acks=0 waits for nothing."""
_NEVER_MS: Final = 2**62


class Owner(Protocol):
    """Whose logs they are."""

    def is_here(self, log: LocalLog) -> bool:
        """Whether it is open and its directory works."""

    def flushed(self, log: LocalLog) -> None:
        """Its recovery point may have moved."""

    def flush_failed(self) -> None:
        """An fsync may have failed: look at the latches."""


class _Job(NamedTuple):
    log: LocalLog
    up_to: int | None
    done: Future[None]


class _Look(NamedTuple):
    """When a log is looked at, and how far it is to the look after that one."""

    timer: Timer
    interval_ms: int


class Flusher:
    """Flushes logs on `log-io` threads."""

    def __init__(self, io: LogIo, clock: Clock, owner: Owner, metrics: HotMetrics) -> None:
        self._io = io
        self._clock = clock
        self._owner = owner
        self._metrics = metrics
        self._jobs: deque[_Job] = deque()
        self._busy = 0
        self._asked: dict[LocalLog, asyncio.Future[None]] = {}
        self._waiting: dict[LocalLog, None] = {}
        self._timed: dict[LocalLog, _Look] = {}
        self._wheel = TimingWheel(clock.monotonic_ms())

    # Asked for

    async def flush(self, log: LocalLog) -> None:
        """As `LogManager.flush`."""
        target = log.log_end_offset
        while log.recovery_point < min(target, log.log_end_offset):
            if not self._owner.is_here(log):
                raise LogOffline(f"{log.tip} is not here any more")
            running = self._asked.get(log)
            if running is None:
                running = self._asked[log] = self._submit(log, None)
                running.add_done_callback(lambda _: self._asked.pop(log, None))
            try:
                await asyncio.shield(running)
            except StorageError:
                self._owner.flush_failed()
                raise
            self._owner.flushed(log)

    def _submit(self, log: LocalLog, up_to: int | None) -> asyncio.Future[None]:
        done: Future[None] = Future()
        self._jobs.append(_Job(log, up_to, done))
        self._hand_over()
        running, began_ms = asyncio.wrap_future(done), self._clock.monotonic_ms()
        running.add_done_callback(partial(self._count, began_ms))
        return running

    def _count(self, began_ms: int, flush: asyncio.Future[None]) -> None:
        self._metrics.flush_time.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        if not flush.cancelled() and flush.exception() is not None:
            self._metrics.flush_errors += 1

    def _hand_over(self) -> None:
        while self._jobs and self._busy < self._io.size:
            share = -(-len(self._jobs) // (self._io.size - self._busy))
            group = [self._jobs.popleft() for _ in range(min(share, _GROUP))]
            self._busy += 1
            self._io.run(_flush_group, group).add_done_callback(self._handed_back)

    def _handed_back(self, job: asyncio.Future[None]) -> None:
        self._busy -= 1
        if not job.cancelled():
            job.result()
            self._hand_over()

    # In the background

    @property
    def is_waited_for(self) -> bool:
        """Whether `flush_waiting` has anything to do."""
        return bool(self._waiting)

    def wants(self, log: LocalLog) -> None:
        """Something of `log` waits for a flush: a sealed segment, a side file."""
        self._waiting[log] = None

    def forget(self, log: LocalLog) -> None:
        """The log is not here any more."""
        self._waiting.pop(log, None)
        self._look_no_more(log)

    async def flush_waiting(self) -> list[LocalLog]:
        """Flush what waits, some at a time, so that who asks for a flush never has to wait for all of them.

        Returns those to be tried again.
        """
        waiting, self._waiting = list(self._waiting), {}
        again: list[LocalLog] = []
        step = self._io.size
        for first in range(0, len(waiting), step):
            logs = [log for log in waiting[first : first + step] if self._owner.is_here(log)]
            jobs = [self.flush_quietly(log, log.active_base_offset) for log in logs]
            done = await asyncio.gather(*jobs)
            again += [log for log, is_done in zip(logs, done, strict=True) if not is_done]
        return again

    async def flush_quietly(self, log: LocalLog, up_to: int) -> bool:
        """False where it is to be tried later."""
        try:
            await self._submit(log, up_to)
        except StorageError as e:
            self._owner.flush_failed()
            if log.failure is None and self._owner.is_here(log):
                _log.error("flushing %s, to be tried again: %s", log.tip, e)
                return False
        self._owner.flushed(log)
        return True

    # By time

    def configured(self, log: LocalLog) -> None:
        """The log is new here, or its settings are."""
        config = log.config
        interval_ms = min(config.flush_ms, _NEVER_MS if config.flush_messages > _NEVER_MS else _LOOK_MS)
        known = self._timed.get(log)
        if interval_ms >= _NEVER_MS:
            self._look_no_more(log)
        elif known is None or interval_ms < known.interval_ms:
            self._look_at(log, log.last_flush_ms + interval_ms, interval_ms)
        else:
            self._timed[log] = known._replace(interval_ms=interval_ms)

    def _look_at(self, log: LocalLog, at_ms: int, interval_ms: int) -> None:
        self._look_no_more(log)
        self._timed[log] = _Look(self._wheel.add(at_ms, log), interval_ms)

    def _look_no_more(self, log: LocalLog) -> None:
        look = self._timed.pop(log, None)
        if look is not None:
            self._wheel.cancel(look.timer)

    async def flush_due(self) -> None:
        """Logs whose unflushed records have waited for ``flush.ms``; only those that have one are looked at,
        and no more often."""
        now_ms = self._clock.monotonic_ms()
        for item in self._wheel.advance(now_ms):
            log = cast("LocalLog", item)
            look = self._timed.get(log)
            if look is None or look.timer.is_waiting or not self._owner.is_here(log):
                continue  # it went, or has other settings, while one before it was flushed
            overdue = now_ms - log.last_flush_ms >= log.config.flush_ms
            self._look_at(log, now_ms + look.interval_ms, look.interval_ms)
            if log.failure is None and log.unflushed_records and (overdue or log.flush_due):
                await self.flush_quietly(log, log.log_end_offset)


def _flush_group(group: Sequence[_Job]) -> None:
    """On a `log-io` thread. Each is told as soon as its own is done."""
    for log, up_to, done in group:
        if not done.set_running_or_notify_cancel():
            continue
        try:
            log.flush(up_to)
        except BaseException as e:  # it belongs to who waits for it
            done.set_exception(e)
        else:
            done.set_result(None)
