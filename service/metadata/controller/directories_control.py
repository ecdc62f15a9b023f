"""Directories of brokers: of replicas (AssignReplicasToDirs, KIP-858), failed, without room, cordoned. [P]

Source: Apache Kafka ``ReplicationControlManager.handleAssignReplicasToDirs``,
``.handleDirectoriesOffline``; directories without room are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult, newest_frames
from service.metadata.controller.elections_control import (
    USUAL_ELECTIONS,
    Elections,
    ElectionSettings,
    changes_in_steps,
    is_online,
    with_topics,
)
from service.metadata.controller.partition_change import Election, PartitionTarget
from service.metadata.controller.requests import AssignReplica, AssignReplicaResult
from service.metadata.frames import Frame, newest
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from service.metadata.partition_index import lies_in
from service.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from service.metadata.topics_delta import changed_partition


def assign_replicas(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    requests: Sequence[AssignReplica],
    settings: ElectionSettings,
) -> Steps[ControllerResult[list[AssignReplicaResult]]]:
    """Record the directory of each replica.

    A replica in an offline directory leaves its ISR, and its leadership moves. Raises `RequestError`
    STALE_BROKER_EPOCH for a process that was replaced.
    """
    broker = check_same_process(image, broker_id, broker_epoch)
    staying, leaving = Elections(image, settings), Elections(image, settings, without=broker_id)
    changed: dict[tuple[UUID, int], PartitionImage] = {}
    offline: dict[tuple[UUID, int], TopicImage] = {}
    frames: list[Frame] = []
    results: list[AssignReplicaResult] = []
    for directory, topic_id, number in requests:
        yield
        key = topic_id, number
        topic = image.topics_by_id.get(topic_id)
        state = None if topic is None else changed.get(key) or topic.partitions.get(number)
        if topic is None or state is None:
            unknown = ErrorCode.unknown_topic_id if topic is None else ErrorCode.unknown_topic_or_partition
            results.append(AssignReplicaResult(directory, topic_id, number, unknown))
            continue
        if broker_id not in state.replicas:
            error = ErrorCode.not_leader_or_follower
            results.append(AssignReplicaResult(directory, topic_id, number, error))
            continue
        wanted = PartitionTarget(directories={broker_id: directory})
        record = staying.change(topic, number, state, election=Election.ONLINE, wanted=wanted)
        if record is not None:
            frames.append(newest(record))
            changed[key] = changed_partition(state, record)
        if not is_online(broker, directory):
            offline[key] = topic
        results.append(AssignReplicaResult(directory, topic_id, number, ErrorCode.none))
    for key, topic in offline.items():
        yield
        state = changed.get(key) or topic.partitions[key[1]]
        record = leaving.change(topic, key[1], state)
        if record is not None:
            frames.append(newest(record))
    return ControllerResult(tuple(frames), results, is_atomic=False)


def take_offline(
    image: MetadataImage,
    broker_id: int,
    directories: Collection[UUID],
    *,
    settings: ElectionSettings = USUAL_ELECTIONS,
) -> Steps[ControllerResult[None]]:
    """Record failed directories of the broker: replicas there leave the ISR, and leaderships move."""
    broker = image.brokers[broker_id]
    gone = [directory for directory in broker.log_dirs if directory in directories]
    if not gone:
        return ControllerResult((), None)
    elections = Elections(image, settings, without=broker_id)
    frames: list[Frame] = []
    for directory in gone:
        partitions = image.index.partitions(lies_in(directory))
        frames += yield from newest_frames((yield from changes_in_steps(elections, partitions)))
    left = tuple(directory for directory in broker.log_dirs if directory not in gone)
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, log_dirs=left)
    return ControllerResult((*frames, Frame(change, 2)), None, is_atomic=False)


def relieve_directories(
    image: MetadataImage,
    broker_id: int,
    full: Collection[UUID],
    resting: Collection[UUID],
    *,
    settings: ElectionSettings = USUAL_ELECTIONS,
) -> Steps[ControllerResult[None]]:
    """Move the broker's leaderships out of directories without room, to in-sync replicas with room.

    Replicas in `resting` directories, which do not replicate, also leave the ISR.
    """
    elections = Elections(image, settings)
    records: list[PartitionChangeRecord] = []
    for directory in image.brokers[broker_id].log_dirs:
        if directory not in full and directory not in resting:
            continue
        is_resting = directory in resting
        for topic, number, state in with_topics(image, image.index.partitions(lies_in(directory))):
            if state.leader != broker_id and not (is_resting and broker_id in state.isr):
                yield
                continue
            yield
            record = elections.relieve(topic, number, state, broker_id, is_resting=is_resting)
            if record is not None:
                records.append(record)
    return ControllerResult(tuple((yield from newest_frames(records))), None, is_atomic=False)


def change_cordoned(broker: BrokerImage, directories: Collection[UUID]) -> tuple[Frame, ...]:
    """Record the broker's cordoned directories, where they are new or have changed."""
    if broker.cordoned_log_dirs is not None and set(broker.cordoned_log_dirs) == set(directories):
        return ()
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=tuple(directories)
    )
    return (Frame(change, 3),)
