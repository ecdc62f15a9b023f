"""DescribeLogDirs and DescribeProducers of a whole node."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.world import system_world
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_epochs_and_producers import PRODUCER, send
from tests.support.fault_disk import FaultDisk
from tests.support.wire import RawConnection, schema

OK = ErrorCode.none
NOW_MS = SystemClock().now_ms()


def directories(talk: Talk, *asked: tuple[str, tuple[int, ...]], whole: bool = False) -> dict[str, Any]:
    """Answers by directory; all partitions where none are asked for, but for `whole`."""
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    topics = tuple(module.DescribableLogDirTopic(topic=name, partitions=these) for name, these in asked)
    chosen = topics if asked or whole else None
    answer = talk(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirsRequest", topics=chosen)
    assert answer.error_code == OK
    return {one.log_dir: one for one in answer.results}


def sizes(found: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_size for t in found.topics for p in t.partitions}


@pytest.fixture
def two(start: Callable[..., NodeThread], tmp_path: Path) -> tuple[NodeThread, FaultDisk, list[str]]:
    disk, paths = FaultDisk(), [str(tmp_path / "one"), str(tmp_path / "two")]
    return start(replace(system_world(), disk=disk), log_dirs=",".join(paths)), disk, paths


def test_every_directory_tells_what_it_holds_and_what_is_left(
    two: tuple[NodeThread, FaultDisk, list[str]],
) -> None:
    node, _, paths = two
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", partitions=4).topic_id
        for index in range(4):
            talk.produce(topic_id, [b"x" * 1000 * (index + 1)], NOW_MS, partition=index)
        found = directories(talk)
        assert sorted(found) == paths
        held = {key: size for one in found.values() for key, size in sizes(one).items()}
        assert sorted(held) == [("t", index) for index in range(4)]
        for (name, index), size in held.items():
            (path,) = [path for one in paths for path in Path(one).glob(f"{name}-{index}/*.log")]
            assert size == path.stat().st_size > 1000 * (index + 1)
        for one in found.values():
            assert len(sizes(one)) == 2
            assert 0 < one.usable_bytes <= one.total_bytes
            assert {p.offset_lag for t in one.topics for p in t.partitions} == {0}
        asked = directories(talk, ("t", (1, 9)), ("nobody", (0,)))
        assert [key for one in asked.values() for key in sizes(one)] == [("t", 1)]
        assert all(not one.topics for one in directories(talk, whole=True).values())


def test_a_directory_that_is_offline_says_so_and_the_others_go_on(
    two: tuple[NodeThread, FaultDisk, list[str]],
) -> None:
    node, disk, paths = two
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", partitions=2, flush_messages="1").topic_id
        disk.fail("fdatasync", errno.EIO, path=paths[1])
        disk.fail("fsync", errno.EIO, path=paths[1])
        answers = [talk.produce(topic_id, [b"x"], NOW_MS, partition=index).error_code for index in (0, 1)]
        assert sorted(answers) == [OK, ErrorCode.kafka_storage_error]
        found = directories(talk)
        assert found[paths[1]].error_code is ErrorCode.kafka_storage_error
        assert (found[paths[1]].topics, found[paths[1]].total_bytes) == ((), -1)
        assert len(sizes(found[paths[0]])) == 1


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_old_versions_are_answered(start: Callable[..., NodeThread], version: int) -> None:
    node = start()
    with node.client() as client, RawConnection(f"{node.host}:{node.port}") as connection:
        Talk(client).create("t")
        answer = connection.call(
            schema(ApiKey.DESCRIBE_LOG_DIRS, version).DescribeLogDirsRequest(topics=None)
        )
        assert [t.name for t in answer.results[0].topics] == ["t"]


def producers(talk: Talk, *asked: tuple[str, tuple[int, ...]]) -> list[Any]:
    module = request_module(ApiKey.DESCRIBE_PRODUCERS)
    topics = tuple(module.TopicRequest(name=name, partition_indexes=these) for name, these in asked)
    answer = talk(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducersRequest", topics=topics)
    return [one for topic in answer.topics for one in topic.partitions]


def test_partitions_tell_what_they_remember_of_producers(talk: Talk) -> None:
    talk.create("t")
    assert producers(talk, ("t", (0,)))[0].active_producers == ()
    for sequence in (0, 1):
        assert send(talk, talk.topic_id("t"), sequence).error_code == OK
    talk.produce(talk.topic_id("t"), [b"of nobody"], NOW_MS)
    ((one,),) = [found.active_producers for found in producers(talk, ("t", (0,)))]
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (PRODUCER, 0, 1)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)
    assert one.last_timestamp > 0


def test_partitions_that_cannot_tell_say_why(talk: Talk) -> None:
    talk.create("t")
    codes = [one.error_code for one in producers(talk, ("t", (0, 3)), ("nobody", (0,)), ("a b", (0,)))]
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [OK, unknown, unknown, ErrorCode.invalid_topic_exception]


def test_answers_about_producers_are_bounded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.serving.handlers.describe_producers.MOST_PRODUCERS", 2)
    talk.create("t")
    send(talk, talk.topic_id("t"), 0)
    codes = [one.error_code for one in producers(talk, ("t", (0,) * 5))]
    assert codes == [OK] * 2 + [ErrorCode.invalid_request] * 3
