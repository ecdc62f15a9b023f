"""Load from raw sockets: as little work as can be on this side, so that the node is what is measured."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from datetime import timedelta
from typing import Any

import confluent_kafka
from kio.schema.errors import ErrorCode

from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.tiers import LATEST
from tests.support.wire import (
    RawConnection,
    decode_response,
    encode_request,
    offsets,
    produce_request,
    schema,
)

RECORD_BYTES = 1000
BATCH_RECORDS = 200


def framed(request: Any) -> bytes:
    body = encode_request(request)
    return struct.pack(">i", len(body)) + body


def _receive(connection: socket.socket, size: int, buffer: memoryview) -> None:
    """Exactly `size` bytes, of which the first that fit stay in `buffer`."""
    got = 0
    while got < size:
        room = buffer[got:] if got < len(buffer) else buffer
        count = connection.recv_into(room[: min(size - got, len(room))])
        if not count:
            raise ConnectionError("the node closed the connection")
        got += count


def create(bootstrap: str, topic: str, **config: str) -> None:
    """A topic of one partition that can be used: Kafka answers before it has a leader."""
    Admin(bootstrap).create(topic, 1, **config)
    with RawConnection(bootstrap) as connection:
        wait_until(
            f"a leader of {topic}", lambda: offsets(connection, topic, 0, LATEST).error_code == ErrorCode.none
        )


def produce_single_records(
    bootstrap: str,
    topic: str,
    count: int,
    window: int = 100,
    chunk: int = 10,
    tls: ssl.SSLContext | None = None,
    size: int = 100,
) -> None:
    """`count` requests of acks=1 with one record of `size` bytes, `window` of them under way on one
    connection."""
    request = produce_request(topic, 0, batch([bytes(size)]))
    frame = framed(request)
    with RawConnection(bootstrap, tls=tls) as connection:
        before = offsets(connection, topic, 0, LATEST).offset
        connection.send(frame)
        first = connection.receive_frame()
        assert decode_response(request, first).responses[0].partition_responses[0].error_code == 0
        answer = len(first) + 4
        buffer = memoryview(bytearray(answer * chunk))
        sock, chunks = connection.socket, count // chunk
        ahead = min(window // chunk, chunks)
        for _ in range(ahead):
            sock.sendall(frame * chunk)
        for number in range(chunks):
            _receive(sock, answer * chunk, buffer)
            if number + ahead < chunks:
                sock.sendall(frame * chunk)
        assert offsets(connection, topic, 0, LATEST).offset == before + chunks * chunk + 1


def _bulk() -> bytes:
    """Batch of 200 KB."""
    return batch([bytes([number % 251]) * RECORD_BYTES for number in range(BATCH_RECORDS)])


def batches_of(megabytes: int) -> int:
    """Return how many batches `fill` makes of so many megabytes."""
    return megabytes * 1_000_000 // len(_bulk())


def fill(
    bootstrap: str, topic: str, megabytes: int, partition: int = 0, tls: ssl.SSLContext | None = None
) -> tuple[int, int]:
    """Produces uncompressed batches of 200 KB; returns (bytes of one batch on disk, number of batches)."""
    data = _bulk()
    frame = framed(produce_request(topic, partition, data))
    number = batches_of(megabytes)
    with RawConnection(bootstrap, 60, tls) as connection:
        under_way = 0
        for _ in range(number):
            connection.send(frame)
            under_way += 1
            if under_way == 5:
                connection.receive_frame()
                under_way -= 1
        for _ in range(under_way):
            connection.receive_frame()
    return len(data), number


def fetch_frame(topic: str, offset: int, max_bytes: int, partition: int = 0) -> bytes:
    """Fetch of one partition without a session, whole with its size."""
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes,
        current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    return framed(
        module.FetchRequest(
            replica_id=-1, max_wait=timedelta(seconds=1), min_bytes=1, max_bytes=50 << 20,
            isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
            topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
        )
    )  # fmt: skip


def fetch_all(
    bootstrap: str,
    topic: str,
    batch_bytes: int,
    batches: int,
    partition_bytes: int = 1 << 20,
    partition: int = 0,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Reads a filled topic whole, 1 MiB a request as librdkafka does; returns the bytes of records read."""
    buffer = memoryview(bytearray(256))
    total = position = 0
    with RawConnection(bootstrap, 60, tls) as connection:
        sock = connection.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sink = memoryview(bytearray(1 << 20))
        while position < batches:
            connection.send(fetch_frame(topic, position * BATCH_RECORDS, 1 << 20, partition))
            (size,) = struct.unpack(">i", connection.receive(4))
            head = min(size, len(buffer))
            _receive(sock, head, buffer)
            _receive(sock, size - head, sink)
            # What is not records in a response is far smaller than a batch.
            got = size // batch_bytes
            assert got, f"a response of {size} bytes at {position * BATCH_RECORDS}"
            position += got
            total += got * batch_bytes
    return total


def consume_all(bootstrap: str, topic: str, records: int, seconds: float = 120) -> int:
    """Reads a filled topic whole with librdkafka as it comes, 1 MiB of a partition a fetch; returns the bytes
    of the values.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    until, total = time.monotonic() + seconds, 0
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while records > 0:
            assert time.monotonic() < until, f"{records} records are missing after {seconds:.0f} s"
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                total += len(message)
                records -= 1
    finally:
        consumer.close()
    return total
