"""Save what the archive lacks of the partitions that one broker leads, up to their ends at a cut.

One tail at level 0 a cut, and with each 64th one at level 1. Records come from the local logs, on `offload`
threads, within the quota of copies: tails go first. What a tail does not take goes with the next cut, the
oldest first. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.rate import Rate
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.remote.catalog import CatalogEntry, LoadedCut
from service.remote.format.cut_codec import Place, TailRef
from service.remote.stores.errors import ObjectNotFound
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.newest_document import NO_DOCUMENT, NewestDocument, read_newest
from service.tiering.cuts.saved_progress import SavedProgress, TailProgress
from service.tiering.cuts.saving_plan import (
    Growth,
    Saved,
    adopted,
    is_always_tailed,
    section_of,
    waits_for_segment,
)
from service.tiering.cuts.tail_writer import LaidOut, TailIdentity, Wanted, lay_out, upload
from service.tiering.ports import SegmentRun

log = logging.getLogger(__name__)

HIGH_EVERY: Final = 64
"""Cuts of which one is saved at level 1, too."""
_NEVER_MS: Final = 1 << 53
_OF_BEFORE: Final = "its disk is from before an order to erase keys, which is carried out again"


class TailSettings(NamedTuple):
    """``firn.tail.base.max.bytes`` and ``firn.tail.wait.ms``."""

    base_max_bytes: int = 1 << 30
    wait_ms: int = 30_000


class TailedRuns(Protocol):
    """Segments of a log, as `hot.log_runs.LogRuns`."""

    @property
    def bytes_written(self) -> int: ...
    @property
    def left_bytes(self) -> int: ...
    @property
    def cleaned_end(self) -> int: ...
    def runs_from(self, offset: int, /) -> Sequence[SegmentRun]: ...
    def bytes_from(self, offset: int, /) -> int: ...
    def left_ms(self, now_ms: int, /) -> int: ...


class KnownEpochs(Protocol):
    """Leader epochs of a log."""

    def epoch_at(self, offset: int, /) -> int:
        """Return the epoch of the record at `offset`; -1 if it is unknown."""


class TailedLog(Protocol):
    """Local tier of one partition."""

    @property
    def runs(self) -> TailedRuns: ...
    @property
    def epochs(self) -> KnownEpochs: ...
    @property
    def local_log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def has_erased_records(self) -> Callable[[], bool]:
        """Tells whether its disk is from before an order of erasure that is done."""


class PartOfArchive(Protocol):
    """Archive of one partition."""

    @property
    def loaded(self) -> LoadedCut | None:
        """Records that a restore has loaded into its log, from the tails of a cut."""


class TailedPartition(Protocol):
    """One partition that this broker leads."""

    is_leader: bool

    @property
    def tip(self) -> TopicIdPartition: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def log(self) -> TailedLog: ...
    @property
    def archive(self) -> PartOfArchive: ...
    @property
    def config(self) -> LogConfig: ...


class TakenEnd(NamedTuple):
    """End of a partition at a cut, in this leader epoch."""

    partition: TailedPartition
    leader_epoch: int
    end: int

    @property
    def place(self) -> Place:
        """Topic id and partition."""
        return self.partition.tip.topic_id, self.partition.tip.partition

    @property
    def is_current(self) -> bool:
        """True while this broker leads the partition in that epoch: until then its log is not truncated."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch


class Standing(NamedTuple):
    """Records of a partition that tails and chain have; `waits`: for the segment that will have the rest;
    `is_tailed`: what chain and tails lack will be saved."""

    saved: Saved
    waits: bool
    is_tailed: bool


class SavedTails(NamedTuple):
    """Tails that no cut names yet, and how each partition stands once one does."""

    tails: Sequence[TailRef]
    standings: Mapping[Place, Standing]


class LostTails(NamedTuple):
    """A partition of which tails are gone or damaged: chain and tails have what lies below `reaches`."""

    place: Place
    leader_epoch: int
    reaches: int


class _Save(NamedTuple):
    """One save: the attempt, the number of its cut, the ends of partitions, and when it began."""

    attempt_id: UUID
    cut: int
    taken: Mapping[Place, TakenEnd]
    began_ms: int


def no_orders() -> Steps[frozenset[UUID]]:
    """Return no orders of erasure."""
    yield
    return frozenset()


