"""Creation and deletion of topics (Apache Kafka ``ReplicationControlManager``, ``ControllerApis``). [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.configs_control import validate
from service.metadata.controller.decision import ControllerResult, decided_in_steps
from service.metadata.controller.partition_change import directory_of_new
from service.metadata.controller.placement import CannotPlace, place_replicas
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    ZERO_UUID,
    ConfigRules,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
    PartitionLimit,
    ResourceType,
    TopicDefaults,
)
from service.metadata.controller.topic_names import CLUSTER_METADATA_TOPIC, topic_name_error
from service.metadata.image import BrokerImage, MetadataImage, TopicImage, collision_key
from service.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.quotas.mutations import MutationQuota

_SORTED: Final = 100
"""Replicas of one partition that are always checked, so that errors are Kafka's."""

_UNKNOWN_NAME: Final = "This server does not host this topic-partition."
_UNKNOWN_ID: Final = "This server does not host this topic ID."


def create_topics(
    image: MetadataImage,
    requests: Sequence[CreateTopic],
    *,
    defaults: TopicDefaults,
    rules: ConfigRules,
    new_uuid: Callable[[], UUID],
    limit: PartitionLimit | None = None,
    quota: MutationQuota | None = None,
    validate_only: bool = False,
) -> Steps[ControllerResult[list[CreateTopicResult]]]:
    """Create each topic completely or not at all; a refused one does not affect the others. In steps.

    Results are in the request's order, then those for duplicate names, then for reserved names. A topic that
    would exceed `limit` is refused with POLICY_VIOLATION, one beyond `quota` with THROTTLING_QUOTA_EXCEEDED.
    Raises `RequestError` POLICY_VIOLATION for more than 10,000 records.
    """
    yield
    if _total_partitions(requests, defaults) > MAX_RECORDS_PER_OPERATION:
        message = "Excessively large number of partitions per request."
        return ControllerResult((), [_refusal(r.name, ErrorCode.policy_violation, message) for r in requests])
    times = Counter(request.name for request in requests)
    room = None
    if limit is not None:
        room = limit.partitions - (yield from partitions_of(image))
    records: list[MetadataRecord] = []
    results = []
    for request in requests:
        if times[request.name] > 1 or request.name == CLUSTER_METADATA_TOPIC:
            continue
        yield
        try:
            new, result = yield from _create(image, request, defaults, rules, new_uuid)
            if limit is not None and room is not None:
                room = reserve_partitions(room, result.num_partitions, limit)
            if quota is not None:
                quota.record(result.num_partitions)
        except RequestError as e:
            results.append(_refusal(request.name, e.code, e.message))
            continue
        records += new
        results.append(result)
    results += [
        _refusal(name, ErrorCode.invalid_request, "Duplicate topic name.")
        for name in times
        if times[name] > 1
    ]
    if times[CLUSTER_METADATA_TOPIC] == 1:
        message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        results.append(_refusal(CLUSTER_METADATA_TOPIC, ErrorCode.invalid_request, message))
    return (yield from decided_in_steps(() if validate_only else records, results))


def partitions_of(image: MetadataImage) -> Steps[int]:
    """Count the partitions of all topics, in steps."""
    count = 0
    for topic in image.topics_by_id.values():
        yield
        count += len(topic.partitions)
    return count


def reserve_partitions(room: int, partitions: int, limit: PartitionLimit) -> int:
    """Return `room` reduced by `partitions`; `RequestError` POLICY_VIOLATION where it does not suffice."""
    if partitions > room:
        raise RequestError(
            ErrorCode.policy_violation,
            f"The topic would bring this node to {limit.partitions - room + partitions} partitions: "
            f"{limit.reason}.",
        )
    return room - partitions


def _total_partitions(requests: Sequence[CreateTopic], defaults: TopicDefaults) -> int:
    return sum(
        len(request.assignments)
        or (defaults.num_partitions if request.num_partitions == -1 else max(request.num_partitions, 0))
        for request in requests
    )


def _refusal(name: str, error: ErrorCode, message: str | None) -> CreateTopicResult:
    return CreateTopicResult(name, error, message)


