"""Which APIs a listener serves, by its kind: brokers' listeners and controllers' ones.

An API that a listener's table lacks costs the connection, as in Kafka, and ApiVersions tells of the table's
rows alone. Which of them belong on controllers' listeners is Kafka's (``ApiMessageType.ListenerType``, 4.3.1)
without those of security; only what is served gets a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.errors import InvariantError
from service.serving.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from service.serving.served_api import Served
from service.wire.api import ApiKey
from service.wire.fetch import parse_fetch, parse_fetch_steps
from service.wire.produce import parse_produce, parse_produce_steps

BROKER_APIS: Final[dict[int, Served]] = {
    ApiKey.PRODUCE: Served(produce.handle, parse_produce, parse_produce_steps),
    ApiKey.FETCH: Served(fetch.handle, parse_fetch, parse_fetch_steps),
    ApiKey.LIST_OFFSETS: Served(list_offsets.handle),
    ApiKey.METADATA: Served(metadata.handle),
    ApiKey.OFFSET_COMMIT: Served(late="offset_commit"),
    ApiKey.OFFSET_FETCH: Served(late="offset_fetch"),
    ApiKey.FIND_COORDINATOR: Served(late="find_coordinator"),
    ApiKey.JOIN_GROUP: Served(late="join_group"),
    ApiKey.HEARTBEAT: Served(late="heartbeat"),
    ApiKey.LEAVE_GROUP: Served(late="leave_group"),
    ApiKey.SYNC_GROUP: Served(late="sync_group"),
    ApiKey.DESCRIBE_GROUPS: Served(late="describe_groups"),
    ApiKey.LIST_GROUPS: Served(late="list_groups"),
    ApiKey.CREATE_TOPICS: Served(create_topics.handle),
    ApiKey.DELETE_TOPICS: Served(delete_topics.handle),
    ApiKey.DELETE_RECORDS: Served(delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Served(init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_CONFIGS: Served(describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Served(alter_configs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Served(describe_log_dirs.handle),
    ApiKey.CREATE_PARTITIONS: Served(create_partitions.handle),
    ApiKey.DELETE_GROUPS: Served(late="delete_groups"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Served(late="offset_delete"),
    ApiKey.UPDATE_FEATURES: Served(late="update_features"),
    ApiKey.DESCRIBE_CLUSTER: Served(describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Served(describe_producers.handle),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(late="consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(late="consumer_group_describe"),
    ApiKey.LIST_CONFIG_RESOURCES: Served(list_config_resources.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(describe_topic_partitions.handle),
}
"""What brokers' listeners serve: one row per API. `wire.api.APIS` says in which versions it is spoken."""
BROKER_APIS[ApiKey.API_VERSIONS] = Served(api_versions.answering(BROKER_APIS))

ONLY_READS: Final = frozenset({
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.LIST_CONFIG_RESOURCES, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_QUORUM, ApiKey.FETCH_SNAPSHOT,
})  # fmt: skip
"""What changes nothing that outlasts its connection: a long one ends with it."""

CONTROLLER_KEYS: Final = frozenset({
    ApiKey.FETCH, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.DESCRIBE_QUORUM, ApiKey.ALTER_PARTITION,
    ApiKey.UPDATE_FEATURES, ApiKey.ENVELOPE, ApiKey.FETCH_SNAPSHOT, ApiKey.DESCRIBE_CLUSTER,
    ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.UNREGISTER_BROKER,
    ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.CONTROLLER_REGISTRATION, ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UPDATE_RAFT_VOTER, ApiKey.COMMIT_CATALOG,
})  # fmt: skip
"""What may be served on a controller's listener, and only there where `BROKER_APIS` has no row."""


def controller_apis(
    rows: Mapping[int, Served],
    features: Callable[[Any], api_versions.Features] = api_versions.features_of_broker,
) -> dict[int, Served]:
    """The table of a controller's listener that serves `rows`, and ApiVersions, which tells of them, and of
    `features` of the node.

    Raises `InvariantError` for a row that does not belong there.
    """
    if strangers := [int(key) for key in rows if key not in CONTROLLER_KEYS]:
        raise InvariantError(f"API keys {strangers} are not a controller's")
    table = dict(rows)
    table[ApiKey.API_VERSIONS] = Served(api_versions.answering(table, features))
    return dict(sorted(table.items()))
