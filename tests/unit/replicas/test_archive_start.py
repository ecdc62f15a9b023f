"""A follower begins where its archive ends: proved against the metadata, and nothing more is read for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.producer_snapshot import encode_snapshot
from service.hot.producers import BatchMemory, ProducerEntry
from service.metadata.image import MetadataImage
from service.metadata.persistent import PersistentMap
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import RemoteReader
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.replicas.tier_state_builder import TierStateBuilder
from tests.support.transactional_log import TransactionalLog, snapshot_of
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch
from tests.unit.partition.following import Standing
from tests.unit.remote.archive import TIP, Archive
from tests.unit.remote.slow_store import SlowStore

PRODUCERS = [(77, ProducerEntry(3, START_MS, batches=[BatchMemory(10, 19, 490, 499, START_MS)]))]
EPOCH = 7


class Node:
    """A follower of one partition, of whose archive there are four segments and their entry."""

    def __init__(self, directory: Path) -> None:
        self.store = SlowStore(MemoryStore(SystemThreads()))
        self.archive = Archive(self.store.inner, producer_snapshot=encode_snapshot(PRODUCERS))
        for epoch in (2, 3, 3, 5):
            self.archive.add_segment(25, epoch=epoch)
        self.reader = RemoteReader(
            self.store,
            make_world(ManualClock()),
            threads=2,
            cache_bytes=1 << 20,
            chunk_bytes=4096,
            attempts=1,
        )
        self.image = MetadataImage()
        self.entry = self.committed()
        self.log = LocalLog.open(
            directory / "flights-3", TIP, LogConfig(remote_storage_enable=True), world=make_world()
        )
        self.standing: Standing | None = Standing(self.log)

    def committed(self, **changes: object) -> CatalogEntry:
        """The image says so, of the archive as it is or otherwise."""
        manifest = self.archive.manifest
        entry = CatalogEntry(
            manifest.version,
            self.archive.manifest_key,
            EPOCH,
            manifest.start_offset,
            manifest.end_offset,
            manifest.segments,
            manifest.size_bytes,
        )._replace(**changes)  # type: ignore[arg-type]
        self.image = replace(self.image, remote=PersistentMap({(TIP.topic_id, TIP.partition): entry}))
        return entry

    def build(
        self,
        start_offset: int = 0,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        meanwhile: Callable[[], object] | None = None,
        has_reader: bool = True,
    ) -> bool:
        async def run() -> bool:
            archive = TierStateBuilder(
                self.reader if has_reader else None,
                lambda topic_id, partition: self.standing,
                lambda: self.image,
            )
            if meanwhile is None:
                return await archive.build(TIP, EPOCH, start_offset, is_wanted)
            self.store.gate.clear()
            building = asyncio.create_task(archive.build(TIP, EPOCH, start_offset, is_wanted))
            await asyncio.sleep(0.05)
            meanwhile()
            self.store.gate.set()
            return await building

        return asyncio.run(run())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.store.gate.set()
    made.reader.close()


def test_a_new_replica_starts_at_the_archive_end_with_its_state(node: Node) -> None:
    node.log.append(batch(3), 1, START_MS)
    assert node.build()
    log, standing = node.log, node.standing
    assert standing is not None
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 500, 500)
    assert standing.high_watermark == 500
    assert log.epochs.entries == ((2, 0), (3, 125), (5, 375))
    entry = log.producers.get(77)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence) == (3, 19)


def open_at_its_end(node: Node) -> TransactionalLog:
    """Make an archive in which 7 has a transaction open from 2 on, and 8 from 5 on; they go on behind it."""
    log = TransactionalLog()
    log.plain(2)
    log.write(7)
    log.write(9)
    log.end(9, is_commit=False)
    log.write(8)
    log.write(7)
    log.end(8, is_commit=False)
    log.end(7, is_commit=True)
    node.archive = Archive(node.store.inner)
    node.archive.add_transactions(log, 3)
    node.archive.add_transactions(log, 7)
    node.entry = node.committed()
    return log


def test_a_new_replica_knows_the_transactions_that_are_open_at_the_archive_end(node: Node) -> None:
    open_at_its_end(node)
    assert node.build()
    opened = {pid: entry.txn_first_offset for pid, entry in node.log.producers if entry.txn_first_offset >= 0}
    assert opened == {7: 2, 8: 5}
    assert (node.log.local_log_start_offset, node.log.log_end_offset) == (7, 7)
    assert node.log.first_unstable_offset == 2, "below the local start, which is no bound"


@pytest.mark.parametrize("snapshot", [b"", snapshot_of({}), snapshot_of({7: 3, 8: 5}), snapshot_of({8: 5})])
def test_an_archive_end_without_its_open_transactions_is_not_used(node: Node, snapshot: bytes) -> None:
    """Of what an open transaction wrote nothing may be shown, and only its marker may end that."""
    log = open_at_its_end(node)
    node.archive = Archive(node.store.inner)
    node.archive.add_transactions(log, 3)
    node.archive.add_transactions(log, 7, snapshot=snapshot)
    node.committed()
    assert not node.build()
    assert node.log.log_end_offset == 0


def test_building_a_replica_reads_one_footer_and_no_records(node: Node) -> None:
    assert node.build()
    last = node.archive.manifest.entries[-1]
    assert {key for key, _, _ in node.store.reads} == {node.entry.manifest_key, last.key}
    assert node.store.ranges(last.key)[0][0] >= last.log_length, "no record is read"


def test_the_latest_start_counts(node: Node) -> None:
    node.archive.drop_before(125)
    node.committed()
    assert node.build(start_offset=20)
    assert node.log.log_start_offset == 125


def test_deleted_records_stay_deleted(node: Node) -> None:
    assert node.build(start_offset=130)
    assert node.log.log_start_offset == 130
    assert node.log.epochs.end_offset_for(2, 500) == (2, 125)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 9},
        {"start_offset": 1},
        {"end_offset": 501},
        {"segments": 3},
        {"size_bytes": 17},
        {"manifest_key": "elsewhere"},
    ],
    ids=str,
)
def test_an_archive_that_contradicts_the_metadata_is_not_used(node: Node, changes: dict[str, object]) -> None:
    node.log.append(batch(3), 1, START_MS)
    node.committed(**changes)
    assert not node.build()
    assert node.log.log_end_offset == 3


def test_a_failed_build_leaves_the_log_unchanged(node: Node) -> None:
    node.log.append(batch(3), 1, START_MS)
    assert not node.build(has_reader=False)

    def fail(key: str, data: bytes) -> bytes:
        raise StoreUnavailable("not now")

    node.store.interfere = fail
    assert not node.build()
    node.store.interfere = lambda key, data: data
    assert not node.build(is_wanted=lambda: False)
    standing, node.standing = node.standing, None
    assert not node.build()
    node.standing = standing
    node.committed(end_offset=0, start_offset=0, segments=0)
    assert not node.build()
    node.image = MetadataImage()
    assert not node.build()
    assert node.log.log_end_offset == 3


def test_an_archive_that_ends_where_the_log_does_has_nothing_to_give(node: Node) -> None:
    node.log.truncation.restart_at(500)
    assert not node.build()
    assert node.store.arrived() == 0


def test_an_archive_that_goes_on_meanwhile_is_as_good(node: Node) -> None:
    def goes_on() -> None:
        node.archive.add_segment(5, epoch=6)
        node.archive.drop_before(130)
        node.committed()

    assert node.build(meanwhile=goes_on)
    assert (node.log.log_start_offset, node.log.log_end_offset) == (130, 500)


def test_an_archive_that_goes_meanwhile_is_not(node: Node) -> None:
    def goes() -> None:
        node.archive.add_segment(50, epoch=6)
        node.archive.drop_before(600)
        node.committed()

    assert not node.build(meanwhile=goes)
    assert not node.build(meanwhile=lambda: setattr(node, "standing", Standing(node.log)))
    assert node.build()


def test_a_log_whose_files_fail_says_so(node: Node) -> None:
    node.log.fail(OSError("the disk is gone"))
    with pytest.raises(StorageError, match="the disk is gone"):
        node.build()
