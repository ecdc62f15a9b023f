"""A disk whose reads fail: that partition is refused; other partitions and the connection continue."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset, values
from tests.node.test_topics_and_configs import metadata
from tests.support.batches import batch
from tests.support.fault_disk import FaultDisk
from tests.support.processes import wait_until
from tests.support.world import make_world

SMALL, LARGE = 200, 30_000


def fetch_both(talk: Talk, topic_id: Any, **fields: Any) -> dict[int, Any]:
    """Partitions 0 and 1 from their beginning, in one request."""
    module = request_module(ApiKey.FETCH)
    partitions = tuple(
        module.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in (0, 1)
    )
    answer = talk(
        ApiKey.FETCH,
        "FetchRequest",
        topics=(module.FetchTopic(topic_id=topic_id, partitions=partitions),),
        max_wait=0,
        min_bytes=1,
        forgotten_topics_data=(),
        **fields,
    )
    return {one.partition_index: one for one in answer.responses[0].partitions}


@pytest.fixture
def disk() -> FaultDisk:
    return FaultDisk()


@pytest.fixture
def node(start: Callable[..., NodeThread], disk: FaultDisk) -> NodeThread:
    return start(make_world(SystemClock(), disk), firn_max_inflated_batch_bytes=str(1 << 20))


def filled(client: BlockingClient, value_bytes: int, **configs: str) -> Any:
    """A topic of two partitions with five batches each; its id."""
    talk = Talk(client)
    topic_id = talk.create("t", 2, **configs).topic_id
    for partition in (0, 1):
        for n in range(5):
            assert talk.produce(topic_id, [b"." * value_bytes], DAY + n, partition).error_code == 0
    return topic_id


def test_small_slices_that_cannot_be_read_are_refused_by_partition(node: NodeThread, disk: FaultDisk) -> None:
    with node.client() as client:
        topic_id = filled(client, SMALL)
        disk.fail("pread", errno.EIO, path="t-0/")
        found = fetch_both(Talk(client), topic_id)
        assert (found[0].error_code, found[0].records or b"") == (ErrorCode.kafka_storage_error, b"")
        assert (found[1].error_code, len(values(found[1].records))) == (0, 5)
        disk.heal()
        assert len(values(fetch_both(Talk(client), topic_id)[0].records)) == 5


def test_after_a_response_that_broke_off_only_the_bad_partition_is_refused(
    node: NodeThread, disk: FaultDisk
) -> None:
    """A large slice fails while it is sent: nobody can be told then, but from there on they are."""
    with node.client() as client:
        topic_id = filled(client, LARGE)
    with node.client() as client:
        # What `sendfile` would meet, where it is the kernel that reads.
        log = next(node.data.glob("t-0/*.log"))
        size = log.stat().st_size
        with log.open("r+b") as file:
            file.truncate(size - 10_000)
        with pytest.raises(OSError, match="closed"):
            fetch_both(Talk(client), topic_id)
    with node.client() as client:
        found = fetch_both(Talk(client), topic_id)
        assert found[0].error_code == ErrorCode.kafka_storage_error
        assert (found[1].error_code, len(values(found[1].records))) == (0, 5)


def test_a_device_that_fails_once_while_a_large_slice_is_sent_costs_the_connection(
    node: NodeThread, disk: FaultDisk
) -> None:
    with node.client() as client:
        topic_id = filled(client, LARGE)
    sending = disk.fail("sendfile", errno.EIO, path="t-0/", times=1)
    with node.client() as client, pytest.raises(OSError, match="closed"):
        fetch_both(Talk(client), topic_id)
    assert sending.hits == 1
    with node.client() as client:
        answers = fetch_both(Talk(client), topic_id)
        assert [len(values(answers[n].records)) for n in (0, 1)] == [5, 5]


def test_a_search_by_time_that_cannot_read_is_refused(node: NodeThread, disk: FaultDisk) -> None:
    with node.client() as client:
        filled(client, SMALL)
        disk.fail("*", errno.EIO, path="t-0/")
        assert list_offset(Talk(client), DAY + 3).error_code == ErrorCode.kafka_storage_error
        assert list_offset(Talk(client), -1).error_code == 0
        disk.heal()
        assert list_offset(Talk(client), DAY + 3).offset == 3


def test_a_write_that_fails_is_refused_and_the_connection_stays(node: NodeThread, disk: FaultDisk) -> None:
    with node.client() as client:
        topic_id = filled(client, SMALL)
        disk.fail("pwrite", errno.ENOSPC, path="t-0/")
        talk = Talk(client)
        assert talk.produce(topic_id, [b"a"], DAY).error_code == ErrorCode.kafka_storage_error
        assert talk.produce(topic_id, [b"a"], DAY, 1).error_code == 0


def test_a_flush_that_fails_costs_its_log_directory_and_no_other(
    start: Callable[..., NodeThread], disk: FaultDisk, tmp_path: Path
) -> None:
    node = start(make_world(SystemClock(), disk), log_dirs=f"{tmp_path}/data,{tmp_path}/second")
    with node.client() as client:
        topic_id = filled(client, SMALL, flush_messages="1")
        assert (tmp_path / "second" / "t-1").is_dir(), "the metadata lies in the first"
        disk.fail("fsync", errno.EIO, path="t-1/", times=1)
        module = request_module(ApiKey.PRODUCE)
        records = bytes(batch([b"a"]))
        answer = Talk(client)(
            ApiKey.PRODUCE,
            "ProduceRequest",
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=(
                module.TopicProduceData(
                    topic_id=topic_id,
                    partition_data=tuple(
                        module.PartitionProduceData(index=n, records=records) for n in (0, 1)
                    ),
                ),
            ),
        )
        good, bad = answer.responses[0].partition_responses
        assert (bad.error_code, bad.base_offset) == (ErrorCode.kafka_storage_error, -1)
        assert (good.error_code, good.base_offset) == (0, 5)
        talk = Talk(client)
        wait_until("the directory", lambda: metadata(talk, "t")[0].partitions[1].offline_replicas == (1,))
        assert talk.produce(topic_id, [b"b"], DAY, 1).error_code == ErrorCode.kafka_storage_error
        assert talk.produce(topic_id, [b"b"], DAY, 0).base_offset == 6
    node.stop()
    assert node.failure is None
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "second" / ".kafka_cleanshutdown").exists()


def test_a_sealed_segment_that_cannot_be_opened_is_refused(
    start: Callable[..., NodeThread], disk: FaultDisk
) -> None:
    node = start(make_world(SystemClock(), disk))
    with node.client() as client:
        topic_id = filled(client, LARGE, internal_segment_bytes="40000")
    node.stop()
    node = start(make_world(SystemClock(), disk), open_files=16)  # so few sealed segments stay open
    with node.client() as client:
        disk.fail("open", errno.EMFILE, path="t-0/")
        found = fetch_both(Talk(client), topic_id)
        assert found[0].error_code == ErrorCode.kafka_storage_error
        assert found[1].error_code == 0
        disk.heal()
        wait_until("the segment to be read", lambda: fetch_both(Talk(client), topic_id)[0].error_code == 0)
