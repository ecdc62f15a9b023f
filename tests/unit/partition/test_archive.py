"""Archived part of a partition: held appends, and local segments that go because the bucket has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import Purgatory
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch
from tests.unit.partition.leading import EPOCH, Led

TIP = TopicIdPartition(UUID(int=7), "events", 0)
TIERED = LogConfig(remote_storage_enable=True)


@pytest.fixture
def local(tmp_path: Path) -> LocalLog:
    return LocalLog.open(tmp_path / "events-0", TIP, TIERED, world=make_world())


def partition(local: LocalLog) -> Partition:
    return Partition(TIP, local, None, 0, 1, 1 << 20, Purgatory(0))


def test_held_appends_are_refused_and_reads_are_served(local: LocalLog) -> None:
    local.append(batch(10), 0, START_MS)
    held = partition(local)
    held.archive.hold_appends("its HEAD was not looked at yet")
    with pytest.raises(RequestError, match="not looked at yet") as refused:
        held.append(batch(1), START_MS)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert held.unified.read(0, 1 << 20, held.high_watermark, min_one=True).size > 0
    held.archive.head_judged("the bucket is ahead")
    with pytest.raises(RequestError, match="the bucket is ahead"):
        held.append(batch(1), START_MS)
    assert local.log_end_offset == 10
    held.archive.head_judged(None)
    held.append(batch(1), START_MS)
    assert local.log_end_offset == 11


def test_appends_are_held_no_longer_than_there_is_an_archive_to_compare(local: LocalLog) -> None:
    """Where tiering is switched off before anything was copied, nobody looks at HEAD any more."""
    held, archived = partition(local), partition(local)
    for one in (held, archived):
        one.archive.hold_appends("its HEAD was not looked at yet")
    archived.unified.remote_committed(CatalogEntry(1, "m", 0, 0, 10, 1, 100))
    for one in (held, archived):
        one.configure(LogConfig(remote_storage_enable=False))
    held.append(batch(1), START_MS)
    with pytest.raises(RequestError, match="not looked at yet"):
        archived.append(batch(1), START_MS)


def test_a_problem_found_later_stops_local_deletions_and_not_appends(local: LocalLog) -> None:
    one = partition(local)
    one.archive.head_judged(None)
    one.append(batch(10), START_MS)
    one.archive.remote_committed(CatalogEntry(1, "m", 0, 0, 10, 1, 100))
    assert one.archive.published_offset == 10
    one.archive.head_judged("HEAD is another's")
    assert one.archive.published_offset == 0
    one.append(batch(1), START_MS)


def test_a_follower_lets_go_of_what_the_committed_entry_covers(tmp_path: Path) -> None:
    led = Led(tmp_path, records=5, high_watermark=5)
    led.log.appender.roll()
    led.append(5)
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.partition.configure(replace(led.partition.config, remote_storage_enable=True))
    led.partition.unified.remote_committed(CatalogEntry(4, "m4", 2, 0, 5, 5, 500))
    assert led.partition.archive.let_go_early() == 0, "a leader looks to HEAD"
    led.partition.follow(EPOCH + 1)
    assert led.partition.archive.let_go_early() > 0
    assert led.log.local_log_start_offset == 5
    assert led.partition.start_offset == 0
