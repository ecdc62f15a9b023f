"""The served APIs, request and response headers, and canonical messages. [P]

A canonical message is kio's dataclass of the newest served version: get its classes with
`request_module(api)` and `response_module(api)`. `decode_request` and `encode_response` translate every
other served version by field name.

What is more than a mapping of fields is in `shapes`. What is special beside that:

- Metadata 8-10 carry the cluster's authorized operations, which the newest version does not; OffsetCommit and
  OffsetFetch know topics by name or id: their canonical messages are ours (`metadata`, `offsets`).
- ApiVersions: the response header never has tagged fields, and an unknown version is answered as version 0
  (KIP-511).
- Produce and Fetch know topics by name or by id depending on the version: see `produce` and `fetch`.

A field that an older response lacks is dropped without complaint: Kafka's handlers leave such fields alone
for old clients. On requests (our own client) dropping a value that matters raises `ValueError`. Source:
Kafka ``ApiKeys``, ``RequestHeader``, ``ApiMessageType`` and the 4.3 message schemas; KIP-482, KIP-511,
KIP-893.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from service.base.types import Buffer
from service.wire import frames, shapes
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.primitives import MAX_ELEMENTS, Cursor, Encoded, Sink, write_nullable_string
from service.wire.schema import (
    Codec,
    Encoder,
    Steps,
    compile_steps,
    dropped_fields,
    element_encoder,
    millis,
)

__all__ = [
    "APIS",
    "Api",
    "ApiKey",
    "RequestHeader",
    "common_versions",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "millis",
    "parse_request_header",
    "request_module",
    "response_frame",
    "response_module",
    "unsupported_api_versions_frame",
]


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
    `broker/tables.py`.

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
        _api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2),
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
        _api(ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", 0, 2, 0),
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

_HEADER = struct.Struct(">hhih")
_REPEATED_BYTES = 200
"""Body of a request that is kept; so it has no more array elements than may be read in one go, either."""
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_CORRELATION_AND_ERROR = struct.Struct(">ih")
_UNSUPPORTED_VERSION = 35


class RequestHeader(NamedTuple):
    """Head of a request; `body` is where its body starts in the frame. A null client id is the empty one, as
    in Kafka.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int


