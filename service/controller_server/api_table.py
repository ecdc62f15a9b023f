"""Handlers of controllers' listeners, by API.

The order of checks and the errors are those of Kafka's ``ControllerApis`` and of the classes that it calls. A
request of an API that only brokers serve, such as Metadata, closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from service.base.errors import StorageError
from service.controller_server.handlers import (
    brokers,
    catalog,
    cluster,
    envelope,
    partitions,
    quorum,
    reassignments,
)
from service.controller_server.handlers.admin import on_controller
from service.controller_server.request_host import ControllerSide, features_of
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import ASKS_ITSELF, NOTHING, Authorizes, OfCluster, refuse_shortly
from service.serving.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    update_features,
)
from service.serving.served_api import Handler, Served, table
from service.wire.apis import ApiKey, ListenerType
from service.wire.errors import Unanswered

BY_NODES: Final = OfCluster(AclOperation.CLUSTER_ACTION)
ALTERS: Final = OfCluster(AclOperation.ALTER)
DESCRIBES: Final = OfCluster(AclOperation.DESCRIBE)
_OF_BOTH: Final = "service.serving.handlers"
_ACCESS: Final = "service.controller_server.handlers.access"
_TOKENS: Final = "service.controller_server.handlers.delegation_tokens"


def _decided(authorizes: Authorizes, handle: Handler) -> Served:
    """Return a row whose handler lets the controller decide.

    If the metadata log fails meanwhile, the outcome is unknown: the connection ends without a response."""

    async def handled(side: ControllerSide, context: RequestContext, request: Any) -> Any:
        context.cancel_on_disconnect = False
        api_key = context.api_key
        try:
            return await handle(side, context, request)
        except StorageError as e:
            raise Unanswered(f"{ApiKey(api_key).name}: {e}") from e

    return Served(authorizes, handled)


def _late(module: str, name: str = "handle") -> Handler:
    """Return a handler that loads its module for the first request, which most controllers never get."""

    async def handled(side: ControllerSide, context: RequestContext, request: Any) -> Any:
        answer = getattr(await side.load(module), name)(side, context, request)
        return await answer if isinstance(answer, Awaitable) else answer

    return handled


def _of_quorum(operation: AclOperation, handle: Handler = quorum.handle) -> Served:
    """Return a row that the quorum's machine answers."""
    return Served(OfCluster(operation, quorum.refuse), handle)


