"""AlterPartition: a leader changes its partition's ISR (KIP-497, KIP-903). [P]

Source: Apache Kafka ``ReplicationControlManager.alterPartition``, version 3 of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.elections_control import Elections, ElectionSettings
from service.metadata.controller.full_directories import DirectoriesWithoutRoom
from service.metadata.controller.partition_change import RECOVERED, RECOVERING, PartitionTarget
from service.metadata.controller.requests import AlterPartition, AlterPartitionResult, BrokerState
from service.metadata.frames import Frame, newest
from service.metadata.image import MetadataImage, PartitionImage
from service.metadata.records import LEADER_UNCHANGED
from service.metadata.topics_delta import changed_partition

_STATES = (RECOVERED, RECOVERING)


def alter_partitions(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    requests: Sequence[AlterPartition],
    settings: ElectionSettings,
) -> Steps[ControllerResult[list[AlterPartitionResult]]]:
    """Decide each change, in order; a refused one does not affect the others.

    Raises `RequestError` STALE_BROKER_EPOCH for a process that was replaced.
    """
    check_same_process(image, broker_id, broker_epoch)
    elections = Elections(image, settings)
    changed: dict[tuple[UUID, int], PartitionImage] = {}
    frames: list[Frame] = []
    results: list[AlterPartitionResult] = []
    for request in requests:
        yield
        topic_id, number = key = request.topic_id, request.partition
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            results.append(AlterPartitionResult(topic_id, number, ErrorCode.unknown_topic_id))
            continue
        state = changed.get(key) or topic.partitions.get(number)
        error = _check(image, broker_id, state, request, settings.full)
        if state is None or error is not ErrorCode.none:
            results.append(AlterPartitionResult(topic_id, number, error))
            continue
        isr = tuple(member.broker_id for member in request.isr)
        wanted = PartitionTarget(isr=isr, recovery=request.recovery)
        record = elections.change(topic, number, state, wanted=wanted)
        if record is not None:
            frames.append(newest(record))
            changed[key] = state = changed_partition(state, record)
            if record.leader not in (LEADER_UNCHANGED, broker_id):
                # The change completed a reassignment, which moved the leader: it is written, and reported.
                results.append(AlterPartitionResult(topic_id, number, ErrorCode.new_leader_elected))
                continue
        results.append(_answer(request, state))
    return ControllerResult(tuple(frames), results, is_atomic=False)


def _answer(request: AlterPartition, state: PartitionImage) -> AlterPartitionResult:
    return AlterPartitionResult(
        request.topic_id,
        request.partition,
        ErrorCode.none,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        recovery=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
    )


def _check(
    image: MetadataImage,
    broker_id: int,
    state: PartitionImage | None,
    request: AlterPartition,
    full: DirectoriesWithoutRoom | None,
) -> ErrorCode:
    """Check a change, in Kafka's order; a request with a later epoch was meant for a later controller."""
    if state is None:
        return ErrorCode.unknown_topic_or_partition
    if request.leader_epoch > state.leader_epoch or request.partition_epoch > state.partition_epoch:
        return ErrorCode.not_controller
    if request.leader_epoch < state.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if broker_id != state.leader:
        return ErrorCode.invalid_request
    if request.partition_epoch < state.partition_epoch:
        return ErrorCode.invalid_update_version
    if not _is_sound(state, request):
        return ErrorCode.invalid_request
    if any(not _is_eligible(image, member) for member in request.isr):
        return ErrorCode.ineligible_replica
    if full is not None and any(_is_resting(full, state, member.broker_id) for member in request.isr):
        return ErrorCode.ineligible_replica
    return ErrorCode.none


def _is_resting(full: DirectoriesWithoutRoom, state: PartitionImage, broker_id: int) -> bool:
    """Return whether a replica that would join the ISR does not replicate now, for lack of room."""
    if broker_id in state.isr:
        return False
    at = state.replicas.index(broker_id)
    return at < len(state.directories) and full.is_resting(broker_id, state.directories[at])


def _is_sound(state: PartitionImage, request: AlterPartition) -> bool:
    """Return whether the ISR holds distinct replicas with the leader; a recovering leader is its only
    member."""
    isr = [member.broker_id for member in request.isr]
    if not isr or len(set(isr)) < len(isr) or not set(isr) <= set(state.replicas):
        return False
    if state.leader not in isr or request.recovery not in _STATES:
        return False
    if request.recovery != RECOVERING:
        return True
    return len(isr) == 1 and state.leader_recovery_state == RECOVERING


def _is_eligible(image: MetadataImage, member: BrokerState) -> bool:
    broker = image.brokers.get(member.broker_id)
    return broker is not None and broker.is_active and member.broker_epoch in (-1, broker.epoch)
