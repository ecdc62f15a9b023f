"""Which log is compacted when: the dirtiest, while there is one that is dirty enough (Kafka `LogCleaner`).

Owned by the loop. A cleaning is a task; what reads and writes is done on `log-io` threads a few megabytes at
a time, so that flushes come between, and waits there for nothing: throttling is done here. A log that fails
to be cleaned is set aside and the others go on: for a while where the disk refused, until the next start
where what is there is damaged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from service.base.errors import CorruptionError, StorageError
from service.base.files import FsyncFailed
from service.base.slices import Slice
from service.base.world import World
from service.hot.cleaning import plan
from service.hot.cleaning.copying import Counts, GroupCopy, Sizes, Work, map_keys
from service.hot.cleaning.swap import Swap, discard
from service.hot.cleaning.transactions import Transactions
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.metrics import HotMetrics
from service.hot.producers import ProducerEntry
from service.hot.segment import Segment
from service.hot.state import LogOffline
from service.records.key_map import KeyMap, memory_for
from service.records.recopy import CopyRules, LastBatches

_log = logging.getLogger(__name__)

_STEP_BYTES: Final = 4 << 20
_STEP_S: Final = 0.3
"""What is throttled goes on in steps that take about so long."""
_LEAST_BUFFER: Final = 16 << 10
_MOST_MAP_BYTES: Final = 2**31 - 1
_LOOK_US: Final = 20
_SEGMENT_US: Final = 1
_AGAIN_MS: Final = 60_000
_NEVER_MS: Final = 2**63 - 1
_SECRET_BITS: Final = 128


class CleanerSettings(NamedTuple):
    """The keys under ``log.cleaner.``; buffers are for all cleanings together, in bytes."""

    is_enabled: bool = True
    threads: int = 1
    dedupe_bytes: int = 128 << 20
    buffer_bytes: int = 512 << 10
    load_factor: float = 0.9
    max_bytes_per_second: float = 1e300
    backoff_ms: int = 15_000


class Owner(Protocol):
    """Whose logs they are."""

    def is_here(self, log: LocalLog) -> bool:
        """Whether it is open and its directory works."""

    def flush_failed(self) -> None:
        """An fsync may have failed: look at the latches."""

    def cleaned(self, log: LocalLog) -> None:
        """A checkpoint should tell soon up to where it is cleaned."""

    def note_compacted(self, log: LocalLog) -> Awaitable[bool]:
        """Make durable that the log is one that was compacted; False where that is not to be had now."""


class _Aborted(Exception):
    """The log goes, or is not to be compacted any more."""


class _Run:
    """One cleaning. ``over`` is set at its end; `abort` asks for that."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.aborted = asyncio.Event()
        self.over = asyncio.Event()
        self.counts = Counts()


