"""Conversions between versions of a message that differ in structure, not only in fields. [P]

Rows of `apis.APIS` name the functions. A request whose version has a shape of its own is decoded into that
version's class and upgraded; a response is downgraded to its version's class before it is encoded.

    Metadata 0            no topics: all; 1-13: null
    DeleteTopics 1-5      names; 6: names or ids
    ApiVersions 0-3       without features whose lowest version is 0 (KAFKA-17492)
    FindCoordinator 0-3   one key; 4-6: keys (KIP-699)
    OffsetFetch 1-7       one group; 8-10: groups (KIP-709)
    LeaveGroup 0-2        one member; 3-5: members (KIP-345)
    JoinGroup 0-6         no protocol: the empty name; 7-9: null
    EndQuorumEpoch 0      successors by id; 1: candidates with directory ids (KIP-853)
    AlterPartition 2      the ISR by ids; 3: with broker epochs (KIP-903)
    AddPartitionsToTxn 0-3  one transaction, of a client; 4-5: transactions, of a broker (KIP-890)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any

from kio.schema.errors import ErrorCode

DELETE_TOPICS_BY_ID = 6
FIND_COORDINATORS = 4
FETCH_GROUPS = 8
LEAVE_MEMBERS = 3
CANDIDATES = 1
ISR_EPOCHS = 3
ADD_TRANSACTIONS = 4
_NULL_PROTOCOL = 7
_FETCH_HAS_ERROR = 2


def _kio(package: str, version: int, kind: str) -> Any:
    return import_module(f"kio.schema.{package}.v{version}.{kind}")


def _offsets() -> Any:
    """Return the module of OffsetFetch's canonical messages, loaded at first use."""
    return import_module(f"{__package__}.offsets")


# Metadata


def upgrade_metadata(message: Any, version: int) -> Any:
    if version > 0 or message.topics:
        return message
    return replace(message, topics=None)


def downgrade_metadata(message: Any, version: int) -> Any:
    if version > 0:
        return message
    if message.topics == ():
        raise ValueError("Metadata version 0 cannot request no topics: it reads them as all")
    return replace(message, topics=message.topics or ())


# DeleteTopics


def upgrade_delete_topics(message: Any, version: int) -> Any:
    if version >= DELETE_TOPICS_BY_ID:
        return message
    module = _kio("delete_topics", DELETE_TOPICS_BY_ID, "request")
    return module.DeleteTopicsRequest(
        topics=tuple(module.DeleteTopicState(name=name, topic_id=None) for name in message.topic_names),
        timeout=message.timeout,
    )


def downgrade_delete_topics(message: Any, version: int) -> Any:
    if version >= DELETE_TOPICS_BY_ID:
        return message
    names = tuple(topic.name for topic in message.topics)
    if None in names:
        raise ValueError(f"DeleteTopics version {version} identifies topics by name only")
    module = _kio("delete_topics", version, "request")
    return module.DeleteTopicsRequest(topic_names=names, timeout=message.timeout)


# ApiVersions


def downgrade_api_versions_response(message: Any, version: int) -> Any:
    if version >= 4 or not message.supported_features:
        return message
    return replace(
        message, supported_features=tuple(f for f in message.supported_features if f.min_version > 0)
    )


# FindCoordinator


def upgrade_find_coordinator(message: Any, version: int) -> Any:
    if version >= FIND_COORDINATORS:
        return message
    module = _kio("find_coordinator", 6, "request")
    return module.FindCoordinatorRequest(
        key_type=getattr(message, "key_type", 0), coordinator_keys=(message.key,)
    )


def downgrade_find_coordinator(message: Any, version: int) -> Any:
    if version >= FIND_COORDINATORS:
        return message
    if len(message.coordinator_keys) != 1 or (version == 0 and message.key_type):
        raise ValueError(f"FindCoordinator version {version} has one key, in version 0 a group's")
    more = {"key_type": message.key_type} if version else {}
    module = _kio("find_coordinator", version, "request")
    return module.FindCoordinatorRequest(key=message.coordinator_keys[0], **more)


def downgrade_find_coordinator_response(message: Any, version: int) -> Any:
    if version >= FIND_COORDINATORS:
        return message
    [one] = message.coordinators
    more = {"throttle_time": message.throttle_time, "error_message": one.error_message} if version else {}
    module = _kio("find_coordinator", version, "response")
    return module.FindCoordinatorResponse(
        error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port, **more
    )


def upgrade_find_coordinator_response(message: Any, version: int) -> Any:
    """Upgrade a response with one coordinator. Its key is empty: such a response lacks it."""
    if version >= FIND_COORDINATORS:
        return message
    module = _kio("find_coordinator", 6, "response")
    one = module.Coordinator(
        key="",
        node_id=message.node_id,
        host=message.host,
        port=message.port,
        error_code=message.error_code,
        error_message=getattr(message, "error_message", None),
    )
    return module.FindCoordinatorResponse(
        throttle_time=getattr(message, "throttle_time", timedelta(0)), coordinators=(one,)
    )