@contextmanager
def _bounded() -> Iterator[None]:
    try:
        yield
    except (struct.error, UnicodeDecodeError) as e:
        raise MalformedMessage(str(e)) from e


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Head of the request in `frame` (header versions 1 and 2).

    Raises `MalformedMessage`, and `UnsupportedRequest` for an unknown key or version, except for ApiVersions
    of any version, which has an answer (`unsupported_api_versions_frame`).
    """
    try:
        key, version, correlation_id, id_size = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessage(f"request of {len(frame)} bytes has no header") from None
    api = APIS.get(key)
    if api is None:
        raise UnsupportedRequest(f"unknown API key {key}")
    if not api.min_version <= version <= api.max_version and key != ApiKey.API_VERSIONS:
        raise UnsupportedRequest(f"{api.name} version {version} is not served")
    position = _HEADER.size
    client_id = ""
    if id_size > 0:
        stop = position + id_size
        if stop > len(frame):
            raise MalformedMessage(f"client id of {id_size} bytes in a request of {len(frame)}")
        try:
            client_id = str(frame[position:stop], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("client id is not UTF-8") from None
        position = stop
    if version >= api.flexible_from:
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            cursor = Cursor(frame, position)
            with _bounded():
                cursor.skip_tagged_fields()
            position = cursor.position
    return RequestHeader(key, version, correlation_id, client_id, position)


def is_served(header: RequestHeader) -> bool:
    """False only for ApiVersions of a version that we do not know."""
    api = APIS[header.api_key]
    return api.min_version <= header.api_version <= api.max_version


def _module(api: Api, version: int, kind: str) -> Any:
    if api.is_own:
        return import_module(f"service.wire.{api.canonical}")
    package = "".join("_" + c.lower() if c.isupper() else c for c in api.name).lstrip("_")
    return import_module(f"kio.schema.{package}.v{version}.{kind}")


def request_module(key: int) -> Any:
    """The module with the canonical request's dataclasses: kio's, but for Metadata.

    Untyped on purpose: kio's phantom types (``i32``, ``TopicName``) would make every plain integer and string
    of a handler a type error.
    """
    return _canonical_module(APIS[key], APIS[key].max_version, "request")


def response_module(key: int) -> Any:
    """The module with the canonical response's dataclasses, for example
    ``response_module(ApiKey.METADATA).MetadataResponse``.
    """
    return _canonical_module(APIS[key], APIS[key].max_version, "response")


def _canonical_module(api: Api, version: int, kind: str) -> Any:
    if api.canonical and version == api.max_version:
        return import_module(f"service.wire.{api.canonical}")
    return _module(api, version, kind)


@cache
def _request_codec(key: int, version: int, canonical_version: int) -> Codec:
    api = APIS[key]
    return compile_steps(
        getattr(_module(api, version, "request"), f"{api.name}Request"),
        getattr(_canonical_module(api, canonical_version, "request"), f"{api.name}Request"),
    )


@cache
def _response_codec(key: int, version: int) -> Codec:
    api, codec = APIS[key], compile_steps(*_response_classes(key, version))
    return _quick(api.quick).with_writers(codec, version) if api.quick else codec


@cache
def _quick(name: str) -> Any:
    return import_module(f"service.wire.{name}")


def _response_classes(key: int, version: int) -> tuple[type[Any], type[Any]]:
    api = APIS[key]
    name = f"{api.name}Response"
    own = getattr(_module(api, version, "response"), name)
    return own, own if version < api.own_response_before else getattr(response_module(key), name)


@cache
def _element_encoder(key: int, version: int, path: tuple[str, ...]) -> Encoder:
    return element_encoder(*_response_classes(key, version), path)


def encode_element(key: int, version: int, path: tuple[str, ...], element: Any) -> Encoded:
    """One element of an array of a response, to stand in it as often as it is the same.

    `path`: names of arrays, each in an element of the one before.
    """
    out = bytearray()
    _element_encoder(key, version, path)(out, element)
    return Encoded(out)


def _canonical_version(api: Api, version: int) -> int:
    """Version whose class the mapping by field targets."""
    return version if version < api.own_shape_before else api.max_version


def decode_request(header: RequestHeader, frame: Buffer, most_elements: int = MAX_ELEMENTS) -> Any:
    """The canonical request in `frame`. Bytes after the body are ignored, as Kafka does.

    Raises `MalformedMessage`, and `ManyElements` where it has more than `most_elements` array elements.
    """
    codec = _codec_of(header)
    with _bounded():
        message = codec.read(Cursor(frame, header.body, most_elements))
    return _upgraded(header, message)


def read_request(header: RequestHeader, frame: Buffer, most_elements: int = MAX_ELEMENTS) -> Any:
    """As `decode_request`, for whoever looks at fields alone: what is read by hand is another class."""
    api = APIS[header.api_key]
    if api.is_repeated and len(frame) - header.body <= min(_REPEATED_BYTES, most_elements):
        return _read_again(header.api_key, header.api_version, bytes(frame[header.body :]))
    read = _quick(api.quick).reader(header.api_version) if api.quick else None
    if read is None:
        return decode_request(header, frame, most_elements)
    with _bounded():
        return read(Cursor(frame, header.body, most_elements))


@lru_cache(maxsize=2048)
def _read_again(key: int, version: int, body: bytes) -> Any:
    """A message cannot be changed, so whoever sends the same bytes again gets the same one."""
    return decode_request(RequestHeader(key, version, 0, "", 0), body)


def decode_request_steps(header: RequestHeader, frame: Buffer) -> Steps:
    """As `decode_request`, in steps."""
    codec, cursor = _codec_of(header), Cursor(frame, header.body)
    with _bounded():
        if codec.read_steps is None:
            message = codec.read(cursor)
        else:
            message = yield from codec.read_steps(cursor)
    return _upgraded(header, message)


def _codec_of(header: RequestHeader) -> Codec:
    key, version = header.api_key, header.api_version
    api = APIS[key]
    if api.by_hand_before and version != api.max_version:
        raise ValueError(f"{api.name} version {version} has its own codec")  # for the replica id, too
    return _request_codec(key, version, _canonical_version(api, version))


def _upgraded(header: RequestHeader, message: Any) -> Any:
    upgrade = APIS[header.api_key].upgrade
    return message if upgrade is None else upgrade(message, header.api_version)


def encode_response(key: int, version: int, message: Any) -> bytearray:
    """Body of a response in `version`, from the canonical message."""
    out = bytearray()
    _response_codec(key, version).write(out, _downgrade_response(key, version, message))
    return out


def _downgrade_response(key: int, version: int, message: Any) -> Any:
    downgrade = APIS[key].downgrade_response
    return message if downgrade is None else downgrade(message, version)


def has_flexible_response_header(key: int, version: int) -> bool:
    """Whether the response header ends in tagged fields; never for ApiVersions (KIP-511)."""
    return version >= APIS[key].flexible_from and key != ApiKey.API_VERSIONS


def response_frame(header: RequestHeader, message: Any) -> bytearray:
    """The whole answer to `header`: size, response header, body."""
    return _frame_response(header.api_key, header.api_version, header.correlation_id, message)


def response_steps(header: RequestHeader, message: Any) -> Steps:
    """As `response_frame`, in steps: the parts of the frame."""
    key, version = header.api_key, header.api_version
    sink = Sink(_head(key, version))
    head, codec = sink.out, _response_codec(key, version)
    message = _downgrade_response(key, version, message)
    if codec.write_steps is None:
        codec.write(sink.out, message)
    else:
        yield from codec.write_steps(sink, message)
    size = sum(map(len, sink.parts))
    _SIZE_AND_CORRELATION.pack_into(head, 0, size - 4, header.correlation_id)
    return sink.parts


def _head(key: int, version: int) -> bytearray:
    """Room for size and correlation id, and the response header's tagged fields."""
    return bytearray(_SIZE_AND_CORRELATION.size + has_flexible_response_header(key, version))


