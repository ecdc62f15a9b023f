"""Requests that several tests of whole nodes send, and what they read of the responses."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.records.decode import iter_records
from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk

DAY = 1_700_000_000_000


def values(records: bytes | None) -> list[bytes | None]:
    """Values of the whole batches in a fetched chunk; the end may be cut."""
    data, found = memoryview(records or b""), []
    while len(data) > 12 and (size := int.from_bytes(data[8:12], "big") + 12) <= len(data):
        found += [record.value for record in iter_records(data[:size])]
        data = data[size:]
    return found


def list_offset(talk: Talk, timestamp: int, topic: str = "t", partition: int = 0) -> Any:
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    answer = talk(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name=topic, partitions=(asked,)),),
        timeout=20_000,
    )
    return answer.topics[0].partitions[0]


def commit(talk: Talk, topics: dict[Any, range], group: str = "g") -> dict[Any, dict[int, ErrorCode]]:
    """Commit offset 7 of partitions of topics by id; return their error codes."""
    module = request_module(ApiKey.OFFSET_COMMIT)
    answer = talk(
        ApiKey.OFFSET_COMMIT,
        "OffsetCommitRequest",
        group_id=group,
        member_id="",
        topics=tuple(
            module.OffsetCommitRequestTopic(
                topic_id=topic,
                partitions=tuple(
                    module.OffsetCommitRequestPartition(
                        partition_index=n, committed_offset=7, committed_metadata=""
                    )
                    for n in partitions
                ),
            )
            for topic, partitions in topics.items()
        ),
    )
    assert len({one.topic_id for one in answer.topics}) == len(answer.topics)
    return {
        topic.topic_id: {one.partition_index: one.error_code for one in topic.partitions}
        for topic in answer.topics
    }
