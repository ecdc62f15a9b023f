"""AlterPartition, ElectLeaders, AssignReplicasToDirs: ISRs, leaders and the directories of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from kio.schema.alter_partition.v3 import response as altered
from kio.schema.assign_replicas_to_dirs.v0 import response as assigned
from kio.schema.elect_leaders.v2 import response as elected
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice, each_in_slices
from service.controller_client.forwarding import timeout_of
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.requests import (
    ZERO_UUID,
    AlterPartition,
    AlterPartitionResult,
    AssignReplica,
    AssignReplicaResult,
    BrokerState,
    ElectionResult,
    ElectLeaders,
)
from service.network.request import RequestContext
from service.serving.change_audit import audited
from service.serving.change_words import asked_elections
from service.serving.request_host import NO_THROTTLE
from service.wire.api import ApiKey
from service.wire.refusals import refusal


async def alter(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AlterPartition: decide on the ISRs that a leader proposes, or refuse all of them."""
    named = [(topic.topic_id or ZERO_UUID, one) for topic in request.topics for one in topic.partitions]
    changes = await each_in_slices(_to_alter, named)
    try:
        results = await side.controller.alter_partitions(request.broker_id, request.broker_epoch, changes)
    except RequestError as e:
        return altered.AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=e.code, topics=())
    answers = iter(await each_in_slices(_altered, results))
    return altered.AlterPartitionResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        topics=tuple(
            altered.TopicData(topic_id=topic_id, partitions=tuple(next(answers) for _ in of_topic))
            for topic_id, of_topic in groupby(results, attrgetter("topic_id"))
        ),
    )


def _to_alter(named: tuple[UUID, Any]) -> AlterPartition:
    topic_id, one = named
    return AlterPartition(
        topic_id=topic_id,
        partition=one.partition_index,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        isr=tuple(BrokerState(each.broker_id, each.broker_epoch) for each in one.new_isr_with_epochs),
        recovery=one.leader_recovery_state,
    )


def _altered(one: AlterPartitionResult) -> altered.PartitionData:
    if one.error is not ErrorCode.none:
        return altered.PartitionData(
            partition_index=one.partition,
            error_code=one.error,
            leader_id=0,
            leader_epoch=0,
            partition_epoch=0,
        )
    return altered.PartitionData(
        partition_index=one.partition,
        error_code=one.error,
        leader_id=one.leader,
        leader_epoch=one.leader_epoch,
        isr=one.isr,
        leader_recovery_state=one.recovery,
        partition_epoch=one.partition_epoch,
    )


@audited(asked_elections)
async def elect(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle ElectLeaders (KIP-460), for the named partitions or for all that need an election."""
    named = request.topic_partitions
    partitions: tuple[tuple[str, int], ...] | None = None
    if named is not None:
        places = ((topic.topic, each) for topic in named for each in topic.partitions)
        partitions = tuple(await each_in_slices(lambda place: place, places))
    try:
        results = await side.controller.elect_leaders(
            ElectLeaders(request.election_type, partitions),
            deadline_ms=side.deadline_ms(timeout_of(request)),
        )
    except RequestError as e:
        return refusal(ApiKey.ELECT_LEADERS, request, e.code, e.message)
    return elected.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        replica_election_results=tuple(
            elected.ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
            for topic, partitions in (await _elected(results)).items()
        ),
    )


async def _elected(results: Iterable[ElectionResult]) -> dict[str, list[elected.PartitionResult]]:
    """Group the results by topic, in the order in which topics were first named."""
    piece = Slice()
    topics: dict[str, list[elected.PartitionResult]] = {}
    for one in results:
        if piece.is_over():
            await piece.next_turn()
        topics.setdefault(one.topic, []).append(
            elected.PartitionResult(
                partition_id=one.partition, error_code=one.error, error_message=one.message
            )
        )
    return topics


async def assign(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AssignReplicasToDirs (KIP-858): record the directories of a broker's replicas."""
    named = [
        (directory.id_, topic.topic_id, one)
        for directory in request.directories
        for topic in directory.topics
        for one in topic.partitions
    ]
    replicas = await each_in_slices(_to_assign, named)
    try:
        results = await side.controller.assign_replicas(request.broker_id, request.broker_epoch, replicas)
    except RequestError as e:
        return assigned.AssignReplicasToDirsResponse(
            throttle_time=NO_THROTTLE, error_code=e.code, directories=()
        )
    answers = iter(await each_in_slices(_assigned, results))
    return assigned.AssignReplicasToDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        directories=tuple(
            assigned.DirectoryData(id_=directory, topics=tuple(_topics(of_directory, answers)))
            for directory, of_directory in groupby(results, attrgetter("directory"))
        ),
    )


def _to_assign(named: tuple[UUID | None, UUID | None, Any]) -> AssignReplica:
    directory, topic_id, one = named
    return AssignReplica(directory or ZERO_UUID, topic_id or ZERO_UUID, one.partition_index)


def _assigned(one: AssignReplicaResult) -> assigned.PartitionData:
    return assigned.PartitionData(partition_index=one.partition, error_code=one.error)


def _topics(
    results: Iterable[AssignReplicaResult], answers: Iterator[assigned.PartitionData]
) -> Iterator[assigned.TopicData]:
    """Yield the topics of one directory; takes one of `answers` for each result, in order."""
    for topic_id, of_topic in groupby(results, attrgetter("topic_id")):
        yield assigned.TopicData(topic_id=topic_id, partitions=tuple(next(answers) for _ in of_topic))
