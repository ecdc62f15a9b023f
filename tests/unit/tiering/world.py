"""A node's tiering with everything around it real but the quorum: logs on disk, a store, a catalog with real
compare-and-set; faults at any call, crashes at any step, and an oracle for docs/invariants.md (T2 to T10)."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.base.types import Buffer, TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.inspect.fsck import fsck
from service.records.batch import iter_headers
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, LoadedCut, Tombstone
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import (
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import Head, TopicsFileRow, decode_head
from service.remote.format.stamp import Writer
from service.remote.reading.object_reader import open_chain, open_footer_of, open_head, open_page
from service.remote.stores.errors import ObjectNotFound, StoreRefused, StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged
from service.tiering.ports import TieringSettings
from service.tiering.prefix_fence import claim_prefix
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.steps import CommitStep, Probe, no_probe
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch
from tests.unit.tiering.catalog_rewrites import Rewrites, RewritesView
from tests.unit.tiering.stepped import SteppedManager

CLUSTER = "cluster-of-the-tests-1"
WRITER = Writer(1, UUID(int=9))
GRACE_MS = 60_000
SETTINGS = TieringSettings(
    copier_threads=1,
    grace_ms=GRACE_MS,
    sweep_interval_ms=10 * GRACE_MS,
    block_bytes=512,
    commit_segments=1,
    stop_timeout_ms=2000,
)

T = TypeVar("T")
_RUNNER = asyncio.Runner()
atexit.register(_RUNNER.close)


class Crash(BaseException):
    """The process ends here."""


class Fault(Enum):
    PASS = "pass"
    FAIL = "fail, with nothing done"
    REFUSE = "say no: 403"
    LIE = "do it, then say that it failed"
    CRASH_BEFORE = "crash, with nothing done"
    CRASH_AFTER = "do it, then crash"


Decide = Callable[[str, str], Fault]
"""(operation, key) -> what happens to the call."""


def no_faults(operation: str, key: str) -> Fault:
    return Fault.PASS


@contextmanager
def faulty(fault: Fault, what: str) -> Iterator[None]:
    if fault is Fault.FAIL:
        raise StoreUnavailable(f"{what}: refused")
    if fault is Fault.REFUSE:
        raise StoreRefused(f"{what}: the store said no")
    if fault is Fault.CRASH_BEFORE:
        raise Crash(f"before {what}")
    yield
    if fault is Fault.LIE:
        raise StoreUnavailable(f"{what}: timed out")
    if fault is Fault.CRASH_AFTER:
        raise Crash(f"after {what}")


class FaultyStore:
    """A store whose calls fail, lie or end the process as `decide` says."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.decide: Decide = no_faults
        self.on_head: Callable[[Head], None] = lambda head: None

    def _fault(self, operation: str, key: str) -> Any:
        return faulty(self.decide(operation, key), f"{operation} {key}")

    def put(self, key: str, data: Buffer) -> None:
        with self._fault("put", key):
            self.inner.put(key, data)
            if key.endswith("/HEAD"):
                self.on_head(decode_head(bytes(data)))

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        with self._fault("put_stream", key):
            self.inner.put_stream(key, parts, size)

    def get(self, key: str, *, max_size: int) -> bytes:
        with self._fault("get", key):
            return self.inner.get(key, max_size=max_size)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        with self._fault("get_range", key):
            return self.inner.get_range(key, start, length)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        with self._fault("get_suffix", key):
            return self.inner.get_suffix(key, length)

    def head(self, key: str) -> ObjectInfo:
        with self._fault("head", key):
            return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._fault("list", prefix):
            return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """The worst that is decided for any of the keys happens to the call: S3 deletes the others then."""
        decided = {key: self.decide("delete", key) for key in keys}
        worst = next((fault for fault in decided.values() if fault is not Fault.PASS), Fault.PASS)
        with faulty(worst, f"delete {next(iter(keys), '')}"):
            self.inner.delete(keys)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        with self._fault("put", key):
            created = self.inner.put_if_absent(key, data)
            if created and key.endswith("/HEAD"):
                self.on_head(decode_head(bytes(data)))
            return created

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        with self._fault("get", key):
            return self.inner.get_tagged(key, max_size=max_size)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        with self._fault("put", key):
            self.inner.put_if_match(key, data, tag)
            if key.endswith("/HEAD"):
                self.on_head(decode_head(bytes(data)))


