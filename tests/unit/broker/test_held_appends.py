"""A partition is read and not written before its HEAD was compared; a log fits the archive taken over."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import Purgatory
from service.base.types import TopicIdPartition
from service.broker.takeover import fit_to_archive
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.tiering.recovery import ArchivedPartition
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


ARCHIVED = ArchivedPartition(CatalogEntry(4, "m4", 2, 0, 50, 5, 500), 2, ((0, 0), (2, 20)), ())


def test_a_log_of_the_archive_s_past_is_kept_with_what_the_bucket_does_not_have(local: LocalLog) -> None:
    assert ARCHIVED.entry is not None
    fill(local, 2, 0)
    fill(local, 5, 2)
    fit_to_archive(local, ARCHIVED.entry, ARCHIVED)
    assert (local.local_log_start_offset, local.log_end_offset) == (0, 70)


@pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (3, 0), (7, 1)], ids=["new", "older", "another past"])
def test_any_other_log_begins_anew_where_the_archive_ends(local: LocalLog, batches: int, epoch: int) -> None:
    assert ARCHIVED.entry is not None
    fill(local, batches, epoch)
    fit_to_archive(local, ARCHIVED.entry, ARCHIVED)
    assert (local.log_start_offset, local.local_log_start_offset, local.log_end_offset) == (0, 50, 50)
    assert local.epochs.epoch_at(49) == 2
    assert local.epochs.end_offset_for(0, 50) == (0, 20)