def _create(
    image: MetadataImage,
    request: CreateTopic,
    defaults: TopicDefaults,
    rules: ConfigRules,
    new_uuid: Callable[[], UUID],
) -> Steps[tuple[list[MetadataRecord], CreateTopicResult]]:
    _check_name(image, request.name)
    configs = _check_configs(image, request, rules)
    topic_id = new_uuid()
    assignments: Iterable[tuple[int, ...]]
    if request.assignments:
        assignments = yield from _check_manual(image, request)
    else:
        assignments = _assign(image, request, defaults, topic_id)
    records: list[MetadataRecord] = [TopicRecord(name=request.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=request.name, name=key, value=value)
        for key, value in sorted(configs.items())
    ]
    count = factor = 0
    for count, replicas in enumerate(assignments, 1):
        yield
        factor = len(replicas)
        records.append(new_partition(image.brokers, topic_id, count - 1, replicas))
    return records, CreateTopicResult(
        name=request.name,
        error=ErrorCode.none,
        topic_id=topic_id,
        num_partitions=count,
        replication_factor=factor,
        configs=configs,
    )


def _check_name(image: MetadataImage, name: str) -> None:
    if name in image.topics_by_name:
        raise RequestError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    reason = topic_name_error(name)
    if reason is not None:
        raise RequestError(ErrorCode.invalid_topic_exception, reason)
    colliding = image.collisions.get(collision_key(name) or "", ())
    if colliding:
        raise RequestError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{name}' collides with existing topic: {colliding[0]}",
        )


def _check_configs(image: MetadataImage, request: CreateTopic, rules: ConfigRules) -> dict[str, str]:
    without_value = [key for key, value in request.configs if value is None]
    if without_value:
        raise RequestError(
            ErrorCode.invalid_config,
            f"Null value not supported for topic configs: {','.join(without_value)}",
        )
    configs = {key: value for key, value in request.configs if value is not None}
    if configs:
        validate(image, rules, ResourceType.TOPIC, request.name, configs)
    return configs


