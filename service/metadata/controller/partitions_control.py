"""CreatePartitions (Apache Kafka ``ReplicationControlManager.createPartitions``). [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.decision import EXCESSIVE, ControllerResult, decided_in_steps
from service.metadata.controller.placement import CannotPlace, place_replicas
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    CreatePartitions,
    CreatePartitionsResult,
    PartitionLimit,
)
from service.metadata.controller.topic_names import FIXED_TOPICS
from service.metadata.controller.topics_control import (
    bad_assignment,
    cannot_replicate,
    check_replicas,
    new_partition,
    partitions_of,
    reserve_partitions,
)
from service.metadata.image import MetadataImage, TopicImage
from service.metadata.records import MetadataRecord
from service.quotas.mutations import MutationQuota


def create_partitions(
    image: MetadataImage,
    requests: Sequence[CreatePartitions],
    *,
    limit: PartitionLimit | None = None,
    quota: MutationQuota | None = None,
    validate_only: bool = False,
) -> Steps[ControllerResult[list[CreatePartitionsResult]]]:
    """Add partitions to each topic, all that were requested or none; a refused one does not affect the
    others. In steps.

    Results come first for duplicate names, then in the request's order. A topic that would exceed `limit` is
    refused with POLICY_VIOLATION, one beyond `quota` with THROTTLING_QUOTA_EXCEEDED. Raises `RequestError`
    POLICY_VIOLATION for more than 10,000 records.
    """
    yield
    times = Counter(request.name for request in requests)
    results = [
        CreatePartitionsResult(name, ErrorCode.invalid_request, "Duplicate topic name.")
        for name in times
        if times[name] > 1
    ]
    room = None
    if limit is not None:
        room = limit.partitions - (yield from partitions_of(image))
    records: list[MetadataRecord] = []
    for request in requests:
        if times[request.name] > 1:
            continue
        yield
        error, message = ErrorCode.none, None
        try:
            topic, added = _check_count(image, request)
            if len(records) + len(added) > MAX_RECORDS_PER_OPERATION:
                raise _TooLarge(ErrorCode.policy_violation, EXCESSIVE)
            new = yield from _new_partitions(image, topic, added, request)
            if limit is not None and room is not None:
                room = reserve_partitions(room, len(added), limit)
            if quota is not None:
                quota.record(len(added))
            records += new
        except _TooLarge:
            raise
        except RequestError as e:
            error, message = e.code, e.message
        results.append(CreatePartitionsResult(request.name, error, message))
    return (yield from decided_in_steps(() if validate_only else records, results))


class _TooLarge(RequestError):
    """Refusal of the whole request."""


def _check_count(image: MetadataImage, request: CreatePartitions) -> tuple[TopicImage, range]:
    """Return the topic, and the indices of the partitions to add."""
    topic = image.topics_by_name.get(request.name)
    if topic is None:
        raise RequestError(ErrorCode.unknown_topic_or_partition)
    present = len(topic.partitions)
    if request.total == present:
        raise RequestError(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if request.total < present:
        raise RequestError(
            ErrorCode.invalid_partitions,
            f"The topic {request.name} currently has {present} partition(s); {request.total} would not be an "
            f"increase.",
        )
    if request.name in FIXED_TOPICS:
        raise RequestError(
            ErrorCode.invalid_partitions,
            f"The topic {request.name} cannot get more partitions: their number determines coordinators.",
        )
    added = range(present, request.total)
    if request.assignments is not None and len(request.assignments) != len(added):
        raise bad_assignment(
            f"Attempted to add {len(added)} additional partition(s), but only {len(request.assignments)} "
            f"assignment(s) were specified."
        )
    return topic, added


def _new_partitions(
    image: MetadataImage, topic: TopicImage, added: range, request: CreatePartitions
) -> Steps[list[MetadataRecord]]:
    """Return records of the new partitions, with as many replicas each as the topic's first partition."""
    factor = len(topic.partitions[0].replicas)
    assignments: Iterable[tuple[int, ...]]
    if request.assignments is not None:
        for partition, replicas in zip(added, request.assignments, strict=True):
            yield
            check_replicas(image.brokers, partition, replicas, factor)
        assignments = request.assignments
    else:
        try:
            assignments = place_replicas(image.brokers.values(), added, factor, topic.id)
        except CannotPlace as e:
            raise cannot_replicate(factor, e) from e
    records: list[MetadataRecord] = []
    for partition, replicas in zip(added, assignments, strict=True):
        yield
        records.append(new_partition(image.brokers, topic.id, partition, replicas))
    return records
