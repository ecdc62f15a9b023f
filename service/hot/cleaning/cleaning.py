"""One compaction of one log, from the map of its keys to the last segment that is replaced.

Owned by the loop; `log-cleaner` threads read and write a few megabytes at a time, and never sleep: throttling
is done here. Their low priority leaves the processor to threads that serve clients. `log-io` threads replace
segments, as the log may have to wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.files import FsyncFailed
from service.base.world import World
from service.hot.cleaning import plan
from service.hot.cleaning.copying import BufferSizes, CleaningCounts, GroupCopy, Steps, map_keys
from service.hot.cleaning.swap import Swap, discard
from service.hot.cleaning.transactions import CleanedTransactions
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.producers import ProducerEntry
from service.hot.segment import Segment
from service.records.compaction import CopyRules, LastBatches
from service.records.key_map import KeyMap, memory_for

_log = logging.getLogger(__name__)

_STEP_BYTES: Final = 4 << 20
_STEP_S: Final = 0.3
"""Length of a step under throttling."""
_LEAST_WAIT_S: Final = 0.001
_LOOK_S: Final = 1.0
"""Interval at which a changed rate is noticed."""
_LEAST_BUFFER: Final = 16 << 10
_MOST_MAP_BYTES: Final = 2**31 - 1
_MOST_RATE: Final = 2.0**62
_SECRET_BYTES: Final = 16


class CleanerSettings(NamedTuple):
    """The keys under ``log.cleaner.``; buffers are for all compactions together, in bytes."""

    is_enabled: bool = True
    threads: int = 1
    dedupe_bytes: int = 128 << 20
    buffer_bytes: int = 512 << 10
    load_factor: float = 0.9
    max_bytes_per_second: float = 1e300
    backoff_ms: int = 15_000


class Aborted(Exception):
    """The log is being deleted, is not compacted any more, or has changed meanwhile."""


class Throttle:
    """Limits what all compactions together read and write. Owned by the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0.0
        """bytes that were done in advance of the rate"""
        self._charged_ms = clock.monotonic_ms()

    def charge(self, done: int, bytes_per_second: float) -> float:
        """Count `done` bytes; returns how long (s) to wait now at this rate."""
        now_ms = self._clock.monotonic_ms()
        made_up = (now_ms - self._charged_ms) / 1000 * bytes_per_second
        self._ahead = max(self._ahead - made_up, 0.0) + done
        self._charged_ms = now_ms
        return self._ahead / bytes_per_second


