"""The bytes of TakeCut version 0, which is Firn's own; they never change."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    decode_response_steps,
    encode_request,
    parse_request_header,
    response_frame,
)
from service.wire.cuts import CutEnd, CutEnds, CutLoss, CutLosses, CutTail, TakeCutRequest, TakeCutResponse
from service.wire.primitives import ManyElements

CUT = ApiKey.TAKE_CUT
ATTEMPT, TOPIC = UUID(int=0x1234), UUID(int=0x77)
ASKED = TakeCutRequest(
    broker_id=2, broker_epoch=9, attempt_id=ATTEMPT, newest_id=None, cut=257, step=1, hold_ms=20
)
REQUEST = bytes.fromhex(
    "00000046 4e24 0000 00000007 0001 6d 00"
    "00000002 0000000000000009 00000000000000000000000000001234 00000000000000000000000000000000"
    "0000000000000101 01 00000014 00"
)
END = CutEnd(
    partition=3, leader_epoch=4, start=5, end=6, stable=7, saved=8, saved_high=9, last_epoch=-1, version=10,
    waits=True, is_tailed=False,
)  # fmt: skip
TAIL = CutTail(key="k", size=11, footer_position=12, footer_crc=13)
ANSWER = TakeCutResponse(
    error_code=ErrorCode.none,
    image_offset=258,
    ends=(CutEnds(topic_id=TOPIC, partitions=(END,)),),
    tails=(TAIL,),
)
RESPONSE = bytes.fromhex(
    "00000083 00000007 00 0000 00 0000000000000102 02"
    "00 52 02 00000000000000000000000000000077 02 00000003 00000004 0000000000000005 0000000000000006"
    "0000000000000007 0000000000000008 0000000000000009 ffffffff 000000000000000a 01 00 00 00"
    "01 1c 02 02 6b 000000000000000b 000000000000000c 000000000000000d 00"
)
PLAIN = bytes.fromhex("00000011 00000007 00 0000 00 ffffffffffffffff 00")


LOSSES = replace(
    ASKED,
    step=2,
    lost=(CutLosses(topic_id=TOPIC, partitions=(CutLoss(partition=3, leader_epoch=4, reaches=5),)),),
)
WITH_LOSSES = bytes.fromhex(
    "0000006c 4e24 0000 00000007 0001 6d 00"
    "00000002 0000000000000009 00000000000000000000000000001234 00000000000000000000000000000000"
    "0000000000000101 02 00000014"
    "01 00 24 02 00000000000000000000000000000077 02 00000003 00000004 0000000000000005 00 00"
)


def test_the_request_with_lost_tails_has_these_bytes() -> None:
    assert encode_request(CUT, 0, 7, "m", LOSSES).hex() == WITH_LOSSES.hex()
    assert decode_request(parse_request_header(WITH_LOSSES[4:]), WITH_LOSSES[4:]) == LOSSES


def test_the_request_has_these_bytes() -> None:
    assert encode_request(CUT, 0, 7, "m", ASKED).hex() == REQUEST.hex()
    header = parse_request_header(REQUEST[4:])
    assert header == RequestHeader(CUT, 0, 7, "m", 12)
    assert decode_request(header, REQUEST[4:]) == ASKED


def test_the_response_has_these_bytes() -> None:
    header = RequestHeader(CUT, 0, 7, "m", 0)
    assert response_frame(header, ANSWER).hex() == RESPONSE.hex()
    assert decode_response(CUT, 0, RESPONSE[4:]) == (7, ANSWER)
    plain = TakeCutResponse(error_code=ErrorCode.none)
    assert response_frame(header, plain).hex() == PLAIN.hex()
    assert decode_response(CUT, 0, PLAIN[4:]) == (7, plain)


def test_a_response_of_many_partitions_is_read_in_steps() -> None:
    ends = tuple(
        CutEnds(topic_id=UUID(int=number), partitions=(END,) * partitions)
        for number, partitions in ((1, 3000), *((n, 1) for n in range(2, 2000)))
    )
    answer = TakeCutResponse(error_code=ErrorCode.none, ends=ends)
    frame = response_frame(RequestHeader(CUT, 0, 7, "m", 0), answer)[4:]
    with pytest.raises(ManyElements):
        decode_response(CUT, 0, frame, 256)
    pauses = sum(1 for _ in decode_response_steps(CUT, 0, frame))
    assert pauses >= 5000 // 64
    assert at_once(decode_response_steps(CUT, 0, frame)) == answer
