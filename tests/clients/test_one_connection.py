"""Requests of one connection are answered, and their records written, in the order in which they came."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.conftest import NewTopic
from tests.support.batches import GZIP, NONE, ZSTD, batch
from tests.support.processes import wait_until
from tests.support.wire import (
    RawConnection,
    decode_response,
    encode_request,
    leader_of,
    offsets,
    produce_request,
    schema,
)

NOW_MS = int(time.time() * 1000)
COUNT = 60


def _batch(source: random.Random, number: int) -> bytes:
    """A few records, or some MB that inflate slowly; each begins with the request's number."""
    slow = source.random() < 0.15
    values = [struct.pack(">i", number) + bytes(400_000 if slow else 10) for _ in range(source.randint(1, 3))]
    codec = source.choice([GZIP, ZSTD]) if slow else source.choice([NONE, GZIP])
    return batch(values, codec=codec, base_timestamp=NOW_MS)


@pytest.mark.parametrize("compression", ["producer", "zstd"])
@pytest.mark.parametrize("seed", range(2))
def test_pipelined_requests_keep_their_order_whatever_becomes_of_each(
    seed: int, compression: str, bootstrap: str, new_topic: NewTopic
) -> None:
    """Small and slow ones, refused ones, ones of another kind between them, and ones without an answer."""
    topic = new_topic(compression_type=compression)
    source = random.Random(seed)
    asked: list[tuple[int, Any, int]] = []
    expected, end = [], 0
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        for number in range(1, COUNT + 1):
            kind = source.choice(["good", "good", "good", "silent", "bad", "unknown", "metadata"])
            data = _batch(source, number)
            count = int.from_bytes(data[57:61], "big")
            request: Any = produce_request(topic, 0, data, acks=source.choice([1, -1]))
            base = -1
            if kind == "silent":
                request = produce_request(topic, 0, data, acks=0)
            elif kind == "bad":
                request = produce_request(topic, 0, data[:-1] + b"\x55")
            elif kind == "unknown":
                request = produce_request(f"no-{topic}", 0, data)
            elif kind == "metadata":
                request = schema(18, 0).ApiVersionsRequest()
            if kind in ("good", "silent"):
                base = end
                expected += [number] * count
                end += count
            connection.send_frame(encode_request(request, number))
            if kind != "silent":
                asked.append((number, request, base))
        for number, request, base in asked:
            frame = connection.receive_frame()
            assert struct.unpack_from(">i", frame)[0] == number
            answer = decode_response(request, frame)
            if hasattr(answer, "responses"):
                (one,) = answer.responses[0].partition_responses
                assert (one.base_offset, one.error_code == ErrorCode.none) == (base, base >= 0)
        # What one replica has acknowledged is committed a little later, where there are several.
        wait_until("all of it", lambda: offsets(connection, topic, 0, -1).offset == end)
    assert _numbers(bootstrap, topic, end) == expected


def _numbers(bootstrap: str, topic: str, end: int) -> list[int]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "fetch.message.max.bytes": 20_000_000}
    )
    found: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 60
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records"
            for message in consumer.consume(100, 1):
                assert message.error() is None
                found.append(struct.unpack_from(">i", message.value())[0])
    finally:
        consumer.close()
    return found
