"""Our codecs and kio's agree, for every served version of every API."""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from service.base.steps import at_once
from service.wire import fetch, produce
from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_request,
    decode_request_steps,
    decode_response,
    encode_request,
    encode_response,
    has_flexible_response_header,
    millis,
    parse_request_header,
    read_request,
    request_module,
    response_frame,
    response_module,
    response_steps,
)
from service.wire.errors import MalformedMessage
from tests.property.wire.schema_strategies import entities, kio_bytes, project

HOT = (ApiKey.PRODUCE, ApiKey.FETCH)
VERSIONS = [
    pytest.param(api.key, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    if api.key not in HOT and not api.is_own
    for version in range(api.min_version, api.max_version + 1)
]
HOT_VERSIONS = {key: list(range(APIS[key].min_version, APIS[key].max_version + 1)) for key in HOT}
FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def _head(key: int, version: int) -> RequestHeader:
    return RequestHeader(key, version, 1, "", 0)


def canonical(key: int, kind: str) -> Any:
    module = request_module(key) if kind == "Request" else response_module(key)
    return getattr(module, f"{APIS[key].name}{kind}")


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@FEW
@given(data=st.data())
def test_requests_decode_as_kio_reads_them(key: int, version: int, data: st.DataObject) -> None:
    entity: Any = load_request_schema(key, version)
    message = data.draw(entities(entity))
    decoded = decode_request(_head(key, version), memoryview(kio_bytes(message)))
    assert type(decoded) is canonical(key, "Request")
    if version < APIS[key].own_shape_before:
        downgrade = APIS[key].downgrade
        assert downgrade is not None
        assert downgrade(decoded, version) == message
    elif key == ApiKey.METADATA and version == 0 and not message.topics:
        assert decoded.topics is None
    else:
        assert project(decoded, entity) == message


READ_ELSEWISE = [
    pytest.param(api.key, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    if api.quick or api.is_repeated
    for version in range(api.min_version, api.max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), READ_ELSEWISE)
@FEW
@given(data=st.data())
def test_requests_that_are_read_by_hand_or_once_say_the_same(
    key: int, version: int, data: st.DataObject
) -> None:
    frame = memoryview(kio_bytes(data.draw(entities(load_request_schema(key, version)))))
    decoded, read = decode_request(_head(key, version), frame), read_request(_head(key, version), frame)
    assert _plain(read, decoded) == _plain(decoded, decoded)
    for size in range(0, len(frame), max(len(frame) // 20, 1)):
        with pytest.raises(MalformedMessage):
            read_request(_head(key, version), frame[:size])


def _plain(message: Any, like: Any) -> Any:
    """The fields that `like` has, as dictionaries and lists; durations in ms, null metadata as it is."""
    if is_dataclass(like):
        return {one.name: _plain(getattr(message, one.name), getattr(like, one.name)) for one in fields(like)}
    if isinstance(like, tuple):
        return [_plain(one, other) for one, other in zip(message, like, strict=True)]
    return millis(message) if isinstance(like, timedelta) else message


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@FEW
@given(data=st.data())
def test_responses_are_the_bytes_that_kio_writes(key: int, version: int, data: st.DataObject) -> None:
    """Over what the old version can say: a canonical message made from one of its own."""
    entity: Any = load_response_schema(key, version)
    message = data.draw(entities(entity))
    _, full = decode_response(key, version, bytes(4) + _response_tags(key, version) + kio_bytes(message))
    assert type(full) is canonical(key, "Response")
    if version < APIS[key].own_response_before:
        assert bytes(encode_response(key, version, full)) == kio_bytes(message)
        return
    expected = kio_bytes(project(full, entity))
    if key == ApiKey.API_VERSIONS and version == 3:
        return  # leaves out features by design: see the unit test
    assert bytes(encode_response(key, version, full)) == expected


def _response_tags(key: int, version: int) -> bytes:
    return b"\x00" if version >= APIS[key].flexible_from and key != ApiKey.API_VERSIONS else b""


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@FEW
@given(data=st.data())
def test_our_requests_come_back_from_the_wire(key: int, version: int, data: st.DataObject) -> None:
    entity: Any = load_request_schema(key, version)
    message = decode_request(_head(key, version), kio_bytes(data.draw(entities(entity))))
    frame = encode_request(key, version, 7, "me", message)
    header = parse_request_header(memoryview(frame)[4:])
    assert header[:4] == (key, version, 7, "me")
    assert decode_request(header, memoryview(frame)[4:]) == message


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@FEW
@given(data=st.data())
def test_a_message_of_the_versions_own_goes_out_as_it_is(key: int, version: int, data: st.DataObject) -> None:
    entity: Any = load_request_schema(key, version)
    message = data.draw(entities(entity))
    if type(message) is canonical(key, "Request") or version == APIS[key].max_version:
        return
    frame = encode_request(key, version, 7, "me", message)
    assert frame.endswith(kio_bytes(message))


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.PRODUCE])
@FEW
@given(data=st.data())
def test_produce_requests_parse_as_kio_reads_them(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_request_schema(ApiKey.PRODUCE, version)))
    body = memoryview(bytearray(b"head" + kio_bytes(message)))
    view = produce.parse_produce(version, body, 4)
    assert view.transactional_id == message.transactional_id
    assert (view.acks, view.timeout_ms) == (message.acks, _ms(message.timeout))
    assert [key for key, _ in view.topics] == [_key(topic, version) for topic in message.topic_data]
    for (_, partitions), topic in zip(view.topics, message.topic_data, strict=True):
        got = [(index, None if records is None else bytes(records)) for index, records in partitions]
        assert got == [(p.index, p.records) for p in topic.partition_data]
        for _, records in partitions:
            assert records is None or (isinstance(records, memoryview) and not records.readonly)


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.PRODUCE])
@FEW
@given(data=st.data())
def test_produce_responses_are_the_bytes_that_kio_writes(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_response_schema(ApiKey.PRODUCE, version)))
    topics = [
        (_key(topic, version), [_produced(p) for p in topic.partition_responses])
        for topic in message.responses
    ]
    frame = produce.encode_produce_response(
        version, 5, topics, _ms(message.throttle_time), _endpoints(message)
    )
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (5).to_bytes(4, "big")
    assert bytes(frame[8:]) == (b"\x00" if version >= 9 else b"") + kio_bytes(message)
    in_steps = produce.encode_produce_response_in_steps(
        version, 5, topics, _ms(message.throttle_time), _endpoints(message)
    )
    assert at_once(in_steps) == frame


