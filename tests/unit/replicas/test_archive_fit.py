"""A local log is kept or begun anew beside an archive that a recovery took over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.records.batch import iter_headers, read_header
from service.records.compaction import empty_batch
from service.remote.catalog import CatalogEntry
from service.remote.format.block_table import LogBlock
from service.remote.reading.reader import ArchiveEnd
from service.replicas.archive_fit import drop_rewritten, fit_to_archive
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch

T = TypeVar("T")
TIP = TopicIdPartition(UUID(int=7), "events", 0)
TIERED = LogConfig(remote_storage_enable=True)


@pytest.fixture
def local(tmp_path: Path) -> LocalLog:
    return LocalLog.open(tmp_path / "events-0", TIP, TIERED, world=make_world())


def fill(local: LocalLog, batches: int, epoch: int) -> None:
    for _ in range(batches):
        local.append(batch(10), epoch, START_MS)


ENTRY = CatalogEntry(4, "m4", 2, 0, 50, 5, 500)


class Archived:
    """The archive of what lies below offset 50 of a log, whose last block has two batches."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.read: list[tuple[int, int]] = []
        """ranges that were read"""
        self.damage = b""

    @property
    def end(self) -> ArchiveEnd:
        data = self.bytes_from(30, 50)
        block = LogBlock(900, len(data), crc32c(data), 30, 49, START_MS, START_MS, 20, 2)
        return ArchiveEnd(((0, 0), (2, 20)), b"", ENTRY, block)

    def bytes_from(self, offset: int, end: int) -> bytes:
        found = self.log.read(offset, 1 << 20, end)
        return b"" if found.slice is None else found.slice.read()

    async def batches(self, offset: int, end_offset: int) -> tuple[bytes, int]:
        self.read.append((offset, end_offset))
        return self.bytes_from(offset, end_offset) + self.damage, end_offset


@pytest.fixture
def archived(tmp_path: Path) -> Archived:
    lost = LocalLog.open(tmp_path / "lost" / "events-0", TIP, TIERED, world=make_world())
    fill(lost, 2, 0)
    fill(lost, 4, 2)
    return Archived(lost)


async def on_thread(job: Callable[..., T], /, *args: object) -> T:
    return job(*args)


def fit(local: LocalLog, archived: Archived, entry: CatalogEntry = ENTRY, *, is_wanted: bool = True) -> bool:
    return asyncio.run(
        fit_to_archive(local, entry, archived.end, archived.batches, on_thread, lambda: is_wanted)
    )


def erase(log: LocalLog, begin: int, end: int) -> None:
    """Leave only headers of the batches with these offsets, as an order that takes all keys."""
    data = memoryview(log_bytes(log))
    copies = []
    for header in iter_headers(data):
        one = data[header.position : header.end]
        is_gone = begin <= header.base_offset < end
        copies.append(bytes(empty_batch(read_header(one))) if is_gone else bytes(one))
    epochs = log.epochs.entries
    log.truncation.restart_at(0)
    for copy in copies:
        log.appender.append_raw(memoryview(bytearray(copy)))
    assert log.epochs.entries == epochs


def log_bytes(log: LocalLog) -> bytearray:
    found = log.read(0, 1 << 20, log.log_end_offset)
    assert found.slice is not None
    return bytearray(found.slice.read())


def test_a_log_of_the_archive_s_past_is_kept_with_what_the_bucket_does_not_have(
    local: LocalLog, archived: Archived
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


def test_a_log_whose_start_lies_within_the_last_block_is_compared_all_the_same(
    local: LocalLog, archived: Archived
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    local.deletion.advance_log_start(45)
    fit(local, archived)
    assert local.log_end_offset == 70


def test_a_block_of_a_merged_segment_may_span_local_ones(local: LocalLog, archived: Archived) -> None:
    fill(local, 2, 0)
    fill(local, 2, 2)
    local.appender.roll()
    fill(local, 3, 2)
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


@pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (3, 0), (7, 1)], ids=["new", "older", "another past"])
def test_any_other_log_begins_anew_where_the_archive_ends(
    local: LocalLog, archived: Archived, batches: int, epoch: int
) -> None:
    fill(local, batches, epoch)
    fit(local, archived)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)
    assert local.epochs.epoch_at(49) == 2
    assert local.epochs.end_offset_for(0, 50) == (0, 20)


def test_a_clone_s_log_begins_anew_though_offsets_and_epochs_are_the_archive_s(
    local: LocalLog, archived: Archived
) -> None:
    """Both starts of a cloned disk raise the epochs alike: the bytes of the records alone differ."""
    fill(local, 2, 0)
    fill(local, 2, 2)
    local.append(batch(10, value=b"c" * 50), 2, START_MS)
    fill(local, 2, 2)
    assert local.epochs.epoch_at(49) == 2
    fit(local, archived)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)


