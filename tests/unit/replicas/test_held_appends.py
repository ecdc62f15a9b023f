"""A partition is read and not written before its HEAD was compared; a log is fitted to its archive."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.purgatory import Purgatory
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.remote.format.block_table import LogBlock
from service.remote.reading.reader import ArchiveEnd
from service.replicas.archive_fit import fit_to_archive
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch

TIP = TopicIdPartition(UUID(int=7), "events", 0)
TIERED = LogConfig(remote_storage_enable=True)


@pytest.fixture
def local(tmp_path: Path) -> LocalLog:
    return LocalLog.open(tmp_path / "events-0", TIP, TIERED, world=make_world())


def partition(local: LocalLog) -> Partition:
    return Partition(TIP, local, None, 0, 1, 1 << 20, Purgatory(0))


def fill(local: LocalLog, batches: int, epoch: int) -> None:
    for _ in range(batches):
        local.append(batch(10), epoch, START_MS)


def test_held_appends_are_refused_and_reads_are_served(local: LocalLog) -> None:
    fill(local, 1, 0)
    held = partition(local)
    held.hold_appends("its HEAD was not looked at yet")
    with pytest.raises(RequestError, match="not looked at yet") as refused:
        held.append(batch(1), START_MS)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert held.read(0, 1 << 20, min_one=True).size > 0
    held.head_judged("the bucket is ahead")
    with pytest.raises(RequestError, match="the bucket is ahead"):
        held.append(batch(1), START_MS)
    assert local.log_end_offset == 10
    held.head_judged(None)
    held.append(batch(1), START_MS)
    assert local.log_end_offset == 11


def test_appends_are_held_no_longer_than_there_is_an_archive_to_compare(local: LocalLog) -> None:
    """Where tiering is switched off before anything was copied, nobody looks at HEAD any more."""
    held, archived = partition(local), partition(local)
    for one in (held, archived):
        one.hold_appends("its HEAD was not looked at yet")
    archived.unified.remote_committed(CatalogEntry(1, "m", 0, 0, 10, 1, 100))
    for one in (held, archived):
        one.configure(LogConfig(remote_storage_enable=False))
    held.append(batch(1), START_MS)
    with pytest.raises(RequestError, match="not looked at yet"):
        archived.append(batch(1), START_MS)


def test_a_problem_found_later_stops_local_deletions_and_not_appends(local: LocalLog) -> None:
    one = partition(local)
    one.head_judged(None)
    one.append(batch(10), START_MS)
    one.remote_committed(CatalogEntry(1, "m", 0, 0, 10, 1, 100))
    assert one.published_offset == 10
    one.head_judged("HEAD is another's")
    assert one.published_offset == 0
    one.append(batch(1), START_MS)


ENTRY = CatalogEntry(4, "m4", 2, 0, 50, 5, 500)


def archive_of(log: LocalLog) -> ArchiveEnd:
    """The archive of what lies below offset 50 of `log`, whose last block has two batches."""
    found = log.read(30, 1 << 20, 50)
    assert found.slice is not None
    data = found.slice.read()
    block = LogBlock(900, len(data), crc32c(data), 30, 49, START_MS, START_MS, 20, 2)
    return ArchiveEnd(((0, 0), (2, 20)), b"", ENTRY, block)


@pytest.fixture
def archived(tmp_path: Path) -> ArchiveEnd:
    lost = LocalLog.open(tmp_path / "lost" / "events-0", TIP, TIERED, world=make_world())
    fill(lost, 2, 0)
    fill(lost, 4, 2)
    return archive_of(lost)


def test_a_log_of_the_archive_s_past_is_kept_with_what_the_bucket_does_not_have(
    local: LocalLog, archived: ArchiveEnd
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    fit_to_archive(local, ENTRY, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


def test_a_log_that_starts_in_the_archives_last_block_is_compared(
    local: LocalLog, archived: ArchiveEnd
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    local.deletion.advance_log_start(45)
    fit_to_archive(local, ENTRY, archived)
    assert local.log_end_offset == 70


@pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (3, 0), (7, 1)], ids=["new", "older", "another past"])
def test_a_log_that_differs_from_the_archive_restarts_at_its_end(
    local: LocalLog, archived: ArchiveEnd, batches: int, epoch: int
) -> None:
    fill(local, batches, epoch)
    fit_to_archive(local, ENTRY, archived)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)
    assert local.epochs.epoch_at(49) == 2
    assert local.epochs.end_offset_for(0, 50) == (0, 20)


def test_a_cloned_log_with_other_records_restarts_at_the_archive_end(
    local: LocalLog, archived: ArchiveEnd
) -> None:
    """Both starts of a cloned disk raise the epochs alike: the bytes of the records alone differ."""
    fill(local, 2, 0)
    fill(local, 2, 2)
    local.append(batch(10, value=b"c" * 50), 2, START_MS)
    fill(local, 2, 2)
    assert local.epochs.epoch_at(49) == 2
    fit_to_archive(local, ENTRY, archived)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)


def test_an_archive_that_is_not_the_committed_one_changes_no_log(
    local: LocalLog, archived: ArchiveEnd
) -> None:
    fill(local, 7, 1)
    with pytest.raises(CorruptionError, match="the metadata says"):
        fit_to_archive(local, ENTRY._replace(version=5), archived)
    assert local.log_end_offset == 70