_ROWS: Final[dict[int, Served]] = {
    ApiKey.FETCH: Served(
        OfCluster(AclOperation.CLUSTER_ACTION, quorum.refuse_fetch),
        quorum.handle_fetch,
        quorum.parse_fetch,
        quorum.parse_fetch_steps,
    ),
    ApiKey.SASL_HANDSHAKE: Served(NOTHING, _late(f"{_OF_BOTH}.sasl_handshake")),
    ApiKey.API_VERSIONS: Served(NOTHING, api_versions.handler_for(ListenerType.CONTROLLER, features_of)),
    ApiKey.CREATE_TOPICS: _decided(ASKS_ITSELF, on_controller(create_topics.handle)),
    ApiKey.DELETE_TOPICS: _decided(ASKS_ITSELF, on_controller(delete_topics.handle)),
    ApiKey.DESCRIBE_ACLS: Served(DESCRIBES, _late(f"{_OF_BOTH}.describe_acls")),
    ApiKey.CREATE_ACLS: _decided(ALTERS, _late(_ACCESS, "create_acls")),
    ApiKey.DELETE_ACLS: _decided(ALTERS, _late(_ACCESS, "delete_acls")),
    ApiKey.DESCRIBE_CONFIGS: Served(ASKS_ITSELF, describe_configs.handle),
    ApiKey.ALTER_CONFIGS: _decided(ASKS_ITSELF, on_controller(alter_configs.handle)),
    ApiKey.SASL_AUTHENTICATE: Served(NOTHING, _late(f"{_OF_BOTH}.sasl_authenticate")),
    ApiKey.CREATE_PARTITIONS: _decided(ASKS_ITSELF, on_controller(create_partitions.handle)),
    ApiKey.CREATE_DELEGATION_TOKEN: _decided(ASKS_ITSELF, _late(_TOKENS, "create")),
    ApiKey.RENEW_DELEGATION_TOKEN: _decided(ASKS_ITSELF, _late(_TOKENS, "renew")),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _decided(ASKS_ITSELF, _late(_TOKENS, "expire")),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Served(ASKS_ITSELF, _late(f"{_OF_BOTH}.describe_delegation_token")),
    ApiKey.ELECT_LEADERS: _decided(ALTERS, partitions.elect),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _decided(ASKS_ITSELF, on_controller(incremental_alter_configs.handle)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _decided(ALTERS, reassignments.alter),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(DESCRIBES, reassignments.list_ongoing),
    ApiKey.ALTER_CLIENT_QUOTAS: _decided(
        OfCluster(AclOperation.ALTER_CONFIGS, refuse_shortly), _late(_ACCESS, "alter_client_quotas")
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(
        DESCRIBES, _late(f"{_OF_BOTH}.describe_user_scram_credentials")
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _decided(ALTERS, _late(_ACCESS, "alter_scram_credentials")),
    ApiKey.VOTE: _of_quorum(AclOperation.CLUSTER_ACTION),
    ApiKey.BEGIN_QUORUM_EPOCH: _of_quorum(AclOperation.CLUSTER_ACTION),
    ApiKey.END_QUORUM_EPOCH: _of_quorum(AclOperation.CLUSTER_ACTION),
    ApiKey.DESCRIBE_QUORUM: _of_quorum(AclOperation.DESCRIBE),
    ApiKey.ALTER_PARTITION: _decided(BY_NODES, partitions.alter),
    ApiKey.UPDATE_FEATURES: _decided(ALTERS, on_controller(update_features.handle)),
    ApiKey.FETCH_SNAPSHOT: _of_quorum(AclOperation.CLUSTER_ACTION),
    ApiKey.DESCRIBE_CLUSTER: Served(ALTERS, cluster.handle),
    ApiKey.BROKER_REGISTRATION: _decided(BY_NODES, brokers.register),
    ApiKey.BROKER_HEARTBEAT: _decided(BY_NODES, brokers.heartbeat),
    ApiKey.UNREGISTER_BROKER: _decided(ALTERS, brokers.unregister),
    ApiKey.ALLOCATE_PRODUCER_IDS: _decided(BY_NODES, brokers.allocate_producer_ids),
    ApiKey.CONTROLLER_REGISTRATION: _decided(BY_NODES, brokers.register_controller),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _decided(BY_NODES, partitions.assign),
    ApiKey.ADD_RAFT_VOTER: _of_quorum(AclOperation.ALTER, quorum.change_voters),
    ApiKey.REMOVE_RAFT_VOTER: _of_quorum(AclOperation.ALTER, quorum.change_voters),
    ApiKey.UPDATE_RAFT_VOTER: _of_quorum(AclOperation.CLUSTER_ACTION),
    ApiKey.COMMIT_CATALOG: _decided(OfCluster(AclOperation.CLUSTER_ACTION, catalog.refuse), catalog.handle),
    ApiKey.LIST_SESSIONS: Served(DESCRIBES, late="list_sessions"),
    ApiKey.END_SESSIONS: Served(ALTERS, late="end_sessions"),
}
CONTROLLER_APIS: Final[dict[int, Served]] = table(_ROWS)
"""APIs of a controller's listener; the handlers get a `ControllerSide`."""
CONTROLLER_APIS[ApiKey.ENVELOPE] = Served(
    OfCluster(AclOperation.CLUSTER_ACTION, envelope.refuse), envelope.handling(CONTROLLER_APIS)
).asked()


async def handle_locally(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Return the response to a canonical `request` of this process, `context.api_key` in its newest version.

    Not for Fetch, whose response is bytes.
    """
    answer = CONTROLLER_APIS[context.api_key].handle(side, context, request)
    return await answer if isinstance(answer, Awaitable) else answer
