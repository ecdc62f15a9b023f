"""A local log is kept or begun anew beside an archive that a recovery took over."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
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


def fill(local: LocalLog, batches: int, epoch: int) -> None:
    for _ in range(batches):
        local.append(batch(10), epoch, START_MS)


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


def test_a_log_whose_start_lies_within_the_last_block_is_compared_all_the_same(
    local: LocalLog, archived: ArchiveEnd
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    local.deletion.advance_log_start(45)
    fit_to_archive(local, ENTRY, archived)
    assert local.log_end_offset == 70


def test_a_block_of_a_merged_segment_may_span_local_ones(local: LocalLog, archived: ArchiveEnd) -> None:
    fill(local, 2, 0)
    fill(local, 2, 2)
    local.appender.roll()
    fill(local, 3, 2)
    fit_to_archive(local, ENTRY, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


@pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (3, 0), (7, 1)], ids=["new", "older", "another past"])
def test_any_other_log_begins_anew_where_the_archive_ends(
    local: LocalLog, archived: ArchiveEnd, batches: int, epoch: int
) -> None:
    fill(local, batches, epoch)
    fit_to_archive(local, ENTRY, archived)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)
    assert local.epochs.epoch_at(49) == 2
    assert local.epochs.end_offset_for(0, 50) == (0, 20)


def test_a_clone_s_log_begins_anew_though_offsets_and_epochs_are_the_archive_s(
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