def _frame_response(key: int, version: int, correlation_id: int, message: Any) -> bytearray:
    out = _head(key, version)
    if APIS[key].is_repeated and _is_brief(message):
        out += _written_again(key, version, message)
    else:
        _response_codec(key, version).write(out, _downgrade_response(key, version, message))
    _SIZE_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _is_brief(message: Any) -> bool:
    """The answer to a heartbeat that tells nothing, of somebody with an ordinary id: it may be kept."""
    return (
        getattr(message, "assignment", None) is None
        and getattr(message, "error_message", None) is None
        and len(getattr(message, "member_id", None) or "") <= _REPEATED_BYTES
    )


@lru_cache(maxsize=2048)
def _written_again(key: int, version: int, message: Any) -> bytes:
    """Who is told nothing new is told the same again and again."""
    return bytes(encode_response(key, version, message))


def unsupported_api_versions_frame(header: RequestHeader) -> bytearray:
    """KIP-511: the answer, in version 0, to ApiVersions of a version we do not know. It names the versions
    we do.
    """
    module = response_module(ApiKey.API_VERSIONS)
    api = APIS[ApiKey.API_VERSIONS]
    message = module.ApiVersionsResponse(
        error_code=_UNSUPPORTED_VERSION,
        api_keys=(
            module.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version),
        ),
        throttle_time=0,
    )
    return _frame_response(ApiKey.API_VERSIONS, 0, header.correlation_id, message)


