"""The bytes of DescribeHealth version 0, which is Firn's own; they never change."""

from __future__ import annotations

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
from service.wire.health import DescribeHealthRequest, DescribeHealthResponse, ToldFinding

HEALTH = ApiKey.DESCRIBE_HEALTH
TOLD = ToldFinding(
    severity="critical", subject="node 3", since_ms=256, words="w", meaning="m", action="a", anchor="x"
)
REQUEST = bytes.fromhex("0000000d 4e23 0000 00000007 0001 6d 00 00")
RESPONSE = bytes.fromhex(
    "0000003f 00000007 00 0000 00 00000003 00000000000003e8 ffffffffffffffff 02"
    "09 637269746963616c 07 6e6f64652033 0000000000000100 02 77 02 6d 02 61 02 78 00 00"
)


def test_the_request_has_these_bytes() -> None:
    assert encode_request(HEALTH, 0, 7, "m", DescribeHealthRequest()).hex() == REQUEST.hex()
    header = parse_request_header(REQUEST[4:])
    assert header == RequestHeader(HEALTH, 0, 7, "m", 12)
    assert decode_request(header, REQUEST[4:]) == DescribeHealthRequest()


def test_the_response_has_these_bytes() -> None:
    message = DescribeHealthResponse(
        error_code=ErrorCode.none, node_id=3, metadata_age_ms=1000, findings=(TOLD,)
    )
    assert response_frame(RequestHeader(HEALTH, 0, 7, "m", 0), message).hex() == RESPONSE.hex()
    assert decode_response(HEALTH, 0, RESPONSE[4:]) == (7, message)