class Cleaner:
    """Compacts the logs of a node."""

    def __init__(self, io: LogIo, world: World, owner: Owner, metrics: HotMetrics) -> None:
        self._io = io
        self._world = world
        self._clock = world.clock
        self._owner = owner
        self._metrics = metrics
        self._compacted: dict[LocalLog, None] = {}
        self._set_aside: dict[LocalLog, int] = {}
        self._runs: dict[LocalLog, _Run] = {}
        self._free_ms = 0.0
        self._settings: Callable[[], CleanerSettings] = CleanerSettings
        self._stable_offset: Callable[[LocalLog], int | None] = lambda log: log.log_end_offset

    # What the manager tells

    def configured(self, log: LocalLog) -> None:
        """The log is new here, or its settings are."""
        if log.config.is_compacted:
            self._compacted[log] = None
        else:
            self._compacted.pop(log, None)
            self._abort(log)

    def forget(self, log: LocalLog) -> None:
        """The log is not here any more."""
        self._compacted.pop(log, None)
        if self._set_aside.pop(log, None) is not None:
            self._metrics.uncleanable_logs = len(self._set_aside)
        self._abort(log)

    def _abort(self, log: LocalLog) -> None:
        run = self._runs.get(log)
        if run is not None:
            run.aborted.set()

    async def let_be(self, logs: Collection[LocalLog]) -> None:
        """Wait until none of `logs`, which were forgotten, is being cleaned."""
        for log in logs:
            run = self._runs.get(log)
            if run is not None:
                await run.over.wait()

    def set_aside(self) -> Mapping[LocalLog, int]:
        """Logs that failed to be cleaned, and until when they are left alone (wall clock ms)."""
        return self._set_aside

    # Whose turn it is

    async def run(
        self, settings: Callable[[], CleanerSettings], stable_offset: Callable[[LocalLog], int | None]
    ) -> None:
        """Compact what is dirty enough, for as long as the task lives.

        `stable_offset`: up to where a log may be cleaned, None where it must not be now.
        """
        self._settings, self._stable_offset = settings, stable_offset
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                while len(tasks) < self._most() and (chosen := await self._dirtiest()) is not None:
                    run = self._runs[chosen[0]] = _Run(chosen[0])
                    tasks.add(
                        asyncio.get_running_loop().create_task(
                            self._clean(run, chosen[1]), name="log-cleaner"
                        )
                    )
                if not tasks:
                    await asyncio.sleep(max(self._settings().backoff_ms, 1) / 1000)
                    continue
                backoff_s = max(self._settings().backoff_ms, 1) / 1000
                done, tasks = await asyncio.wait(
                    tasks, timeout=backoff_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()

    def _most(self) -> int:
        settings = self._settings()
        return settings.threads if settings.is_enabled else 0

    async def _dirtiest(self) -> tuple[LocalLog, plan.Dirt] | None:
        """The log whose turn it is, and how dirty it is."""
        best: tuple[LocalLog, plan.Dirt] | None = None
        now_ms = self._clock.now_ms()
        piece = Slice()
        for log in tuple(self._compacted):
            if piece.charge(_LOOK_US + _SEGMENT_US * len(log.state.segments)):
                await piece.next_turn()
            dirt = self._look_at(log, now_ms)
            if dirt is not None and (best is None or dirt.urgency > best[1].urgency):
                best = log, dirt
        if best is not None and not self._may_be_cleaned(best[0], now_ms):
            return None  # it went while others were looked at; the next round finds another
        return best

    def _may_be_cleaned(self, log: LocalLog, now_ms: int) -> bool:
        return (
            log in self._compacted
            and log not in self._runs
            and log.failure is None
            and self._set_aside.get(log, 0) <= now_ms
            and self._owner.is_here(log)
        )

    def _look_at(self, log: LocalLog, now_ms: int) -> plan.Dirt | None:
        if not self._may_be_cleaned(log, now_ms) or log.active_base_offset <= log.state.cleaned_offset:
            return None
        stable = self._stable_offset(log)
        if stable is None:
            return None
        try:
            facts = plan.LogFacts(
                log.local_log_start_offset,
                log.log_end_offset,
                log.state.cleaned_offset,
                min(stable, log.recovery_point),
                facts_of(log.state.segments.all),
            )
            return plan.judge(facts, log.config, now_ms)
        except (StorageError, CorruptionError) as e:
            self._fail(log, e)
            return None

    # One cleaning

    async def _clean(self, run: _Run, dirt: plan.Dirt) -> None:
        log = run.log
        began_ms = self._clock.monotonic_ms()
        try:
            if await self._owner.note_compacted(log):
                end_offset, utilization = await self._clean_log(run, dirt)
                self._metrics.cleanings += 1
                self._set_aside.pop(log, None)
                seconds = (self._clock.monotonic_ms() - began_ms) / 1000
                counts = run.counts
                _log.info(
                    "cleaned %s, dirty from %d to %d: %d of %d records stay, %d of %d bytes, in %.1f s; "
                    "%.0f %% of the memory for keys was used",
                    log.tip, dirt.first_dirty, end_offset, counts.records_kept, counts.records_read,
                    counts.bytes_written, counts.bytes_read, seconds, 100 * utilization,
                )  # fmt: skip
            else:
                self._set_aside[log] = self._clock.now_ms() + _AGAIN_MS
        except _Aborted:
            pass
        except (StorageError, CorruptionError) as e:
            if isinstance(e, FsyncFailed):
                log.latch.fail(e)
                self._owner.flush_failed()
            if self._owner.is_here(log) and not isinstance(e, LogOffline) and log.failure is None:
                self._fail(log, e)
        finally:
            self._metrics.uncleanable_logs = len(self._set_aside)
            del self._runs[log]
            run.over.set()

    def _fail(self, log: LocalLog, error: Exception) -> None:
        """Set the log aside."""
        self._metrics.cleaning_errors += 1
        damaged = isinstance(error, CorruptionError)
        self._set_aside[log] = _NEVER_MS if damaged else self._clock.now_ms() + _AGAIN_MS
        self._metrics.uncleanable_logs = len(self._set_aside)
        _log.error(
            "%s is not cleaned %s: %s", log.tip, "until the next start" if damaged else "for now", error
        )

    async def _clean_log(self, run: _Run, dirt: plan.Dirt) -> tuple[int, float]:
        """The offset up to which the log is clean then, and which part of the memory for keys was used."""
        log, settings = run.log, self._settings()
        threads = max(settings.threads, 1)
        buffer = max(settings.buffer_bytes // threads // 2, _LEAST_BUFFER)
        sizes = Sizes(buffer, buffer)
        all_now = list(log.state.segments.all)
        bases = [segment.base_offset for segment in all_now]
        first = max((n for n, base in enumerate(bases) if base <= dirt.first_dirty), default=0)
        end = bases.index(dirt.first_uncleanable)
        most = min(settings.dedupe_bytes // threads, _MOST_MAP_BYTES)
        memory = _memory(memory_for(dirt.first_uncleanable - dirt.first_dirty, most, settings.load_factor))
        secret = self._world.random.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        keys = KeyMap(memoryview(memory), secret, settings.load_factor)
        await self._drive(
            run,
            map_keys(
                all_now[first:end], all_now[end:], dirt.first_dirty, dirt.first_uncleanable, keys, sizes
            ),
        )
        end_offset = keys.latest + 1
        config, now_ms = log.config, self._clock.now_ms()
        fates = Transactions()
        groups = plan.groups(facts_of(all_now), end_offset, config.segment_bytes, config.segment_index_bytes)
        for group in groups:
            rules = CopyRules(now_ms, config.delete_retention_ms, group.end_offset)
            last = await self._io.run(_last_batches, log.producers.freeze())
            old, following = all_now[group.first : group.last + 1], all_now[group.last + 1 :]
            copy = GroupCopy(log.state, old, following, rules, keys, fates, last, sizes, run.counts)
            await self._drive(run, copy.run())
            await self._swap(run, copy)
        log.state.cleaned_offset = max(log.state.cleaned_offset, end_offset)
        self._owner.cleaned(log)
        self._metrics.cleaned_bytes_read += run.counts.bytes_read
        self._metrics.cleaned_bytes_written += run.counts.bytes_written
        return end_offset, keys.utilization

    def _check(self, run: _Run) -> None:
        """`_Aborted`, or `LogOffline`, where the log is not to be touched any more."""
        if run.aborted.is_set() or not self._owner.is_here(run.log):
            raise _Aborted
        run.log.check()

    async def _drive(self, run: _Run, work: Work) -> None:
        """Do it step by step; what was begun is undone where it does not come to its end."""
        try:
            while True:
                self._check(run)
                rate = self._settings().max_bytes_per_second
                step = max(min(_STEP_BYTES, int(min(rate * _STEP_S, 2**62))), 1)
                done, is_over = await self._io.run(_advance, work, step)
                await self._throttle(run, done, rate)
                if is_over:
                    return
        except asyncio.CancelledError:
            raise  # the node ends: the next start removes what is there
        except BaseException:
            await self._io.run(work.close)
            raise

    async def _throttle(self, run: _Run, done: int, rate: float) -> None:
        now_ms = self._clock.monotonic_ms()
        self._free_ms = max(self._free_ms, now_ms) + 1000 * done / rate
        wait_s = (self._free_ms - now_ms) / 1000
        if wait_s >= 0.001:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await run.aborted.wait()

    async def _swap(self, run: _Run, copy: GroupCopy) -> None:
        log, new = run.log, copy.new
        assert new is not None
        swap: Swap | None = None
        if not run.aborted.is_set() and self._owner.is_here(log):
            swap = log.swapping.begin(copy.old, new)
        if swap is None:  # the log has changed: what was copied is of no use
            new.close()
            await self._io.run(discard, log.state.disk, new.log.path.with_suffix(""))
            raise _Aborted
        with contextlib.suppress(StorageError):  # `end` raises it
            await self._io.run(swap.run)
        log.swapping.end(swap)


def _advance(work: Work, most_bytes: int) -> tuple[int, bool]:
    """So many bytes of the work, and whether it is over; on a thread."""
    done = 0
    for step in work:
        done += step
        if done >= most_bytes:
            return done, False
    return done, True


def _memory(size: int) -> mmap.mmap:
    """Zeros, of which what is not touched costs nothing. `StorageError` where there are none."""
    try:
        return mmap.mmap(-1, size)
    except OSError as e:
        raise StorageError(f"no memory for the keys of a log, {size} bytes: {e}") from e


def _last_batches(producers: Mapping[int, ProducerEntry]) -> LastBatches:
    return LastBatches({pid: (entry.last_offset, entry.epoch) for pid, entry in producers.items()})


def facts_of(segments: Sequence[Segment]) -> list[plan.SegmentFacts]:
    """What the plan asks of each segment."""
    return [
        plan.SegmentFacts(
            segment.base_offset,
            segment.size,
            segment.offset_index.size,
            segment.time_index.size,
            partial(getattr, segment, "largest_timestamp"),
            partial(getattr, segment, "first_timestamp"),
        )
        for segment in segments
    ]
