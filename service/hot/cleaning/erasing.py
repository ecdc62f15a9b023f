"""One erasure in one log: its active segment is sealed, segments with a hit are replaced, the log notes it.

The order's end must be below what is stable and replicated: nothing below it changes any more, unless the log
is truncated; then the erasure is aborted, and begins again later. A segment without a hit is read once and
stays. A crash leaves segments that are done and others: the next run finds no hit in the former.

The log notes the order once the files of all segments that it has no more are deleted: those that were
replaced, and those that retention took before. They do not wait for ``file.delete.delay.ms``; slices that are
being sent hold them open. Owned by the loop; see `log_rewrite` for its threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError, StorageError
from service.base.types import NO_LEADER_EPOCH
from service.base.world import World
from service.hot import names
from service.hot.cleaning.erasure_copy import ErasureCopy, HitSearch
from service.hot.cleaning.log_rewrite import Aborted, CleanerSettings, LogRewrite, Throttle
from service.hot.erased_orders import ErasedLine
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.segment import Segment
from service.records.erasure import ErasureKeys

_DELETION_MS: Final = 60_000
"""Longest wait for the deletion of files; then the erasure fails, and begins again later."""
_LOOK_S: Final = 0.05


class LocalErasure(NamedTuple):
    """An order as one log carries it out: its keys, and the end below which their records go.

    `leader_epoch`: the order goes on beyond that end in records of epochs up to this one, of which the log
    has none; -1 where it does not.
    """

    order_id: UUID
    keys: ErasureKeys
    end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH


class Erasing(LogRewrite):
    """One erasure. ``segments``: how many were replaced."""

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
        self.segments = 0
        self._is_wanted: Callable[[], bool] = lambda: True

    def _check(self) -> None:
        super()._check()
        if not self._is_wanted():
            raise Aborted

    async def run(
        self,
        order: LocalErasure,
        orders: Callable[[], Collection[UUID]],
        flush: Callable[[LocalLog], Awaitable[None]],
        delete_queued: Callable[[LocalLog], None],
    ) -> None:
        """Carry out the order, and note it in the log's file. `orders` returns those that are there now: once
        the order is none of them, as it was cancelled, no other segment is changed. The file keeps the lines
        of these alone. `delete_queued` has the files in the log's deletion queue deleted soon.

        `Aborted`; `CorruptionError` if the log is damaged, `StorageError`. Each leaves a sound log; the next
        run goes on.
        """
        log, state, end = self.log, self.log.state, order.end_offset
        self._is_wanted = lambda: order.order_id in orders()
        self._truncations, cuts = state.truncations, state.erased.cuts
        self._check()
        if end > log.recovery_point:
            await flush(log)
            self._check()
        if log.active_base_offset < end:
            log.appender.roll()
        sealed = self._sealed_below(end)
        if sealed and log.recovery_point < sealed[-1][1]:
            await flush(log)
        damage = await self._erase_all(sealed, order)
        if damage is not None:
            raise damage
        await self._wait_for_deletions(end, delete_queued)
        line = ErasedLine(end, order.leader_epoch)
        if not await self._io.run(state.erased.add, order.order_id, line, orders(), cuts):
            raise Aborted

    def _sealed_below(self, end: int) -> list[tuple[Segment, int]]:
        """Return the sealed segments that begin below `end`, with their ends. Also those below the log's
        start: their bytes are on the disk."""
        segments = self.log.state.segments
        pairs = zip(segments.all[:-1], segments.bases[1:], strict=True)
        return [(one, after) for one, after in pairs if one.base_offset < end and one.size]

    async def _erase_all(
        self, sealed: Iterable[tuple[Segment, int]], order: LocalErasure
    ) -> CorruptionError | None:
        """Replace the segments with a hit; return the first damage: a damaged segment stays as it is, and
        keeps the records in no other."""
        damage: CorruptionError | None = None
        for segment, segment_end in sealed:
            try:
                if segment in self.log.state.segments.all and await self._has_hit(segment, order):
                    await self._erase(segment, segment_end, order)
            except CorruptionError as e:
                damage = damage or e
        return damage

    async def _has_hit(self, segment: Segment, order: LocalErasure) -> bool:
        search = HitSearch(segment, order.keys, order.end_offset, self._sizes(), self.counts)
        await self._drive(search.run())
        return search.is_hit

    async def _erase(self, segment: Segment, segment_end: int, order: LocalErasure) -> None:
        copy = ErasureCopy(
            self.log.state, segment, segment_end, order.keys, order.end_offset, self._sizes(), self.counts
        )
        await self._drive(copy.run())
        await self._swap(copy, leaves_gaps=False)
        self.segments += 1

    async def _wait_for_deletions(self, end: int, delete_queued: Callable[[LocalLog], None]) -> None:
        """Return once the log's directory has no file of a segment below `end` but those of the log."""
        log, clock = self.log, self._world.clock
        until_ms = clock.monotonic_ms() + _DELETION_MS
        while True:
            found = await self._io.run(_log_files, log.state.disk, log.dir)
            self._check()
            bases = frozenset(log.state.segments.bases)
            left = [name for base, name in found if base < end and name != _name(base, bases)]
            if not left:
                return
            if clock.monotonic_ms() >= until_ms:
                raise StorageError(f"{len(left)} files are not deleted yet, such as {left[0]}")
            delete_queued(log)
            await asyncio.sleep(_LOOK_S)


def _name(base_offset: int, bases: Collection[int]) -> str | None:
    """Return the name of the log file of a segment; None where the log has no such segment."""
    return names.offset_file(base_offset, names.LOG) if base_offset in bases else None


def _log_files(disk: Disk, directory: Path) -> list[tuple[int, str]]:
    """Return the files with batches in a log's directory, with their first offsets, those included that wait
    for their deletion. Blocks."""
    found = []
    for entry in disk.list(directory):
        parsed = names.parse_offset_file(entry.name.removesuffix(names.DELETED))
        if parsed is not None and parsed[1] == names.LOG:
            found.append((parsed[0], entry.name))
    return found