class TailSaver:
    """Tails of one broker."""

    def __init__(
        self,
        context: TieringContext,
        node_id: int,
        settings: Callable[[], TailSettings],
        rate: Rate,
    ) -> None:
        """`rate`: of what tails have spent of the quota of copies."""
        self._context = context
        self._node_id = node_id
        self._settings = settings
        self._rate = rate
        self._metrics = context.metrics.cuts
        self._progress = SavedProgress()
        self.erased: Callable[[], Steps[frozenset[UUID]]] = no_orders
        """finds the orders of erasure that were carried out in all logs"""
        self._document = NO_DOCUMENT
        self._saving = asyncio.Lock()
        self._cuts_written = 0
        """cuts with a tail since the last at level 1"""
        self._unreadable: set[Place] = set()

    def standing(self, place: Place, leader_epoch: int) -> Standing | None:
        """Return how a partition stands before it is saved; None where that is not known yet."""
        progress = self._progress.partitions.get(place)
        if progress is None or progress.leader_epoch != leader_epoch:
            return None
        return Standing(progress.saved, waits=False, is_tailed=True)

    async def save(
        self,
        attempt_id: UUID,
        newest_id: UUID | None,
        cut: int,
        taken: Mapping[Place, TakenEnd],
        lost: Iterable[LostTails] = (),
    ) -> SavedTails:
        """Upload what chains and tails lack of `taken`, as far as one tail of each level has room.
        `newest_id` is that of the newest cut's document, None without one; of it some tails may be `lost`.

        Raises `NotNamed` or `Displaced` where this broker may not write to the bucket, `CorruptionError` and
        `StorageError`: what was uploaded before is reported with the next attempt.
        """
        async with self._saving:
            context, piece = self._context, Slice()
            await context.fence.check(context.settings.fence_age_ms)
            save = _Save(attempt_id, cut, taken, context.clock.monotonic_ms())
            await piece.go_on(self._progress.begun(newest_id, cut))
            await piece.go_on(self._progress.keep(taken))
            await self._adopt(newest_id, taken, piece)
            await piece.go_on(self._renew(newest_id, lost))
            orders = await piece.go_on(self.erased())
            standings = await piece.go_on(self._plan(save, orders))
            is_written = await self._save_level(save, standings, piece, is_high=True)
            is_written |= await self._save_level(save, standings, piece, is_high=False)
            self._cuts_written += is_written
            await piece.go_on(self._settle(save, standings))
            await piece.go_on(self._progress.reported(attempt_id, cut))
            return SavedTails(self._progress.pending, standings)

    # -- what tails have of partitions that this broker leads since

    async def _adopt(self, newest_id: UUID | None, taken: Mapping[Place, TakenEnd], piece: Slice) -> None:
        strangers = [one for one in taken.values() if self.standing(one.place, one.leader_epoch) is None]
        document = NO_DOCUMENT
        if newest_id is not None and any(one.leader_epoch > 0 for one in strangers):
            document = await self._newest()
        now_ms = self._context.clock.monotonic_ms()
        for one in strangers:
            if piece.is_over():
                await piece.next_turn()
            self._progress.partitions[one.place] = self._adopted(one, newest_id, document, now_ms)

    async def _newest(self) -> NewestDocument:
        """Return the newest cut's document; an empty one, and so all is saved anew, where it is damaged."""
        context = self._context
        try:
            return await context.pool.run(read_newest, context.store, context.cluster_id)
        except (CorruptionError, ObjectNotFound) as e:
            log.warning("what earlier leaders have saved of this broker's partitions is saved again: %s", e)
            return NO_DOCUMENT

    def _adopted(
        self, one: TakenEnd, newest_id: UUID | None, document: NewestDocument, now_ms: int
    ) -> TailProgress:
        local, row, loaded = one.partition.log, document.row(*one.place), one.partition.archive.loaded
        chain_end = self._chain_end(one.place)
        saved = Saved(chain_end, chain_end, -1)
        if loaded is not None and loaded.cut_id == newest_id:
            last_epoch = local.epochs.epoch_at(loaded.end_offset - 1)
            saved = Saved(loaded.end_offset, chain_end, last_epoch).behind(chain_end)
        elif row is not None:
            known = local.epochs.epoch_at(row.saved - 1) if row.saved else -1
            told = Saved(row.saved, row.saved_high, row.last_epoch)
            saved = adopted(told, None if known < 0 else known, chain_end, local.log_end_offset)
        live_bytes = local.size if saved.low > local.local_log_start_offset else 0
        high_tails = document.high_tails if saved.high > chain_end else 0
        growth = Growth(now_ms, local.runs.bytes_written)
        return TailProgress(one.leader_epoch, saved, live_bytes, growth, high_tails)

    def _renew(self, newest_id: UUID | None, lost: Iterable[LostTails]) -> Steps[None]:
        """Have partitions saved again of which the newest cut has less than it says."""
        for one in lost:
            yield
            progress = self._progress.partitions.get(one.place)
            if progress is None or progress.leader_epoch != one.leader_epoch:
                continue
            before = progress.saved
            progress.lost(newest_id, one.reaches, self._chain_end(one.place))
            if progress.saved != before:
                log.warning(
                    "partition %d of topic %s is saved again from its start, or its chain's end: tails with "
                    "its records from offset %d on are gone or damaged",
                    *(one.place[1], one.place[0], one.reaches),
                )

    def _chain_end(self, place: Place) -> int:
        entry: CatalogEntry | None = self._context.catalog.entry(*place)
        return 0 if entry is None else entry.end_offset

    # -- plan

    def _plan(self, save: _Save, orders: frozenset[UUID]) -> Steps[dict[Place, Standing]]:
        """Decide which partitions are tailed, and which wait for their segment; return how each stands."""
        standings: dict[Place, Standing] = {}
        is_high = self._cuts_written >= HIGH_EVERY - 1
        if is_high:
            self._cuts_written = -1
        before, self._metrics.left_out = self._metrics.left_out, {}
        now_ms = self._context.clock.monotonic_ms()
        for place, one in save.taken.items():
            yield
            progress = self._progress.partitions[place]
            config = one.partition.config
            if config.is_compacted:
                cleaned_end = one.partition.log.runs.cleaned_end
                progress.compacted(cleaned_end, config.delete_retention_ms, now_ms)
            progress.erasures_over(orders)
            saved = progress.saved.behind(self._chain_end(place))
            progress.wants_high |= is_high
            why_not = self._why_left_out(one)
            if why_not is not None:
                standings[place] = Standing(saved, waits=False, is_tailed=False)
                if why_not:
                    self._metrics.left_out[one.partition.tip] = why_not
                    if one.partition.tip not in before:
                        log.warning("%s is not saved in the bucket: %s", one.partition.tip, why_not)
                continue
            waits = saved.low < one.end and self._waits(one, progress, saved)
            standings[place] = Standing(saved, waits, is_tailed=True)
        return standings

    def _why_left_out(self, one: TakenEnd) -> str | None:
        """Return why the partition is not tailed, "" where its topic does not want it; None where it is."""
        config, topic = one.partition.config, one.partition.tip.topic
        is_enabled, is_tiered = config.tail_enable, config.remote_storage_enable
        if is_always_tailed(topic, is_enabled=is_enabled, is_tiered=is_tiered):
            return None
        if not is_enabled:
            return ""
        size, most = one.partition.log.size, self._settings().base_max_bytes
        if size <= most:
            return None
        return f"its log has {size} bytes, and firn.tail.base.max.bytes is {most}"

    def _waits(self, one: TakenEnd, progress: TailProgress, saved: Saved) -> bool:
        """Return whether the segment with the partition's end comes soon, and the copier is not behind."""
        context, config, runs = self._context, one.partition.config, one.partition.log.runs
        now_ms, wall_ms, wait_ms = (
            context.clock.monotonic_ms(),
            context.clock.now_ms(),
            self._settings().wait_ms,
        )
        written = runs.bytes_written
        progress.growth.note(now_ms, written)
        rate = progress.growth.bytes_per_ms(now_ms, written)
        if progress.lacks(saved.low, one.end, now_ms) >= wait_ms:
            return False
        tip = one.partition.tip
        sealed_ms = context.metrics.waiting.get(tip)
        if context.metrics.why(tip) is not None or (sealed_ms is not None and wall_ms - sealed_ms >= wait_ms):
            return False
        return waits_for_segment(
            is_tiered=config.remote_storage_enable and not config.remote_log_copy_disable,
            left_bytes=runs.left_bytes,
            left_ms=runs.left_ms(wall_ms) if rate > 0 else _NEVER_MS,
            bytes_per_ms=rate,
            wait_ms=wait_ms,
        )

    def _wanted(
        self, save: _Save, standings: Mapping[Place, Standing], *, is_high: bool
    ) -> Steps[list[Wanted]]:
        """Choose what is to be saved at one level, the oldest first."""
        found: list[tuple[int, Wanted]] = []
        now_ms = self._context.clock.monotonic_ms()
        for place, standing in standings.items():
            yield
            one, progress = save.taken[place], self._progress.partitions[place]
            if not standing.is_tailed or standing.waits or not one.is_current:
                continue
            if one.partition.log.has_erased_records():
                self._metrics.left_out[one.partition.tip] = _OF_BEFORE
                continue
            if is_high and not progress.wants_high:
                continue
            local, chain_end = one.partition.log, self._chain_end(place)
            start = max(chain_end, local.local_log_start_offset)
            if is_high:
                is_tiered = one.partition.config.remote_storage_enable
                progress.begin_high(chain_end, local.runs.bytes_from(start), is_tiered=is_tiered)
            section = section_of(progress.saved, start, one.end, is_high=is_high)
            if section is None:
                continue
            since_ms = now_ms if progress.lacks_since_ms is None else progress.lacks_since_ms
            runs = local.runs.runs_from(section.first)
            found.append((since_ms, Wanted(place, one.leader_epoch, section.first, one.end, runs)))
        found.sort(key=lambda row: row[0])
        return [wanted for _, wanted in found]

    # -- upload

    async def _save_level(
        self, save: _Save, standings: Mapping[Place, Standing], piece: Slice, *, is_high: bool
    ) -> bool:
        """Save what is wanted at one level; return whether a tail was written."""
        wanted = await piece.go_on(self._wanted(save, standings, is_high=is_high))
        return bool(wanted) and await self._write(save, wanted, piece, is_high=is_high)

    async def _write(
        self,
        save: _Save,
        wanted: Sequence[Wanted],
        piece: Slice,
        *,
        is_high: bool,
    ) -> bool:
        """Upload one tail with as much of `wanted` as fits. Returns whether one was written."""
        context = self._context
        budget = self._rate.room(context.clock.monotonic_ms())
        if is_high:
            budget //= 2  # the rest is for records that are nowhere yet
        if budget <= 0:
            return False
        laid_out = await context.pool.watch(partial(lay_out, wanted, budget))
        for place, error in laid_out.failed:
            self._note_unreadable(save.taken[place], error)
        sections: list[LaidOut] = []
        for one in laid_out.sections:
            if piece.is_over():
                await piece.next_turn()
            if save.taken[one.place].is_current:
                sections.append(one)
        if not sections:
            return False
        identity = TailIdentity(context.cluster_id, save.cut, int(is_high), self._node_id, context.new_uuid())
        size = sum(one.facts.length for one in sections)
        for rate in (self._rate, context.copy_rate):
            rate.spend(size, context.clock.monotonic_ms())
        ref, placed = await context.pool.watch(
            partial(upload, context.store, identity, sections, context.stamps())
        )
        await piece.go_on(self._progress.written(save.attempt_id, save.cut, ref, placed, is_high=is_high))
        self._metrics.tails_written += 1
        self._metrics.tail_bytes += ref.size
        return True

    def _note_unreadable(self, one: TakenEnd, error: Exception) -> None:
        self._metrics.left_out[one.partition.tip] = str(error)
        if one.place not in self._unreadable:
            self._unreadable.add(one.place)
            log.warning("%s is not saved in the bucket: %s", one.partition.tip, error)

    def _settle(self, save: _Save, standings: dict[Place, Standing]) -> Steps[None]:
        """Note how far each partition is saved, and how much is lacking in all."""
        lag = 0
        now_ms = self._context.clock.monotonic_ms()
        for place, before in standings.items():
            yield
            one, progress = save.taken[place], self._progress.partitions[place]
            chain_end = self._chain_end(place)
            saved = progress.saved.behind(chain_end)
            standings[place] = before._replace(saved=saved)
            progress.whole_until(one.end, chain_end, save.began_ms)
            if before.is_tailed:
                progress.lacks(saved.low, one.end, now_ms)
            if before.is_tailed and saved.low < one.end:
                lag += one.partition.log.runs.bytes_from(saved.low)
            else:
                self._unreadable.discard(place)
        self._metrics.lag_bytes = lag
