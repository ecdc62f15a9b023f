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


def _code(answer: Any) -> ErrorCode:
    """Return the response's error; an unknown code becomes UNKNOWN_SERVER_ERROR, as in Kafka."""
    code = answer.error_code
    return code if isinstance(code, ErrorCode) else ErrorCode.unknown_server_error
