"""Handlers of brokers' listeners, by API.

Rows of `wire.apis.APIS` name the listeners that serve an API. Any other API ends the connection, as in Kafka.
"""

from __future__ import annotations

from typing import Final

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
from service.wire.apis import ApiKey, ListenerType
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
    ApiKey.API_VERSIONS: Served(api_versions.handler_for(ListenerType.BROKER)),
    ApiKey.CREATE_TOPICS: Served(create_topics.handle),
    ApiKey.DELETE_TOPICS: Served(delete_topics.handle),
    ApiKey.DELETE_RECORDS: Served(delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Served(init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_ACLS: Served(late="describe_acls"),
    ApiKey.DESCRIBE_CONFIGS: Served(describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Served(alter_configs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Served(describe_log_dirs.handle),
    ApiKey.CREATE_PARTITIONS: Served(create_partitions.handle),
    ApiKey.DELETE_GROUPS: Served(late="delete_groups"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Served(late="offset_delete"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(late="describe_client_quotas"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(late="describe_user_scram_credentials"),
    ApiKey.UPDATE_FEATURES: Served(late="update_features"),
    ApiKey.DESCRIBE_CLUSTER: Served(describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Served(describe_producers.handle),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(late="consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(late="consumer_group_describe"),
    ApiKey.LIST_CONFIG_RESOURCES: Served(list_config_resources.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(describe_topic_partitions.handle),
}
"""APIs that the broker itself handles. The controller handles the others of its listeners (see `node`)."""
