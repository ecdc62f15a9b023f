"""Order of compactions: the dirtiest log first, while one is dirty enough (Kafka `LogCleaner`); erasures.

Owned by the loop; each compaction is a task, and never meets an erasure in one log. A log whose compaction
fails is set aside, and others continue: for a while if the disk refused, until the next start if the log is
damaged or a defect shows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol
from uuid import UUID

from service.base.errors import CorruptionError, StorageError
from service.base.slices import Slice
from service.base.world import World
from service.hot import names
from service.hot.cleaning import plan
from service.hot.cleaning.cleaning import Cleaning
from service.hot.cleaning.erasing import Erasing, LocalErasure
from service.hot.cleaning.log_rewrite import Aborted, CleanerSettings, LogRewrite, Throttle
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.metrics import HotMetrics

_log = logging.getLogger(__name__)

CLEANER_NICE: Final = 10
"""Leaves the cleaner a tenth of a busy processor: other threads need not wait for its time slice."""
_LOOK_S: Final = 1.0
"""Interval at which settings are read, and other logs while one is being compacted."""
_AGAIN_MS: Final = 60_000
_NEVER_MS: Final = 2**63 - 1


RewriteParts = tuple[
    LocalLog, LogIo, LogIo, World, Callable[[], CleanerSettings], Throttle, Callable[[LocalLog], bool]
]


class CleanerListener(Protocol):
    """The maintenance of the logs, as the cleaner needs it."""

    def is_in_use(self, log: LocalLog) -> bool:
        """Return whether the log is in use and its directory works."""

    def flush_failed(self) -> None:
        """An fsync may have failed: check the latches."""

    async def flush(self, log: LocalLog) -> None:
        """Return once everything appended to `log` until now is durable. `StorageError`."""

    def delete_queued(self, log: LocalLog) -> None:
        """Delete the files in the log's deletion queue now, whatever ``file.delete.delay.ms`` says."""

    def cleaned(self, log: LocalLog) -> None:
        """The log was cleaned: a checkpoint should contain its cleaned offset soon."""

    def note_compacted(self, log: LocalLog) -> Awaitable[bool]:
        """Make durable that the log is compacted; False if the disk refuses now."""


