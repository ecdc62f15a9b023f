"""Merge small objects of the partitions that this node leads: which partition is looked at, and when.

Once per `interval_ms` the loop goes through the partitions that it leads, a slice at a time. A chain is read
only when its last look says that there may be a run: entries that are new since are young, so a chain without
one is not looked at before they can be old enough. Pages that have no run, and none that ripens, are not read
again.

What fails is tried again, more and more seldom, as each try reads a run and puts an intent into the metadata:
a run with an object that is damaged or refused by itself, everything else by its partition. `metrics.failing`
names it. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import SegmentEntry
from service.remote.stores.errors import OF_THE_STORE, ObjectNotFound, StoreRefused
from service.tiering import next_version
from service.tiering.archive_attempt import TieringContext
from service.tiering.copier import CallProgress
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import TieredPartition
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.rewriting.chain_units import units_from
from service.tiering.rewriting.merge_plan import MIN_RUN, MergeLimits, find_run
from service.tiering.rewriting.rewriter import RewriteOutcome, Rewriter
from service.tiering.rewriting.rules import MergeRule
from service.tiering.tasks import Task, is_worth_a_line

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

_RETRY_MS: Final = 60_000
"""Time after which a partition is looked at again whose merge did not begin, or has failed once."""
_LONGEST_RETRY_MS: Final = 3_600_000
MOST_RUNS: Final = 16
"""Runs of one partition that are merged before the next one's turn: an old archive may have thousands."""


class _Look(NamedTuple):
    """Result of a look at one chain: the first and last offset of a run; without one, when to look again.

    Below `clean_below` no run can come to be with these `limits`. `put_off`: first offsets of runs that have
    failed and are not tried yet. `idle_version`: version of the chain that never has one, None where its
    segments only have to become older.
    """

    run: tuple[int, int] | None
    due_ms: int
    clean_below: int
    limits: MergeLimits
    put_off: tuple[int, ...] = ()
    idle_version: int | None = None


