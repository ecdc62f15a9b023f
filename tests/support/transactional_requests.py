"""Requests of transactions that tests send to one node as coordinators and clients do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk


def write_markers(
    talk: Talk,
    *markers: tuple[int, int, bool, Mapping[str, tuple[int, ...]]],
    coordinator_epoch: int = 1,
    transaction_version: int = 1,
) -> dict[int, dict[tuple[str, int], ErrorCode]]:
    """Write markers, each (producer id, epoch, commit, partitions by topic); return their error codes."""
    module = request_module(ApiKey.WRITE_TXN_MARKERS)
    answer = talk(
        ApiKey.WRITE_TXN_MARKERS,
        "WriteTxnMarkersRequest",
        markers=tuple(
            module.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=is_commit,
                topics=tuple(
                    module.WritableTxnMarkerTopic(name=name, partition_indexes=partitions)
                    for name, partitions in topics.items()
                ),
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
            for producer_id, epoch, is_commit, topics in markers
        ),
    )
    assert len({one.producer_id for one in answer.markers}) == len(answer.markers)
    return {
        one.producer_id: {
            (topic.name, partition.partition_index): partition.error_code
            for topic in one.topics
            for partition in topic.partitions
        }
        for one in answer.markers
    }


def commit_in_transaction(
    talk: Talk,
    offsets: dict[str, dict[int, int]],
    *,
    transactional_id: str = "pay",
    group: str = "g",
    producer: tuple[int, int] = (7, 0),
    version: int = 4,
    **member: Any,
) -> dict[tuple[str, int], ErrorCode]:
    """Send a TxnOffsetCommit; return the error code of each partition."""
    module = request_module(ApiKey.TXN_OFFSET_COMMIT)
    request = module.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=tuple(
            module.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=tuple(
                    module.TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index, offset in partitions.items()
                ),
            )
            for name, partitions in offsets.items()
        ),
        **member,
    )
    answer = talk.client.request(ApiKey.TXN_OFFSET_COMMIT, request, newest=version)
    return {
        (topic.name, one.partition_index): one.error_code
        for topic in answer.topics
        for one in topic.partitions
    }


def fetch_offsets(
    talk: Talk, topic: str, *partitions: int, group: str = "g", stable: bool = False
) -> list[int | ErrorCode]:
    """Return the committed offset of each partition, or its error."""
    module = request_module(ApiKey.OFFSET_FETCH)
    asked = module.OffsetFetchRequestTopics(topic_id=talk.topic_id(topic), partition_indexes=partitions)
    [found] = talk(
        ApiKey.OFFSET_FETCH,
        "OffsetFetchRequest",
        groups=(module.OffsetFetchRequestGroup(group_id=group, topics=(asked,)),),
        require_stable=stable,
    ).groups
    assert found.error_code is ErrorCode.none
    return [
        one.committed_offset if one.error_code is ErrorCode.none else one.error_code
        for one in found.topics[0].partitions
    ]
