"""DeleteRecords against a whole node: which records it deletes, and what a crash may restore."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.errors import RequestError
from service.base.world import system_world
from service.hot.log import LocalLog
from service.inspect.fsck import fsck
from service.remote.format.keys import HeadKey
from service.remote.reading.object_reader import open_head, open_named
from service.remote.stores.obstore_store import open_store
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import list_offset
from tests.node.test_work_budget import GatedThreads
from tests.support.fault_disk import FaultDisk
from tests.support.processes import copy_as_crashed, wait_until
from tests.unit.partition.test_archive import local, partition
from tests.unit.replicas.test_archive_fit import fill as fill_log

__all__ = ["local"]

Start = Callable[..., NodeThread]

OK = ErrorCode.none
OUT_OF_RANGE = ErrorCode.offset_out_of_range
NOW_MS = SystemClock().now_ms()
HIGH_WATERMARK = -1


def delete_all(talk: Talk, *asked: tuple[str, int, int], timeout_ms: int = 20_000) -> list[tuple[Any, ...]]:
    """(topic, partition, offset) each; (topic, partition, error, low watermark) of each."""
    module = request_module(ApiKey.DELETE_RECORDS)
    topics = tuple(
        module.DeleteRecordsTopic(
            name=name, partitions=(module.DeleteRecordsPartition(partition_index=index, offset=offset),)
        )
        for name, index, offset in asked
    )
    answer = talk(
        ApiKey.DELETE_RECORDS,
        "DeleteRecordsRequest",
        topics=topics,
        timeout=timedelta(milliseconds=timeout_ms),
    )
    return [
        (topic.name, one.partition_index, one.error_code, one.low_watermark)
        for topic in answer.topics
        for one in topic.partitions
    ]


def delete(talk: Talk, offset: int, topic: str = "t", timeout_ms: int = 20_000) -> tuple[ErrorCode, int]:
    ((_, _, error, low_watermark),) = delete_all(talk, (topic, 0, offset), timeout_ms=timeout_ms)
    return error, low_watermark


def start_offset(talk: Talk, topic: str = "t") -> int:
    return int(list_offset(talk, -2, topic).offset)


def fill(talk: Talk, batches: int = 20, **configs: Any) -> Any:
    """Topic "t" of batches of ten records, two or so in a segment."""
    made = talk.create("t", internal_segment_bytes="5000", **configs)
    assert made.error_code == OK, made.error_message
    for number in range(batches):
        values = [b"%d-%d" % (number, n) + b"." * 200 for n in range(10)]
        assert talk.produce_in_the_end(made.topic_id, values, NOW_MS).error_code == OK
    return made.topic_id


def test_the_log_begins_where_it_was_told_to(talk: Talk) -> None:
    topic_id = fill(talk)
    assert delete(talk, 37) == (OK, 37)
    assert start_offset(talk) == 37
    assert list_offset(talk, -4).offset == 37
    assert talk.fetch(topic_id, 36).error_code == OUT_OF_RANGE
    assert talk.fetch(topic_id, 37).error_code == OK
    assert delete(talk, 20) == (OK, 37)
    assert delete(talk, HIGH_WATERMARK) == (OK, 200)
    assert (start_offset(talk), list_offset(talk, -1).offset) == (200, 200)
    assert talk.produce(topic_id, [b"next"], NOW_MS).base_offset == 200


def test_segments_that_are_wholly_below_go_after_their_delay(start: Start) -> None:
    node = start()
    with node.client() as client:
        talk = Talk(client)
        fill(talk, file_delete_delay_ms="0")
        folder = node.data / "t-0"
        bases = sorted(int(path.stem) for path in folder.glob("*.log"))
        assert delete(talk, 95) == (OK, 95)
        left = [base for base, following in zip(bases, [*bases[1:], 1000], strict=True) if following > 95]
        wait_until("files to go", lambda: sorted(int(path.stem) for path in folder.glob("*.log")) == left)


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "error"),
    [
        ("t", 0, 201, OUT_OF_RANGE),
        ("t", 0, -2, OUT_OF_RANGE),
        ("t", 0, 1 << 62, OUT_OF_RANGE),
        ("t", 7, 1, ErrorCode.unknown_topic_or_partition),
        ("nobody", 0, 1, ErrorCode.unknown_topic_or_partition),
        ("__consumer_offsets", 0, 0, ErrorCode.invalid_topic_exception),
    ],
)
def test_impossible_requests_are_refused_as_by_kafka(
    talk: Talk, topic: str, partition: int, offset: int, error: ErrorCode
) -> None:
    fill(talk)
    talk.create("__consumer_offsets")
    assert delete_all(talk, (topic, partition, offset)) == [(topic, partition, error, -1)]
    assert start_offset(talk) == 0


@pytest.mark.parametrize(
    ("policy", "refused"), [("compact", True), ("compact,delete", False), ("delete", False)]
)
def test_records_that_are_compacted_alone_are_not_deleted(
    local: LocalLog, policy: str, refused: bool
) -> None:
    local.config = replace(local.config, cleanup_policy=policy)
    deleting = partition(local)
    fill_log(local, 3, 0)
    deleting.high_watermark = local.log_end_offset
    if refused:
        with pytest.raises(RequestError) as found:
            deleting.delete_records(99)
        assert found.value.code is ErrorCode.policy_violation
    else:
        assert deleting.delete_records(HIGH_WATERMARK) == local.log_end_offset


def test_while_appends_are_held_nothing_is_deleted(local: LocalLog) -> None:
    fill_log(local, 3, 0)
    held = partition(local)
    held.archive.hold_appends("HEAD is not compared yet")
    with pytest.raises(RequestError, match="HEAD is not compared yet") as found:
        held.delete_records(1)
    assert found.value.code is ErrorCode.kafka_storage_error
    assert held.start_offset == 0


@pytest.mark.parametrize("offset", [1, 37, "a border", HIGH_WATERMARK])
def test_acknowledged_deletions_survive_a_crash(start: Start, tmp_path: Path, offset: int | str) -> None:
    node = start()
    with node.client() as client:
        talk = Talk(client)
        fill(talk)
        if offset == "a border":
            offset = sorted(int(path.stem) for path in (node.data / "t-0").glob("*.log"))[3]
        error, low_watermark = delete(talk, int(offset))
        assert error is OK
        after = NodeThread(copy_as_crashed(node.data, tmp_path / "after the crash")).start()
    try:
        with after.client() as client:
            talk = Talk(client)
            assert (start_offset(talk), list_offset(talk, -1).offset) == (low_watermark, 200)
            if low_watermark < 200:
                fetched = talk.fetch(talk.topic_id("t"), low_watermark)
                assert fetched.error_code == OK
                assert fetched.records
    finally:
        after.stop()


def test_without_a_checkpoint_nothing_is_acknowledged(start: Start) -> None:
    disk = FaultDisk()
    with start(replace(system_world(), disk=disk)).client() as client:
        talk = Talk(client)
        fill(talk)
        disk.fail("rename", errno.ENOSPC, path="log-start-offset-checkpoint")
        assert delete(talk, 50) == (ErrorCode.kafka_storage_error, -1)
        # It begins there all the same, and who asks again is not told that it does for good, either.
        assert start_offset(talk) == 50
        assert delete(talk, 50) == (ErrorCode.kafka_storage_error, -1)
        disk.faults.clear()
        assert delete(talk, 40) == (OK, 50)


def test_delete_records_respects_its_timeout(start: Start) -> None:
    threads = GatedThreads("log-io")
    threads.open.set()
    with start(replace(system_world(), threads=threads)).client() as client:
        talk = Talk(client)
        fill(talk, 3)
        threads.open.clear()
        try:
            assert delete(talk, 9, timeout_ms=50) == (ErrorCode.request_timed_out, -1)
        finally:
            threads.open.set()
        assert delete(talk, 9) == (OK, 9)


def test_a_request_of_many_partitions_is_answered_for_each_of_them(talk: Talk) -> None:
    topic_id = fill(talk, 3)
    many = [("t", index, 30) for index in range(3000)]
    found = delete_all(talk, *many)
    assert found[0] == ("t", 0, OK, 30)
    assert {code for _, _, code, _ in found[1:]} == {ErrorCode.unknown_topic_or_partition}
    assert len(found) == 3000
    assert talk.fetch(topic_id, 29).error_code == OUT_OF_RANGE


def test_offsets_by_time_pass_over_what_was_deleted(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    times = [50, 90, 10, 70, 40, 70, 30]
    for time in times:
        talk.produce(topic_id, [b"x"], NOW_MS + time)
    for start in range(len(times)):
        assert delete(talk, start) == (OK, start)
        newest = max(times[start:])
        found = list_offset(talk, -3)
        assert (found.offset, found.timestamp) == (times.index(newest, start), NOW_MS + newest)
        assert list_offset(talk, NOW_MS).offset == start
    assert delete(talk, HIGH_WATERMARK) == (OK, 7)
    assert (list_offset(talk, -3).offset, list_offset(talk, NOW_MS).offset) == (-1, -1)


class TestBothTiers:
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Path:
        (tmp_path / "bucket").mkdir()
        return tmp_path / "bucket"

    @pytest.fixture
    def node(self, start: Start, bucket: Path) -> NodeThread:
        return start(
            firn_remote_url=f"file://{bucket}",
            firn_remote_object_grace_ms="100",
            firn_cut_interval_ms="-1",  # a cut that is kept for longer than the grace lacks what has gone
            log_retention_check_interval_ms="100",
        )

    @staticmethod
    def fill(talk: Talk) -> Any:
        topic_id = fill(
            talk,
            remote_storage_enable="true",
            local_retention_bytes="10000",
            file_delete_delay_ms="0",
            retention_ms="-1",
        )
        wait_until("segments to be offloaded", lambda: list_offset(talk, -4).offset > 100)
        return topic_id

    @staticmethod
    def archive_start(bucket: Path, topic_id: Any) -> int:
        """Return the start offset of the published chain."""
        store = open_store(f"file://{bucket}", world=system_world())
        return open_named(store, open_head(store, HeadKey(topic_id, 0))).start_offset

    @pytest.mark.parametrize("offset", [37, 155, HIGH_WATERMARK])
    def test_the_catalog_follows_and_objects_go(self, node: NodeThread, bucket: Path, offset: int) -> None:
        with node.client() as client:
            talk = Talk(client)
            topic_id = self.fill(talk)
            assert list_offset(talk, -3).offset == 9
            error, start = delete(talk, offset)
            assert list_offset(talk, -3).offset == {37: 39, 155: 159, -1: -1}[offset]
            assert (error, start) == (OK, 200 if offset == HIGH_WATERMARK else offset)
            assert start_offset(talk) == start
            assert talk.fetch(topic_id, start - 1).error_code == OUT_OF_RANGE
            assert talk.fetch(topic_id, start, max_wait=5000).error_code == OK

            def objects() -> list[int]:
                return sorted(int(path.name[21:41]) for path in bucket.glob("data/*/0/*.seg"))

            wait_until("objects to go", lambda: all(last >= start for last in objects()))
            wait_until(
                "the archive to begin there",
                lambda: self.archive_start(bucket, topic_id) == min(start, list_offset(talk, -5).offset + 1),
            )
            # It goes on from there: what comes later is copied, too.
            for _ in range(10):
                assert talk.produce(topic_id, [b"x" * 2000] * 2, NOW_MS).error_code == OK
            wait_until("new segments to be offloaded", lambda: list_offset(talk, -5).offset > 200)
            report = fsck(open_store(f"file://{bucket}", world=system_world()))
            assert not report.errors
            assert start_offset(talk) == start