def encode_request(key: int, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """A whole request frame (size included) for our own client.

    Raises `ValueError` when `message` holds something that `version` cannot carry.
    """
    api = APIS[key]
    if not api.min_version <= version <= api.max_version:
        raise ValueError(f"{api.name} has no version {version}")
    if version < api.by_hand_before:
        raise ValueError(f"{api.name} version {version} has its own codec")
    message = _downgrade_request(api, version, message)
    out = bytearray(struct.pack(">hhi", key, version, correlation_id))
    write_nullable_string(out, client_id)
    if version >= api.flexible_from:
        out.append(0)
    _request_codec(key, version, _canonical_version(api, version)).write(out, message)
    return frames.frame(out)


def _downgrade_request(api: Api, version: int, message: Any) -> Any:
    canonical = type(message)
    if api.downgrade is not None:
        message = api.downgrade(message, version)
    if type(message) is not canonical:
        return message
    oldest = getattr(_module(api, version, "request"), f"{api.name}Request")
    for name, default in dropped_fields(oldest, canonical).items():
        if getattr(message, name) != default and name not in api.ignorable:
            raise ValueError(f"{api.name} version {version} has no {name}")
    return message


def decode_response(
    key: int, version: int, frame: Buffer, most_elements: int = MAX_ELEMENTS
) -> tuple[int, Any]:
    """(correlation id, canonical response) from a response frame without its size. Raises
    `MalformedMessage`, and `ManyElements` where it has more than `most_elements` array elements.
    """
    cursor = Cursor(frame, 0, most_elements)
    with _bounded():
        correlation_id = _response_head(cursor, key, version)
        message = _response_codec(key, version).read(cursor)
    upgrade = APIS[key].upgrade_response
    return correlation_id, message if upgrade is None else upgrade(message, version)


def decode_response_steps(key: int, version: int, frame: Buffer) -> Steps:
    """As `decode_response`, in steps; the canonical response alone."""
    cursor, codec = Cursor(frame), _response_codec(key, version)
    with _bounded():
        _response_head(cursor, key, version)
        if codec.read_steps is None:
            message = codec.read(cursor)
        else:
            message = yield from codec.read_steps(cursor)
    upgrade = APIS[key].upgrade_response
    return message if upgrade is None else upgrade(message, version)


def _response_head(cursor: Cursor, key: int, version: int) -> int:
    """The correlation id of the response that begins there; the cursor is at its body then."""
    correlation_id = cursor.int32()
    if has_flexible_response_header(key, version):
        cursor.skip_tagged_fields()
    return correlation_id


def common_versions(response: Any) -> dict[int, int]:
    """The newest version that both sides know, by API key, from a canonical ApiVersions response."""
    return {key: newest for key, (_, newest) in common_ranges(response).items()}


def common_ranges(response: Any) -> dict[int, tuple[int, int]]:
    """The oldest and the newest version that both sides know, by API key; as `common_versions`."""
    common = {}
    for served in response.api_keys:
        ours = APIS.get(served.api_key)
        if ours is not None:
            oldest = max(ours.min_version, served.min_version)
            newest = min(ours.max_version, served.max_version)
            if newest >= oldest:
                common[int(ours.key)] = (oldest, newest)
    return common


def refused_api_versions(frame: Buffer) -> int | None:
    """KIP-511: the newest version of ApiVersions that a broker has, if `frame` says that it does not know
    ours. Such an answer is always of version 0.
    """
    if len(frame) < _CORRELATION_AND_ERROR.size:
        return None
    if _CORRELATION_AND_ERROR.unpack_from(frame)[1] != _UNSUPPORTED_VERSION:
        return None
    keys = decode_response(ApiKey.API_VERSIONS, 0, frame)[1].api_keys
    return min((key.max_version for key in keys if key.api_key == ApiKey.API_VERSIONS), default=0)
