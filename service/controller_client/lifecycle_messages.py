"""Kafka's messages between a broker and its controller: requests are built, responses read. [P]"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client.broker_lifecycle import Event, Failed, Heartbeat, HeartbeatAnswered, Registered
from service.metadata.controller.requests import Endpoint, ProducerIdBlock
from service.wire.api import ApiKey, request_module


class Feature(NamedTuple):
    """Levels of a feature that this node supports."""

    name: str
    min_level: int
    max_level: int


class Identity(NamedTuple):
    """Data of a broker process's registration."""

    node_id: int
    incarnation_id: UUID
    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    features: tuple[Feature, ...] = ()
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    """``directory.id`` of every log directory"""
    previous_epoch: int = -1
    """broker epoch of the previous process if it stopped cleanly, else -1"""


def registration(one: Identity) -> Any:
    """Build BrokerRegistration. Directories are sorted, as Kafka's are."""
    module = request_module(ApiKey.BROKER_REGISTRATION)
    return module.BrokerRegistrationRequest(
        broker_id=one.node_id,
        cluster_id=one.cluster_id,
        incarnation_id=one.incarnation_id,
        listeners=_listeners(module, one.endpoints),
        features=_features(module, one.features),
        rack=one.rack,
        log_dirs=tuple(sorted(one.log_dirs, key=_kafka_sort_key)),
        previous_broker_epoch=one.previous_epoch,
    )


def controller_registration(
    node_id: int, incarnation_id: UUID, endpoints: tuple[Endpoint, ...], features: tuple[Feature, ...]
) -> Any:
    """Build ControllerRegistration, by which a controller registers with the active one (KIP-919)."""
    module = request_module(ApiKey.CONTROLLER_REGISTRATION)
    return module.ControllerRegistrationRequest(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=_listeners(module, endpoints),
        features=_features(module, features),
    )


def controller_registered(answer: Any) -> None:
    """Read the response to ControllerRegistration. Raises `RequestError` where it was refused."""
    if answer.error_code != ErrorCode.none:
        raise RequestError(_code(answer), answer.error_message or "The controller refuses this controller.")


def _listeners(module: Any, endpoints: tuple[Endpoint, ...]) -> tuple[Any, ...]:
    return tuple(
        module.Listener(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
        for one in endpoints
    )


def _features(module: Any, features: tuple[Feature, ...]) -> tuple[Any, ...]:
    return tuple(
        module.Feature(
            name=one.name, min_supported_version=one.min_level, max_supported_version=one.max_level
        )
        for one in features
    )


def _kafka_sort_key(one: UUID) -> tuple[int, int]:
    """Return the sort key of Kafka, which compares ids as two signed numbers."""
    high, low = one.int >> 64, one.int & (1 << 64) - 1
    return tuple(half - (1 << 64) if half >> 63 else half for half in (high, low))  # type: ignore[return-value]


def registered(answer: Any) -> Event:
    """Return the event of the response to BrokerRegistration."""
    if answer.error_code != ErrorCode.none:
        return Failed(_code(answer))
    return Registered(answer.broker_epoch)


def heartbeat(node_id: int, one: Heartbeat) -> Any:
    """Build BrokerHeartbeat."""
    return request_module(ApiKey.BROKER_HEARTBEAT).BrokerHeartbeatRequest(
        broker_id=node_id,
        broker_epoch=one.epoch,
        current_metadata_offset=one.metadata_offset,
        want_fence=one.want_fence,
        want_shut_down=one.want_shut_down,
        offline_log_dirs=one.offline_directories,
        cordoned_log_dirs=one.cordoned_directories,
        full_log_dirs=one.full_directories.full,
        resting_log_dirs=one.full_directories.resting,
    )


def heartbeat_answered(answer: Any) -> Event:
    """Return the event of the response to BrokerHeartbeat."""
    if answer.error_code != ErrorCode.none:
        return Failed(_code(answer))
    return HeartbeatAnswered(
        answer.is_caught_up, answer.is_fenced, answer.should_shut_down, answer.moves_leaders
    )


def producer_ids(broker_id: int, broker_epoch: int) -> Any:
    """Build AllocateProducerIds."""
    return request_module(ApiKey.ALLOCATE_PRODUCER_IDS).AllocateProducerIdsRequest(
        broker_id=broker_id, broker_epoch=broker_epoch
    )


def producer_ids_allocated(answer: Any) -> ProducerIdBlock:
    """Return the block in the response to AllocateProducerIds. Raises `RequestError`."""
    if answer.error_code != ErrorCode.none:
        raise RequestError(_code(answer), "The controller gives no producer ids.")
    if answer.producer_id_start < 0 or answer.producer_id_len <= 0:
        raise RequestError(
            ErrorCode.unknown_server_error,
            f"{answer.producer_id_len} producer ids from {answer.producer_id_start} on are no block.",
        )
    return ProducerIdBlock(answer.producer_id_start, answer.producer_id_len)


class AlterIsr(NamedTuple):
    """Leader's proposal for one partition's ISR."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch)"""
    leader_recovery_state: int = 0


class AlteredIsr(NamedTuple):
    """Controller's decision on an `AlterIsr`; with an error, the fields after `error` have no meaning."""

    topic_id: UUID
    partition: int
    error: int
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = -1


def alter_isr(broker_id: int, broker_epoch: int, proposals: list[AlterIsr]) -> Any:
    """Build AlterPartition, with each topic once."""
    module = request_module(ApiKey.ALTER_PARTITION)
    topics: dict[UUID, list[Any]] = {}
    for one in proposals:
        topics.setdefault(one.topic_id, []).append(
            module.PartitionData(
                partition_index=one.partition,
                leader_epoch=one.leader_epoch,
                new_isr_with_epochs=tuple(
                    module.BrokerState(broker_id=node_id, broker_epoch=epoch) for node_id, epoch in one.isr
                ),
                leader_recovery_state=one.leader_recovery_state,
                partition_epoch=one.partition_epoch,
            )
        )
    return module.AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=tuple(
            module.TopicData(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in topics.items()
        ),
    )


def isr_altered(answer: Any) -> list[AlteredIsr]:
    """Return the decisions in the response to AlterPartition. Raises `RequestError` where it was refused."""
    if answer.error_code != ErrorCode.none:
        raise RequestError(_code(answer), "The controller takes no proposals of this broker.")
    return [
        AlteredIsr(
            topic.topic_id or UUID(int=0),
            one.partition_index,
            one.error_code,
            one.leader_id,
            one.leader_epoch,
            tuple(one.isr),
            one.leader_recovery_state,
            one.partition_epoch,
        )
        for topic in answer.topics
        for one in topic.partitions
    ]


def _code(answer: Any) -> ErrorCode:
    """Return the response's error; an unknown code becomes UNKNOWN_SERVER_ERROR, as in Kafka."""
    code = answer.error_code
    return code if isinstance(code, ErrorCode) else ErrorCode.unknown_server_error
