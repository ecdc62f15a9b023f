"""Requests of every API in every version, made of plain values, for a client that may not do what they ask.

The same bytes go to Apache Kafka (`tests/golden/security/capture_refusals.py`) and to a node of ours
(`tests/node/test_refused_bytes.py`). Answers are compared as bytes, without what differs by itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from typing import Any, Final, get_args
from uuid import UUID

from kio.serial import entity_writer

from service.records.builder import BatchBuilder
from service.wire.apis import APIS, ApiKey, ListenerType, served_on
from tests.support.wire import decode_response, encode_request, schema

TOPIC: Final = "there"
GROUP: Final = "g"
PLACEHOLDER: Final = UUID(int=0x5EED << 64)
"""Stands for the id of the topic in golden answers."""
CORRELATION: Final = 7
RIGHTS: Final = {"nothing": (), "all but the topic": ("G * ALL", "X * ALL")}
ABOUT_TOPICS_TOO: Final = {
    ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT,
}  # fmt: skip
"""APIs of requests that take a right to a topic beside another one."""
ASKS_NOTHING: Final = {17, 18, 36}
TOKENS: Final = {38, 39, 40, 41}
"""APIs of delegation tokens: who may use them depends on the login, not on ACLs alone."""
CLOSED: Final = "closed"

_RECORDS: Final = BatchBuilder()
_RECORDS.add(1_750_000_000_000, None, b"x")
_PLAIN: Final = bytes(_RECORDS.build())
_TRANSACTIONAL_BIT_AT: Final = 22
_IN_TRANSACTION: Final = bytes(
    _PLAIN[:_TRANSACTIONAL_BIT_AT]
    + bytes((_PLAIN[_TRANSACTIONAL_BIT_AT] | 16,))
    + _PLAIN[_TRANSACTIONAL_BIT_AT + 1 :]
)

ANY: Final[dict[str, Any]] = {
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "float64": 1000.0,
    "bool": False,
    "string": "s",
    "bytes": b"b",
    "records": _PLAIN,
    "uuid": None,
    "timedelta_i32": timedelta(seconds=10),
    "timedelta_i64": timedelta(seconds=10),
}
VALUES: Final[dict[str, Any]] = {
    # topics and groups
    "topic": TOPIC,
    "name": TOPIC,
    "resource_name": TOPIC,
    "topic_names": (TOPIC,),
    "group_id": GROUP,
    "groups": (GROUP,),
    "group_ids": (GROUP,),
    "groups_names": (GROUP,),
    "key": GROUP,
    "coordinator_keys": (GROUP,),
    "partitions": (0,),
    "partition_indexes": (0,),
    # records
    "acks": -1,
    "transactional_id": None,
    "replica_id": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "session_epoch": -1,
    "forgotten_topics_data": (),
    "timestamp": -1,
    # groups
    "protocol_type": "consumer",
    "protocol_name": "range",
    "JoinGroupRequestProtocol.name": "range",
    "member_id": "m-1",
    "subscribed_topic_names": (TOPIC,),
    "ConsumerGroupHeartbeatRequest.topic_partitions": (),
    "server_assignor": None,
    # topics
    "num_partitions": 1,
    "replication_factor": 1,
    "CreatableTopic.assignments": (),
    "CreatePartitionsTopic.assignments": None,
    "count": 2,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": True,
    "include_cluster_authorized_operations": True,
    "include_authorized_operations": True,
    # settings
    "resource_type": 2,
    "CreatableTopicConfig.name": "retention.ms",
    "AlterableConfig.name": "retention.ms",
    "value": "-1",
    "OpData.key": "producer_byte_rate",
    "OpData.value": 1000.0,
    "entity_type": "user",
    "entity_name": "u",
    "match": "u",
    "resource_types": (2,),
    # access
    "principal": "User:carol",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
    "resource_type_filter": 2,
    "resource_name_filter": TOPIC,
    "principal_filter": None,
    "host_filter": None,
    "UserName.name": "u",
    "ScramCredentialDeletion.name": "u",
    "ScramCredentialUpsertion.name": "v",
    "mechanism": 1,
    "iterations": 4096,
    # the cluster
    "feature": "no.such",
    "max_version_level": 7,
    "topic_name": "__cluster_metadata",
    "replicas": (1,),
    "broker_id": 1,
    "cluster_id": None,
    "BrokerRegistrationRequest.cluster_id": "c",
    "voter_id": 9,
    "Listener.name": "CONTROLLER",
    "Listener.host": "localhost",
    "cursor": None,
    "endpoint_type": 1,
}
"""Values by the field's name, or by its class and name; the schema's own default elsewhere."""

_REQUEST: Final = re.compile(r"^Request Request\(.*\)(?= needs )")
_OF_NODES: Final = {"brokers": (), "cluster_id": "", "controller_id": -1}
Variants = dict[str, dict[str, Any]]
VARIANTS: Final[dict[int, Variants]] = {
    ApiKey.PRODUCE: {
        "": {},
        "acks=0": {"acks": 0},
        "in a transaction": {"records": _IN_TRANSACTION, "transactional_id": "x"},
        "in a transaction without id": {"records": _IN_TRANSACTION},
    },
    ApiKey.FETCH: {"": {}, "as replica": {"replica_id": 2}, "session": {"session_epoch": 0}},
    ApiKey.METADATA: {
        "": {},
        "of all": {"topics": None},
        "by id": {"topic_id": True, "name": None},
        "creates": {"name": "new", "allow_auto_topic_creation": True},
    },
    ApiKey.OFFSET_FETCH: {"": {}, "of all": {"topics": None}},
    ApiKey.FIND_COORDINATOR: {"": {}, "of transactions": {"key_type": 1}, "of shares": {"key_type": 2}},
    ApiKey.INIT_PRODUCER_ID: {"": {}, "of transactions": {"transactional_id": "x"}},
    ApiKey.CREATE_TOPICS: {"": {}, "valid": {"validate_only": True}, "odd": {"name": "__cluster_metadata"}},
    ApiKey.DELETE_TOPICS: {"": {}, "by id": {"topic_id": True, "name": None}},
    ApiKey.DESCRIBE_CONFIGS: {
        "": {},
        "of a broker": {"resource_type": 4, "resource_name": "1"},
        "of loggers": {"resource_type": 8, "resource_name": "1"},
        "of a group": {"resource_type": 32, "resource_name": GROUP},
    },
    ApiKey.ALTER_CONFIGS: {
        "": {},
        "of a broker": {"resource_type": 4, "resource_name": "1"},
        "of a group": {"resource_type": 32, "resource_name": GROUP},
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "": {},
        "of a broker": {"resource_type": 4, "resource_name": "1"},
        "of loggers": {
            "resource_type": 8, "resource_name": "1", "AlterableConfig.name": "root", "value": "INFO",
        },
        "of a group": {"resource_type": 32, "resource_name": GROUP},
    },
    ApiKey.DESCRIBE_PRODUCERS: {"": {}, "of no topic": {"name": ".."}},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {"": {}, "by a pattern": {
        "subscribed_topic_names": None, "subscribed_topic_regex": "t.*"
    }},
    ApiKey.SYNC_GROUP: {"": {}, "without protocol": {"protocol_type": None, "protocol_name": None}},
    ApiKey.ELECT_LEADERS: {"": {}, "of all": {"topic_partitions": None}},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"": {}, "of all": {"topics": None}},
    ApiKey.DESCRIBE_LOG_DIRS: {"": {}, "of all": {"topics": None}},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"": {}, "of all": {"topics": ()}},
    ApiKey.UNREGISTER_BROKER: {"": {}, "of another": {"broker_id": 77}},
    ApiKey.LIST_CONFIG_RESOURCES: {"": {}, "of all": {"resource_types": ()}},
    **{
        key: {"": {"transactional_id": "x", "v3_and_below_transactional_id": "x"}}
        for key in (
            ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT,
        )
    },
    ApiKey.DESCRIBE_TRANSACTIONS: {"": {"transactional_ids": ("x",)}},
    ApiKey.LIST_TRANSACTIONS: {
        "": {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": None}
    },
}  # fmt: skip
"""Requests of an API, by a word for each, with other values than `VALUES`."""


def requests(
    rights: str = "nothing", listener: ListenerType = ListenerType.BROKER
) -> Iterator[tuple[ApiKey, int, str]]:
    """API, version and variant of each request that is made with these rights."""
    for api in served_on(listener):
        if api.is_own:
            continue  # kio has no messages of it
        if api.key in ABOUT_TOPICS_TOO or (rights == "nothing" and api.key not in ASKS_NOTHING | TOKENS):
            for version in range(api.min_version, api.max_version + 1):
                for variant in VARIANTS.get(api.key, {"": {}}):
                    if is_possible(api.key, version, variant):
                        yield api.key, version, variant


def is_possible(key: int, version: int, variant: str) -> bool:
    """Return whether the version can say what the variant wants."""
    if variant == "by id":
        return version >= {ApiKey.METADATA: 12, ApiKey.DELETE_TOPICS: 6}[ApiKey(key)]
    limits = {
        (ApiKey.METADATA, "of all"): 1,
        (ApiKey.METADATA, "creates"): 0,
        (ApiKey.OFFSET_FETCH, "of all"): 2,
        (ApiKey.FIND_COORDINATOR, "of transactions"): 1,
        (ApiKey.FIND_COORDINATOR, "of shares"): 6,
        (ApiKey.FETCH, "session"): 7,
        (ApiKey.SYNC_GROUP, "without protocol"): 5,
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, "by a pattern"): 1,
    }
    return version >= limits.get((ApiKey(key), variant), 0)


def name_of(key: int, version: int, variant: str) -> str:
    return f"{APIS[key].name} {version}" + (f", {variant}" if variant else "")


def request_of(key: int, version: int, variant: str, topic_id: UUID) -> Any:
    """The request, of its version's own class."""
    given = VARIANTS.get(key, {"": {}})[variant]
    module = schema(key, version)
    return _made(getattr(module, f"{APIS[key].name}Request"), given, topic_id)