def _produced(p: Any) -> produce.ProducePartitionResult:
    leader = getattr(p, "current_leader", None)
    return produce.ProducePartitionResult(
        p.index,
        p.error_code,
        p.base_offset,
        -1 if p.log_append_time is None else round(p.log_append_time.timestamp() * 1000),
        getattr(p, "log_start_offset", -1),
        [(e.batch_index, e.batch_index_error_message) for e in getattr(p, "record_errors", ())],
        getattr(p, "error_message", None),
        None if leader is None or leader == type(leader)() else (leader.leader_id, leader.leader_epoch),
    )


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.FETCH])
@FEW
@given(data=st.data())
def test_fetch_requests_parse_as_kio_reads_them(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_request_schema(ApiKey.FETCH, version)))
    view = fetch.parse_fetch(version, memoryview(kio_bytes(message)))
    state = getattr(message, "replica_state", None)
    assert view.replica_id == (state.replica_id if state is not None else message.replica_id)
    assert view.replica_epoch == (state.replica_epoch if state is not None else -1)
    assert (view.max_wait_ms, view.min_bytes) == (_ms(message.max_wait), message.min_bytes)
    assert (view.max_bytes, view.isolation_level) == (message.max_bytes, message.isolation_level)
    assert view.session_id == getattr(message, "session_id", 0)
    assert view.session_epoch == getattr(message, "session_epoch", -1)
    assert view.rack_id == getattr(message, "rack_id", "")
    assert view.cluster_id == getattr(message, "cluster_id", None)
    assert [key for key, _ in view.topics] == [_key(topic, version) for topic in message.topics]
    for (_, asked), topic in zip(view.topics, message.topics, strict=True):
        assert asked == [_asked(p) for p in topic.partitions]
    forgotten = getattr(message, "forgotten_topics_data", ())
    assert view.forgotten == [(_key(t, version), list(t.partitions)) for t in forgotten]


def _asked(p: Any) -> fetch.FetchPartition:
    return fetch.FetchPartition(
        p.partition,
        getattr(p, "current_leader_epoch", -1),
        p.fetch_offset,
        getattr(p, "last_fetched_epoch", -1),
        getattr(p, "log_start_offset", -1),
        p.partition_max_bytes,
        getattr(p, "replica_directory_id", None),
        getattr(p, "high_watermark", 2**63 - 1),
    )


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.FETCH])
@FEW
@given(data=st.data())
def test_fetch_responses_are_the_bytes_that_kio_writes(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_response_schema(ApiKey.FETCH, version)))
    topics = [(_key(topic, version), [_fetched(p) for p in topic.partitions]) for topic in message.responses]
    parts = fetch.encode_fetch_response(
        version,
        5,
        topics,
        error_code=getattr(message, "error_code", 0),
        session_id=getattr(message, "session_id", 0),
        throttle_ms=_ms(message.throttle_time),
        endpoints=_endpoints(message),
    )
    frame = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (5).to_bytes(4, "big")
    # We never send null records: Kafka does not either, and an empty set is what clients expect.
    reread = _reread(message)
    assert frame[8:] == (b"\x00" if version >= 12 else b"") + kio_bytes(reread)


def _reread(message: Any) -> Any:
    return replace(
        message,
        responses=tuple(
            replace(t, partitions=tuple(replace(p, records=p.records or b"") for p in t.partitions))
            for t in message.responses
        ),
    )


