"""Reassignments of replicas: started, cancelled and listed (KIP-455, KIP-860). [P]

Source: Apache Kafka ``ReplicationControlManager``: ``alterPartitionReassignments``,
``listPartitionReassignments``; ``PartitionReassignmentReplicas``, ``PartitionReassignmentRevert``.

A reassignment is a change that adds replicas, and records which are being added and removed. It completes
with any later change after which the added replicas are in sync (`partition_change`); where none is added
that may be the same change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.decision import EXCESSIVE, ControllerResult, decided_in_steps
from service.metadata.controller.elections_control import Elections, ElectionSettings
from service.metadata.controller.partition_change import Election, PartitionTarget
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    OngoingReassignment,
    ReassignPartition,
    ReassignResult,
)
from service.metadata.controller.topics_control import bad_assignment, check_assignment
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.metadata.partition_index import MOVING_SHELF
from service.metadata.records import PartitionChangeRecord
from service.metadata.topics_delta import changed_partition


def alter_reassignments(
    image: MetadataImage,
    requests: Sequence[ReassignPartition],
    settings: ElectionSettings,
    *,
    allows_factor_change: bool = True,
) -> Steps[ControllerResult[list[ReassignResult]]]:
    """Start or cancel a reassignment of each partition; a refused one does not affect the others. In steps.

    Without `allows_factor_change` a partition keeps its number of replicas (INVALID_REPLICATION_FACTOR). A
    partition that is named twice is changed twice. Once 10,000 records are reached, further changes are
    refused.
    """
    elections = Elections(image, settings)
    changed: dict[tuple[UUID, int], PartitionImage] = {}
    records: list[PartitionChangeRecord] = []
    results: list[ReassignResult] = []
    for request in requests:
        yield
        name, number, target = request
        error, message = ErrorCode.none, None
        try:
            topic, state = _find(image, name, number)
            state = changed.get((topic.id, number), state)
            if target is None:
                record = _cancelled(elections, topic, number, state)
            else:
                wanted = _target(elections, state, target, allows_factor_change)
                record = elections.change(topic, number, state, election=Election.ONLINE, wanted=wanted)
            if record is not None:
                if len(records) == MAX_RECORDS_PER_OPERATION:
                    raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
                records.append(record)
                changed[topic.id, number] = changed_partition(state, record)
        except RequestError as e:
            error, message = e.code, e.message
        results.append(ReassignResult(name, number, error, message))
    return (yield from decided_in_steps(records, results))


def _find(image: MetadataImage, name: str, number: int) -> tuple[TopicImage, PartitionImage]:
    unknown = ErrorCode.unknown_topic_or_partition
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise RequestError(unknown, f"Unable to find a topic named {name}.")
    state = topic.partitions.get(number)
    if state is None:
        raise RequestError(unknown, f"Unable to find partition {name}:{number}.")
    return topic, state


def _target(
    elections: Elections,
    state: PartitionImage,
    target: tuple[int, ...],
    allows_factor_change: bool,
) -> PartitionTarget:
    """Return the change that starts a reassignment to `target`: other replicas stay until it completes.

    Where `target` adds no replica, the replicas that a running reassignment is adding and that `target` has
    are still being added; replicas that it was removing are kept where `target` has them. (Kafka waits for
    ever for a replica that is no longer wanted, and finally removes one that is wanted again.)
    """
    check_assignment(elections.image.brokers, target)
    if not allows_factor_change:
        present = len(state.replicas)
        if state.is_moving:
            present = len({*state.replicas, *state.adding_replicas} - {*state.removing_replicas})
        if present != len(target):
            raise RequestError(
                ErrorCode.invalid_replication_factor,
                f"The replication factor is changed from {present} to {len(target)}",
            )
    adding = tuple(sorted(set(target).difference(state.replicas)))
    removing = tuple(sorted(set(state.replicas).difference(target)))
    adding = adding or tuple(one for one in state.adding_replicas if one in target)
    return PartitionTarget(replicas=(*target, *removing), removing=removing, adding=adding)


def _cancelled(
    elections: Elections, topic: TopicImage, number: int, state: PartitionImage
) -> PartitionChangeRecord | None:
    """Cancel a reassignment: drop the added replicas, keep those that were to be removed.

    Where none of the kept replicas is in sync, this is an unclean election, which the topic must allow. The
    exception is a partition with an empty ISR that waits for one of them: it keeps waiting (Apache Kafka
    makes the first replica the leader).
    """
    if not state.is_moving:
        raise RequestError(ErrorCode.no_reassignment_in_progress)
    replicas = tuple(one for one in state.replicas if one not in state.adding_replicas)
    isr = tuple(one for one in state.isr if one not in state.adding_replicas)
    if not isr and not _waits_for_any(elections, state, replicas):
        if not replicas:
            raise bad_assignment("Invalid replica assignment: addingReplicas contains all replicas.")
        if not elections.rules(topic).allows_unclean:
            raise bad_assignment(
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require "
                f"an unclean leader election."
            )
        isr = replicas[:1]
    wanted = PartitionTarget(isr=isr, replicas=replicas, removing=(), adding=())
    return elections.change(topic, number, state, wanted=wanted)


def _waits_for_any(elections: Elections, state: PartitionImage, replicas: Collection[int]) -> bool:
    """Return whether the ISR is empty and `replicas` has one that may lead again without a loss."""
    if state.isr or not elections.is_elr_enabled:
        return False
    return not set(state.eligible_leader_replicas or state.last_known_elr).isdisjoint(replicas)


def list_reassignments(
    image: MetadataImage, partitions: Iterable[tuple[str, Iterable[int]]] | None
) -> Steps[list[OngoingReassignment]]:
    """List running reassignments, of the named partitions or of all; others are omitted. In steps."""
    found: list[OngoingReassignment] = []
    for topic, number in _all_moving(image) if partitions is None else _named(image, partitions):
        yield
        state = topic.partitions.get(number)
        if state is not None and state.is_moving:
            found.append(
                OngoingReassignment(
                    topic.name, number, state.replicas, state.adding_replicas, state.removing_replicas
                )
            )
    return found


def _all_moving(image: MetadataImage) -> Iterator[tuple[TopicImage, int]]:
    for topic_id, number in image.index.partitions(MOVING_SHELF):
        yield image.topics_by_id[topic_id], number


def _named(
    image: MetadataImage, partitions: Iterable[tuple[str, Iterable[int]]]
) -> Iterator[tuple[TopicImage, int]]:
    for name, numbers in partitions:
        topic = image.topics_by_name.get(name)
        if topic is not None:
            for number in numbers:
                yield topic, number
