"""Headers, the table of APIs and what is special about some of them."""

from __future__ import annotations

import struct
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest

from service.wire import fetch, produce
from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_served,
    millis,
    parse_request_header,
    request_module,
    response_frame,
    response_module,
)
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.schema import dropped_fields


def head(key: int, version: int, client: bytes | None = b"me", tags: bytes = b"") -> bytes:
    size = -1 if client is None else len(client)
    return struct.pack(">hhih", key, version, 42, size) + (client or b"") + tags


def test_a_header_is_read_with_and_without_tagged_fields() -> None:
    assert parse_request_header(head(3, 8) + b"body") == RequestHeader(3, 8, 42, "me", 12)
    assert parse_request_header(head(3, 9, tags=b"\x00") + b"body") == RequestHeader(3, 9, 42, "me", 13)
    tagged = b"\x02\x05\x03abc\x63\x00"
    assert parse_request_header(head(3, 9, tags=tagged) + b"body").body == 12 + len(tagged)


@pytest.mark.parametrize("size", [-1, -5])
def test_a_null_client_id_is_empty(size: int) -> None:
    assert parse_request_header(struct.pack(">hhih", 3, 1, 42, size)).client_id == ""


def test_a_client_id_of_another_encoding_is_read_with_replacements() -> None:
    assert parse_request_header(head(3, 1, b"caf\xe9")).client_id == "caf\ufffd"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" * 9,
        struct.pack(">hhih", 3, 1, 1, 100) + b"short",
        head(3, 9),
        head(3, 9, tags=b"\x05"),
        head(3, 9, tags=b"\xff\xff\xff\xff\xff\xff"),
        head(18, 99),
    ],
)
def test_a_broken_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_request_header(frame)


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-1, 0), (3, 14), (3, -1), (0, 0), (0, 14), (1, 3), (8, 1)]
)
def test_unsupported_apis_and_versions_are_refused(key: int, version: int) -> None:
    with pytest.raises(UnsupportedRequest):
        parse_request_header(head(key, version, tags=b"\x00"))


def test_api_versions_of_any_version_gets_a_header() -> None:
    assert not is_served(parse_request_header(head(18, 5, tags=b"\x00")))
    assert not is_served(parse_request_header(head(18, -1)))
    assert is_served(parse_request_header(head(18, 4, tags=b"\x00")))


def decode(key: int, version: int, body: bytes) -> Any:
    return decode_request(RequestHeader(key, version, 1, "", 0), body)


def test_metadata_0_with_no_topics_asks_for_all_and_later_versions_for_none() -> None:
    empty, null = struct.pack(">i", 0), struct.pack(">i", -1)
    assert decode(3, 0, empty).topics is None
    assert decode(3, 1, empty).topics == ()
    assert decode(3, 1, null).topics is None
    assert decode(3, 0, empty).allow_auto_topic_creation is True


def test_old_delete_topics_names_become_topics() -> None:
    body = struct.pack(">i", 2) + b"\x00\x01a\x00\x01b" + struct.pack(">i", 1500)
    request = decode(20, 1, body)
    assert [(t.name, t.topic_id) for t in request.topics] == [("a", None), ("b", None)]
    assert millis(request.timeout) == 1500


def test_bytes_after_a_request_are_ignored_as_kafka_does() -> None:
    assert decode(3, 1, struct.pack(">i", 0) + b"more").topics == ()


def test_unknown_tagged_fields_are_stepped_over() -> None:
    body = b"\x01\x00\x01" + b"\x02\x07\x02ab\x7f\x00"
    assert decode(3, 12, body).topics == ()


@pytest.mark.parametrize("size", [-2, -7])
def test_a_null_array_where_none_is_allowed_is_malformed(size: int) -> None:
    with pytest.raises(MalformedMessage):
        decode(19, 2, struct.pack(">i", size) + bytes(8))


def test_a_huge_array_is_refused_before_anything_is_made() -> None:
    with pytest.raises(MalformedMessage):
        decode(3, 12, b"\xff\xff\xff\xff\x0f" + bytes(50))
    with pytest.raises(MalformedMessage):
        decode(3, 1, struct.pack(">i", 2**31 - 1) + bytes(50))


@pytest.mark.parametrize(("version", "names"), [(0, []), (3, ["two"]), (4, ["one", "two"])])
def test_features_that_start_at_0_are_hidden_from_old_clients(version: int, names: list[str]) -> None:
    m = response_module(ApiKey.API_VERSIONS)
    features = tuple(
        m.SupportedFeatureKey(name=name, min_version=low, max_version=9)
        for low, name in enumerate(["one", "two"])
    )
    response = m.ApiVersionsResponse(error_code=0, api_keys=(), throttle_time=0, supported_features=features)
    frame = response_frame(RequestHeader(18, version, 5, "", 0), response)
    _, again = decode_response(18, version, frame[4:])
    assert [feature.name for feature in again.supported_features] == names


