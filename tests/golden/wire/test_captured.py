"""Captured messages of real clients and Apache Kafka 4.3.1 (`capture.py`), read and written byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from service.wire import fetch, produce
from service.wire.api import (
    APIS,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    response_frame,
    unsupported_api_versions_frame,
)
from service.wire.frames import frame

CAPTURED = [json.loads(line) for line in Path(__file__).with_name("captured.jsonl").read_text().splitlines()]
HOT = (ApiKey.PRODUCE, ApiKey.FETCH)


def _name(line: dict[str, Any]) -> str:
    return f"{line['client']}-{APIS[line['key']].name}-v{line['version']}"


def _lines(hot: bool) -> list[Any]:
    return [pytest.param(line, id=_name(line)) for line in CAPTURED if (line["key"] in HOT) is hot]


@pytest.mark.parametrize("line", _lines(hot=False))
def test_a_real_request_is_read_and_written_again(line: dict[str, Any]) -> None:
    request = bytes.fromhex(line["request"])
    header = parse_request_header(memoryview(request))
    assert (header.api_key, header.api_version) == (line["key"], line["version"])
    message = decode_request(header, memoryview(request))
    again = encode_request(
        header.api_key, header.api_version, header.correlation_id, header.client_id, message
    )
    assert again == frame(request)


@pytest.mark.parametrize("line", _lines(hot=False))
def test_a_real_response_is_read_and_written_again(line: dict[str, Any]) -> None:
    response = bytes.fromhex(line["response"])
    header = parse_request_header(bytes.fromhex(line["request"]))
    correlation_id, message = decode_response(line["key"], line["version"], response)
    assert correlation_id == header.correlation_id
    assert response_frame(header, message) == frame(response)


@pytest.mark.parametrize("line", _lines(hot=True))
def test_a_real_produce_or_fetch_response_is_written_again(line: dict[str, Any]) -> None:
    response = bytes.fromhex(line["response"])
    version = line["version"]
    schema: Any = load_response_schema(line["key"], version)
    _, head = entity_reader(schema.__header_schema__)(response, 0)
    message: Any = entity_reader(schema)(response, head)[0]
    correlation_id = int.from_bytes(response[:4], "big")
    if line["key"] == ApiKey.PRODUCE:
        topics = [(_key(topic, version), _produced(topic)) for topic in message.responses]
        again = bytes(produce.encode_produce_response(version, correlation_id, topics))
    else:
        fetched = [(_key(topic, version), _fetched(topic, version)) for topic in message.responses]
        parts = fetch.encode_fetch_response(
            version, correlation_id, fetched, session_id=getattr(message, "session_id", 0)
        )
        again = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    assert again == frame(response)


def _key(topic: Any, version: int) -> produce.TopicKey:
    if version >= 13:
        return topic.topic_id or UUID(int=0)
    return str(getattr(topic, "name", None) or topic.topic)


def _produced(topic: Any) -> list[produce.ProducePartitionResult]:
    return [
        produce.ProducePartitionResult(
            p.index, p.error_code, p.base_offset, -1, getattr(p, "log_start_offset", -1)
        )
        for p in topic.partition_responses
    ]


def _fetched(topic: Any, version: int) -> list[fetch.FetchPartitionResult]:
    return [
        fetch.FetchPartitionResult(
            p.partition_index,
            p.error_code,
            p.high_watermark,
            p.last_stable_offset,
            getattr(p, "log_start_offset", -1),
            (p.records,),
            None if p.aborted_transactions is None else (),
        )
        for p in topic.partitions
    ]


@pytest.mark.parametrize("line", _lines(hot=True))
def test_a_real_produce_or_fetch_request_is_read(line: dict[str, Any]) -> None:
    request = memoryview(bytearray.fromhex(line["request"]))
    header = parse_request_header(request)
    if line["key"] == ApiKey.PRODUCE:
        view = produce.parse_produce(header.api_version, request, header.body)
        [(_, [(_, records)])] = view.topics
        assert isinstance(records, memoryview)
        assert not records.readonly
        assert b"golden-" in bytes(records)
    else:
        asked = fetch.parse_fetch(header.api_version, request, header.body)
        assert asked.replica_id == -1
        assert asked.max_bytes > 0
        assert asked.topics


def test_an_unknown_api_versions_version_is_answered_as_kafka_does() -> None:
    for version in (99, -1):
        request = (
            b"\x00\x12" + version.to_bytes(2, "big", signed=True) + b"\x00\x00\x00\x07\x00\x02me\x00\x05"
        )
        header = parse_request_header(request)
        # The bytes of Apache Kafka 4.3.1 to these requests.
        captured = bytes.fromhex("00000007002300000001001200000004")
        assert unsupported_api_versions_frame(header) == frame(captured)


CONTROLLERS_ALONE = {
    52: (0, 2), 53: (0, 1), 54: (0, 1), 56: (2, 3), 58: (0, 0), 59: (0, 1), 62: (0, 4), 63: (0, 2),
    67: (0, 0), 70: (0, 0), 73: (0, 0), 82: (0, 0),
}  # fmt: skip
"""What no broker of Kafka's advertises, as the message definitions of its 4.3.1 have it."""


def test_the_served_versions_are_those_that_kafka_advertises() -> None:
    [line] = [line for line in CAPTURED if line["client"] == "every-version" and line["key"] == 18][-1:]
    _, response = decode_response(18, 4, bytes.fromhex(line["response"]))
    kafka = {served.api_key: (served.min_version, served.max_version) for served in response.api_keys}
    for api in APIS.values():
        if api.is_own:
            continue
        if api.key in CONTROLLERS_ALONE:
            assert (api.min_version, api.max_version) == CONTROLLERS_ALONE[api.key], api.name
            continue
        assert (api.advertised_min, api.max_version) == kafka[api.key], api.name