def _assign(
    image: MetadataImage, request: CreateTopic, defaults: TopicDefaults, topic_id: UUID
) -> Iterator[tuple[int, ...]]:
    if request.replication_factor < -1 or request.replication_factor == 0:
        raise RequestError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if request.num_partitions < -1 or request.num_partitions == 0:
        raise RequestError(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    partitions = defaults.num_partitions if request.num_partitions == -1 else request.num_partitions
    factor = defaults.replication_factor if request.replication_factor == -1 else request.replication_factor
    try:
        return place_replicas(image.brokers.values(), range(partitions), factor, topic_id)
    except CannotPlace as e:
        raise cannot_replicate(factor, e) from e


def cannot_replicate(factor: int, why: CannotPlace | str) -> RequestError:
    """Build the error for a replication factor that cannot be reached."""
    return RequestError(
        ErrorCode.invalid_replication_factor, f"Unable to replicate the partition {factor} time(s): {why}"
    )


def _check_manual(image: MetadataImage, request: CreateTopic) -> Steps[list[tuple[int, ...]]]:
    given = "A manual partition assignment was specified, but "
    if request.replication_factor != -1:
        raise RequestError(ErrorCode.invalid_request, f"{given}replication factor was not set to -1.")
    if request.num_partitions != -1:
        raise RequestError(ErrorCode.invalid_request, f"{given}numPartitions was not set to -1.")
    assignments: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for partition, replicas in request.assignments:
        yield
        if partition in assignments:
            raise bad_assignment(f"Found multiple manual partition assignments for partition {partition}")
        check_replicas(image.brokers, partition, replicas, factor)
        factor = len(replicas)
        assignments[partition] = replicas
    if any(partition not in assignments for partition in range(len(assignments))):
        raise bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [assignments[partition] for partition in range(len(assignments))]


def check_replicas(
    brokers: Mapping[int, BrokerImage], partition: int, replicas: tuple[int, ...], factor: int | None
) -> None:
    """Check the replicas of a new partition; `factor`: replicas of the other partitions.

    `RequestError` INVALID_REPLICA_ASSIGNMENT.
    """
    check_assignment(brokers, replicas, factor)
    if not any(brokers[broker].is_active for broker in replicas):
        raise bad_assignment(
            "All brokers specified in the manual partition assignment for "
            f"partition {partition} are fenced or in controlled shutdown."
        )


def check_assignment(
    brokers: Mapping[int, BrokerImage], replicas: tuple[int, ...], factor: int | None = None
) -> None:
    """Check that these brokers can hold a partition (Kafka's ``validateManualPartitionAssignment``).

    `RequestError` INVALID_REPLICA_ASSIGNMENT.
    """
    given = "The manual partition assignment includes "
    if not replicas:
        raise bad_assignment(f"{given}an empty replica list.")
    previous: int | None = None
    # More replicas than brokers hold an error in any prefix of that length: do not sort a million.
    for broker in sorted(replicas[: max(_SORTED, len(brokers) + 1)]):
        if broker not in brokers:
            raise bad_assignment(f"{given}broker {broker}, but no such broker is registered.")
        if broker == previous:
            raise bad_assignment(f"{given}the broker {broker} more than once.")
        previous = broker
    if factor is not None and len(replicas) != factor:
        raise bad_assignment(
            f"{given}a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {factor} replica(s)."
        )


def bad_assignment(message: str) -> RequestError:
    """Build the error for an invalid assignment."""
    return RequestError(ErrorCode.invalid_replica_assignment, message)


def new_partition(
    brokers: Mapping[int, BrokerImage], topic_id: UUID, partition: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    """Return the record of a new partition, led by its first active replica."""
    isr = tuple(broker for broker in replicas if brokers[broker].is_active)
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(directory_of_new(brokers[broker]) for broker in replicas),
    )


def delete_topics(
    image: MetadataImage,
    requests: Sequence[DeleteTopic],
    *,
    now_ms: int,
    quota: MutationQuota | None = None,
) -> Steps[ControllerResult[list[DeleteTopicResult]]]:
    """Delete topics by name or id; the same record removes their entries of the remote catalog. In steps.

    A topic that may have objects in the bucket leaves a tombstone. Raises `RequestError` POLICY_VIOLATION for
    more than 10,000 records.
    """
    results: list[DeleteTopicResult] = []
    names: Counter[str] = Counter()
    ids: Counter[UUID] = Counter()
    for name, topic_id in requests:
        yield
        if name is None and topic_id == ZERO_UUID:
            results.append(_cannot(None, ZERO_UUID, "Neither topic name nor id were specified."))
        elif name is None:
            ids[topic_id] += 1
        elif topic_id == ZERO_UUID:
            names[name] += 1
        else:
            results.append(_cannot(name, topic_id, "You may not specify both topic name and topic id."))
    results += [_cannot(name, ZERO_UUID, "Duplicate topic name.") for name in names if names[name] > 1]
    results += [_cannot(None, topic_id, "Duplicate topic id.") for topic_id in ids if ids[topic_id] > 1]
    doomed: dict[UUID, str] = {}
    for topic_id in (i for i in ids if ids[i] == 1):
        yield
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            error = ErrorCode.unknown_topic_id
            results.append(DeleteTopicResult(None, topic_id, error, _UNKNOWN_ID))
        else:
            doomed[topic_id] = topic.name
    for name in (n for n in names if names[n] == 1):
        yield
        topic = image.topics_by_name.get(name)
        if topic is None:
            error = ErrorCode.unknown_topic_or_partition
            results.append(DeleteTopicResult(name, ZERO_UUID, error, _UNKNOWN_NAME))
        elif topic.id in ids:
            doomed.pop(topic.id, None)
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_cannot(name, topic.id, message))
        else:
            doomed[topic.id] = name
    records: list[MetadataRecord] = []
    for topic_id, name in doomed.items():
        topic = image.topics_by_id[topic_id]
        yield
        try:
            if quota is not None:
                quota.record(len(topic.partitions))
        except RequestError as e:
            results.append(DeleteTopicResult(name, topic_id, e.code, e.message))
            continue
        results.append(DeleteTopicResult(name, topic_id, ErrorCode.none))
        records.append(RemoveTopicRecord(topic_id=topic_id))
        if _has_archive(image, topic):
            records.append(
                TombstoneRecord(
                    topic_id=topic_id, name=topic.name, partitions=len(topic.partitions), deleted_ms=now_ms
                )
            )
    return (yield from decided_in_steps(records, results))


def _has_archive(image: MetadataImage, topic: TopicImage) -> bool:
    """Return whether the topic may have objects in the bucket: an upload precedes its commit."""
    enabled = image.config(ResourceType.TOPIC, topic.name).get("remote.storage.enable", "")
    return enabled.strip().lower() == "true" or any(
        (topic.id, partition) in image.remote for partition in topic.partitions
    )


def _cannot(name: str | None, topic_id: UUID, message: str) -> DeleteTopicResult:
    return DeleteTopicResult(name, topic_id, ErrorCode.invalid_request, message)
