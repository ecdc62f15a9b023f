"""Loading of the tails of a restored cluster into the logs of the partitions that this node leads.

A restored partition begins where its archive ends (`archive_restore`). Its leader appends what the cut has
behind that as a follower would, and empty batches up to the offset at which the log goes on, as offsets
between may have been given out. Nothing of it is shown, and nothing is taken, before it is synced, all
in-sync replicas have it, and the metadata says that it is loaded. So whoever leads after a crash, or instead
of this node, begins that partition anew.

Internal topics come first, then what clients ask for, then the rest. A partition that cannot be loaded is
named and tried again; it keeps no other from being loaded. Records that an order of erasure takes are left
out. Owned by the event loop; reads are on threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from service.base.backoff import doubled
from service.base.errors import CorruptionError, RequestError, StorageError, UnknownVersion
from service.base.slices import Slice
from service.base.types import NO_LEADER_EPOCH, TopicIdPartition
from service.base.world import World
from service.hot.log import LocalLog
from service.metadata.controller.topic_names import FIXED_TOPICS
from service.metadata.image import MetadataImage, RestoredTail
from service.partition.partition import Partition
from service.records.compaction import filling_batch
from service.records.scan import BatchScan, scan_batches
from service.remote.catalog import LoadedCut, LoadedTail
from service.remote.format.cut_codec import Place
from service.remote.format.keys import CutKey, parse_key
from service.remote.metrics import TailLoadMetrics
from service.remote.reading.tail_records import TailRun
from service.remote.stores.store import ObjectStore
from service.replicas.cut_tails import (
    CutTails,
    loaded_before,
    needs_tails,
    open_cut_tails,
    tail_runs,
)
from service.replicas.erased_runs import OrdersOf, without_erased

_log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE: Final = 4
"""Partitions that are loaded at a time: each holds two windows of its tails in memory."""
_FOOTERS_AT_ONCE: Final = 16
_BATCHES_AT_ONCE: Final = 256
"""Batches appended in one turn of the loop, if they do not go into the log by one write."""
_MOST_OFFSETS: Final = (1 << 31) - 1
"""Offsets that one batch can stand for."""
_FIRST_RETRY_S: Final = 2.0
_LAST_RETRY_S: Final = 60.0
_TELL_AGAIN_S: Final = 1.0


class LoadOwner(Protocol):
    """Interface of `ReplicaOpener` to this module."""

    async def load_anew(self, tip: TopicIdPartition, reason: str) -> None:
        """Have the log begin again where its tail does."""


class LoadLogs(Protocol):
    """Interface of `LogManager` to this module."""

    async def append_on_thread(self, log: LocalLog, data: memoryview, run: BatchScan) -> bool: ...
    async def flush(self, log: LocalLog) -> None: ...
    def lower_recovery_point(self, log: LocalLog, offset: int) -> AbstractAsyncContextManager[bool]: ...


class _Job:
    """One partition that this node leads and loads, or has loaded."""

    __slots__ = ("is_done", "is_loaded", "partition", "tail")

    def __init__(self, partition: Partition, tail: RestoredTail) -> None:
        self.partition = partition
        self.tail = tail
        self.is_loaded = False
        """the log has everything, synced"""
        self.is_done = False
        """so have the in-sync replicas: the metadata has to say so"""

    @property
    def tip(self) -> TopicIdPartition:
        return self.partition.tip

    @property
    def place(self) -> Place:
        return self.tip.topic_id, self.tip.partition


class _Tails:
    """Tails of one cut for the partitions in `places`, read or being read."""

    def __init__(self, places: Collection[Place], reading: asyncio.Future[CutTails]) -> None:
        self.places = places
        self.reading = reading


class TailLoader:
    """A `partition.archive.TailWatcher`. `changed` is called with each partition whose role, or whose tail in
    the metadata, may have changed."""

    def __init__(
        self,
        store: ObjectStore,
        owner: LoadOwner,
        logs: LoadLogs,
        image: Callable[[], MetadataImage],
        tell: Callable[[Collection[LoadedTail]], Awaitable[None]],
        world: World,
        metrics: TailLoadMetrics,
        orders_of: OrdersOf,
    ) -> None:
        """`tell`: `NodeCatalog.tails_loaded`. `orders_of`: orders whose records are left out."""
        self._store = store
        self._owner = owner
        self._logs = logs
        self._image = image
        self._tell = tell
        self._orders_of = orders_of
        self._readers = world.threads.pool("tail-loading", AT_ONCE)
        self._footers = world.threads.pool("tail-footers", _FOOTERS_AT_ONCE)
        self._jobs: dict[TopicIdPartition, _Job] = {}
        self._internal: dict[TopicIdPartition, None] = {}
        self._asked: dict[TopicIdPartition, None] = {}
        self._rest: dict[TopicIdPartition, None] = {}
        self._news = asyncio.Event()
        self._done = asyncio.Event()
        self._tails: dict[str, _Tails] = {}
        self._failures: dict[TopicIdPartition, int] = {}
        self._checked_life: int | None = None
        """the life of the cluster of which the bucket was looked at, and says of no partition that it was
        loaded before"""
        self._before: frozenset[Place] = frozenset()
        """partitions that were, as of the last look"""
        self.metrics = metrics

    # -- reports

    def changed(self, partition: Partition) -> None:
        """Load the partition's tail if this node leads it and the metadata has one; else stop."""
        tip = partition.tip
        tail = self._image().restored_tails.get((tip.topic_id, tip.partition))
        if tail is None:
            self.forget(tip)
            return
        job = self._jobs.get(tip)
        if not partition.is_leader:
            self.metrics.problems.pop(str(tip), None)  # another node's now
            if job is not None and job.partition is partition:
                del self._jobs[tip]
        elif job is None or job.partition is not partition or job.tail != tail:
            self._jobs[tip] = job = _Job(partition, tail)
            self._enqueue_later(job)
        elif job.is_loaded:
            self.replicated(tip)

    def asked(self, tip: TopicIdPartition) -> None:
        """Load the partition before others for which no client has asked."""
        if tip in self._rest:
            del self._rest[tip]
            self._asked[tip] = None

    def replicated(self, tip: TopicIdPartition) -> None:
        """Tell the controller that the partition is loaded, once its own log and all in-sync replicas have
        it."""
        job = self._jobs.get(tip)
        if job is None or not job.is_loaded or not self._is_wanted(job):
            return
        leading = job.partition.leading
        job.is_done = leading is None or leading.high_watermark >= job.tail.go_on
        if job.is_done:
            self._done.set()

    def forget(self, tip: TopicIdPartition) -> None:
        """Stop loading a partition that is loaded, or is no longer on this node."""
        self._jobs.pop(tip, None)
        self._failures.pop(tip, None)
        self.metrics.problems.pop(str(tip), None)
        if not self._jobs:
            self._tails.clear()

    def _is_wanted(self, job: _Job) -> bool:
        return self._jobs.get(job.tip) is job and job.partition.is_leader and not job.partition.is_offline

    # -- order

    def _enqueue_later(self, job: _Job) -> None:
        """Queue the job, after a failure only when some time has passed."""
        failures = self._failures.get(job.tip, 0)
        if not failures:
            self._enqueue(job)
            return
        delay_s = doubled(failures, _FIRST_RETRY_S, _LAST_RETRY_S)
        asyncio.get_running_loop().call_later(delay_s, self._enqueue, job)

    def _enqueue(self, job: _Job) -> None:
        if self._jobs.get(job.tip) is job:
            queue = self._internal if job.tip.topic in FIXED_TOPICS else self._rest
            queue[job.tip] = None
            self._news.set()

    def _next(self) -> _Job | None:
        """Take the next partition to load out of its queue."""
        for queue in self._internal, self._asked, self._rest:
            while queue:
                tip = next(iter(queue))
                del queue[tip]
                job = self._jobs.get(tip)
                if job is not None and not job.is_loaded and self._is_wanted(job):
                    return job
        return None

    # -- life

    async def run(self) -> None:
        """Load partitions until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(self._work(), name="tail-loading")
                tasks.create_task(self._tell_done(), name="tails-loaded")
        finally:
            for pool in self._readers, self._footers:
                pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                self._news.clear()
                await self._news.wait()
                continue
            try:
                await self._load(job)
            except (StorageError, CorruptionError, RequestError, UnknownVersion) as e:
                await self._failed(job, str(e))

    async def _failed(self, job: _Job, reason: str) -> None:
        """Name what is wrong and try again later, from the chain's end on if anything was appended."""
        tip = job.tip
        if not self._is_wanted(job):
            return
        self.metrics.failures += 1
        self._failures[tip] = self._failures.get(tip, 0) + 1
        if self.metrics.problems.get(str(tip)) != reason:
            _log.error("%s: its tail cannot be loaded, so it takes no records: %s", tip, reason)
        self.metrics.problems[str(tip)] = reason
        tails = self._tails.get(job.tail.cut_key)
        if tails is not None and (not tails.reading.done() or not _is_whole(tails.reading)):
            del self._tails[job.tail.cut_key]  # what could not be read may be readable later
        if job.partition.log.log_end_offset == job.tail.chain_end:
            self._enqueue_later(job)
            return
        del self._jobs[tip]
        await self._owner.load_anew(tip, f"its tail cannot be loaded: {reason}")

    # -- one partition

    async def _load(self, job: _Job) -> None:
        """Append what the log lacks, and sync it. Raises the errors of the store, the bucket's documents and
        the disk."""
        log, tail, archive = job.partition.log, job.tail, job.partition.archive
        archive.loaded = None
        if (life := (image := self._image()).life) != self._checked_life:
            self._before = await self._on_thread(loaded_before, self._store, life, image.restored_tails)
            self._checked_life = None if self._before else life
        if job.place in self._before:
            raise StorageError(
                "a cut has what was written behind it, so it was loaded and at work before: the file of "
                "`firn restore apply` was used once more; make another by the same command"
            )
        tails = await self._tails_for(job) if needs_tails(tail) else None
        if not self._is_wanted(job):
            return
        if log.log_end_offset != tail.chain_end:
            raise StorageError(f"the log ends at {log.log_end_offset}, its tail begins at {tail.chain_end}")
        _log.info("%s: loading offsets %d to %d", job.tip, tail.chain_end, tail.end_offset)
        orders = await self._orders_of(job.place)
        runs = tail_runs(self._store, tails, job.place, tail, log.epochs.newest)
        while (run := await self._on_thread(next, runs, None)) is not None:
            if orders:
                run = await self._on_thread(without_erased, run, orders)
            if not await self._append(job, run):
                return
        await self._fill(job)
        await self._logs.flush(log)
        if self._is_wanted(job):
            _log.info("%s: its tail is loaded, its log goes on at offset %d", job.tip, tail.go_on)
            cut = parse_key(tail.cut_key)
            if tails is not None and not orders and isinstance(cut, CutKey):
                archive.loaded = LoadedCut(cut.uuid, tail.end_offset)
            job.is_loaded = True
            self._failures.pop(job.tip, None)
            self.metrics.problems.pop(str(job.tip), None)
            self.replicated(job.tip)

    async def _append(self, job: _Job, run: TailRun) -> bool:
        """Append a run in parts; returns whether the job is still wanted."""
        log = job.partition.log
        if not await self._begin_at(job, run.batches.base_offsets[0]):
            return False
        for part in _parts(run.batches):
            before = log.log_end_offset
            if not self._is_wanted(job):
                return False
            if not await self._logs.append_on_thread(log, run.data, part):
                raise StorageError("the log was changed by another")
            size = sum(part.sizes)
            self.metrics.bytes += size
            _grown(job.partition, before, size)
        return self._is_wanted(job)

    async def _begin_at(self, job: _Job, base_offset: int) -> bool:
        """Have an empty log whose start lies within its first batch begin at that batch; returns whether the
        job is still wanted."""
        log, start = job.partition.log, job.tail.chain_end
        if not base_offset < start == log.log_end_offset == log.log_start_offset:
            return True
        async with self._logs.lower_recovery_point(log, base_offset) as is_checkpointed:
            if not is_checkpointed or not self._is_wanted(job):
                return False
            log.truncation.restart_at(base_offset, start)
        return True

    async def _fill(self, job: _Job) -> None:
        """Append empty batches for the offsets of which no record is left. They have the epoch of the last
        record: whoever has read beyond it has, by that epoch, no sign of a truncation."""
        log, go_on, piece = job.partition.log, job.tail.go_on, Slice()
        epoch = log.epochs.newest
        if epoch == NO_LEADER_EPOCH:
            epoch = job.partition.leader_epoch
        while self._is_wanted(job) and (first := log.log_end_offset) < go_on:
            last = min(go_on - 1, first + _MOST_OFFSETS - 1)
            batch = memoryview(filling_batch(first, last, epoch))
            log.appender.append_fetched(batch, scan_batches(batch, next_offset=first))
            _grown(job.partition, first, len(batch))
            if piece.is_over():
                await piece.next_turn()

    async def _tails_for(self, job: _Job) -> CutTails:
        """Return the tails of the job's cut, which are read once for all partitions that wait now."""
        key = job.tail.cut_key
        tails = self._tails.get(key)
        if tails is None or job.place not in tails.places:
            limits = {
                one.place: (one.tail.chain_end, one.tail.end_offset)
                for one in self._jobs.values()
                if one.tail.cut_key == key and needs_tails(one.tail)
            }
            work = partial(open_cut_tails, self._store, key, limits, self._footers)
            tails = self._tails[key] = _Tails(limits.keys(), asyncio.ensure_future(self._on_thread(work)))
        return await asyncio.shield(tails.reading)

    async def _on_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *args)

    # -- what is done

    async def _tell_done(self) -> None:
        """Tell the controller of loaded partitions, again and again until the metadata has it."""
        while True:
            self._done.clear()
            done = [job for job in self._jobs.values() if job.is_done and self._is_wanted(job)]
            if not done:
                await self._done.wait()
                continue
            told = [
                LoadedTail(job.tip.topic_id, job.tip.partition, job.partition.leader_epoch) for job in done
            ]
            try:
                await self._tell(told)
            except (StorageError, RequestError) as e:
                _log.warning("telling the controller of %d loaded partitions failed: %s", len(told), e)
            if any(self._is_wanted(job) for job in done):  # the metadata does not say so here yet
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TELL_AGAIN_S):
                        await self._done.wait()


def _is_whole(reading: asyncio.Future[CutTails]) -> bool:
    return not reading.cancelled() and reading.exception() is None and not reading.result().unreadable


def _grown(partition: Partition, first_offset: int, size: int) -> None:
    """Have followers learn of appended bytes."""
    if partition.leading is not None:
        partition.grown(partition.leading, first_offset, size)


def _parts(run: BatchScan) -> Iterator[BatchScan]:
    """Split a run into runs of few batches; positions count in the same bytes."""
    for low in range(0, run.batches, _BATCHES_AT_ONCE):
        high = min(low + _BATCHES_AT_ONCE, run.batches)
        columns = (column[low:high] for column in run[2:])
        yield BatchScan(run.status, run.positions[high - 1] + run.sizes[high - 1], *columns)
