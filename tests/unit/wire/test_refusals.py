"""Refusals of whole requests: each API that is forwarded, in every version, as its clients read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    _module,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    request_module,
    response_frame,
)
from service.wire.features import FeatureUpdateKey
from service.wire.primitives import Cursor
from service.wire.refusals import refusal
from service.wire.schema import compile_steps

CODE, WHY = ErrorCode.not_controller, "somebody else leads"
ID = UUID(int=77)
SECOND = timedelta(seconds=1)


def _topics(module: Any, of: str, **values: Any) -> tuple[Any, ...]:
    return tuple(getattr(module, of)(name=name, **values) for name in ("a", "b"))


def _reassign(module: Any) -> dict[str, Any]:
    partitions = tuple(
        module.ReassignablePartition(partition_index=number, replicas=replicas)
        for number, replicas in ((0, (1, 2)), (7, None))
    )
    return {"timeout": SECOND, "topics": _topics(module, "ReassignableTopic", partitions=partitions)}


def _resources(module: Any) -> dict[str, Any]:
    resources = tuple(
        module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=())
        for kind, name in ((2, "a"), (4, "b"))
    )
    return {"resources": resources, "validate_only": False}


ASKED: dict[int, Callable[[Any], dict[str, Any]]] = {
    ApiKey.CREATE_TOPICS: lambda m: {
        "topics": _topics(
            m, "CreatableTopic", num_partitions=1, replication_factor=1, assignments=(), configs=()
        ),
        "timeout": SECOND,
    },
    ApiKey.DELETE_TOPICS: lambda m: {
        "topics": _topics(m, "DeleteTopicState", topic_id=None),
        "timeout": SECOND,
    },
    ApiKey.CREATE_PARTITIONS: lambda m: {
        "topics": _topics(m, "CreatePartitionsTopic", count=2, assignments=None),
        "timeout": SECOND,
        "validate_only": False,
    },
    ApiKey.CREATE_ACLS: lambda m: {
        "creations": tuple(
            m.AclCreation(
                resource_type=2,
                resource_name=one,
                principal="User:a",
                host="*",
                operation=3,
                permission_type=3,
            )
            for one in ("a", "b")
        )
    },
    ApiKey.DELETE_ACLS: lambda m: {
        "filters": tuple(
            m.DeleteAclsFilter(
                resource_type_filter=2,
                resource_name_filter=one,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            for one in ("a", "b", "c")
        )
    },
    ApiKey.ALTER_CLIENT_QUOTAS: lambda m: {
        "entries": tuple(
            m.EntryData(
                entity=(m.EntityData(entity_type="user", entity_name=one),),
                ops=(m.OpData(key="producer_byte_rate", value=1.0, remove=False),),
            )
            for one in ("a", None)
        ),
        "validate_only": False,
    },
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda m: {
        "deletions": tuple(m.ScramCredentialDeletion(name=one, mechanism=1) for one in ("b", "a", "b")),
        "upsertions": (
            m.ScramCredentialUpsertion(
                name="c", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"secret"
            ),
        ),
    },
    ApiKey.CREATE_DELEGATION_TOKEN: lambda m: {
        "owner_principal_type": "",
        "owner_principal_name": "",
        "renewers": (m.CreatableRenewers(principal_type="User", principal_name="a"),),
        "max_lifetime": SECOND,
    },
    ApiKey.RENEW_DELEGATION_TOKEN: lambda m: {"hmac": b"mac", "renew_period": SECOND},
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda m: {"hmac": b"mac", "expiry_time_period": SECOND},
    ApiKey.ALTER_CONFIGS: _resources,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _resources,
    ApiKey.ELECT_LEADERS: lambda m: {
        "election_type": 0,
        "topic_partitions": tuple(m.TopicPartitions(topic=one, partitions=(0, 7)) for one in ("a", "b")),
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda m: {
        "topics": _topics(m, "ListPartitionReassignmentsTopics", partition_indexes=(0, 7))
    },
    ApiKey.DESCRIBE_QUORUM: lambda m: {
        "topics": (m.TopicData(topic_name="a", partitions=(m.PartitionData(partition_index=0),)),)
    },
    ApiKey.UPDATE_FEATURES: lambda m: {
        "feature_updates": (
            FeatureUpdateKey(feature="f", max_version_level=1, allow_downgrade=False, upgrade_type=1),
        )
    },
    ApiKey.UNREGISTER_BROKER: lambda m: {"broker_id": 3},
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda m: {"broker_id": 3, "broker_epoch": 1},
    ApiKey.ADD_RAFT_VOTER: lambda m: {
        "cluster_id": "c",
        "timeout": SECOND,
        "voter_id": 1,
        "voter_directory_id": ID,
        "listeners": (m.Listener(name="CONTROLLER", host="h", port=1),),
    },
    ApiKey.REMOVE_RAFT_VOTER: lambda m: {"cluster_id": "c", "voter_id": 1, "voter_directory_id": ID},
}

HEARD: dict[int, list[tuple[Any, ...]]] = {
    ApiKey.CREATE_TOPICS: [("a",), ("b",)],
    ApiKey.DELETE_TOPICS: [("a",), ("b",)],
    ApiKey.CREATE_PARTITIONS: [("a",), ("b",)],
    ApiKey.CREATE_ACLS: [(), ()],
    ApiKey.DELETE_ACLS: [(), (), ()],
    ApiKey.ALTER_CLIENT_QUOTAS: [("user", "a"), ("user", None)],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [("a",), ("b",), ("c",)],
    ApiKey.ALTER_CONFIGS: [(2, "a"), (4, "b")],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [(2, "a"), (4, "b")],
    ApiKey.ELECT_LEADERS: [("a", 0), ("a", 7), ("b", 0), ("b", 7)],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [("a", 0), ("a", 7), ("b", 0), ("b", 7)],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: [("a", 0), ("a", 7), ("b", 0), ("b", 7)],
}
"""Who is named in the answer; of other APIs the whole answer is the error."""


def asked(key: int) -> Any:
    module = request_module(key)
    return getattr(module, f"{APIS[key].name}Request")(**ASKED[key](module))


def as_it_is(key: int, version: int, frame: bytes) -> Any:
    """Decode by the version's own schema, to the end."""
    kind = getattr(_module(APIS[key], version, "response"), f"{APIS[key].name}Response")
    if hasattr(kind, "__flexible__") and kind.__module__.startswith("kio"):
        start = 9 if kind.__flexible__ else 8
        cursor = Cursor(frame, start)
        message = compile_steps(kind, kind).read(cursor)
        assert cursor.position == len(frame)
        return message
    return decode_response(key, version, frame[4:])[1]


