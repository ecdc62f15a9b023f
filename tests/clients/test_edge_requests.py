"""Requests at the edge of what a version, a codec or a time-out can say, answered as Apache Kafka does."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import zstandard

from tests.clients.conftest import NewTopic
from tests.support.batches import ZSTD, batch, record
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, end_offset, leader_of, produce, schema

NONE = 0
INVALID_REQUEST = 42
UNKNOWN = uuid.UUID("9c1ba29b-5b6f-4d2e-8a56-7b6d3f0b1a11")


def metadata(connection: RawConnection, version: int, *topics: tuple[uuid.UUID | None, str | None]) -> Any:
    module = schema(3, version)
    fields: dict[str, Any] = {"include_cluster_authorized_operations": False} if version == 10 else {}
    asked = tuple(module.MetadataRequestTopic(topic_id=topic_id, name=name) for topic_id, name in topics)
    return connection.call(
        module.MetadataRequest(
            topics=asked,
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
            **fields,
        )
    )


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_where_an_answer_could_not_say_so(
    bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic(1)
    with RawConnection(bootstrap) as connection:
        known = metadata(connection, 12, (None, topic)).topics[0].topic_id
        for topic_id, name in (
            (UNKNOWN, topic),
            (UNKNOWN, f"not-{topic}"),
            (UNKNOWN, None),
            (None, None),
            (known, topic),
        ):
            answer = metadata(connection, version, (topic_id, name), (None, f"other-{topic}"))
            told = [(one.error_code, one.name, one.topic_id) for one in answer.topics]
            assert told == [
                (INVALID_REQUEST, name or "", topic_id),
                (INVALID_REQUEST, f"other-{topic}", None),
            ]
        assert metadata(connection, version, (None, topic)).topics[0].error_code == NONE
        listed = [one.name for one in metadata(connection, 12, (None, topic), (known, None)).topics]
        assert f"other-{topic}" not in listed, "a request that is refused makes no topic"


def frames(payload: bytes) -> dict[str, bytes]:
    """The payload as several zstd frames."""
    streamed = zstandard.ZstdCompressor().compressobj()
    first = streamed.compress(payload[:10]) + streamed.flush()
    rest = zstandard.ZstdCompressor().compress(payload[10:])
    return {
        "the first says no size": first + rest,
        "the first is empty": zstandard.ZstdCompressor().compress(b"")
        + zstandard.ZstdCompressor().compress(payload),
        "both say their sizes": zstandard.ZstdCompressor().compress(payload[:10]) + rest,
    }


def test_a_batch_of_several_zstd_frames_is_taken(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    payload = b"".join(record(n, b"value-%d" % n) for n in range(3))
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        for what, packed in frames(payload).items():
            data = batch([b"value-0", b"value-1", b"value-2"], codec=ZSTD, payload=packed)
            assert int(produce(connection, topic, 0, data).error_code) == NONE, what
    assert end_offset(bootstrap, topic, 0) == 9


@pytest.mark.parametrize("version", [4, 9, 10])
def test_a_zstd_topic_is_served_to_every_fetch_version(
    bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic(1, compression_type="zstd")
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        assert int(produce(connection, topic, 0, batch([b"x" * 1000])).error_code) == NONE
        module = schema(1, version)
        fields: dict[str, Any] = {"current_leader_epoch": -1} if version >= 9 else {}
        fields |= {"log_start_offset": -1} if version >= 5 else {}
        part = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, **fields)
        session: dict[str, Any] = {}
        if version >= 7:
            session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()}
        answer = connection.call(
            module.FetchRequest(
                replica_id=-1,
                max_wait=timedelta(0),
                min_bytes=0,
                max_bytes=1 << 20,
                isolation_level=0,
                topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
                **session,
            )
        )
    [told] = answer.responses[0].partitions
    assert int(told.error_code) == NONE
    assert told.records


@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_records_are_deleted_however_little_time_is_given(
    bootstrap: str, new_topic: NewTopic, timeout_ms: int
) -> None:
    topic = new_topic(1)
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        assert int(produce(connection, topic, 0, batch([b"a", b"b", b"c"])).error_code) == NONE
        module = schema(21, 2)
        part = module.DeleteRecordsPartition(partition_index=0, offset=2)
        request = module.DeleteRecordsRequest(
            topics=(module.DeleteRecordsTopic(name=topic, partitions=(part,)),),
            timeout=timedelta(milliseconds=timeout_ms),
        )
        [told] = connection.call(request).topics[0].partitions
    assert (int(told.error_code), told.low_watermark) == (NONE, 2)


def test_a_coordinator_is_found_without_an_error_by_its_name(bootstrap: str) -> None:
    def answer(version: int) -> Any:
        fields: dict[str, Any] = {"key_type": 0} if version else {}
        with RawConnection(bootstrap) as connection:
            return connection.call(schema(10, version).FindCoordinatorRequest(key="g", **fields))

    wait_until("the coordinator", lambda: int(answer(3).error_code) == NONE)
    assert [answer(version).error_message for version in (1, 2, 3)] == ["NONE", "NONE", "NONE"]


def test_a_topic_may_say_what_is_so_anyway(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, preallocate="false")
    admin = Admin(bootstrap)
    admin.alter(topic, retention_ms="3600000", preallocate="false")
    found = admin.configs(topic)
    assert (found["preallocate"], found["retention.ms"]) == ("false", "3600000")