class MemoryCatalog(Rewrites):
    """The quorum's compare-and-set, in a dictionary. `leader_epochs` are those of its image."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[UUID, int], CatalogEntry] = {}
        self.leader_epochs: dict[tuple[UUID, int], int] = {}
        self.buried: dict[UUID, Tombstone] = {}
        self.decide: Decide = no_faults
        self.history: list[CatalogCommit] = []
        self.published_end: dict[tuple[UUID, int], int] = {}
        """The largest end offset that a HEAD has ever stood for."""
        self.off: set[UUID] = set()
        """Topics whose tiering is off, as the image has it: no other archive may be given up."""

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        await asyncio.sleep(0)
        with faulty(self.decide("commit", str(commits[0].tip)), "commit"):
            return [self._commit(one) for one in commits]

    def _commit(self, one: CatalogCommit) -> CatalogResult:
        key = (one.tip.topic_id, one.tip.partition)
        if key not in self.leader_epochs:
            return CatalogResult.UNKNOWN_PARTITION
        current = self.entries.get(key)
        result = self.decided(one)
        if one.entry.is_given_up and current != one.entry and one.tip.topic_id not in self.off:
            return CatalogResult.VERSION_CONFLICT
        if result is CatalogResult.COMMITTED and current != one.entry:
            self.entries[key] = one.entry
            self.history.append(one)
            self.fulfilled(one)
        return result


class CatalogView(RewritesView):
    """The catalog as one node sees it: its image may lag."""

    catalog: MemoryCatalog

    def __init__(self, catalog: MemoryCatalog) -> None:
        self.catalog = catalog
        self.stale: dict[tuple[UUID, int], CatalogEntry | None] = {}

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        return await self.catalog.commit(commits)

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        key = (topic_id, partition)
        return self.stale[key] if key in self.stale else self.catalog.entries.get(key)

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return self.catalog.buried

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        for topic_id in topic_ids:
            self.catalog.buried.pop(topic_id, None)


class Replica:
    """A partition as the tiering room sees it, and what was produced to it."""

    def __init__(self, tip: TopicIdPartition, log: LocalLog, leader_epoch: int) -> None:
        self.tip = tip
        self.log = log
        self.leader_epoch = leader_epoch
        self.produced, self.held_back = bytearray(), 0
        self.remote: CatalogEntry | None = None
        self.loaded: LoadedCut | None = None
        self.published, self.is_leader = 0, True
        self.on_stable: Callable[[], None] | None = None
        self.problem: str | None = None
        self.was_judged = False  # HEAD was compared with the metadata: `problem` says what came of it

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset - self.held_back

    @property
    def last_stable_offset(self) -> int:
        first = self.log.first_unstable_offset
        return self.high_watermark if first is None else min(first, self.high_watermark)

    @property
    def archive(self) -> Replica:
        return self

    def head_judged(self, problem: str | None) -> None:
        self.problem = problem
        self.was_judged = True

    def remote_committed(self, entry: CatalogEntry) -> None:
        assert self.remote is None or entry.version >= self.remote.version
        self.remote = entry
        self.published = 0 if self.config.gives_up_archive else entry.end_offset
        if entry.start_offset > self.log.log_start_offset:
            self.log.deletion.advance_log_start(entry.start_offset)

    def switch(self, *, on: bool) -> None:
        """Tiering on or off; as `Partition.configure`."""
        self.log.config = replace(
            self.log.config, remote_storage_enable=on, remote_log_delete_on_disable=not on
        )
        if not on:
            self.published = 0
            self.log.deletion.move_log_start(self.log.local_log_start_offset)

    def append(
        self, count: int, now_ms: int, timestamp: int | None = None, leader_epoch: int | None = None
    ) -> None:
        one = batch(count, timestamp=now_ms if timestamp is None else timestamp)
        self.log.append(one, self.leader_epoch if leader_epoch is None else leader_epoch, now_ms)
        self.produced += one.data


class World:
    """One node, one bucket. `run` does all the work that there is; a `Crash` anywhere reboots the node."""

    cluster_id, options = CLUSTER, cast("Mapping[str, Any]", {})

    def __init__(
        self,
        tmp: Path,
        store: ObjectStore | None = None,
        catalog: MemoryCatalog | None = None,
        *,
        partitions: int = 1,
        settings: TieringSettings = SETTINGS,
        limits: ManifestLimits = ManifestLimits(),  # noqa: B008  # immutable
        writer: Writer | None = None,
        seed: int = 1,
        **config: Any,
    ) -> None:
        self.clock = ManualClock(START_MS)
        self._ids = make_world(self.clock, seed=seed)
        self.life = 0
        self._writer = writer  # of all nodes of one cluster; None for a new one with every start
        self.bucket: ObjectStore = store if store is not None else MemoryStore(SystemThreads(), self.clock)
        self.store = FaultyStore(self.bucket)
        self.store.on_head = self._head_written
        self.catalog = catalog if catalog is not None else MemoryCatalog()
        self.view = CatalogView(self.catalog)
        self.settings, self.limits = settings, limits
        self.probe: Probe = no_probe
        self.topic_ids = {"events": UUID(int=7)}
        self.topic_configs: dict[str, dict[str, str]] = {}
        """settings of topics, by name, as `topics.json` lists them"""
        self.config = LogConfig(
            **{"segment_bytes": 1000, "remote_storage_enable": True, "retention_ms": -1, **config}
        )
        self._tmp = tmp
        self.replicas: list[Replica] = []
        for partition in range(partitions):
            self.add(TopicIdPartition(self.topic_ids["events"], "events", partition))
        claim_prefix(self.bucket, self.cluster_id)
        self.metadata_offset, self.crashes = 1, 0
        self.hurried: set[TopicIdPartition] = set()
        self.manager = self._boot()

    def add(self, tip: TopicIdPartition, leader_epoch: int = 0) -> Replica:
        """A new partition that this node leads."""
        self.topic_ids[tip.topic] = tip.topic_id
        log = LocalLog.open(
            self._tmp / f"{tip}-{tip.topic_id}", tip, self.config, world=make_world(self.clock)
        )
        replica = Replica(tip, log, leader_epoch)
        self.replicas.append(replica)
        self.catalog.leader_epochs.setdefault((tip.topic_id, tip.partition), leader_epoch)
        return replica

    def delete_topic(self, topic: str) -> None:
        """Gone from the image and from this node; the manager is told."""
        topic_id = self.topic_ids.pop(topic)
        self.replicas = [one for one in self.replicas if one.tip.topic_id != topic_id]
        for table in (self.catalog.entries, self.catalog.leader_epochs):
            for key in [key for key in table if key[0] == topic_id]:
                del table[key]
        self.metadata_offset += 1
        self.catalog.buried[topic_id] = Tombstone(topic_id, topic, 1, self.clock.now_ms())
        self.manager.maintenance.topics_deleted()
        self.manager.maintenance.topics_changed()

    def _boot(self) -> SteppedManager:
        return SteppedManager(
            self.store,
            self.view,
            cluster_id=self.cluster_id,
            writer=self._writer or WRITER._replace(incarnation=self._ids.new_uuid()),
            partitions=lambda: self.replicas,
            find=self._find,
            topics=self.topics,
            world=replace(self._ids, clock=self.clock),
            settings=self.settings,
            manifest_limits=self.limits,
            probe=lambda step, tip: self.probe(step, tip),
            is_urgent=lambda tip: tip in self.hurried,
            **self.options,
        )

    def _find(self, topic_id: UUID, partition: int) -> Replica | None:
        tips = ((one.tip.topic_id, one.tip.partition, one) for one in self.replicas)
        return next((one for *key, one in tips if tuple(key) == (topic_id, partition)), None)

    def topics(self) -> TopicsSnapshot:
        rows = [
            TopicsFileRow(
                name,
                topic_id,
                max(1, sum(one.tip.topic_id == topic_id for one in self.replicas)),
                self.topic_configs.get(name, {}),
            )
            for name, topic_id in self.topic_ids.items()
        ]
        return TopicsSnapshot(self.metadata_offset, {row.topic_id for row in rows}, lambda: rows, self.life)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end on the loop that all worlds share."""
        return _RUNNER.run(work)

    def switch(self, *, on: bool) -> None:
        """Tiering of all topics, on or off."""
        self.catalog.off = set() if on else set(self.topic_ids.values())
        for replica in self.replicas:
            replica.switch(on=on)

    # -- what happens ----------------------------------------------------------------------------------------

    def fill(self, segments: int, replica: Replica | None = None, count: int = 2) -> None:
        """Append until `segments` more segments are sealed."""
        for one in [replica] if replica is not None else self.replicas:
            target = len(one.log.sealed.describe_all()) + segments
            while len(one.log.sealed.describe_all()) < target:
                one.append(count, self.clock.now_ms())

    def run(self) -> bool:
        """Everything that can be done now; False when the node crashed (and was started again)."""
        try:
            self.do(self.manager.run_once())
        except BaseExceptionGroup as group:
            if group.split(Crash)[1] is not None:
                raise
        except Crash:
            pass
        else:
            return True
        self.crashes += 1
        self.reboot()
        return False

    def reboot(self) -> None:
        """A new process on the same disks, bucket and quorum. Nothing else is kept."""
        self.do(self.manager.stop())
        for replica in self.replicas:
            replica.remote, replica.published = None, 0
        self.manager = self._boot()

    def sweep(self) -> int:
        """Two looks, a grace apart."""
        self.do(self.manager.maintenance.sweep())
        self.clock.advance(GRACE_MS)
        return self.do(self.manager.maintenance.sweep())

    def settle(self, rounds: int = 50) -> None:
        """Faults are over: run until nothing is left to do."""
        self.store.decide = self.catalog.decide = no_faults
        self.probe = no_probe
        self.view.stale.clear()
        for _ in range(rounds):
            self.clock.advance(self.settings.backoff_max_ms)
            self.run()
            if all(self.lag(one) == 0 for one in self.replicas):
                self.clock.advance(GRACE_MS)
                self.run()
                return
        raise AssertionError("the node does not come to rest")

    def lag(self, replica: Replica) -> int:
        """Sealed segments below the high watermark that are not remote yet."""
        entry = self.entry(replica)
        end = entry.end_offset if entry is not None else 0
        start = replica.log.log_start_offset
        sealed = replica.log.sealed.describe_all(end)
        return sum(start <= one.last_offset < replica.high_watermark for one in sealed)

    def fence(self, replica: Replica) -> None:
        """The quorum has elected somebody else, and this node has not heard of it."""
        self.catalog.leader_epochs[replica.tip.topic_id, replica.tip.partition] += 1

    def elect(self, replica: Replica) -> None:
        """Make this node the leader, under the quorum's epoch."""
        replica.leader_epoch = self.catalog.leader_epochs[replica.tip.topic_id, replica.tip.partition]

    def drop_local(self, replica: Replica) -> None:
        """Delete published segments, as the hot tier does under `local.retention`."""
        if replica.published:
            replica.log.deletion.delete_segments(replica.published - 1, "local retention")

    def _head_written(self, head: Head) -> None:
        key = (head.topic_id, head.partition)
        end_offset = open_chain(self.bucket, head.manifest_key).manifest.end_offset
        self.catalog.published_end[key] = max(end_offset, self.catalog.published_end.get(key, 0))

    # -- what is so ------------------------------------------------------------------------------------------

    def entry(self, replica: Replica) -> CatalogEntry | None:
        return self.catalog.entries.get((replica.tip.topic_id, replica.tip.partition))

    def manifest(self, replica: Replica) -> Manifest | None:
        entry = self.entry(replica)
        return open_chain(self.bucket, entry.manifest_key).manifest if entry is not None else None

    def page(self, manifest: Manifest) -> Callable[[PageRef], ManifestPage]:
        return lambda ref: open_page(self.bucket, ref, manifest)

    def live(self, replica: Replica) -> list[SegmentEntry]:
        """The segments of the committed chain."""
        manifest = self.manifest(replica)
        return list(live_segments(manifest, self.page(manifest))) if manifest is not None else []

    def head(self, replica: Replica) -> Head | None:
        try:
            return open_head(self.bucket, HeadKey(replica.tip.topic_id, replica.tip.partition))
        except ObjectNotFound:
            return None

    def stored_keys(self) -> set[str]:
        return {info.key for info in self.bucket.list("")}

    def live_keys(self) -> set[str]:
        """Every key that a quiet bucket holds, and no other."""
        keys = {"cluster.json", "topics.json"}
        for replica in self.replicas:
            entry, manifest = self.entry(replica), self.manifest(replica)
            if entry is None or manifest is None:
                continue
            tip = replica.tip
            keys |= {entry.manifest_key, f"data/{tip.topic_id}/{tip.partition}/HEAD"}
            refs = list(manifest.pages)
            while refs:
                ref = refs.pop()
                if ref.last_offset >= manifest.start_offset:
                    keys.add(ref.key)
                    children = open_page(self.bucket, ref, manifest).children if ref.level else ()
                    refs += [child for child in children if isinstance(child, PageRef)]
            keys |= {segment.key for segment in self.live(replica)}
        return keys

    def check(self) -> None:
        """The invariants that hold at every moment, also right after a crash."""
        seen: set[str] = set()
        for replica in self.replicas:
            entry, manifest = self.entry(replica), self.manifest(replica)
            gone = replica.log.first_base_offset
            if gone > replica.log.log_start_offset:
                published = self.catalog.published_end.get((replica.tip.topic_id, replica.tip.partition), 0)
                assert gone <= published, "T5: local bytes are gone before HEAD was written"
            if entry is None or manifest is None:
                continue
            self._check_chain(replica, entry, manifest, seen)
            head = self.head(replica)
            if head is not None:
                committed = {one.entry.manifest_key for one in self.catalog.history}
                assert head.manifest_key in committed, "T7: HEAD names what was never committed"
        report = fsck(self.bucket)
        assert report.is_clean, f"T10: {report.errors}"

    def _check_chain(self, replica: Replica, entry: CatalogEntry, manifest: Manifest, seen: set[str]) -> None:
        live = self.live(replica)
        expected = first = entry.start_offset
        if live and live[0].base_offset < first <= live[0].last_offset:
            expected = first = live[0].base_offset  # the log begins within a segment
        archive = b""
        for segment in live:
            assert segment.base_offset == expected, "T2: gap or overlap"
            expected = segment.last_offset + 1
            assert segment.key not in seen, "T4: an object is live twice"
            seen.add(segment.key)
            assert self.bucket.head(segment.key).size == segment.size, "T3: not the object that was committed"
            footer = open_footer_of(self.bucket, segment)
            archive += bytes(self.bucket.get_range(segment.key, 0, footer.log_length))
        assert expected == entry.end_offset == manifest.end_offset, "T2: the chain ends elsewhere"
        assert (len(live), entry.segments) == (entry.segments, manifest.segments), "T2: segments"
        assert archive == produced(replica, first, entry.end_offset), "T9: other bytes"

    def check_at_rest(self) -> None:
        """Check what holds once nothing is under way, and after the sweeper."""
        self.check()
        for replica in self.replicas:
            entry, head = self.entry(replica), self.head(replica)
            if entry is not None:
                assert head is not None, "T7: no HEAD"
                assert head.manifest_key == entry.manifest_key, "T7: HEAD lags"
                assert replica.remote == entry
        assert self.stored_keys() == self.live_keys(), "T8: the bucket holds more or less than what is live"
        assert fsck(self.bucket).orphan_count == 0


def produced(replica: Replica, start: int, end: int) -> bytes:
    """The bytes of the batches from offset `start` up to `end`, as they were appended."""
    data = memoryview(replica.produced)
    taken = bytearray()
    for header in iter_headers(data):
        if start <= header.base_offset < end:
            taken += data[header.position : header.end]
    return bytes(taken)


def crash_at(step: CommitStep) -> Probe:
    """A probe that ends the process the first time that `step` is reached."""
    armed = [True]

    def probe(reached: CommitStep, tip: TopicIdPartition) -> None:
        if armed and reached is step:
            armed.clear()
            raise Crash(step.value)

    return probe


def once(operation: str, fault: Fault, contains: str = "") -> Decide:
    """`fault` for the first call of `operation` on a key with `contains` in it."""
    armed = [True]

    def decide(called: str, key: str) -> Fault:
        if armed and called == operation and contains in key:
            armed.clear()
            return fault
        return Fault.PASS

    return decide
