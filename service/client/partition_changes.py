"""Requests that change partitions: more of them, fewer records, other leaders. Blocking.

Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.client.admin import TIMEOUT, ChangingCluster, raise_for
from service.client.admin_models import Place
from service.client.offset_queries import leaders_of, unanswered
from service.wire.api import ApiKey, request_module
from service.wire.errors import WireError

PREFERRED: Final = 0
UNCLEAN: Final = 1
TO_HIGH_WATERMARK: Final = -1
"""Offset of DeleteRecords: all that is committed."""


class DeletedBelow(NamedTuple):
    """Result of DeleteRecords for one partition: where its log begins now, or why it stays as it was."""

    low_watermark: int
    error: RequestError | None


def add_partitions(cluster: ChangingCluster, topic: str, count: int, *, dry_run: bool = False) -> None:
    """Raise a topic to `count` partitions; with `dry_run` only have the cluster check that it can be."""
    module = request_module(ApiKey.CREATE_PARTITIONS)
    request = module.CreatePartitionsRequest(
        topics=(module.CreatePartitionsTopic(name=topic, count=count, assignments=None),),
        timeout=TIMEOUT,
        validate_only=dry_run,
    )
    (result,) = cluster.first.request(ApiKey.CREATE_PARTITIONS, request).results
    raise_for(result.error_code, result.error_message, f"topic {topic}")


def delete_records(cluster: ChangingCluster, before: Mapping[Place, int]) -> dict[Place, DeletedBelow]:
    """Delete the records of each partition below an offset, or with `TO_HIGH_WATERMARK` all; in both
    tiers."""
    found: dict[Place, DeletedBelow] = {}
    for leader, places in leaders_of(cluster, tuple(before)).items():
        if leader < 0:
            error = RequestError(ErrorCode.leader_not_available, "it has no leader")
            found.update(dict.fromkeys(places, DeletedBelow(-1, error)))
            continue
        try:
            found.update(_deleted_at(cluster, leader, {place: before[place] for place in places}))
        except (OSError, StorageError, WireError) as e:
            found.update(dict.fromkeys(places, DeletedBelow(-1, unanswered(leader, e))))
    return found


def _deleted_at(
    cluster: ChangingCluster, leader: int, before: Mapping[Place, int]
) -> Iterator[tuple[Place, DeletedBelow]]:
    module = request_module(ApiKey.DELETE_RECORDS)
    topics = tuple(
        module.DeleteRecordsTopic(
            name=name,
            partitions=tuple(
                module.DeleteRecordsPartition(partition_index=number, offset=before[name, number])
                for number in numbers
            ),
        )
        for name, numbers in by_topic(before).items()
    )
    request = module.DeleteRecordsRequest(topics=topics, timeout=TIMEOUT)
    for topic in cluster.client(leader).request(ApiKey.DELETE_RECORDS, request).topics:
        for one in topic.partitions:
            answer = DeletedBelow(one.low_watermark, error_of(one.error_code, None))
            yield (topic.name, one.partition_index), answer


def elect_leaders(
    cluster: ChangingCluster, kind: int, places: Collection[Place] | None
) -> dict[Place, RequestError | None]:
    """Elect leaders of these partitions, or of all; `kind` is `PREFERRED` or `UNCLEAN`.

    ELECTION_NOT_NEEDED is the error of partitions that have that leader; of all partitions they are left out.
    """
    module = request_module(ApiKey.ELECT_LEADERS)
    named = None
    if places is not None:
        named = tuple(
            module.TopicPartitions(topic=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic(places).items()
        )
    request = module.ElectLeadersRequest(election_type=kind, topic_partitions=named, timeout=TIMEOUT)
    answer = cluster.first.request(ApiKey.ELECT_LEADERS, request)
    raise_for(answer.error_code, None, "the election")
    return {
        (one.topic, each.partition_id): error_of(each.error_code, each.error_message)
        for one in answer.replica_election_results
        for each in one.partition_result
    }


def by_topic(places: Collection[Place]) -> dict[str, Sequence[int]]:
    """Return the partitions of each topic, in order."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return dict(found)


def error_of(code: Any, message: str | None) -> RequestError | None:
    """Return the error that one element of an answer carries."""
    if code == ErrorCode.none:
        return None
    name = ErrorCode(code).name.upper()
    return RequestError(ErrorCode(code), f"{message} ({name})" if message else name)
