"""The APIs that Firn speaks, one row each: keys, versions, and what is special about their messages. [P]

Which of them a listener serves is said in `serving/api_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from service.wire import shapes


class ApiKey(IntEnum):
    """Kafka's API keys, those that Firn serves or asks for, and ours from 20000 on."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    COMMIT_CATALOG = 20000


class Api(NamedTuple):
    """One API: what there is to know of it on the wire, in one row of `APIS`. Who serves it where is said in
    `serving/api_table.py`.

    `flexible_from` is its first version with compact types and tagged fields (KIP-482).
    `by_hand_before`: older versions name topics, for which the canonical message has no place; they have a
    codec of their own. `upgrade` makes a canonical request of one of an older version, `downgrade` the other
    way round, where that is more than a mapping of fields. `ignorable` are request fields whose value may be
    lost on an older broker, as their schemas say.
    """

    key: ApiKey
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    advertised_min: int
    by_hand_before: int = 0
    canonical: str = ""
    """module of `service.wire` with the canonical messages, if they are not kio's; loaded at its first use"""
    own_shape_before: int = 0
    """older versions are not mapped by field, but read as they are and upgraded"""
    upgrade: Callable[[Any, int], Any] | None = None
    downgrade: Callable[[Any, int], Any] | None = None
    downgrade_response: Callable[[Any, int], Any] | None = None
    own_response_before: int = 0
    """older responses are written as they are, of what `downgrade_response` makes of the canonical one"""
    upgrade_response: Callable[[Any, int], Any] | None = None
    ignorable: frozenset[str] = frozenset()
    is_repeated: bool = False
    """clients send the same request again and again: a small one is read once"""
    quick: str = ""
    """module of `service.wire` with readers of requests and writers of responses that are made by hand, to
    stand for compiled ones; loaded at its first use"""
    is_own: bool = False
    """Kafka has no such API: `canonical` has all its messages"""
    adds_tags: bool = False
    """`canonical` has tagged fields of Firn's own, which lie in the bytes of the newest version"""