def test_responses_take_plain_milliseconds_and_codes() -> None:
    m = response_module(ApiKey.INIT_PRODUCER_ID)
    plain = m.InitProducerIdResponse(throttle_time=1500, error_code=3, producer_id=7, producer_epoch=1)
    rich = m.InitProducerIdResponse(
        throttle_time=timedelta(seconds=1.5), error_code=m.ErrorCode(3), producer_id=7, producer_epoch=1
    )
    assert encode_response(22, 4, plain) == encode_response(22, 4, rich)


def test_a_value_that_an_old_version_cannot_carry_is_not_lost_silently() -> None:
    cluster = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=True
    )
    with pytest.raises(ValueError, match="include_fenced_brokers"):
        encode_request(60, 1, 1, "me", cluster)
    delete = request_module(ApiKey.DELETE_TOPICS)
    by_id = delete.DeleteTopicsRequest(
        topics=(delete.DeleteTopicState(name=None, topic_id=uuid4()),), timeout=timedelta(0)
    )
    with pytest.raises(ValueError, match="by name only"):
        encode_request(20, 5, 1, "me", by_id)
    nothing = request_module(ApiKey.METADATA).MetadataRequest(
        topics=(), include_topic_authorized_operations=False
    )
    with pytest.raises(ValueError, match="no topics"):
        encode_request(3, 0, 1, "me", nothing)
    with pytest.raises(ValueError, match="no version"):
        encode_request(3, 14, 1, "me", nothing)


def test_produce_and_fetch_by_name_are_not_for_the_generic_codec() -> None:
    with pytest.raises(ValueError, match="own codec"):
        decode(0, 12, bytes(20))
    with pytest.raises(ValueError, match="own codec"):
        decode(1, 12, bytes(20))


@pytest.mark.parametrize("version", range(3, 14))
def test_a_hostile_produce_request_is_malformed(version: int) -> None:
    flexible = version >= 9
    many = b"\xff\xff\xff\xff\x0f" if flexible else struct.pack(">i", 2**31 - 1)
    start = (b"\x00" if flexible else b"\xff\xff") + struct.pack(">hi", 1, 1000)
    one = b"\x02" if flexible else struct.pack(">i", 1)
    key = bytes(16) if version >= 13 else (b"\x02a" if flexible else b"\x00\x01a")
    for body in (
        b"",
        start,
        start + many,
        start + one + key + many,
        start + one + key + one + struct.pack(">i", 0) + many + b"records",
    ):
        with pytest.raises(MalformedMessage):
            produce.parse_produce(version, memoryview(bytearray(body)))


@pytest.mark.parametrize("version", range(4, 19))
def test_a_hostile_fetch_request_is_malformed(version: int) -> None:
    flexible = version >= 12
    many = b"\xff\xff\xff\xff\x0f" if flexible else struct.pack(">i", 2**31 - 1)
    start = (b"" if version >= 15 else struct.pack(">i", -1)) + struct.pack(">iiib", 1, 1, 1, 0)
    start += struct.pack(">ii", 0, -1) if version >= 7 else b""
    for body in (b"", start, start + many, start + many + bytes(100)):
        with pytest.raises(MalformedMessage):
            fetch.parse_fetch(version, memoryview(bytearray(body)))


def test_records_parts_are_passed_through_untouched() -> None:
    class OnDisk:
        size = 70_000

    stored = OnDisk()
    in_memory = memoryview(b"records")
    parts = fetch.encode_fetch_response(
        13, 5, [(uuid4(), [fetch.FetchPartitionResult(0, records=(stored, in_memory))])]
    )
    assert parts[1] is stored
    assert parts[2] is in_memory
    heads = len(parts[0]) + len(parts[3])  # type: ignore[arg-type]
    assert int.from_bytes(parts[0][:4], "big") == heads + 70_000 + 7 - 4  # type: ignore[index]


def test_fields_that_a_version_lacks_are_computed_once() -> None:
    m = request_module(ApiKey.BROKER_HEARTBEAT)
    newest, oldest = m.BrokerHeartbeatRequest, import_module("kio.schema.broker_heartbeat.v0.request")
    found = dropped_fields(oldest.BrokerHeartbeatRequest, newest)
    assert "offline_log_dirs" in found
    assert "broker_id" not in found
    assert dropped_fields(newest, newest) == {}
    assert dropped_fields(oldest.BrokerHeartbeatRequest, newest) is found
