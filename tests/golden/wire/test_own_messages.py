"""The bytes of CommitCatalog version 0, which is Firn's own; they never change."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    response_frame,
)
from service.wire.catalog import (
    CatalogChange,
    CommitCatalogRequest,
    CommitCatalogResponse,
    LoadedPartition,
    LoadedTopic,
)
from service.wire.errors import MalformedMessage, UnsupportedRequest

KEY = ApiKey.COMMIT_CATALOG
CHANGE = CatalogChange(
    topic_id=UUID(int=0x0102030405060708090A0B0C0D0E0F10),
    partition=3,
    previous_version=4,
    version=5,
    manifest_key="data/m5",
    leader_epoch=6,
    start_offset=7,
    end_offset=1 << 33,
    segments=8,
    size_bytes=1 << 40,
)
REQUEST = CommitCatalogRequest(broker_id=2, broker_epoch=99, commits=(CHANGE,))
FORGETTING = replace(REQUEST, commits=(), forgotten_topics=(CHANGE.topic_id,))
LOADED = replace(
    REQUEST,
    commits=(),
    loaded=(
        LoadedTopic(topic_id=CHANGE.topic_id, partitions=(LoadedPartition(partition=3, leader_epoch=1004),)),
    ),
)
RESPONSE = CommitCatalogResponse(error_code=ErrorCode.none, metadata_offset=1234, results=(0, 1, 2, 3))

HEAD = "4e20 0000 00000007 0001 6d 00"
"""key, version, correlation id, client id, no tagged fields"""
TOPIC_ID = "0102030405060708090a0b0c0d0e0f10"
GOLDEN_REQUEST = f"""
    00000067 {HEAD} 00000002 0000000000000063
    02 {TOPIC_ID} 00000003 0000000000000004 0000000000000005 08 646174612f6d35
       00000006 0000000000000007 0000000200000000 00000008 0000010000000000 00
    00"""
GOLDEN_FORGETTING = f"0000002d {HEAD} 00000002 0000000000000063 01 01 00 11 02 {TOPIC_ID}"
GOLDEN_LOADED = f"""
    00000038 {HEAD} 00000002 0000000000000063 01 01 02 1c 02 {TOPIC_ID} 02 00000003 000003ec 00 00"""
GOLDEN_RESPONSE = "00000015 00000007 00 0000 00000000000004d2 05 00010203 00"
GOLDEN_REFUSAL = "00000011 00000007 00 004d ffffffffffffffff 01 00"


def raw(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


@pytest.mark.parametrize(
    ("message", "golden"),
    [(REQUEST, GOLDEN_REQUEST), (FORGETTING, GOLDEN_FORGETTING), (LOADED, GOLDEN_LOADED)],
)
def test_requests(message: CommitCatalogRequest, golden: str) -> None:
    assert encode_request(KEY, 0, 7, "m", message).hex() == raw(golden).hex()
    header = parse_request_header(raw(golden)[4:])
    assert header == RequestHeader(KEY, 0, 7, "m", 12)
    assert decode_request(header, raw(golden)[4:]) == message


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (RESPONSE, GOLDEN_RESPONSE),
        (CommitCatalogResponse(error_code=ErrorCode.stale_broker_epoch), GOLDEN_REFUSAL),
    ],
)
def test_responses(message: CommitCatalogResponse, golden: str) -> None:
    assert response_frame(RequestHeader(KEY, 0, 7, "m", 0), message).hex() == raw(golden).hex()
    assert decode_response(KEY, 0, raw(golden)[4:]) == (7, message)


def test_every_cut_is_refused_and_no_byte_does_harm() -> None:
    for golden in (GOLDEN_REQUEST, GOLDEN_FORGETTING, GOLDEN_LOADED):
        frame = raw(golden)[4:]
        header = parse_request_header(frame)
        for size in range(header.body, len(frame)):
            with pytest.raises(MalformedMessage):
                decode_request(header, frame[:size])
        random = Random(20000)
        for _ in range(5_000):
            damaged = bytearray(frame)
            for _ in range(random.randrange(1, 4)):
                damaged[random.randrange(header.body, len(frame))] = random.randrange(256)
            try:
                decode_request(header, bytes(damaged))
            except MalformedMessage:
                continue
    answer = raw(GOLDEN_RESPONSE)[4:]
    for size in range(len(answer)):
        with pytest.raises(MalformedMessage):
            decode_response(KEY, 0, answer[:size])


def test_a_claimed_number_of_commits_costs_nothing() -> None:
    frame = raw(f"{HEAD} 00000002 0000000000000063 ffffffff0f")
    with pytest.raises(MalformedMessage, match="array of"):
        decode_request(parse_request_header(frame), frame)


def test_there_is_no_version_but_0() -> None:
    with pytest.raises(UnsupportedRequest):
        parse_request_header(raw("4e20 0001 00000007 0001 6d 00"))
