"""The bytes of ListSessions and EndSessions version 0, which are Firn's own; they never change."""

from __future__ import annotations

from random import Random
from typing import Any

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
from service.wire.errors import MalformedMessage
from service.wire.sessions import (
    EndSessionsRequest,
    EndSessionsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    OpenSession,
)

LIST, END = ApiKey.LIST_SESSIONS, ApiKey.END_SESSIONS
SESSION = OpenSession(
    connection=1 << 33, principal="User:a", host="::1", port=9, listener="L", protocol="SSL", client_id="",
    idle_ms=256, left_ms=-1,
)  # fmt: skip
REQUESTS = [
    (
        LIST,
        ListSessionsRequest(principal=None),
        "0000001a 4e21 0000 00000007 0001 6d 00 00 ffffffffffffffff 000003e8 00",
    ),
    (
        LIST,
        ListSessionsRequest(principal="User:a", after=5, most=2),
        "00000020 4e21 0000 00000007 0001 6d 00 07 557365723a61 0000000000000005 00000002 00",
    ),
    (
        END,
        EndSessionsRequest(principal="User:a", metadata_offset=77),
        "0000001c 4e22 0000 00000007 0001 6d 00 07 557365723a61 000000000000004d 00",
    ),
]
RESPONSES = [
    (
        LIST,
        ListSessionsResponse(error_code=ErrorCode.none, is_last=False, sessions=(SESSION,)),
        """0000003a 00000007 00 0000 00 00 02
           0000000200000000 07 557365723a61 04 3a3a31 00000009 02 4c 04 53534c 01 0000000000000100
           ffffffffffffffff 00 00""",
    ),
    (
        LIST,
        ListSessionsResponse(error_code=ErrorCode.cluster_authorization_failed),
        "0000000b 00000007 00 001f 00 01 01 00",
    ),
    (
        END,
        EndSessionsResponse(error_code=ErrorCode.request_timed_out, error_message="no", ended=3),
        "0000000f 00000007 00 0007 03 6e6f 00000003 00",
    ),
]


def raw(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


@pytest.mark.parametrize(("key", "message", "golden"), REQUESTS)
def test_requests(key: ApiKey, message: Any, golden: str) -> None:
    assert encode_request(key, 0, 7, "m", message).hex() == raw(golden).hex()
    header = parse_request_header(raw(golden)[4:])
    assert header == RequestHeader(key, 0, 7, "m", 12)
    assert decode_request(header, raw(golden)[4:]) == message


@pytest.mark.parametrize(("key", "message", "golden"), RESPONSES)
def test_responses(key: ApiKey, message: Any, golden: str) -> None:
    assert response_frame(RequestHeader(key, 0, 7, "m", 0), message).hex() == raw(golden).hex()
    assert decode_response(key, 0, raw(golden)[4:]) == (7, message)


def test_every_cut_is_refused_and_no_byte_does_harm() -> None:
    random = Random(20001)
    for key, _, golden in RESPONSES:
        frame = raw(golden)[4:]
        for size in range(len(frame)):
            with pytest.raises(MalformedMessage):
                decode_response(key, 0, frame[:size])
    for _, _, golden in REQUESTS:
        frame = raw(golden)[4:]
        header = parse_request_header(frame)
        for _ in range(2_000):
            damaged = bytearray(frame)
            damaged[random.randrange(header.body, len(frame))] = random.randrange(256)
            try:
                decode_request(header, bytes(damaged))
            except MalformedMessage:
                continue