class Cleaning:
    """One compaction. Set ``aborted`` to end it; ``over`` is set at its end; ``counts`` are its counters."""

    def __init__(
        self,
        log: LocalLog,
        io: LogIo,
        cleaner_io: LogIo,
        world: World,
        settings: Callable[[], CleanerSettings],
        throttle: Throttle,
        is_in_use: Callable[[LocalLog], bool],
    ) -> None:
        self.log = log
        self.aborted = asyncio.Event()
        self.over = asyncio.Event()
        self.counts = CleaningCounts()
        self._io = io
        self._cleaner_io = cleaner_io
        self._world = world
        self._settings = settings
        self._throttle = throttle
        self._is_in_use = is_in_use
        self._segments: list[Segment] = []
        self._truncations = log.state.truncations

    @property
    def is_outdated(self) -> bool:
        """Return whether the log was truncated meanwhile, or lost segments that were to be compacted."""
        there = set(self.log.state.segments.all)
        return self._is_cut or any(segment not in there for segment in self._segments)

    @property
    def _is_cut(self) -> bool:
        return self.log.state.truncations != self._truncations

    async def run(self, dirt: plan.DirtyLog) -> tuple[int, float]:
        """Compact the log; returns the end of the clean part, and the used share of the memory for keys.

        `Aborted`; `CorruptionError` if the log is damaged, `StorageError`.
        """
        log, settings = self.log, self._settings()
        threads = max(settings.threads, 1)
        buffer = max(settings.buffer_bytes // threads // 2, _LEAST_BUFFER)
        sizes = BufferSizes(buffer, buffer)
        self._truncations = log.state.truncations
        self._segments = all_now = list(log.state.segments.all)
        bases = [segment.base_offset for segment in all_now]
        first = max((n for n, base in enumerate(bases) if base <= dirt.first_dirty), default=0)
        end = bases.index(dirt.first_uncleanable)
        most = min(settings.dedupe_bytes // threads, _MOST_MAP_BYTES)
        memory = _memory(memory_for(dirt.first_uncleanable - dirt.first_dirty, most, settings.load_factor))
        secret = self._world.random.randbytes(_SECRET_BYTES)
        keys = KeyMap(memoryview(memory), secret, settings.load_factor)
        work = map_keys(
            all_now[first:end], all_now[end:], dirt.first_dirty, dirt.first_uncleanable, keys, sizes
        )
        try:
            await self._drive(work)
            end_offset, utilization = await self._copy(keys, sizes), keys.utilization
        except asyncio.CancelledError:
            raise  # the node ends, and a thread may be at it still
        except BaseException:
            await self._cleaner_io.run(_free, keys, memory)
            raise
        await self._cleaner_io.run(_free, keys, memory)
        return end_offset, utilization

    async def _copy(self, keys: KeyMap, sizes: BufferSizes) -> int:
        """Copy and replace the segments whose keys are in the map; returns the end of the compacted part."""
        log, all_now = self.log, self._segments
        end_offset = keys.latest + 1
        config, now_ms = log.config, self._world.clock.now_ms()
        fates = CleanedTransactions()
        groups = plan.segment_groups(all_now, end_offset, config.segment_bytes, config.segment_index_bytes)
        for group in groups:
            rules = CopyRules(now_ms, config.delete_retention_ms, group.end_offset)
            last = await self._io.run(_last_batches, log.producers.freeze())
            old, following = all_now[group.first : group.last + 1], all_now[group.last + 1 :]
            copy = GroupCopy(log.state, old, following, rules, keys, fates, last, sizes, self.counts)
            await self._drive(copy.run())
            await self._swap(copy)
            self._segments = all_now[group.last + 1 :]
        if self._is_cut:
            raise Aborted
        log.state.cleaned_offset = end_offset
        return end_offset

    def _check(self) -> None:
        """Raise `Aborted` or `LogOffline` if the log must not be touched any more."""
        if self.aborted.is_set() or not self._is_in_use(self.log) or self._is_cut:
            raise Aborted
        self.log.check()

    async def _drive(self, work: Steps) -> None:
        """Run `work` step by step; undo it if it does not end."""
        try:
            while True:
                self._check()
                rate = self._settings().max_bytes_per_second
                step = max(min(_STEP_BYTES, int(min(rate * _STEP_S, _MOST_RATE))), 1)
                done, is_over = await self._cleaner_io.run(_advance, work, step)
                await self._wait(done, rate)
                if is_over:
                    return
        except asyncio.CancelledError:
            raise  # the node ends: the next start removes what is there
        except BaseException:
            await self._cleaner_io.run(work.close)
            raise

    async def _wait(self, done: int, rate: float) -> None:
        wait_s = self._throttle.charge(done, rate)
        while wait_s >= _LEAST_WAIT_S and not self.aborted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, _LOOK_S)):
                    await self.aborted.wait()
            wait_s = self._throttle.charge(0, self._settings().max_bytes_per_second)

    async def _swap(self, copy: GroupCopy) -> None:
        log, new = self.log, copy.new
        assert new is not None
        swap: Swap | None = None
        if not self.aborted.is_set() and self._is_in_use(log):
            swap = log.swapping.begin(copy.old, new)
        if swap is None:  # the log has changed: the copy is useless
            new.close()
            await self._io.run(discard, log.state.disk, new.log.path.with_suffix(""))
            raise Aborted
        try:
            await self._io.run(swap.run)
        except FsyncFailed as e:
            log.latch.fail(e)
        except StorageError as e:
            _log.warning("%s: %s", log.tip, e)  # `end` handles it
        log.swapping.end(swap)


def _advance(work: Steps, most_bytes: int) -> tuple[int, bool]:
    """Do `most_bytes` bytes of the work, on a thread; returns the bytes done, and whether it is over."""
    done = 0
    for step in work:
        done += step
        if done >= most_bytes:
            return done, False
    return done, True


def _memory(size: int) -> mmap.mmap:
    """Map zeroed memory; untouched pages cost nothing. `StorageError` if there is none."""
    try:
        return mmap.mmap(-1, size)
    except OSError as e:
        raise StorageError(f"no memory for the keys of a log, {size} bytes: {e}") from e


def _free(keys: KeyMap, memory: mmap.mmap) -> None:
    """Unmap the memory, on a thread: that takes 30 ms for 128 MB, which the loop would wait for otherwise."""
    keys.release()
    memory.close()


def _last_batches(producers: Mapping[int, ProducerEntry]) -> LastBatches:
    return LastBatches({pid: (entry.last_offset, entry.epoch) for pid, entry in producers.items()})