def _fetched(p: Any) -> fetch.FetchPartitionResult:
    def pair(name: str, first: str, second: str) -> tuple[int, int] | None:
        value = getattr(p, name, None)
        if value is None or value == type(value)():
            return None
        return (getattr(value, first), getattr(value, second))

    aborted = p.aborted_transactions
    records = p.records or b""
    middle = len(records) // 2
    return fetch.FetchPartitionResult(
        p.partition_index,
        p.error_code,
        p.high_watermark,
        p.last_stable_offset,
        getattr(p, "log_start_offset", -1),
        (records[:middle], memoryview(records)[middle:]),
        None if aborted is None else [struct.pack(">qq", a.producer_id, a.first_offset) for a in aborted],
        getattr(p, "preferred_read_replica", -1),
        pair("diverging_epoch", "epoch", "end_offset"),
        pair("current_leader", "leader_id", "leader_epoch"),
        pair("snapshot_id", "end_offset", "epoch"),
    )


def _key(topic: Any, version: int) -> produce.TopicKey:
    if version >= 13:
        return topic.topic_id or UUID(int=0)
    return str(topic.name if hasattr(topic, "name") else topic.topic)


def _endpoints(message: Any) -> list[produce.NodeEndpoint]:
    return [
        produce.NodeEndpoint(e.node_id, e.host, e.port, e.rack)
        for e in getattr(message, "node_endpoints", ())
    ]


def _ms(duration: Any) -> int:
    return int(duration / timedelta(milliseconds=1))


def test_kio_reads_what_it_wrote() -> None:
    """The reference of the tests above stands on its own feet."""
    entity: Any = load_request_schema(ApiKey.METADATA, 12)
    message = entity(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    assert entity_reader(entity)(kio_bytes(message), 0)[0] == message


def in_steps(steps: Generator[None, None, Any]) -> Any:
    """What the steps return, and how many there were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return e.value, count
        count += 1


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@FEW
@given(data=st.data())
def test_messages_in_steps_are_those_at_once(key: int, version: int, data: st.DataObject) -> None:
    head = _head(key, version)
    frame = memoryview(kio_bytes(data.draw(entities(load_request_schema(key, version)))))
    assert in_steps(decode_request_steps(head, frame))[0] == decode_request(head, frame)
    body = kio_bytes(data.draw(entities(load_response_schema(key, version))))
    header = bytes(4) + (b"\0" if has_flexible_response_header(key, version) else b"")
    _, message = decode_response(key, version, header + body)
    parts, _ = in_steps(response_steps(head, message))
    assert b"".join(parts) == response_frame(head, message)


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.PRODUCE])
@FEW
@given(data=st.data())
def test_a_produce_request_in_steps_is_that_at_once(version: int, data: st.DataObject) -> None:
    frame = memoryview(kio_bytes(data.draw(entities(load_request_schema(ApiKey.PRODUCE, version)))))
    assert in_steps(produce.parse_produce_steps(version, frame))[0] == produce.parse_produce(version, frame)


@pytest.mark.parametrize("version", HOT_VERSIONS[ApiKey.FETCH])
@FEW
@given(data=st.data())
def test_a_fetch_request_in_steps_is_that_at_once(version: int, data: st.DataObject) -> None:
    frame = memoryview(kio_bytes(data.draw(entities(load_request_schema(ApiKey.FETCH, version)))))
    assert in_steps(fetch.parse_fetch_steps(version, frame))[0] == fetch.parse_fetch(version, frame)


@pytest.mark.parametrize("version", [15, 16, 17, 18])
@FEW
@given(data=st.data())
def test_a_followers_fetch_at_once_is_that_in_steps(version: int, data: st.DataObject) -> None:
    kio = import_module(f"kio.schema.fetch.v{version}.request")
    small, large = st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
    offsets = data.draw(st.lists(large, min_size=1, max_size=4))
    partitions = tuple(
        kio.FetchPartition(
            partition=number, fetch_offset=offset, log_start_offset=data.draw(large), partition_max_bytes=1
        )
        for number, offset in enumerate(offsets)
    )
    message = kio.FetchRequest(
        replica_state=kio.ReplicaState(replica_id=data.draw(small), replica_epoch=data.draw(large)),
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        session_id=data.draw(small),
        session_epoch=data.draw(small),
        topics=(kio.FetchTopic(topic_id=UUID(int=7), partitions=partitions),),
        forgotten_topics_data=(),
    )
    frame = kio_bytes(message)
    view = fetch.parse_fetch(version, frame)
    assert view == in_steps(fetch.parse_fetch_steps(version, frame))[0]
    state = message.replica_state
    assert (view.replica_id, view.replica_epoch) == (state.replica_id, state.replica_epoch)
    for size in range(len(frame)):
        with pytest.raises(MalformedMessage):
            fetch.parse_fetch(version, frame[:size])