class Cleaner:
    """Compacts the logs of a node."""

    def __init__(
        self, io: LogIo, cleaner_io: LogIo, world: World, listener: CleanerListener, metrics: HotMetrics
    ) -> None:
        """`cleaner_io`: threads for long work; `io` for work that others may have to wait for."""
        self._io = io
        self._cleaner_io = cleaner_io
        self._world = world
        self._clock = world.clock
        self._listener = listener
        self._metrics = metrics
        self._compacted: dict[LocalLog, None] = {}
        self._set_aside: dict[LocalLog, int] = {}
        self._runs: dict[LocalLog, LogRewrite] = {}
        self._erasing = 0
        self._throttle = Throttle(world.clock)
        self._settings: Callable[[], CleanerSettings] = CleanerSettings
        self._stable_offset: Callable[[LocalLog], int | None] = lambda log: log.log_end_offset

    # Calls of the log manager

    def configured(self, log: LocalLog) -> None:
        """Apply the settings of a log that is new, or whose settings have changed."""
        if log.config.is_compacted:
            self._compacted[log] = None
        else:
            self._do_not_compact(log)

    def _do_not_compact(self, log: LocalLog) -> None:
        self._compacted.pop(log, None)
        if self._set_aside.pop(log, None) is not None:
            self._metrics.uncleanable_logs = len(self._set_aside)
        if isinstance(run := self._runs.get(log), Cleaning):
            run.aborted.set()

    def forget(self, log: LocalLog) -> None:
        """Remove a log that is not in use any more."""
        self._do_not_compact(log)
        if (run := self._runs.get(log)) is not None:
            run.aborted.set()

    async def wait_for(self, logs: Collection[LocalLog]) -> None:
        """Wait until none of `logs`, which were forgotten, is being changed."""
        for log in logs:
            run = self._runs.get(log)
            if run is not None:
                await run.over.wait()

    def set_aside(self) -> Mapping[LocalLog, int]:
        """Logs whose compaction failed, and until when they are set aside (wall clock ms)."""
        return self._set_aside

    # Choice of the next log

    async def run(
        self, settings: Callable[[], CleanerSettings], stable_offset: Callable[[LocalLog], int | None]
    ) -> None:
        """Compact dirty logs until the task is cancelled.

        `stable_offset`: up to where a log may be compacted, None if it must not be now.
        """
        self._settings, self._stable_offset = settings, stable_offset
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                while len(tasks) < self._most() and (chosen := await self._dirtiest()) is not None:
                    run = self._runs[chosen] = Cleaning(*self._parts_of(chosen))
                    tasks.add(asyncio.get_running_loop().create_task(self._clean(run), name="log-cleaner"))
                if not tasks:
                    await self._back_off()
                    continue
                done, tasks = await asyncio.wait(tasks, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()

    def _parts_of(self, log: LocalLog) -> RewriteParts:
        return (
            log, self._io, self._cleaner_io, self._world, lambda: self._settings(), self._throttle,
            self._listener.is_in_use,
        )  # fmt: skip

    async def _back_off(self) -> None:
        """Wait for ``log.cleaner.backoff.ms``, which may change meanwhile."""
        began_ms = self._clock.monotonic_ms()
        while True:
            waited_s = (self._clock.monotonic_ms() - began_ms) / 1000
            left_s = max(self._settings().backoff_ms, 1) / 1000 - waited_s
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, _LOOK_S))

    def _most(self) -> int:
        settings = self._settings()
        return settings.threads if settings.is_enabled else 0

    async def _dirtiest(self) -> LocalLog | None:
        """Return the log to compact next, if any."""
        best: tuple[LocalLog, plan.DirtyLog] | None = None
        now_ms = self._clock.now_ms()
        piece = Slice()
        for log in tuple(self._compacted):
            if piece.is_over():
                await piece.next_turn()
            if not self._may_be_cleaned(log, now_ms):
                continue
            await self._read_times(log, now_ms, piece)
            dirt = self._dirty_part_of(log, now_ms) if self._may_be_cleaned(log, now_ms) else None
            if dirt is not None and (best is None or dirt.urgency > best[1].urgency):
                best = log, dirt
        if best is not None and not self._may_be_cleaned(best[0], now_ms):
            return None  # removed while others were checked; the next round finds another
        return best[0] if best is not None else None

    async def _read_times(self, log: LocalLog, now_ms: int, piece: Slice) -> None:
        """Read the timestamps that `plan` will need, in slices: `plan` itself does not pause."""
        config, state = log.config, log.state
        if config.min_compaction_lag_ms <= 0 and config.max_compaction_lag_ms >= now_ms:
            return
        dirty = max(state.segments.slot_of(state.cleaned_offset), 0)
        for segment in state.segments.all[dirty:-1]:
            if segment.knows_times:
                continue
            if piece.is_over():
                await piece.next_turn()
            if log.failure is not None or segment.log.path.suffix != names.LOG:
                return  # it was removed meanwhile
            try:
                _ = segment.max_timestamp, segment.first_timestamp
            except (StorageError, CorruptionError):
                return  # `plan` will find it where it counts

    def _may_be_cleaned(self, log: LocalLog, now_ms: int) -> bool:
        return (
            log in self._compacted
            and log not in self._runs
            and log.failure is None
            and self._set_aside.get(log, 0) <= now_ms
            and self._listener.is_in_use(log)
        )

    def _dirty_part_of(self, log: LocalLog, now_ms: int) -> plan.DirtyLog | None:
        """Return the dirty part of the log, None if it need not be compacted. Sets the log aside on an
        error."""
        if log.active_base_offset <= log.state.cleaned_offset:
            return None
        stable = self._stable_offset(log)
        if stable is None:
            return None
        facts = plan.LogFacts(
            log.local_log_start_offset,
            log.log_end_offset,
            log.state.cleaned_offset,
            min(stable, log.recovery_point),
            log.state.segments.all,
        )
        try:
            return plan.dirty_log(facts, log.config, now_ms)
        except (StorageError, CorruptionError) as e:
            self._fail(log, e)
            return None

    # One erasure

    async def erase(
        self, log: LocalLog, order: LocalErasure, orders: Callable[[], Collection[UUID]]
    ) -> Erasing:
        """Carry out an order in one log, once nothing else changes it and a thread of the cleaner's share is
        free; ``log.cleaner.enable`` has no say in it. Returns what was done.

        `Aborted` where the log is not in use any more, or was truncated, or the order is none of `orders` any
        more; `CorruptionError` if it is damaged,
        `StorageError`: to be tried again.
        """
        while log in self._runs or self._erasing >= max(self._settings().threads, 1):
            others = [self._runs[log]] if log in self._runs else [*self._runs.values()]
            waits = [asyncio.ensure_future(one.over.wait()) for one in others]
            try:
                await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        run = Erasing(*self._parts_of(log))
        self._runs[log] = run
        self._erasing += 1
        try:
            await run.run(order, orders, self._listener.flush, self._listener.delete_queued)
        except (StorageError, CorruptionError) as e:
            log.latch.note(e)
            if log.latch.failure is not None:
                self._listener.flush_failed()
            raise
        finally:
            self._erasing -= 1
            del self._runs[log]
            run.over.set()
            counts, metrics = run.counts, self._metrics
            metrics.erased_records += counts.records_read - counts.records_kept
            metrics.erasure_bytes_read += counts.bytes_read
            metrics.erasure_bytes_written += counts.bytes_written
        return run

    # One compaction

    async def _clean(self, run: Cleaning) -> None:
        log = run.log
        try:
            if not self._listener.is_in_use(log):
                raise Aborted
            if not await self._listener.note_compacted(log):
                if log in self._compacted:
                    self._set_aside[log] = self._clock.now_ms() + _AGAIN_MS
            elif (dirt := self._dirty_part_of(log, self._clock.now_ms())) is not None:
                await self._clean_now(run, dirt)
        except Aborted:
            pass
        except (StorageError, CorruptionError) as e:
            log.latch.note(e)
            if log.latch.failure is not None:
                self._listener.flush_failed()
            if log in self._compacted and log.failure is None and not run.is_outdated:
                self._fail(log, e)
        except Exception as e:
            if log.swapping.current is not None:
                raise  # the state of its files is unknown now
            _log.critical("a defect: %s cannot be cleaned", log.tip, exc_info=e)
            if log in self._compacted:
                self._fail(log, e)
        finally:
            self._metrics.uncleanable_logs = len(self._set_aside)
            del self._runs[log]
            run.over.set()

    async def _clean_now(self, run: Cleaning, dirt: plan.DirtyLog) -> None:
        log, counts = run.log, run.counts
        began_ms = self._clock.monotonic_ms()
        end_offset, utilization = await run.run(dirt)
        self._set_aside.pop(log, None)
        self._listener.cleaned(log)
        self._metrics.cleanings += 1
        self._metrics.cleaned_bytes_read += counts.bytes_read
        self._metrics.cleaned_bytes_written += counts.bytes_written
        _log.info(
            "cleaned %s, dirty from %d to %d: %d of %d records stay, %d of %d bytes, in %.1f s; "
            "%.0f %% of the memory for keys was used",
            log.tip, dirt.first_dirty, end_offset, counts.records_kept, counts.records_read,
            counts.bytes_written, counts.bytes_read, (self._clock.monotonic_ms() - began_ms) / 1000,
            100 * utilization,
        )  # fmt: skip

    def _fail(self, log: LocalLog, error: Exception) -> None:
        """Set the log aside."""
        self._metrics.cleaning_errors += 1
        passes = isinstance(error, StorageError)
        self._set_aside[log] = self._clock.now_ms() + _AGAIN_MS if passes else _NEVER_MS
        self._metrics.uncleanable_logs = len(self._set_aside)
        when = "for now" if passes else "until the next start"
        _log.error("%s is not cleaned %s: %s", log.tip, when, error)