def _made(kind: type[Any], given: dict[str, Any], topic_id: UUID) -> Any:
    return kind(**{one.name: _value(kind, one, given, topic_id) for one in fields(kind)})


def _value(kind: type[Any], field: Any, given: dict[str, Any], topic_id: UUID) -> Any:
    nested = _nested(field.type)
    for key in (f"{kind.__name__}.{field.name}", field.name):
        for values in (given, VALUES):
            if key in values and not (key == "topic_id" and values[key] is True):
                found = values[key]
                if nested is None or found in (None, ()):
                    return found
    if nested is not None:
        if getattr(field.type, "__type__", None) is not None:
            return None if field.default is None else _made(nested, given, topic_id)
        return (_made(nested, given, topic_id),)
    if field.name == "topic_id":
        # A request by name has no id, where it could have either.
        return None if "name" in {one.name for one in fields(kind)} and "topic_id" not in given else topic_id
    if field.default is not MISSING:
        return field.default
    return ANY[field.metadata["kafka_type"]]


def _nested(kind: Any) -> type[Any] | None:
    """The class of a field's elements, if they are structures."""
    for one in (kind, *get_args(kind), *(inner for outer in get_args(kind) for inner in get_args(outer))):
        if hasattr(one, "__type__") and hasattr(one, "__dataclass_fields__"):
            return one  # type: ignore[no-any-return]
    return None


def frame_of(key: int, version: int, variant: str, topic_id: UUID) -> bytes:
    """The request's frame, without its size."""
    return encode_request(request_of(key, version, variant, topic_id), CORRELATION, "refused")


def golden_of(key: int, version: int, variant: str, topic_id: UUID, answer: bytes | None) -> str:
    """What is compared of an answer; None: the connection was closed instead."""
    if answer is None:
        return CLOSED
    message = _plain(decode_response(request_of(key, version, variant, topic_id), answer))
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue().replace(topic_id.bytes, PLACEHOLDER.bytes).hex()


def _plain(found: Any) -> Any:
    """An answer without what differs by itself: nodes, ids, and Java's words for a request."""
    if isinstance(found, str):
        return _REQUEST.sub("The request", found)
    if isinstance(found, tuple):
        return tuple(map(_plain, found))
    if not is_dataclass(found) or isinstance(found, type):
        return found
    values = {one.name: _plain(getattr(found, one.name)) for one in fields(found)}
    if values.get("session_id"):
        values["session_id"] = 1
    if "brokers" in values:
        values |= {name: value for name, value in _OF_NODES.items() if name in values}
    return type(found)(**values)
