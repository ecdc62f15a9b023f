"""Handlers of brokers' listeners, by API.

Rows of `wire.apis.APIS` name the listeners that serve an API. Any other API ends the connection, as in Kafka.
"""

from __future__ import annotations

from typing import Final

from service.security.operations import AclOperation
from service.serving.authorization import ASKS_ITSELF, NOTHING, OfCluster, refuse_without_words
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
from service.serving.implicit_fetch import recall
from service.serving.served_api import Served, table
from service.wire.apis import ApiKey, ListenerType
from service.wire.fetch import parse_fetch, parse_fetch_steps
from service.wire.produce import parse_produce, parse_produce_steps

_ROWS: Final[dict[int, Served]] = {
    ApiKey.PRODUCE: Served(ASKS_ITSELF, produce.handle, parse_produce, parse_produce_steps),
    ApiKey.FETCH: Served(ASKS_ITSELF, fetch.handle, parse_fetch, parse_fetch_steps, recall),
    ApiKey.LIST_OFFSETS: Served(ASKS_ITSELF, list_offsets.handle),
    ApiKey.METADATA: Served(ASKS_ITSELF, metadata.handle),
    ApiKey.OFFSET_COMMIT: Served(ASKS_ITSELF, late="offset_commit"),
    ApiKey.OFFSET_FETCH: Served(ASKS_ITSELF, late="offset_fetch"),
    ApiKey.FIND_COORDINATOR: Served(ASKS_ITSELF, late="find_coordinator"),
    ApiKey.JOIN_GROUP: Served(ASKS_ITSELF, late="join_group"),
    ApiKey.HEARTBEAT: Served(ASKS_ITSELF, late="heartbeat"),
    ApiKey.LEAVE_GROUP: Served(ASKS_ITSELF, late="leave_group"),
    ApiKey.SYNC_GROUP: Served(ASKS_ITSELF, late="sync_group"),
    ApiKey.DESCRIBE_GROUPS: Served(ASKS_ITSELF, late="describe_groups"),
    ApiKey.LIST_GROUPS: Served(ASKS_ITSELF, late="list_groups"),
    ApiKey.SASL_HANDSHAKE: Served(NOTHING, late="sasl_handshake"),
    ApiKey.API_VERSIONS: Served(NOTHING, api_versions.handler_for(ListenerType.BROKER)),
    ApiKey.CREATE_TOPICS: Served(ASKS_ITSELF, create_topics.handle),
    ApiKey.DELETE_TOPICS: Served(ASKS_ITSELF, delete_topics.handle),
    ApiKey.DELETE_RECORDS: Served(ASKS_ITSELF, delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Served(ASKS_ITSELF, init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(ASKS_ITSELF, offset_for_leader_epoch.handle),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(ASKS_ITSELF, late="add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(ASKS_ITSELF, late="add_offsets_to_txn"),
    ApiKey.END_TXN: Served(ASKS_ITSELF, late="end_txn"),
    ApiKey.WRITE_TXN_MARKERS: Served(ASKS_ITSELF, late="write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: Served(ASKS_ITSELF, late="txn_offset_commit"),
    ApiKey.DESCRIBE_ACLS: Served(OfCluster(AclOperation.DESCRIBE), late="describe_acls"),
    ApiKey.DESCRIBE_CONFIGS: Served(ASKS_ITSELF, describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Served(ASKS_ITSELF, alter_configs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Served(OfCluster(AclOperation.DESCRIBE), describe_log_dirs.handle),
    ApiKey.SASL_AUTHENTICATE: Served(NOTHING, late="sasl_authenticate"),
    ApiKey.CREATE_PARTITIONS: Served(ASKS_ITSELF, create_partitions.handle),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Served(ASKS_ITSELF, late="describe_delegation_token"),
    ApiKey.DELETE_GROUPS: Served(ASKS_ITSELF, late="delete_groups"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(ASKS_ITSELF, incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Served(ASKS_ITSELF, late="offset_delete"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(
        OfCluster(AclOperation.DESCRIBE_CONFIGS, refuse_without_words), late="describe_client_quotas"
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(
        OfCluster(AclOperation.DESCRIBE, refuse_without_words), late="describe_user_scram_credentials"
    ),
    ApiKey.UPDATE_FEATURES: Served(OfCluster(AclOperation.ALTER), late="update_features"),
    ApiKey.DESCRIBE_CLUSTER: Served(ASKS_ITSELF, describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Served(ASKS_ITSELF, describe_producers.handle),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(ASKS_ITSELF, late="describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: Served(ASKS_ITSELF, late="list_transactions"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(ASKS_ITSELF, late="consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(ASKS_ITSELF, late="consumer_group_describe"),
    ApiKey.LIST_CONFIG_RESOURCES: Served(
        OfCluster(AclOperation.DESCRIBE_CONFIGS), list_config_resources.handle
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(ASKS_ITSELF, describe_topic_partitions.handle),
    ApiKey.LIST_SESSIONS: Served(OfCluster(AclOperation.DESCRIBE), late="list_sessions"),
    ApiKey.END_SESSIONS: Served(OfCluster(AclOperation.ALTER), late="end_sessions"),
    ApiKey.DESCRIBE_HEALTH: Served(OfCluster(AclOperation.DESCRIBE), late="describe_health"),
    ApiKey.TAKE_CUT: Served(OfCluster(AclOperation.CLUSTER_ACTION), late="take_cut"),
    ApiKey.REWRITE_RANGE: Served(OfCluster(AclOperation.CLUSTER_ACTION), late="rewrite_range"),
    ApiKey.ERASURES: Served(ASKS_ITSELF, late="erasures"),
}
BROKER_APIS: Final[dict[int, Served]] = table(_ROWS)
"""APIs that the broker itself handles. The controller handles the others of its listeners (see `node`)."""
