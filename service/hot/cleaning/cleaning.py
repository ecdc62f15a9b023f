"""One compaction of one log, from the map of its keys to the last segment that is replaced.

Owned by the loop; see `log_rewrite` for its threads.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Mapping
from typing import Final

from service.base.errors import StorageError
from service.base.world import World
from service.hot.cleaning import plan
from service.hot.cleaning.copying import GroupCopy, map_keys
from service.hot.cleaning.log_rewrite import Aborted, CleanerSettings, LogRewrite, Throttle
from service.hot.cleaning.segment_copy import BufferSizes
from service.hot.cleaning.transactions import CleanedTransactions
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.producers import ProducerEntry
from service.hot.segment import Segment
from service.records.compaction import CopyRules, LastBatches
from service.records.key_map import KeyMap, memory_for

_MOST_MAP_BYTES: Final = 2**31 - 1
_SECRET_BYTES: Final = 16


class Cleaning(LogRewrite):
    """One compaction."""

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
        super().__init__(log, io, cleaner_io, world, settings, throttle, is_in_use)
        self._segments: list[Segment] = []

    @property
    def is_outdated(self) -> bool:
        """Return whether the log was truncated meanwhile, or lost segments that were to be compacted."""
        there = set(self.log.state.segments.all)
        return self.is_cut or any(segment not in there for segment in self._segments)

    async def run(self, dirt: plan.DirtyLog) -> tuple[int, float]:
        """Compact the log; returns the end of the clean part, and the used share of the memory for keys.

        `Aborted`; `CorruptionError` if the log is damaged, `StorageError`.
        """
        log, settings = self.log, self._settings()
        threads = max(settings.threads, 1)
        sizes = self._sizes()
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
            await self._swap(copy, leaves_gaps=True)
            self._segments = all_now[group.last + 1 :]
        if self.is_cut:
            raise Aborted
        log.state.cleaned_offset = end_offset
        return end_offset


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
