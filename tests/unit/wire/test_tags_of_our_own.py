"""Tagged fields of Firn's own in Kafka's messages: sent between its nodes, skipped by Kafka's schemas."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest as KafkasRequest
from kio.schema.describe_log_dirs.v5.response import DescribeLogDirsResponse as KafkasResponse
from kio.schema.errors import ErrorCode

from service.wire.api import (
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from service.wire.heartbeats import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from service.wire.log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult
from service.wire.primitives import Cursor
from service.wire.schema import compile_steps

FULL, RESTING = UUID(int=1 << 90), UUID(int=1 << 91)
HEARTBEAT = BrokerHeartbeatRequest(
    broker_id=1,
    broker_epoch=7,
    current_metadata_offset=9,
    want_fence=False,
    want_shut_down=False,
    full_log_dirs=(FULL, RESTING),
    resting_log_dirs=(RESTING,),
)
NO_TIME = timedelta(0)


def test_a_heartbeat_names_directories_without_room() -> None:
    frame = encode_request(ApiKey.BROKER_HEARTBEAT, 2, 5, "x", HEARTBEAT)[4:]
    header = parse_request_header(frame)
    assert decode_request(header, frame) == HEARTBEAT
    kafkas = compile_steps(KafkasRequest, KafkasRequest).read(Cursor(frame, header.body))
    assert (kafkas.broker_id, kafkas.offline_log_dirs) == (1, ())


def test_a_controller_of_an_older_version_is_told_without_them() -> None:
    frame = encode_request(ApiKey.BROKER_HEARTBEAT, 1, 5, "x", HEARTBEAT)[4:]
    assert decode_request(parse_request_header(frame), frame).full_log_dirs == ()


def test_the_answer_of_a_controller_says_whether_it_moves_leaders() -> None:
    for moves in (True, False):
        answer = BrokerHeartbeatResponse(
            throttle_time=NO_TIME, error_code=ErrorCode.none, should_shut_down=False, moves_leaders=moves
        )
        body = encode_response(ApiKey.BROKER_HEARTBEAT, 2, answer)
        head = b"\0\0\0\5\0"
        assert decode_response(ApiKey.BROKER_HEARTBEAT, 2, head + body)[1].moves_leaders is moves


def test_a_log_directory_says_why_it_refuses() -> None:
    one = DescribeLogDirsResult(
        error_code=ErrorCode.none, log_dir="/d", topics=(), total_bytes=9, usable_bytes=1, refusal="full"
    )
    answer = DescribeLogDirsResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, results=(one,))
    body = encode_response(ApiKey.DESCRIBE_LOG_DIRS, 5, answer)
    assert decode_response(ApiKey.DESCRIBE_LOG_DIRS, 5, b"\0\0\0\5\0" + body)[1] == answer
    kafkas = compile_steps(KafkasResponse, KafkasResponse).read(Cursor(bytes(body)))
    assert kafkas.results[0].usable_bytes == 1