# OffsetFetch


def upgrade_offset_fetch(message: Any, version: int) -> Any:
    if version >= FETCH_GROUPS:
        return message
    topics = None
    if message.topics is not None:
        topics = tuple(
            _offsets().OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
            for one in message.topics
        )
    return _offsets().OffsetFetchRequest(
        groups=(_offsets().OffsetFetchRequestGroup(group_id=message.group_id, topics=topics),),
        require_stable=getattr(message, "require_stable", False),
    )


def downgrade_offset_fetch(message: Any, version: int) -> Any:
    if version >= FETCH_GROUPS:
        return message
    if len(message.groups) != 1:
        raise ValueError(f"OffsetFetch version {version} has one group")
    [group] = message.groups
    if version < 2 and group.topics is None:
        raise ValueError("OffsetFetch version 1 cannot request all topics")
    module = _kio("offset_fetch", version, "request")
    topics = None
    if group.topics is not None:
        topics = tuple(
            module.OffsetFetchRequestTopic(name=one.name, partition_indexes=one.partition_indexes)
            for one in group.topics
        )
    more = {"require_stable": message.require_stable} if version >= 7 else {}
    return module.OffsetFetchRequest(group_id=group.group_id, topics=topics, **more)


def downgrade_offset_fetch_response(message: Any, version: int) -> Any:
    if version >= FETCH_GROUPS:
        return message
    [group] = message.groups
    module = _kio("offset_fetch", version, "response")
    more: dict[str, Any] = {}
    if version >= _FETCH_HAS_ERROR:
        more["error_code"] = group.error_code
    if version >= 3:
        more["throttle_time"] = message.throttle_time
    has_epoch = version >= 5
    return module.OffsetFetchResponse(
        topics=tuple(
            module.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    module.OffsetFetchResponsePartition(
                        partition_index=one.partition_index,
                        committed_offset=one.committed_offset,
                        metadata=one.metadata,
                        error_code=one.error_code,
                        **({"committed_leader_epoch": one.committed_leader_epoch} if has_epoch else {}),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in group.topics
        ),
        **more,
    )


def upgrade_offset_fetch_response(message: Any, version: int) -> Any:
    """Upgrade a response with one group. Its group id is empty: such a response lacks it."""
    if version >= FETCH_GROUPS:
        return message
    partition = _kio("offset_fetch", 10, "response").OffsetFetchResponsePartitions
    return _offsets().OffsetFetchResponse(
        throttle_time=getattr(message, "throttle_time", timedelta(0)),
        groups=(
            _offsets().OffsetFetchResponseGroup(
                group_id="",
                topics=tuple(
                    _offsets().OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=tuple(
                            partition(
                                partition_index=one.partition_index,
                                committed_offset=one.committed_offset,
                                committed_leader_epoch=getattr(one, "committed_leader_epoch", -1),
                                metadata=one.metadata,
                                error_code=one.error_code,
                            )
                            for one in topic.partitions
                        ),
                    )
                    for topic in message.topics
                ),
                error_code=getattr(message, "error_code", ErrorCode.none),
            ),
        ),
    )


# LeaveGroup


def upgrade_leave_group(message: Any, version: int) -> Any:
    if version >= LEAVE_MEMBERS:
        return message
    module = _kio("leave_group", 5, "request")
    return module.LeaveGroupRequest(
        group_id=message.group_id, members=(module.MemberIdentity(member_id=message.member_id),)
    )


def downgrade_leave_group(message: Any, version: int) -> Any:
    if version >= LEAVE_MEMBERS:
        return message
    if len(message.members) != 1 or message.members[0].group_instance_id is not None:
        raise ValueError(f"LeaveGroup version {version} has one member, by its member id")
    module = _kio("leave_group", version, "request")
    return module.LeaveGroupRequest(group_id=message.group_id, member_id=message.members[0].member_id)


def downgrade_leave_group_response(message: Any, version: int) -> Any:
    """Downgrade a response. Its one error is the request's or, if that is none, the first member's."""
    if version >= LEAVE_MEMBERS:
        return message
    error = message.error_code
    if error == ErrorCode.none and message.members:
        error = message.members[0].error_code
    more = {"throttle_time": message.throttle_time} if version else {}
    return _kio("leave_group", version, "response").LeaveGroupResponse(error_code=error, **more)


def upgrade_leave_group_response(message: Any, version: int) -> Any:
    if version >= LEAVE_MEMBERS:
        return message
    return _kio("leave_group", 5, "response").LeaveGroupResponse(
        throttle_time=getattr(message, "throttle_time", timedelta(0)),
        error_code=message.error_code,
        members=(),
    )


# JoinGroup


def downgrade_join_group_response(message: Any, version: int) -> Any:
    if version >= _NULL_PROTOCOL or message.protocol_name is not None:
        return message
    if isinstance(message, tuple):
        return message._replace(protocol_name="")  # type: ignore[attr-defined]
    return replace(message, protocol_name="")


# EndQuorumEpoch