def each(message: Any) -> Iterator[Any]:
    """The message, and whatever is in it."""
    yield message
    for one in fields(message):
        value = getattr(message, one.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                yield from each(inner)


def names(key: int, message: Any) -> list[tuple[Any, ...]]:
    match key:
        case ApiKey.CREATE_TOPICS:
            return [(one.name,) for one in message.topics]
        case ApiKey.DELETE_TOPICS:
            return [(one.name,) for one in message.responses]
        case ApiKey.CREATE_PARTITIONS:
            return [(one.name,) for one in message.results]
        case ApiKey.CREATE_ACLS:
            return [() for _ in message.results]
        case ApiKey.DELETE_ACLS:
            return [one.matching_acls for one in message.filter_results]
        case ApiKey.ALTER_CLIENT_QUOTAS:
            return [(part.entity_type, part.entity_name) for one in message.entries for part in one.entity]
        case ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            return [(one.user,) for one in message.results]
        case ApiKey.ALTER_CONFIGS | ApiKey.INCREMENTAL_ALTER_CONFIGS:
            return [(one.resource_type, one.resource_name) for one in message.responses]
        case ApiKey.ELECT_LEADERS:
            topics = message.replica_election_results
            return [(topic.topic, one.partition_id) for topic in topics for one in topic.partition_result]
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            topics = message.responses
            return [(topic.name, one.partition_index) for topic in topics for one in topic.partitions]
        case _:
            topics = message.topics
            return [(topic.name, one.partition_index) for topic in topics for one in topic.partitions]


def test_every_api_that_is_forwarded_is_looked_at() -> None:
    assert set(ASKED) == {key for key, api in APIS.items() if api.is_forwardable}


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key in ASKED for version in range(APIS[key].min_version, APIS[key].max_version + 1)],
)
def test_the_error_is_said_of_all_that_was_asked(key: int, version: int) -> None:
    sent = encode_request(key, version, 5, "c", asked(key))[4:]
    request = decode_request(parse_request_header(sent), sent)
    frame = bytes(response_frame(RequestHeader(key, version, 5, "c", 0), refusal(key, request, CODE, WHY)))
    answer = as_it_is(key, version, frame)
    places = [one for one in each(answer) if hasattr(one, "error_code")]
    assert places
    for one in places:
        assert one.error_code == CODE
        assert getattr(one, "error_message", WHY) == WHY
    if key in HEARD:
        assert names(key, answer) == HEARD[key]
    else:
        assert places[0] is answer, "the whole of it"


@pytest.mark.parametrize("key", [ApiKey.ELECT_LEADERS, ApiKey.LIST_PARTITION_REASSIGNMENTS])
def test_a_refusal_of_all_topics_has_one_error_code(key: ApiKey) -> None:
    module = request_module(key)
    values: dict[str, Any] = {"topics": None}
    if key is ApiKey.ELECT_LEADERS:
        values = {"election_type": 1, "topic_partitions": None}
    request = getattr(module, f"{APIS[key].name}Request")(**values)
    answer = refusal(key, request, CODE, WHY)
    assert answer.error_code == CODE
    assert names(key, answer) == []
