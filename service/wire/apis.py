"""Table of the APIs that Firn speaks, one row each: versions, listeners, effect, special messages. [P]

The handlers are registered in `serving/api_table.py` and in `controller_server/api_table.py`, by key.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, Flag, IntEnum, auto
from typing import Any, NamedTuple

from service.wire import shapes
from service.wire.refused_arrays import (
    Refuse,
    altered_client_quotas,
    altered_configs,
    altered_scram_credentials,
    created_acls,
    created_partitions,
    created_topics,
    deleted_acls,
    deleted_topics,
    elected_leaders,
    listed_reassignments,
    reassigned_partitions,
    token_not_changed,
    token_not_created,
)


class ApiKey(IntEnum):
    """Kafka's API keys that Firn serves or sends, and Firn's own from 20000 on."""

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
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
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
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
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
    LIST_SESSIONS = 20001
    END_SESSIONS = 20002
    DESCRIBE_HEALTH = 20003
    TAKE_CUT = 20004
    REWRITE_RANGE = 20005
    ERASURES = 20006


class ListenerType(Flag):
    """The kind of a listener: Kafka's ``ApiMessageType.ListenerType`` (4.3.1)."""

    BROKER = auto()
    CONTROLLER = auto()


class RequestEffect(Enum):
    """The effect of an API's requests on state that outlives their connection."""

    READS = auto()
    """none: a request that takes several turns ends with its connection"""
    IDEMPOTENT = auto()
    """the same if sent twice as if sent once; only UnregisterBroker has another response the second time"""
    CHANGES = auto()
    """any other: nodes do not send it again after a lost response"""


class Api(NamedTuple):
    """One API: a row of `APIS` with everything but its handlers.

    `flexible_from` is the first version with compact types and tagged fields (KIP-482).
    `by_hand_before`: older versions identify topics by name, for which the canonical message has no field;
    they have a codec of their own. `upgrade` converts a request of an older version to the canonical one and
    `downgrade` converts back, if that is more than a mapping of fields. `ignorable` are request fields whose
    value may be dropped for an older broker, as their schemas say.
    """

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    listeners: ListenerType
    """listeners that serve and advertise it, as in Kafka"""
    effect: RequestEffect
    is_forwardable: bool = False
    """brokers forward it to the controller in an Envelope (Kafka's ``ApiKeys.forwardable``)"""
    is_checked_first: bool = False
    """brokers check who asks before they forward it: only they know over which protocol the client came"""
    refuse: Refuse | None = None
    """makes the array of an error response, if its elements carry the error"""
    advertised_from: int | None = None
    """`advertised_min`, if that is not `min_version`"""
    by_hand_before: int = 0
    canonical: str = ""
    """module of `service.wire` with the canonical messages, if they are not kio's; loaded at first use"""
    own_shape_before: int = 0
    """requests of older versions are decoded into their own class and upgraded, not mapped by field"""
    upgrade: Callable[[Any, int], Any] | None = None
    downgrade: Callable[[Any, int], Any] | None = None
    downgrade_response: Callable[[Any, int], Any] | None = None
    own_response_before: int = 0
    """responses of older versions are of their own class, which `downgrade_response` makes"""
    upgrade_response: Callable[[Any, int], Any] | None = None
    ignorable: frozenset[str] = frozenset()
    is_repeated: bool = False
    """clients send equal requests again and again: small ones are decoded once (heartbeats)"""
    quick: str = ""
    """module of `service.wire` with hand-written request readers and response writers, which replace the
    compiled ones; loaded at first use"""
    is_own: bool = False
    """Firn's own API, which Kafka lacks: `canonical` has all its messages"""
    adds_tags: bool = False
    """`canonical` adds tagged fields of Firn's own to the bytes of the newest version"""

    @property
    def name(self) -> str:
        """Return Kafka's name, as in the names of message classes: ``CreateTopics``."""
        return self.key.name.title().replace("_", "")

    @property
    def advertised_min(self) -> int:
        """Return the lowest version that ApiVersions advertises."""
        return self.min_version if self.advertised_from is None else self.advertised_from

    @property
    def is_safe_again(self) -> bool:
        """Return whether a request may be sent again after a lost response."""
        return self.effect is not RequestEffect.CHANGES