def upgrade_end_quorum_epoch(message: Any, version: int) -> Any:
    if version >= CANDIDATES:
        return message
    module = _kio("end_quorum_epoch", 1, "request")
    return module.EndQuorumEpochRequest(
        cluster_id=message.cluster_id,
        topics=_topics(
            module,
            message,
            lambda one: module.PartitionData(
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                preferred_candidates=tuple(
                    module.ReplicaInfo(candidate_id=node_id, candidate_directory_id=None)
                    for node_id in one.preferred_successors
                ),
            ),
        ),
        leader_endpoints=(),
    )


def downgrade_end_quorum_epoch(message: Any, version: int) -> Any:
    """Downgrade a request. It loses directory ids and endpoints, which the schema marks ignorable."""
    if version >= CANDIDATES:
        return message
    module = _kio("end_quorum_epoch", version, "request")
    return module.EndQuorumEpochRequest(
        cluster_id=message.cluster_id,
        topics=_topics(
            module,
            message,
            lambda one: module.PartitionData(
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                preferred_successors=tuple(each.candidate_id for each in one.preferred_candidates),
            ),
        ),
    )


def _topics(module: Any, message: Any, partition: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(
        module.TopicData(
            topic_name=topic.topic_name, partitions=tuple(partition(one) for one in topic.partitions)
        )
        for topic in message.topics
    )


# AlterPartition


def upgrade_alter_partition(message: Any, version: int) -> Any:
    """Upgrade a request. The brokers of its ISR get epoch -1, which the controller does not compare."""
    if version >= ISR_EPOCHS:
        return message
    module = _kio("alter_partition", 3, "request")
    return _isr(
        module,
        message,
        lambda one: {
            "new_isr_with_epochs": tuple(module.BrokerState(broker_id=each) for each in one.new_isr)
        },
    )


def downgrade_alter_partition(message: Any, version: int) -> Any:
    if version >= ISR_EPOCHS:
        return message
    module = _kio("alter_partition", version, "request")
    return _isr(
        module,
        message,
        lambda one: {"new_isr": tuple(each.broker_id for each in one.new_isr_with_epochs)},
    )


def _isr(module: Any, message: Any, members: Callable[[Any], dict[str, Any]]) -> Any:
    return module.AlterPartitionRequest(
        broker_id=message.broker_id,
        broker_epoch=message.broker_epoch,
        topics=tuple(
            module.TopicData(
                topic_id=topic.topic_id,
                partitions=tuple(
                    module.PartitionData(
                        partition_index=one.partition_index,
                        leader_epoch=one.leader_epoch,
                        leader_recovery_state=one.leader_recovery_state,
                        partition_epoch=one.partition_epoch,
                        **members(one),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )


# AddPartitionsToTxn


def upgrade_add_partitions(message: Any, version: int) -> Any:
    if version >= ADD_TRANSACTIONS:
        return message
    module = _kio("add_partitions_to_txn", 5, "request")
    one = module.AddPartitionsToTxnTransaction(
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
        verify_only=False,
        topics=message.v3_and_below_topics,
    )
    return module.AddPartitionsToTxnRequest(transactions=(one,))


def downgrade_add_partitions(message: Any, version: int) -> Any:
    if version >= ADD_TRANSACTIONS:
        return message
    if len(message.transactions) != 1 or message.transactions[0].verify_only:
        raise ValueError(f"AddPartitionsToTxn version {version} adds to one transaction")
    [one] = message.transactions
    module = _kio("add_partitions_to_txn", version, "request")
    return module.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=one.transactional_id,
        v3_and_below_producer_id=one.producer_id,
        v3_and_below_producer_epoch=one.producer_epoch,
        v3_and_below_topics=tuple(
            module.AddPartitionsToTxnTopic(name=topic.name, partitions=topic.partitions)
            for topic in one.topics
        ),
    )


def downgrade_add_partitions_response(message: Any, version: int) -> Any:
    if version >= ADD_TRANSACTIONS:
        return message
    module = _kio("add_partitions_to_txn", version, "response")
    return module.AddPartitionsToTxnResponse(
        throttle_time=message.throttle_time,
        results_by_topic_v3_and_below=tuple(
            module.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    module.AddPartitionsToTxnPartitionResult(
                        partition_index=one.partition_index, partition_error_code=one.partition_error_code
                    )
                    for one in topic.results_by_partition
                ),
            )
            for transaction in message.results_by_transaction
            for topic in transaction.topic_results
        ),
    )


def upgrade_add_partitions_response(message: Any, version: int) -> Any:
    """Upgrade a response about one transaction. Its id is empty: such a response lacks it."""
    if version >= ADD_TRANSACTIONS:
        return message
    module = _kio("add_partitions_to_txn", 5, "response")
    return module.AddPartitionsToTxnResponse(
        throttle_time=message.throttle_time,
        error_code=ErrorCode.none,
        results_by_transaction=(
            module.AddPartitionsToTxnResult(
                transactional_id="", topic_results=message.results_by_topic_v3_and_below
            ),
        ),
    )
