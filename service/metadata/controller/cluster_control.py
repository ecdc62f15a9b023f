"""Brokers that come and go, and who leads meanwhile. [P]

Source: Apache Kafka ``ClusterControlManager``, ``ReplicationControlManager.generateLeaderAndIsrUpdates``;
without eligible leader replicas (KIP-966), whose feature level this cluster keeps at 0: the last in-sync
replica stays in the ISR when its broker is fenced, and leads again when the broker is back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.decision import Decision
from service.metadata.controller.requests import RegisterBroker
from service.metadata.features import supported_features
from service.metadata.frames import Frame, newest
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage
from service.metadata.records import (
    FENCE,
    NO_LEADER,
    UNFENCE,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)

_RESERVED_DIRECTORY_IDS: Final = 100
"""Directory ids below this number mean something else (Kafka ``DirectoryId``: unassigned, lost …)."""


def register_broker(
    image: MetadataImage, request: RegisterBroker, *, cluster_id: str, next_offset: int, has_session: bool
) -> Decision[int]:
    """Register a broker process; the answer is its epoch. It starts fenced and leads nothing.

    `has_session`: a process with this id is known to be alive. `next_offset`: where the records will go.
    Raises `RequestError`: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION.
    """
    existing = image.brokers.get(request.broker_id)
    _check_registration(image, request, cluster_id, existing, has_session)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        return Decision(
            (newest(_registration(request, existing.epoch, fenced=existing.fenced)),), existing.epoch
        )
    frames: list[Frame] = []
    if existing is not None and not existing.fenced:
        frames += _fencing(image, existing)
    epoch = next_offset + len(frames)
    frames.append(newest(_registration(request, epoch, fenced=True)))
    return Decision(tuple(frames), epoch, is_atomic=False)


def unfence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
    """The broker has caught up: it leads again what has no leader and is in sync with it."""
    broker = check_epoch(image, broker_id, broker_epoch)
    if not broker.fenced:
        return Decision((), None)
    frames = [_change_fencing(broker, UNFENCE)]
    for topic_id, partition, state in _partitions(image):
        if not state.has_leader and broker_id in state.isr:
            change = PartitionChangeRecord(topic_id=topic_id, partition_id=partition, leader=broker_id)
            frames.append(newest(change))
    return Decision(tuple(frames), None, is_atomic=False)


def fence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
    """The broker stops or is lost: others lead what it led, where there are any in sync."""
    broker = check_epoch(image, broker_id, broker_epoch)
    if broker.fenced:
        return Decision((), None)
    return Decision(tuple(_fencing(image, broker)), None, is_atomic=False)


def check_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registration of exactly this broker process; `RequestError` where it was replaced or never was."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RequestError(
            ErrorCode.broker_id_not_registered,
            f"Broker ID {broker_id} is not currently registered",
        )
    if broker.epoch != broker_epoch:
        raise RequestError(
            ErrorCode.stale_broker_epoch,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}",
        )
    return broker


def _check_registration(
    image: MetadataImage,
    request: RegisterBroker,
    cluster_id: str,
    existing: BrokerImage | None,
    has_session: bool,
) -> None:
    if request.cluster_id != cluster_id:
        raise RequestError(
            ErrorCode.inconsistent_cluster_id,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if existing is not None and has_session and existing.incarnation_id != request.incarnation_id:
        raise RequestError(
            ErrorCode.duplicate_broker_registration, "Another broker is registered with that broker id."
        )
    if not request.log_dirs:
        raise _invalid("No directories specified in request")
    if any(directory.int < _RESERVED_DIRECTORY_IDS for directory in request.log_dirs):
        raise _invalid("Reserved directory ID in request")
    if len(set(request.log_dirs)) < len(request.log_dirs):
        raise _invalid("Duplicate directory ID in request")
    for broker in image.brokers.values():
        taken = set(broker.log_dirs).intersection(request.log_dirs)
        if taken and broker.id != request.broker_id:
            directory = min(taken)
            raise _invalid(f"Broker {broker.id} is already registered with directory {directory}")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_registration, message)


def _registration(request: RegisterBroker, epoch: int, *, fenced: bool) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=tuple(
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.endpoints
        ),
        features=tuple(
            BrokerFeature(name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level)
            for f in supported_features()
        ),
        rack=request.rack,
        fenced=fenced,
        log_dirs=request.log_dirs,
    )


def _change_fencing(broker: BrokerImage, fenced: int) -> Frame:
    """In version 0: a change is written in the oldest version that holds it, as Kafka's controller does."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced)
    return Frame(change, 0)


def _fencing(image: MetadataImage, broker: BrokerImage) -> list[Frame]:
    frames = [
        newest(_without(image.brokers, broker.id, topic_id, partition, state))
        for topic_id, partition, state in _partitions(image)
        if broker.id in state.isr
    ]
    frames.append(_change_fencing(broker, FENCE))
    return frames


def _without(
    brokers: Mapping[int, BrokerImage], broker_id: int, topic_id: UUID, partition: int, state: PartitionImage
) -> PartitionChangeRecord:
    others = tuple(b for b in state.isr if b != broker_id)
    if state.leader != broker_id:
        return PartitionChangeRecord(topic_id=topic_id, partition_id=partition, isr=others)
    able = (b for b in state.replicas if b in others and b in brokers and brokers[b].is_active)
    return PartitionChangeRecord(
        topic_id=topic_id, partition_id=partition, leader=next(able, NO_LEADER), isr=others or None
    )


def _partitions(image: MetadataImage) -> Iterator[tuple[UUID, int, PartitionImage]]:
    """All partitions in an order that every process sees alike."""
    for name in sorted(image.topics_by_name):
        topic = image.topics_by_name[name]
        for partition, state in topic.partitions.items():
            yield topic.id, partition, state