class _Failures:
    """Failures in a row, by what has failed, and until when (wall clock) that is not tried."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[int, int]] = {}

    def add(self, what: int, now_ms: int) -> tuple[int, int]:
        """Note one more failure; return how many there are in a row, and how long to wait."""
        count = self._noted.get(what, (0, 0))[0] + 1
        wait_ms = min(_RETRY_MS << min(count - 1, 16), _LONGEST_RETRY_MS)
        self._noted[what] = count, now_ms + wait_ms
        return count, wait_ms

    def others(self, *these: int) -> set[int]:
        """Return what fails besides these."""
        return self._noted.keys() - these

    def keep_only(self, these: Collection[int]) -> None:
        """Forget what has succeeded, or is not there any more."""
        self._noted = {what: noted for what, noted in self._noted.items() if what in these}

    def until_ms(self, what: int) -> int:
        return self._noted.get(what, (0, 0))[1]

    def __bool__(self) -> bool:
        return bool(self._noted)


_PARTITION: Final = -1
"""Stands for the partition in its `_Failures`, beside runs by their first offsets."""
_OF_A_RUN: Final = (CorruptionError, ObjectNotFound, StoreRefused)
"""Errors that may be those of a single object."""


def _limits_of(partition: TieredPartition, limits: MergeLimits) -> MergeLimits:
    return limits.within(partition.config.retention_ms, partition.config.retention_bytes)


class Merger:
    """The loop. `limits` returns None where nothing is merged: the cluster does not know rewrites."""

    def __init__(
        self,
        context: TieringContext,
        pool: OffloadPool,
        rewriter: Rewriter,
        partitions: Callable[[], Iterable[TieredPartition]],
        limits: Callable[[], MergeLimits | None],
    ) -> None:
        self._context = context
        self._clock: Clock = context.clock
        self._pool = pool
        self._rewriter = rewriter
        self._partitions = partitions
        self._limits = limits
        self._looks: dict[Key, _Look] = {}
        self._failures: dict[Key, _Failures] = {}

    async def run(self) -> None:
        """Merge until cancelled."""
        has_more = False
        while True:
            await asyncio.sleep(0 if has_more else self._context.settings.interval_ms / 1000)
            has_more = await self.run_once()

    async def run_once(self) -> bool:
        """Go through all partitions once, and merge some of what there is; return whether there is more."""
        limits = self._limits()
        if limits is None or not self._context.fence.may_write:
            return False
        piece, led, ready = Slice(), set[Key](), list[TieredPartition]()
        for partition in self._partitions():
            key = partition.tip.topic_id, partition.tip.partition
            led.add(key)
            if key in self._failures and not self._is_merged(key, partition):
                del self._failures[key]
            if self._may_have_run(key, partition, _limits_of(partition, limits)):
                ready.append(partition)
            if piece.is_over():
                await piece.next_turn()
        self._forget_others(led)
        erased = await self._erased_topics(piece)
        has_more = False
        for partition in ready:
            if partition.tip.topic_id not in erased:
                has_more = await self._merge_some(partition, _limits_of(partition, limits)) or has_more
        return has_more

    def _forget_others(self, led: Container[Key]) -> None:
        """Forget partitions that this node does not lead any more."""
        self._looks = {key: look for key, look in self._looks.items() if key in led}
        self._failures = {key: one for key, one in self._failures.items() if key in led}
        failing = self._context.metrics.failing
        for at in [at for task, at in failing if task is Task.MERGE and isinstance(at, TopicIdPartition)]:
            if (at.topic_id, at.partition) not in self._failures:
                del failing[Task.MERGE, at]

    async def _erased_topics(self, piece: Slice) -> set[UUID]:
        """Return the topics with an open order to erase keys: no merge begins there."""
        erased: set[UUID] = set()
        for order in list(self._context.catalog.erasures().values()):
            if order.is_open:
                erased.update(order.topics)
            if piece.is_over():
                await piece.next_turn()
        return erased

    def _is_merged(self, key: Key, partition: TieredPartition) -> bool:
        """Return whether the partition has what is merged, and may be."""
        entry, config = self._context.catalog.entry(*key), partition.config
        if entry is None or entry.segments < MIN_RUN or not config.remote_storage_enable:
            return False
        return config.merge_enable

    def _may_have_run(self, key: Key, partition: TieredPartition, limits: MergeLimits) -> bool:
        if not self._is_merged(key, partition) or self._context.catalog.rewrite(*key) is not None:
            return False
        if partition.tip in self._context.metrics.stopped:
            return False  # nothing of it is written
        look, entry = self._looks.get(key), self._context.catalog.entry(*key)
        if look is None or look.limits != limits:
            return True
        is_idle = entry is not None and entry.version == look.idle_version
        return look.due_ms <= self._clock.now_ms() and not is_idle

    async def _merge_some(self, partition: TieredPartition, limits: MergeLimits) -> bool:
        """Merge runs of one partition, one after the other; return whether it may have more. What fails is
        looked at again later."""
        tip = partition.tip
        key = tip.topic_id, tip.partition
        for _ in range(MOST_RUNS):
            if not self._may_have_run(key, partition, limits):
                return False
            entry = self._context.catalog.entry(*key)
            assert entry is not None
            run: tuple[int, int] | None = None
            try:
                before = self._looks.get(key)
                look = await self._pool.watch(partial(self._look, tip, entry, limits, before))
                self._looks[key] = look
                run = look.run
                if run is None:
                    self._succeeded(tip, look.put_off)
                    return False
                outcome = await self._rewriter.rewrite(*key, *run, MergeRule())
            except (Displaced, NotNamed):
                return False
            except (StorageError, CorruptionError, RequestError) as e:
                if run is None or not isinstance(e, _OF_A_RUN) or isinstance(e, OF_THE_STORE):
                    self._put_off(key, limits, self._failed(tip, _PARTITION, e))
                    return False
                self._failed(tip, run[0], e)
                continue
            if outcome is RewriteOutcome.DONE:
                self._succeeded(tip, self._failures_of(tip).others(run[0], _PARTITION))
            elif outcome is RewriteOutcome.REFUSED:
                self._failed(tip, run[0], CorruptionError(f"the run from {run[0]} to {run[1]} is refused"))
            else:
                self._put_off(key, limits, _RETRY_MS)
                return False
        return self._may_have_run(key, partition, limits)

    def _failed(self, tip: TopicIdPartition, what: int, error: FirnError) -> int:
        """Note a failure of a run, or of the partition; return how long it is not tried again."""
        metrics, failures = (
            self._context.metrics,
            self._failures.setdefault((tip.topic_id, tip.partition), _Failures()),
        )
        count, wait_ms = failures.add(what, self._clock.now_ms())
        metrics.task_errors[Task.MERGE] += 1
        metrics.failing[Task.MERGE, tip] = str(error)
        if is_worth_a_line(count):
            log.warning(
                "%s: small objects are not merged, %d times in a row, next try in %d s, others go on: %s",
                tip, count, wait_ms // 1000, error,
            )  # fmt: skip
        return wait_ms

    def _failures_of(self, tip: TopicIdPartition) -> _Failures:
        return self._failures.get((tip.topic_id, tip.partition)) or _Failures()

    def _succeeded(self, tip: TopicIdPartition, put_off: Collection[int]) -> None:
        """Note that nothing fails but the runs that are `put_off`."""
        failures = self._failures.get((tip.topic_id, tip.partition))
        if failures is not None:
            failures.keep_only(put_off)
            if not failures:
                del self._failures[tip.topic_id, tip.partition]
                self._context.metrics.failing.pop((Task.MERGE, tip), None)

    def _put_off(self, key: Key, limits: MergeLimits, wait_ms: int) -> None:
        before = self._looks.get(key)
        clean_below = before.clean_below if before is not None and before.limits == limits else 0
        self._looks[key] = _Look(None, self._clock.now_ms() + wait_ms, clean_below, limits)

    def _look(
        self,
        tip: TopicIdPartition,
        entry: CatalogEntry,
        limits: MergeLimits,
        before: _Look | None,
        progress: CallProgress,
    ) -> _Look:
        """Read the chain from where runs may be; return the first. Runs on a `rewrite` thread."""
        context, now_ms = self._context, self._clock.now_ms()
        manifest = next_version.load(context.chains, tip, entry).manifest
        clean_below = before.clean_below if before is not None and before.limits == limits else 0
        clean_below, is_clean = max(clean_below, manifest.start_offset), True
        ripe: list[int] = []
        put_off: list[int] = []
        failures = self._failures_of(tip)
        for unit in units_from(manifest, context.chains.loader(tip), clean_below, MIN_RUN):
            progress.advance(1)
            begin = manifest.start_offset
            while (found := find_run(unit.entries, limits, now_ms, self._uploaded_at_ms, begin)).run:
                run = found.run[0].base_offset, found.run[-1].last_offset
                until_ms = failures.until_ms(run[0])
                if until_ms <= now_ms:
                    return _Look(run, 0, clean_below, limits)
                begin, is_clean = run[1] + 1, False
                put_off.append(run[0])
                ripe.append(until_ms)
            if found.ripe_ms is not None:
                ripe.append(limits.due_ms(found.ripe_ms))
            is_clean = is_clean and unit.is_page and found.ripe_ms is None
            if is_clean:
                clean_below = unit.entries[-1].last_offset + 1
        idle_version = None if ripe else entry.version
        ripe.append(limits.due_ms(now_ms + limits.min_age_ms))  # of segments that are new since
        due_ms = max(min(ripe), now_ms + 1)
        return _Look(None, due_ms, clean_below, limits, tuple(put_off), idle_version)

    def _uploaded_at_ms(self, entry: SegmentEntry) -> int:
        return self._context.store.head(entry.key).last_modified_ms