BROKER, CONTROLLER = ListenerType.BROKER, ListenerType.CONTROLLER
BOTH = BROKER | CONTROLLER
SENT_ONLY = ListenerType(0)
"""No listener: an API that our own clients use at other brokers, and that Firn does not serve."""
READS, IDEMPOTENT, CHANGES = RequestEffect

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        # Advertised from 0, as Kafka does: librdkafka misreads a higher minimum (KAFKA-18659).
        Api(ApiKey.PRODUCE, 3, 13, 9, BROKER, CHANGES, advertised_from=0, by_hand_before=13),
        Api(ApiKey.FETCH, 4, 18, 12, BOTH, READS, by_hand_before=13),
        Api(ApiKey.LIST_OFFSETS, 1, 11, 6, BROKER, READS, ignorable=frozenset({"timeout"})),
        Api(
            ApiKey.METADATA, 0, 13, 9, BROKER, READS,
            canonical="metadata", upgrade=shapes.upgrade_metadata, downgrade=shapes.downgrade_metadata,
        ),
        Api(
            ApiKey.OFFSET_COMMIT, 2, 10, 8, BROKER, CHANGES,
            canonical="offsets", ignorable=frozenset({"retention_time", "group_instance_id"}),
            quick="offset_commits",
        ),
        Api(
            ApiKey.OFFSET_FETCH, 1, 10, 6, BROKER, READS, canonical="offsets",
            own_shape_before=shapes.FETCH_GROUPS, own_response_before=shapes.FETCH_GROUPS,
            upgrade=shapes.upgrade_offset_fetch, downgrade=shapes.downgrade_offset_fetch,
            downgrade_response=shapes.downgrade_offset_fetch_response,
            upgrade_response=shapes.upgrade_offset_fetch_response,
        ),
        # Advertised from 0, as the other group APIs: librdkafka's lz4 and groups depend on it.
        Api(
            ApiKey.FIND_COORDINATOR, 0, 6, 3, BROKER, READS,
            own_shape_before=shapes.FIND_COORDINATORS, own_response_before=shapes.FIND_COORDINATORS,
            upgrade=shapes.upgrade_find_coordinator, downgrade=shapes.downgrade_find_coordinator,
            downgrade_response=shapes.downgrade_find_coordinator_response,
            upgrade_response=shapes.upgrade_find_coordinator_response,
        ),
        Api(
            ApiKey.JOIN_GROUP, 0, 9, 6, BROKER, CHANGES,
            downgrade_response=shapes.downgrade_join_group_response,
            ignorable=frozenset({"rebalance_timeout", "group_instance_id", "reason"}),
        ),
        Api(ApiKey.HEARTBEAT, 0, 4, 4, BROKER, CHANGES, is_repeated=True),
        Api(
            ApiKey.LEAVE_GROUP, 0, 5, 4, BROKER, CHANGES,
            own_shape_before=shapes.LEAVE_MEMBERS, own_response_before=shapes.LEAVE_MEMBERS,
            upgrade=shapes.upgrade_leave_group, downgrade=shapes.downgrade_leave_group,
            downgrade_response=shapes.downgrade_leave_group_response,
            upgrade_response=shapes.upgrade_leave_group_response,
        ),
        Api(
            ApiKey.SYNC_GROUP, 0, 5, 4, BROKER, CHANGES,
            ignorable=frozenset({"protocol_type", "protocol_name", "group_instance_id"}),
        ),
        Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, BROKER, READS),
        Api(ApiKey.LIST_GROUPS, 0, 5, 3, BROKER, READS),
        Api(ApiKey.SASL_HANDSHAKE, 0, 1, 2, BOTH, READS),
        Api(
            ApiKey.API_VERSIONS, 0, 4, 3, BOTH, READS,
            downgrade_response=shapes.downgrade_api_versions_response,
            ignorable=frozenset({"client_software_name", "client_software_version"}),
        ),
        Api(ApiKey.CREATE_TOPICS, 2, 7, 5, BOTH, CHANGES, is_forwardable=True, refuse=created_topics),
        Api(
            ApiKey.DELETE_TOPICS, 1, 6, 4, BOTH, CHANGES,
            is_forwardable=True, refuse=deleted_topics,
            own_shape_before=shapes.DELETE_TOPICS_BY_ID,
            upgrade=shapes.upgrade_delete_topics, downgrade=shapes.downgrade_delete_topics,
        ),
        Api(ApiKey.DELETE_RECORDS, 0, 2, 2, BROKER, CHANGES),
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2, BROKER, CHANGES),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4, BROKER, READS),
        Api(
            ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, BROKER, CHANGES,
            own_shape_before=shapes.ADD_TRANSACTIONS, own_response_before=shapes.ADD_TRANSACTIONS,
            upgrade=shapes.upgrade_add_partitions, downgrade=shapes.downgrade_add_partitions,
            downgrade_response=shapes.downgrade_add_partitions_response,
            upgrade_response=shapes.upgrade_add_partitions_response,
        ),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, BROKER, CHANGES),
        Api(ApiKey.END_TXN, 0, 5, 3, BROKER, CHANGES),
        Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1, BROKER, CHANGES, ignorable=frozenset({"transaction_version"})),
        Api(
            ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3, BROKER, CHANGES,
            ignorable=frozenset({"committed_leader_epoch"}),
        ),
        Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2, BOTH, READS),
        Api(ApiKey.CREATE_ACLS, 1, 3, 2, BOTH, IDEMPOTENT, is_forwardable=True, refuse=created_acls),
        Api(ApiKey.DELETE_ACLS, 1, 3, 2, BOTH, CHANGES, is_forwardable=True, refuse=deleted_acls),
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4, BOTH, READS),
        Api(ApiKey.ALTER_CONFIGS, 0, 2, 2, BOTH, IDEMPOTENT, is_forwardable=True, refuse=altered_configs),
        Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2, BROKER, READS, canonical="log_dirs", adds_tags=True),
        Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, BOTH, READS),
        Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2, BOTH, CHANGES, is_forwardable=True, refuse=created_partitions),
        Api(
            ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2, BOTH, CHANGES,
            is_forwardable=True, is_checked_first=True, refuse=token_not_created,
        ),
        Api(
            ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2, BOTH, CHANGES,
            is_forwardable=True, is_checked_first=True, refuse=token_not_changed,
        ),
        Api(
            ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2, BOTH, CHANGES,
            is_forwardable=True, is_checked_first=True, refuse=token_not_changed,
        ),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2, BOTH, READS),
        Api(ApiKey.DELETE_GROUPS, 0, 2, 2, BROKER, CHANGES),
        Api(ApiKey.ELECT_LEADERS, 0, 2, 2, BOTH, CHANGES, is_forwardable=True, refuse=elected_leaders),
        Api(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, BOTH, CHANGES,
            is_forwardable=True, refuse=altered_configs,
        ),
        Api(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, BOTH, IDEMPOTENT,
            is_forwardable=True, refuse=reassigned_partitions,
        ),
        Api(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, BOTH, READS,
            is_forwardable=True, refuse=listed_reassignments,
        ),
        Api(ApiKey.OFFSET_DELETE, 0, 0, 1, BROKER, CHANGES),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1, BROKER, READS),
        Api(
            ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1, BOTH, IDEMPOTENT,
            is_forwardable=True, refuse=altered_client_quotas,
        ),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0, BOTH, READS),
        Api(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0, BOTH, CHANGES,
            is_forwardable=True, refuse=altered_scram_credentials,
        ),
        Api(ApiKey.VOTE, 0, 2, 0, CONTROLLER, CHANGES, ignorable=frozenset({"voter_id"})),
        Api(
            ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, 1, CONTROLLER, CHANGES,
            ignorable=frozenset({"voter_id", "leader_endpoints"}),
        ),
        Api(
            ApiKey.END_QUORUM_EPOCH, 0, 1, 1, CONTROLLER, CHANGES,
            own_shape_before=shapes.CANDIDATES,
            upgrade=shapes.upgrade_end_quorum_epoch, downgrade=shapes.downgrade_end_quorum_epoch,
        ),
        Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0, BOTH, READS, is_forwardable=True),
        Api(
            ApiKey.ALTER_PARTITION, 2, 3, 0, CONTROLLER, CHANGES,
            own_shape_before=shapes.ISR_EPOCHS,
            upgrade=shapes.upgrade_alter_partition, downgrade=shapes.downgrade_alter_partition,
        ),
        Api(ApiKey.UPDATE_FEATURES, 0, 2, 0, BOTH, CHANGES, is_forwardable=True, canonical="features"),
        Api(ApiKey.ENVELOPE, 0, 0, 0, CONTROLLER, CHANGES),
        Api(ApiKey.FETCH_SNAPSHOT, 0, 1, 0, CONTROLLER, READS),
        Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, BOTH, READS),
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0, BROKER, READS),
        Api(
            ApiKey.BROKER_REGISTRATION, 0, 4, 0, CONTROLLER, IDEMPOTENT,
            ignorable=frozenset({"previous_broker_epoch"}),
        ),
        Api(
            ApiKey.BROKER_HEARTBEAT, 0, 2, 0, CONTROLLER, IDEMPOTENT, canonical="heartbeats", adds_tags=True,
            ignorable=frozenset({"full_log_dirs", "resting_log_dirs"}),
        ),
        Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0, BOTH, IDEMPOTENT, is_forwardable=True),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0, BROKER, READS),
        Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0, BROKER, READS),
        Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, 0, CONTROLLER, IDEMPOTENT, is_forwardable=True),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, BROKER, CHANGES, is_repeated=True),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, BROKER, READS),
        Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, 0, CONTROLLER, IDEMPOTENT),
        Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, 0, CONTROLLER, IDEMPOTENT),
        Api(
            ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0, BROKER, READS,
            ignorable=frozenset({"resource_types"}),
        ),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0, BROKER, READS),
        Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0, BOTH, CHANGES, is_forwardable=True),
        Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0, BOTH, CHANGES, is_forwardable=True),
        Api(ApiKey.UPDATE_RAFT_VOTER, 0, 0, 0, CONTROLLER, CHANGES),
        Api(ApiKey.COMMIT_CATALOG, 0, 0, 0, CONTROLLER, IDEMPOTENT, canonical="catalog", is_own=True),
        Api(ApiKey.LIST_SESSIONS, 0, 0, 0, BOTH, READS, canonical="sessions", is_own=True),
        Api(ApiKey.END_SESSIONS, 0, 0, 0, BOTH, CHANGES, canonical="sessions", is_own=True),
        Api(ApiKey.DESCRIBE_HEALTH, 0, 0, 0, BROKER, READS, canonical="health", is_own=True),
        Api(ApiKey.TAKE_CUT, 0, 0, 0, BROKER, IDEMPOTENT, canonical="cuts", is_own=True),
        Api(ApiKey.REWRITE_RANGE, 0, 0, 0, BROKER, IDEMPOTENT, canonical="rewrites", is_own=True),
        Api(ApiKey.ERASURES, 0, 0, 0, BROKER, IDEMPOTENT, canonical="erasures", is_own=True),
    )
}  # fmt: skip


def served_on(listener: ListenerType) -> tuple[Api, ...]:
    """Return the rows of the APIs that listeners of this type serve."""
    return tuple(api for api in APIS.values() if listener in api.listeners)