def _api(
    key: ApiKey, name: str, low: int, high: int, flexible: int, advertised: int | None = None, **more: Any
) -> Api:
    return Api(key, name, low, high, flexible, low if advertised is None else advertised, **more)


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        # Advertised from 0, as Kafka does: librdkafka misreads a higher minimum (KAFKA-18659).
        _api(ApiKey.PRODUCE, "Produce", 3, 13, 9, advertised=0, by_hand_before=13),
        _api(ApiKey.FETCH, "Fetch", 4, 18, 12, by_hand_before=13),
        _api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6, ignorable=frozenset({"timeout"})),
        _api(
            ApiKey.METADATA, "Metadata", 0, 13, 9,
            canonical="metadata", upgrade=shapes.all_topics_is_null, downgrade=shapes.all_topics_is_empty,
        ),
        _api(
            ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8,
            canonical="offsets", ignorable=frozenset({"retention_time", "group_instance_id"}),
            quick="offset_commits",
        ),
        _api(
            ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6, canonical="offsets",
            own_shape_before=shapes.FETCH_GROUPS, own_response_before=shapes.FETCH_GROUPS,
            upgrade=shapes.groups_of_group, downgrade=shapes.group_of_groups,
            downgrade_response=shapes.fetched_of_groups, upgrade_response=shapes.groups_of_fetched,
        ),
        # Advertised from 0 as JoinGroup and its like: librdkafka's lz4 and groups depend on it.
        _api(
            ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3,
            own_shape_before=shapes.FIND_COORDINATORS, own_response_before=shapes.FIND_COORDINATORS,
            upgrade=shapes.keys_of_key, downgrade=shapes.key_of_keys,
            downgrade_response=shapes.coordinator_of_coordinators,
            upgrade_response=shapes.coordinators_of_coordinator,
        ),
        _api(
            ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6,
            downgrade_response=shapes.no_protocol_is_empty,
            ignorable=frozenset({"rebalance_timeout", "group_instance_id", "reason"}),
        ),
        _api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4, is_repeated=True),
        _api(
            ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4,
            own_shape_before=shapes.LEAVE_MEMBERS, own_response_before=shapes.LEAVE_MEMBERS,
            upgrade=shapes.members_of_member, downgrade=shapes.member_of_members,
            downgrade_response=shapes.left_of_members, upgrade_response=shapes.members_of_left,
        ),
        _api(
            ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4,
            ignorable=frozenset({"protocol_type", "protocol_name", "group_instance_id"}),
        ),
        _api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
        _api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3),
        _api(
            ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3,
            downgrade_response=shapes.features_above_zero,
            ignorable=frozenset({"client_software_name", "client_software_version"}),
        ),
        _api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
        _api(
            ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4,
            own_shape_before=shapes.DELETE_TOPICS_BY_ID,
            upgrade=shapes.topics_of_names, downgrade=shapes.names_of_topics,
        ),
        _api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
        _api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
        _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
        _api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
        _api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
        _api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2, canonical="log_dirs", adds_tags=True),
        _api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
        _api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
        _api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0),
        _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
        _api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, 1),
        _api(ApiKey.VOTE, "Vote", 0, 2, 0, ignorable=frozenset({"voter_id"})),
        _api(
            ApiKey.BEGIN_QUORUM_EPOCH, "BeginQuorumEpoch", 0, 1, 1,
            ignorable=frozenset({"voter_id", "leader_endpoints"}),
        ),
        _api(
            ApiKey.END_QUORUM_EPOCH, "EndQuorumEpoch", 0, 1, 1,
            own_shape_before=shapes.CANDIDATES,
            upgrade=shapes.candidates_of_successors, downgrade=shapes.successors_of_candidates,
        ),
        _api(ApiKey.DESCRIBE_QUORUM, "DescribeQuorum", 0, 2, 0),
        _api(
            ApiKey.ALTER_PARTITION, "AlterPartition", 2, 3, 0,
            own_shape_before=shapes.ISR_EPOCHS,
            upgrade=shapes.isr_with_epochs, downgrade=shapes.isr_without_epochs,
        ),
        _api(ApiKey.UPDATE_FEATURES, "UpdateFeatures", 0, 2, 0, canonical="features"),
        _api(ApiKey.ENVELOPE, "Envelope", 0, 0, 0),
        _api(ApiKey.FETCH_SNAPSHOT, "FetchSnapshot", 0, 1, 0),
        _api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
        _api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
        _api(
            ApiKey.BROKER_REGISTRATION, "BrokerRegistration", 0, 4, 0,
            ignorable=frozenset({"previous_broker_epoch"}),
        ),
        _api(
            ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", 0, 2, 0, canonical="heartbeats", adds_tags=True,
            ignorable=frozenset({"full_log_dirs", "resting_log_dirs"}),
        ),
        _api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0),
        _api(ApiKey.ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", 0, 0, 0),
        _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0, is_repeated=True),
        _api(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0),
        _api(ApiKey.CONTROLLER_REGISTRATION, "ControllerRegistration", 0, 0, 0),
        _api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, "AssignReplicasToDirs", 0, 0, 0),
        _api(
            ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0,
            ignorable=frozenset({"resource_types"}),
        ),
        _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
        _api(ApiKey.ADD_RAFT_VOTER, "AddRaftVoter", 0, 1, 0),
        _api(ApiKey.REMOVE_RAFT_VOTER, "RemoveRaftVoter", 0, 0, 0),
        _api(ApiKey.UPDATE_RAFT_VOTER, "UpdateRaftVoter", 0, 0, 0),
        _api(ApiKey.COMMIT_CATALOG, "CommitCatalog", 0, 0, 0, canonical="catalog", is_own=True),
    )
}  # fmt: skip
