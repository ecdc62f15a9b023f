"""AssignReplicasToDirs: records the directories of a broker's replicas (KIP-858). [P]

Source: Apache Kafka ``ReplicationControlManager.handleAssignReplicasToDirs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.elections_control import CHANGE_US, Elections, ElectionSettings, is_online
from service.metadata.controller.partition_change import Election, PartitionTarget
from service.metadata.controller.requests import AssignReplica, AssignReplicaResult
from service.metadata.frames import Frame, newest
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
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
        yield CHANGE_US
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
        yield CHANGE_US
        state = changed.get(key) or topic.partitions[key[1]]
        record = leaving.change(topic, key[1], state)
        if record is not None:
            frames.append(newest(record))
    return ControllerResult(tuple(frames), results, is_atomic=False)