def test_an_archive_that_is_not_the_committed_one_changes_no_log(local: LocalLog, archived: Archived) -> None:
    fill(local, 7, 1)
    with pytest.raises(CorruptionError, match="the metadata says"):
        fit(local, archived, ENTRY._replace(version=5))
    assert local.log_end_offset == 70


def test_nothing_is_read_of_an_archive_whose_last_block_the_log_has(
    local: LocalLog, archived: Archived
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    fit(local, archived)
    assert archived.read == []


@pytest.mark.parametrize("side", ["log", "archive"])
def test_a_log_is_compared_further_back_where_an_erasure_has_left_nothing_of_the_last_block(
    local: LocalLog, archived: Archived, side: str
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    erase(local if side == "log" else archived.log, 20, 50)
    fit(local, archived)
    assert archived.read == [(30, 50), (0, 30)]
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


@pytest.mark.parametrize("side", ["log", "archive"])
def test_a_log_is_kept_where_an_erasure_has_left_nothing_to_compare(
    local: LocalLog, archived: Archived, side: str
) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    erase(local if side == "log" else archived.log, 0, 50)
    fit(local, archived)
    assert local.log_end_offset == 70


@pytest.mark.parametrize("side", ["log", "archive"])
def test_another_past_before_what_was_erased_is_another_one(
    local: LocalLog, archived: Archived, side: str
) -> None:
    fill(local, 2, 0)
    for _ in range(5):
        local.append(batch(10, value=b"c" * 50), 2, START_MS)
    erase(local if side == "log" else archived.log, 40, 50)
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (50, 50)


def test_a_log_that_begins_where_the_archive_ends_is_kept(local: LocalLog, archived: Archived) -> None:
    """Local retention deletes what the bucket has: all but the active segment, at times."""
    fill(local, 2, 0)
    fill(local, 3, 2)
    local.appender.roll()
    fill(local, 2, 2)
    local.deletion.advance_local_start(50)
    assert local.first_base_offset == 50
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (50, 70)


def test_a_log_that_begins_where_the_archive_ends_in_another_epoch_begins_anew(
    local: LocalLog, archived: Archived
) -> None:
    fill(local, 2, 0)
    fill(local, 3, 1)
    local.appender.roll()
    fill(local, 2, 2)
    local.deletion.advance_local_start(50)
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (50, 50)


def test_a_log_that_begins_behind_the_archive_s_end_begins_anew(local: LocalLog, archived: Archived) -> None:
    fill(local, 2, 0)
    fill(local, 4, 2)
    local.appender.roll()
    fill(local, 2, 2)
    local.deletion.advance_local_start(60)
    fit(local, archived)
    assert (local.local_log_start_offset, local.log_end_offset) == (50, 50)


def test_a_log_is_kept_beside_an_archive_of_which_nothing_is_left(local: LocalLog) -> None:
    fill(local, 7, 2)
    entry = CatalogEntry(9, "m9", 2, 50, 50, 0, 0)

    async def nothing(offset: int, end_offset: int) -> tuple[bytes, int]:
        raise AssertionError("nothing can be read")

    end = ArchiveEnd((), b"", entry)
    assert asyncio.run(fit_to_archive(local, entry, end, nothing, on_thread, lambda: True))
    assert local.log_end_offset == 70


@pytest.mark.parametrize(("rewritten_end", "start"), [(-1, 0), (0, 0), (19, 0), (20, 20), (50, 20), (60, 60)])
def test_local_segments_go_where_the_archive_has_them_written_anew(
    local: LocalLog, archived: Archived, rewritten_end: int, start: int
) -> None:
    """The disk may be from before an order to erase keys that is gone: the archive has lost its records."""
    fill(local, 2, 0)
    local.appender.roll()
    fill(local, 4, 2)
    local.appender.roll()
    fill(local, 1, 2)
    fit(local, archived)
    drop_rewritten(local, rewritten_end)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, start, 70)


def test_damage_in_the_archive_discards_nothing(local: LocalLog, archived: Archived) -> None:
    fill(local, 2, 0)
    fill(local, 5, 2)
    erase(archived.log, 20, 50)
    archived.damage = bytes(61)
    with pytest.raises(CorruptionError, match="a batch of the archive"):
        fit(local, archived)
    assert local.log_end_offset == 70


def test_a_log_that_is_no_longer_wanted_stays_as_it_is(local: LocalLog, archived: Archived) -> None:
    fill(local, 7, 1)
    assert not fit(local, archived, is_wanted=False)
    assert local.log_end_offset == 70
