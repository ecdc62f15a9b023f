"""Merge small objects of the partitions that this node leads: which partition is looked at, and when.

Once per `interval_ms` the loop goes through the partitions that it leads, a slice at a time. A chain is read
only when its last look says that there may be a run: entries that are new since are young, so a chain without
one is not looked at before they can be old enough. Pages that have no run, and none that ripens, are not read
again. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import SegmentEntry
from service.tiering import next_version
from service.tiering.archive_attempt import TieringContext
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import TieredPartition
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.rewriting.chain_units import units_from
from service.tiering.rewriting.merge_plan import MIN_RUN, MergeLimits, find_run
from service.tiering.rewriting.rewriter import RewriteOutcome, Rewriter
from service.tiering.rewriting.rules import MergeRule
from service.tiering.rewriting.silent_intents import SilentIntents

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

_RETRY_MS: Final = 60_000
"""Time after which a partition is looked at again whose merge has failed."""


class _Look(NamedTuple):
    """Result of a look at one chain: the first and last offset of a run; without one, when to look again.

    Below `clean_below` no run can come to be with these `limits`.
    """

    run: tuple[int, int] | None
    due_ms: int
    clean_below: int
    limits: MergeLimits


class Merger:
    """The loop. `limits` returns None where nothing is merged: the cluster does not know rewrites."""

    def __init__(
        self,
        context: TieringContext,
        pool: OffloadPool,
        rewriter: Rewriter,
        partitions: Callable[[], Iterable[TieredPartition]],
        limits: Callable[[], MergeLimits | None],
        silent: SilentIntents,
    ) -> None:
        self._context = context
        self._clock: Clock = context.clock
        self._pool = pool
        self._rewriter = rewriter
        self._partitions = partitions
        self._limits = limits
        self._silent = silent
        self._looks: dict[Key, _Look] = {}

    async def run(self) -> None:
        """Merge until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.interval_ms / 1000)
            await self.run_once()

    async def run_once(self) -> None:
        """Go through all partitions once, and merge what there is."""
        limits = self._limits()
        if limits is None or not self._context.fence.may_write:
            return
        piece, led, ready = Slice(), set[Key](), list[TieredPartition]()
        for partition in self._partitions():
            key = partition.tip.topic_id, partition.tip.partition
            led.add(key)
            self._silent.note(partition.tip, partition.leader_epoch)
            if self._may_have_run(key, partition, limits):
                ready.append(partition)
            if piece.is_over():
                await piece.next_turn()
        self._looks = {key: look for key, look in self._looks.items() if key in led}
        await self._silent.give_up(led)
        for partition in ready:
            await self._merge_all(partition, limits)

    def _may_have_run(self, key: Key, partition: TieredPartition, limits: MergeLimits) -> bool:
        entry = self._context.catalog.entry(*key)
        config, look = partition.config, self._looks.get(key)
        if entry is None or entry.segments < MIN_RUN or not config.remote_storage_enable:
            return False
        if not config.merge_enable or self._context.catalog.rewrite(*key) is not None:
            return False
        return look is None or look.limits != limits or look.due_ms <= self._clock.now_ms()

    def _has_open_erasure(self, topic_id: UUID) -> bool:
        orders = self._context.catalog.erasures().values()
        return any(order.is_open and topic_id in order.topics for order in orders)

    async def _merge_all(self, partition: TieredPartition, limits: MergeLimits) -> None:
        """Merge the runs of one partition, one after the other. What fails is looked at again later."""
        tip = partition.tip
        key = tip.topic_id, tip.partition
        while self._may_have_run(key, partition, limits) and not self._has_open_erasure(tip.topic_id):
            entry = self._context.catalog.entry(*key)
            assert entry is not None
            try:
                look = await self._pool.run(self._look, tip, entry, limits, self._looks.get(key))
                self._looks[key] = look
                if look.run is None:
                    return
                outcome = await self._rewriter.rewrite(*key, *look.run, MergeRule())
            except (Displaced, NotNamed):
                return
            except (StorageError, CorruptionError, RequestError) as e:
                log.warning("%s: small objects are not merged for now: %s", tip, e)
                self._put_off(key, limits)
                return
            if outcome is not RewriteOutcome.DONE:
                self._put_off(key, limits)
                return

    def _put_off(self, key: Key, limits: MergeLimits) -> None:
        before = self._looks.get(key)
        clean_below = before.clean_below if before is not None and before.limits == limits else 0
        self._looks[key] = _Look(None, self._clock.now_ms() + _RETRY_MS, clean_below, limits)

    def _look(
        self, tip: TopicIdPartition, entry: CatalogEntry, limits: MergeLimits, before: _Look | None
    ) -> _Look:
        """Read the chain from where runs may be; return the first. Runs on a `rewrite` thread."""
        context, now_ms = self._context, self._clock.now_ms()
        manifest = next_version.load(context.chains, tip, entry).manifest
        clean_below = before.clean_below if before is not None and before.limits == limits else 0
        clean_below, is_clean = max(clean_below, manifest.start_offset), True
        ripe: list[int] = [now_ms + limits.min_age_ms]
        for unit in units_from(manifest, context.chains.loader(tip), clean_below):
            found = find_run(unit.entries, limits, now_ms, self._uploaded_at_ms, manifest.start_offset)
            if found.run:
                run = found.run[0].base_offset, found.run[-1].last_offset
                return _Look(run, 0, clean_below, limits)
            if found.ripe_ms is not None:
                ripe.append(found.ripe_ms)
            is_clean = is_clean and unit.is_page and found.ripe_ms is None
            if is_clean:
                clean_below = unit.entries[-1].last_offset + 1
        return _Look(None, max(min(ripe), now_ms + 1), clean_below, limits)

    def _uploaded_at_ms(self, entry: SegmentEntry) -> int:
        return self._context.store.head(entry.key).last_modified_ms
