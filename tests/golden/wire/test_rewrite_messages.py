"""The bytes of rewrites and erasures on the wire, which is Firn's own; they never change."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any
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
    CatalogErasure,
    CatalogRewrite,
    CommitCatalogRequest,
    CommitCatalogResponse,
    ErasedNote,
    LoadedPartition,
    LoadedTopic,
    OrderOp,
    RewriteOp,
)
from service.wire.erasures import MAX_ORDER_BYTES, ErasureOp, ErasuresRequest, ErasuresResponse
from service.wire.errors import MalformedMessage
from service.wire.rewrites import (
    MAX_ENTRIES_BYTES,
    MAX_OLD_KEYS,
    RewriteRangeRequest,
    RewriteRangeResponse,
    RewriteStep,
)

CATALOG, RANGE, ERASURES = ApiKey.COMMIT_CATALOG, ApiKey.REWRITE_RANGE, ApiKey.ERASURES
TOPIC, REWRITE, ORDER = UUID(int=0x77), UUID(int=0x1234), UUID(int=0x4321)
TOPIC_ID, REWRITE_ID, ORDER_ID = (f"{one.int:032x}" for one in (TOPIC, REWRITE, ORDER))
ZERO_ID = "0" * 32
BEGINS = CommitCatalogRequest(
    broker_id=2,
    broker_epoch=99,
    rewrites=(
        CatalogRewrite(
            topic_id=TOPIC, partition=3, op=RewriteOp.BEGIN, rewrite_id=REWRITE, base_offset=4,
            last_offset=5, kind=1, leader_epoch=6, started_ms=7,
        ),
        CatalogRewrite(topic_id=TOPIC, partition=3, op=RewriteOp.GIVE_UP, rewrite_id=REWRITE),
    ),
)  # fmt: skip
ERASED = CommitCatalogRequest(
    broker_id=2,
    broker_epoch=99,
    erased=(
        ErasedNote(
            erasure_id=ORDER,
            broker_id=-1,
            topics=(LoadedTopic(topic_id=TOPIC, partitions=(LoadedPartition(partition=3, leader_epoch=6),)),),
        ),
    ),
)
ORDERS = CommitCatalogRequest(
    broker_id=2,
    broker_epoch=99,
    erasures=(
        CatalogErasure(
            op=OrderOp.STARTED, id=ORDER, key="e", stored_size=8, crc32c=9, keys=10, topics=(TOPIC,),
            started_ms=11,
        ),
        CatalogErasure(op=OrderOp.DONE, id=ORDER, done_ms=12),
    ),
)  # fmt: skip
FULFILS = CommitCatalogRequest(
    broker_id=2,
    broker_epoch=99,
    commits=(
        CatalogChange(
            topic_id=TOPIC, partition=3, previous_version=4, version=5, manifest_key="m", leader_epoch=6,
            start_offset=7, end_offset=8, segments=1, size_bytes=9, rewrite_id=REWRITE,
        ),
    ),
)  # fmt: skip
ANSWERED = CommitCatalogResponse(error_code=ErrorCode.none, metadata_offset=1234, rewrite_answers=(0, 2))
REFUSED = CommitCatalogResponse(error_code=ErrorCode.policy_violation, error_message="no")
COMMITS = RewriteRangeRequest(
    topic_id=TOPIC, partition=3, rewrite_id=REWRITE, step=1, kind=2, base_offset=4, last_offset=5,
    erasure_id=ORDER, old_keys=("a", "b"), entries=b"[]",
)  # fmt: skip
BEGINS_RANGE = RewriteRangeRequest(
    topic_id=TOPIC, partition=3, rewrite_id=REWRITE, step=0, kind=1, base_offset=4, last_offset=5
)
ANSWERED_RANGE = RewriteRangeResponse(
    throttle_time=timedelta(milliseconds=13), error_code=ErrorCode.none, leader_epoch=6, version=5
)
STARTS = ErasuresRequest(op=ErasureOp.START, id=ORDER, order=b"gz")
VERIFIES = ErasuresRequest(op=ErasureOp.VERIFY, id=ORDER, topic_id=TOPIC, partition=3, scope=1, from_offset=4)
ANSWERED_ORDERS = ErasuresResponse(error_code=ErrorCode.none, document="{}", next_offset=9)
REFUSED_ORDERS = ErasuresResponse(error_code=ErrorCode.not_coordinator, error_message="no")

OF_BROKER = "00000002 0000000000000063 01"
REQUESTS = [
    (
        CATALOG,
        BEGINS,
        f"""{OF_BROKER} 01 01 8701 03
        {TOPIC_ID} 00000003 00 {REWRITE_ID} 0000000000000004 0000000000000005 01 00000006 0000000000000007 00
        {TOPIC_ID} 00000003 01 {REWRITE_ID} 0000000000000000 0000000000000000 00 ffffffff ffffffffffffffff 00
        """,
    ),
    (
        CATALOG,
        ERASED,
        f"{OF_BROKER} 01 03 32 02 {ORDER_ID} ffffffff 02 {TOPIC_ID} 02 00000003 00000006 00 00 00",
    ),
    (
        CATALOG,
        ORDERS,
        f"""{OF_BROKER} 01 04 8201 03
        00 {ORDER_ID} 02 65 0000000000000008 0000000000000009 0000000a 02 {TOPIC_ID} 000000000000000b
           ffffffffffffffff 00
        01 {ORDER_ID} 01 0000000000000000 0000000000000000 00000000 01 ffffffffffffffff 000000000000000c 00
        """,
    ),
    (
        CATALOG,
        FULFILS,
        f"""00000002 0000000000000063 02
        {TOPIC_ID} 00000003 0000000000000004 0000000000000005 02 6d 00000006 0000000000000007
        0000000000000008 00000001 0000000000000009 01 00 10 {REWRITE_ID} 00""",
    ),
    (
        RANGE,
        BEGINS_RANGE,
        f"""{TOPIC_ID} 00000003 {REWRITE_ID} 00 01 0000000000000004 0000000000000005 {ZERO_ID} 01 01 00""",
    ),
    (
        RANGE,
        COMMITS,
        f"""{TOPIC_ID} 00000003 {REWRITE_ID} 01 02 0000000000000004 0000000000000005 {ORDER_ID}
        03 02 61 02 62 03 5b5d 00""",
    ),
    (ERASURES, STARTS, f"01 {ORDER_ID} 03 677a {ZERO_ID} ffffffff 00 0000000000000000 00"),
    (ERASURES, VERIFIES, f"04 {ORDER_ID} 00 {TOPIC_ID} 00000003 01 0000000000000004 00"),
]
RESPONSES = [
    (CATALOG, ANSWERED, "0000 00000000000004d2 01 01 00 03 03 00 02"),
    (CATALOG, REFUSED, "002c ffffffffffffffff 01 01 01 03 03 6e6f"),
    (RANGE, ANSWERED_RANGE, "0000000d 0000 00 00000006 0000000000000005 00"),
    (ERASURES, ANSWERED_ORDERS, "00000000 0000 00 03 7b7d 0000000000000009 00"),
    (ERASURES, REFUSED_ORDERS, "00000000 0010 03 6e6f 00 ffffffffffffffff 00"),
]


def raw(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


def frame_of(key: ApiKey, body: str) -> bytes:
    return raw(f"{int(key):04x} 0000 00000007 0001 6d 00 {body}")


@pytest.mark.parametrize(("key", "message", "body"), REQUESTS)
def test_requests(key: ApiKey, message: Any, body: str) -> None:
    frame = frame_of(key, body)
    assert encode_request(key, 0, 7, "m", message)[4:].hex() == frame.hex()
    header = parse_request_header(frame)
    assert header == RequestHeader(key, 0, 7, "m", 12)
    assert decode_request(header, frame) == message


@pytest.mark.parametrize(("key", "message", "body"), RESPONSES)
def test_responses(key: ApiKey, message: Any, body: str) -> None:
    frame = raw(f"00000007 00 {body}")
    assert response_frame(RequestHeader(key, 0, 7, "m", 0), message)[4:].hex() == frame.hex()
    assert decode_response(key, 0, frame) == (7, message)


def test_every_cut_is_refused_and_no_byte_does_harm() -> None:
    random = Random(20005)
    for key, _, body in REQUESTS:
        frame = frame_of(key, body)
        header = parse_request_header(frame)
        for size in range(header.body, len(frame)):
            with pytest.raises(MalformedMessage):
                decode_request(header, frame[:size])
        for _ in range(500):
            damaged = bytearray(frame)
            for _ in range(random.randrange(1, 4)):
                damaged[random.randrange(header.body, len(frame))] = random.randrange(256)
            try:
                request = decode_request(header, bytes(damaged))
            except MalformedMessage:
                continue
            if key != CATALOG:
                assert request.malformed() is None or request.malformed()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic_id": None}, "no topic"),
        ({"rewrite_id": None}, "no topic, or no id"),
        ({"step": 4}, "step 4"),
        ({"step": -1}, "step -1"),
        ({"partition": -1}, "partition -1"),
        ({"base_offset": -1}, "offsets -1 to 5"),
        ({"base_offset": 6}, "offsets 6 to 5"),
        ({"old_keys": ("k",) * (MAX_OLD_KEYS + 1)}, "257 old keys"),
        ({"entries": bytes(MAX_ENTRIES_BYTES + 1)}, "1048577 bytes of entries"),
        ({"old_keys": ()}, "belong to a commit"),
        ({"entries": b""}, "belong to a commit"),
        ({"step": int(RewriteStep.BEGIN)}, "belong to a commit"),
        ({"step": int(RewriteStep.ALIVE)}, "belong to a commit"),
        ({"step": int(RewriteStep.GIVE_UP)}, "belong to a commit"),
    ],
)
def test_a_step_that_no_worker_sends_is_told_why(change: dict[str, Any], words: str) -> None:
    values = {name: getattr(COMMITS, name) for name in COMMITS.__slots__}
    reason = RewriteRangeRequest(**{**values, **change}).malformed()
    assert reason is not None
    assert words in reason
    assert COMMITS.malformed() is BEGINS_RANGE.malformed() is None


@pytest.mark.parametrize(
    ("message", "change", "words"),
    [
        (STARTS, {"op": 5}, "operation 5"),
        (STARTS, {"op": -1}, "operation -1"),
        (STARTS, {"order": None}, "without an order"),
        (STARTS, {"order": b""}, "an order of 0 bytes"),
        (STARTS, {"order": bytes(MAX_ORDER_BYTES + 1)}, "16777216 are allowed"),
        (STARTS, {"op": 0}, "belongs to a start"),
        (VERIFIES, {"id": None}, "no id"),
        (VERIFIES, {"topic_id": None}, "no topic"),
        (VERIFIES, {"partition": -1}, "partition -1"),
        (VERIFIES, {"from_offset": -1}, "from offset -1"),
        (VERIFIES, {"op": 2, "id": None}, "no id"),
    ],
)
def test_a_request_that_no_command_sends_is_told_why(
    message: ErasuresRequest, change: dict[str, Any], words: str
) -> None:
    values = {name: getattr(message, name) for name in message.__slots__}
    reason = ErasuresRequest(**{**values, **change}).malformed()
    assert reason is not None
    assert words in reason
    assert STARTS.malformed() is VERIFIES.malformed() is ErasuresRequest(op=0).malformed() is None
