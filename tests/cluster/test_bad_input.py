"""Bad input: the protocol's error, or a closed connection where framing is lost.

Nothing is written, and nobody else feels it: a bystander produces all the while.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from typing import Any

import pytest

from tests.cluster.conftest import Bystander
from tests.conftest import NodeFactory
from tests.support.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, compress, record, varint
from tests.support.clients import Confluent, make_rows
from tests.support.processes import Node, wait_until
from tests.support.wire import (
    ConnectionLost,
    RawConnection,
    encode_request,
    end_offset,
    produce,
    produce_request,
    schema,
)

MIB = 1 << 20
CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, INVALID_TOPIC = 2, 3, 10, 17
INVALID_TIMESTAMP, UNSUPPORTED_FORMAT, UNSUPPORTED_CODEC, INVALID = 32, 43, 76, 87

pytestmark = pytest.mark.usefixtures("bystander")


def metadata_request() -> Any:
    module = schema(3, 9)
    return module.MetadataRequest(
        topics=None, include_cluster_authorized_operations=False, include_topic_authorized_operations=False
    )


def _closes(connection: RawConnection, data: bytes) -> None:
    """Sends `data`; the peer must close, having answered nothing."""
    try:
        connection.send(data)
    except ConnectionLost:
        return
    assert connection.is_closed_by_peer()


HEADER = struct.pack(">hhih", 3, 9, 1, 4) + b"test\0"
MANY = 0x7FFFFFFF


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0x7FFFFFFF) + b"x",
        struct.pack(">i", 104857601) + b"x",
        struct.pack(">i", -1) + b"x",
        struct.pack(">i", -0x80000000) + b"x",
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        struct.pack(">ihhih", 12, 9999, 0, 1, -1) + b"xx",
        struct.pack(">ihhih", 10, 32767, 32767, 1, -1),
        struct.pack(">ihhih", 10, -1, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, -1, 1, -1),
        struct.pack(">ihhih", 10, 1, 3, 1, -1),
        struct.pack(">ihhih", 10, 3, 9, 1, 0x7FFF),
        struct.pack(">ihhih", 10, 3, 9, 1, -2),
        struct.pack(">i", len(HEADER)) + HEADER,
        struct.pack(">i", len(HEADER) + 5) + HEADER + b"\xff\xff\xff\xff\x0f",
        struct.pack(">i", len(HEADER) + 10) + HEADER + b"\xff" * 10,
        struct.pack(">i", len(HEADER) + 8) + HEADER + b"\x02\xff\xff\xff\xff\x07ab",
        struct.pack(">ihhih", 18, 3, 1, 1, -1) + struct.pack(">i", MANY) + b"abcd",
        struct.pack(">ihhih", 18, 2, 1, 1, -1) + struct.pack(">ii", -1, MANY),
        struct.pack(">ihhih", 26, 0, 3, 1, -1) + struct.pack(">hhiii", -1, 1, 1000, MANY, 0),
        struct.pack(">ihhih", 30, 1, 4, 1, -1) + struct.pack(">iiiib", -1, 100, 1, MANY, 0) + b"\x7f\xff\xff",
    ],
    ids=[
        "2 GiB", "over socket.request.max.bytes", "length -1", "length -2^31", "empty", "too short",
        "HTTP", "TLS", "unknown key", "unknown key and version", "negative key", "unknown version",
        "negative version", "version dropped in Kafka 4", "client id past the end", "client id of -2",
        "no body", "array of 2^32", "varint without end", "string of 2^31", "old array of 2^31",
        "ListOffsets of 2^31 topics", "Produce of 2^31 topics", "Fetch of 2^31 topics",
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_close_the_connection(data: bytes, sturdy: Node) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        _closes(connection, data)


def test_malformed_requests_are_logged_with_peer_and_reason_at_a_bounded_rate(
    start_node: NodeFactory,
) -> None:
    node = start_node()
    with RawConnection(node.bootstrap) as connection:
        peer = f"127.0.0.1:{connection.socket.getsockname()[1]}"
        _closes(connection, struct.pack(">i", -77))
    wait_until("the log line", lambda: peer in node.stderr_path.read_text())
    (line,) = (line for line in node.stderr_path.read_text().splitlines() if peer in line)
    assert "-77" in line
    for _ in range(1000):
        with RawConnection(node.bootstrap) as connection:
            _closes(connection, struct.pack(">i", -77))
    node.stop()
    assert len(node.stderr_path.read_text().splitlines()) < 100


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 12, 20, 40, 100])
def test_a_frame_that_ends_in_the_middle_is_forgotten(cut: int, sturdy: Node, topic: str) -> None:
    frame = encode_request(produce_request(topic, 0, batch([b"never whole" * 20])))
    whole = struct.pack(">i", len(frame)) + frame
    with RawConnection(sturdy.bootstrap) as connection:
        connection.send(whole[:-cut])
    assert end_offset(sturdy.bootstrap, topic, 0) == 0


def test_requests_may_arrive_in_any_pieces(sturdy: Node, topic: str) -> None:
    frames = [encode_request(produce_request(topic, 0, batch([b"%d" % n])), n) for n in range(40)]
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    source = random.Random(7)
    with RawConnection(sturdy.bootstrap) as connection:
        position = 0
        while position < len(data):
            size = source.choice((1, 2, 3, 5, 50, 300))
            connection.send(data[position : position + size])
            position += size
            if source.random() < 0.2:
                time.sleep(0.001)
        for number in range(40):
            assert struct.unpack_from(">i", connection.receive_frame()) == (number,)
    assert end_offset(sturdy.bootstrap, topic, 0) == 40


RAW = [record(0, b"a"), record(1, b"b"), record(2, b"c")]
FIVE = [b"v%d" % number for number in range(5)]

EITHER = {INVALID, CORRUPT}
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)


def of(payload: bytes, count: int, codec: int = 0, last: int | None = None) -> bytes:
    """A batch of records as they are, with a count that may be a lie."""
    last = count - 1 if last is None else last
    return batch(payload=payload, count=count, attributes=codec, last_offset_delta=last)


# What is produced, and the errors it may be answered with; -1 stands for a closed connection too.
WRONG_BATCHES: dict[str, tuple[bytes, set[int]]] = {
    "crc": (batch(FIVE, crc=12345), {CORRUPT}),
    "count too high": (of(b"".join(RAW), 4), {INVALID}),
    "count too low": (of(b"".join(RAW), 2), {INVALID}),
    "count is not the last delta": (of(b"".join(RAW), 3, last=5), {INVALID}),
    "count negative": (of(b"".join(RAW), -1, last=2), EITHER),
    "count of 2^31": (of(RAW[0], MANY), {INVALID}),
    "no records": (of(b"", 0, last=0), {INVALID}),
    "offsets with a gap": (of(RAW[0] + record(2, b"x") + record(3, b"y"), 3), {INVALID}),
    "offsets backwards": (of(record(1, b"x") + record(0, b"y"), 2), {INVALID}),
    "record length past the end": (of(varint(5000) + b"\0\0\0", 1), EITHER),
    "record length negative": (of(varint(-5) + b"\0\0\0", 1), EITHER),
    "record of garbage": (of(bytes(range(100, 200)), 1), EITHER),
    "trailing bytes": (of(RAW[0] + b"\0\0\0", 1), EITHER),
    "too large": (batch([bytes(1_100_000)]), {TOO_LARGE}),
    "codec 5": (batch(FIVE, attributes=5), {UNSUPPORTED_CODEC, *EITHER, -1}),
    "codec 7": (batch(FIVE, attributes=7), {UNSUPPORTED_CODEC, *EITHER, -1}),
    "length too long": (batch(FIVE, length=100_000), EITHER),
    "length too short": (batch(FIVE, length=20), EITHER),
    "length negative": (batch(FIVE, length=-1), EITHER),
    "magic 1": (batch(FIVE, magic=1), {*EITHER, UNSUPPORTED_FORMAT}),
    "magic 9": (batch(FIVE, magic=9), EITHER),
    "two batches": (batch(FIVE) + batch(FIVE), {INVALID}),
    "control batch": (batch(FIVE, attributes=0x20), {INVALID}),
    "producer without sequence": (batch(FIVE, producer_id=5, producer_epoch=0, base_sequence=-1), {INVALID}),
    "timestamps ahead": (batch(FIVE, base_timestamp=1 << 60), {INVALID_TIMESTAMP, INVALID}),
    "half a batch": (batch(FIVE)[:50], EITHER),
    "garbage": (bytes(range(250)) * 2, EITHER),
    "zeros": (bytes(500), EITHER),
    **{f"codec {codec} of garbage": (of(bytes(range(200)), 1, codec), {*EITHER, -1}) for codec in CODECS},
    **{
        f"codec {codec} with a wrong count": (of(compress(codec, b"".join(RAW)), 7, codec), EITHER)
        for codec in CODECS
    },
    **{
        f"codec {codec} with a gap": (of(compress(codec, RAW[0] + RAW[2]), 2, codec), {INVALID})
        for codec in CODECS
    },
}


@pytest.mark.parametrize("name", WRONG_BATCHES)
def test_a_wrong_batch_is_refused_and_not_written(name: str, sturdy: Node, topic: str) -> None:
    records, codes = WRONG_BATCHES[name]
    with RawConnection(sturdy.bootstrap) as connection:
        try:
            answer = produce(connection, topic, 0, records)
        except ConnectionLost:
            assert -1 in codes, "the connection was closed"
        else:
            # Apache Kafka answers some of them with UNKNOWN_SERVER_ERROR.
            assert int(answer.error_code) in (codes if sturdy.running else {*codes, -1})
            assert answer.base_offset == -1
            # The same connection goes on.
            assert produce(connection, topic, 0, batch([b"fine"])).base_offset == 0
            assert end_offset(sturdy.bootstrap, topic, 0) == 1
            return
    assert end_offset(sturdy.bootstrap, topic, 0) == 0


@pytest.mark.parametrize(
    ("codec", "inflated"), [(GZIP, 512 * MIB), (ZSTD, 512 * MIB), (LZ4, 200 * MIB), (SNAPPY, 18 * MIB)]
)
def test_a_batch_that_inflates_without_bound_costs_no_memory(
    codec: int, inflated: int, sturdy: Node, topic: str
) -> None:
    body = b"\0\0\0" + varint(-1) + varint(inflated) + bytes(inflated) + varint(0)
    payload = compress(codec, varint(len(body)) + body)
    del body
    bomb = batch(payload=payload, count=1, attributes=codec, last_offset_delta=0)
    assert len(bomb) < MIB, "not a bomb"
    before = sturdy.peak_rss_bytes() if sturdy.running else 0
    with RawConnection(sturdy.bootstrap, 60) as connection:
        codes = [int(produce(connection, topic, 0, bomb).error_code) for _ in range(3)]
    if sturdy.running:
        # snappy packs 1:21 at most, which is no bomb but has to be bounded too.
        assert set(codes) <= {INVALID, CORRUPT, TOO_LARGE} or codec == SNAPPY
        assert sturdy.peak_rss_bytes() - before < 150 * MIB


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../../etc/passwd", "sp ace", "nul\0", "ünï", "x" * 250]
)
def test_an_invalid_topic_name_is_refused_everywhere(name: str, sturdy: Node) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        answer = produce(connection, name, 0, batch([b"x"]))
        assert int(answer.error_code) in (UNKNOWN_TOPIC, INVALID_TOPIC)
        module = schema(3, 9)
        response = connection.call(
            module.MetadataRequest(
                topics=(module.MetadataRequestTopic(name=name),),
                allow_auto_topic_creation=True,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )
        assert int(response.topics[0].error_code) in (INVALID_TOPIC, UNKNOWN_TOPIC)
    if sturdy.running:
        names = {path.name for path in sturdy.data.iterdir()}
        assert not any(entry.startswith(name) for entry in names) or name in ("", ".", "..")


@pytest.mark.parametrize("partition", [1, 1000, -1, 0x7FFFFFFF, -0x80000000])
def test_an_unknown_partition_is_refused(partition: int, sturdy: Node, topic: str) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        answer = produce(connection, topic, partition, batch([b"x"]))
        assert int(answer.error_code) == UNKNOWN_TOPIC
        assert produce(connection, topic, 0, batch([b"x"])).base_offset == 0


def test_an_unknown_topic_is_refused_and_not_made(sturdy: Node) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        assert int(produce(connection, "never-made", 0, batch([b"x"])).error_code) == UNKNOWN_TOPIC
        response = connection.call(metadata_request())
    assert "never-made" not in {topic.name for topic in response.topics}


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_do_not_exist_are_refused(acks: int, sturdy: Node, topic: str) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        response = connection.call(produce_request(topic, 0, batch([b"x"]), acks=acks))
        assert int(response.responses[0].partition_responses[0].error_code) == 21  # INVALID_REQUIRED_ACKS
    assert end_offset(sturdy.bootstrap, topic, 0) == 0


def test_a_wrong_batch_without_acks_closes_the_connection_or_is_dropped(sturdy: Node, topic: str) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        frame = encode_request(produce_request(topic, 0, batch(FIVE, crc=1), acks=0))
        connection.send_frame(frame)
        connection.is_closed_by_peer(2)
    assert end_offset(sturdy.bootstrap, topic, 0) == 0


@pytest.mark.parametrize("offset", [-1, 5, 1 << 62, -(1 << 63)])
def test_fetching_outside_the_log_is_out_of_range(offset: int, sturdy: Node, topic: str) -> None:
    with RawConnection(sturdy.bootstrap) as connection:
        response = connection.call(fetch_request(topic, offset))
        assert int(response.responses[0].partitions[0].error_code) == 1


def fetch_request(topic: str, offset: int, partition_bytes: int = MIB) -> Any:
    from datetime import timedelta

    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=partition_bytes, current_leader_epoch=-1,
        log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    return module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=partition_bytes, isolation_level=0,
        session_id=0, session_epoch=-1, topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


def test_claims_of_large_requests_cost_no_memory(sturdy: Node) -> None:
    """200 connections that announce 100 MB each and send a little of it. (It ends Apache Kafka.)"""
    if not sturdy.running:
        pytest.skip("for Firn only")
    connections = [RawConnection(sturdy.bootstrap) for _ in range(200)]
    try:
        before = sturdy.rss_bytes()
        for connection in connections:
            connection.send(struct.pack(">i", 100_000_000) + bytes(5000))
        with RawConnection(sturdy.bootstrap) as other:
            for _ in range(20):
                other.call(metadata_request())
        assert sturdy.rss_bytes() - before < 64 * MIB
    finally:
        for connection in connections:
            connection.socket.close()


def test_a_peer_that_never_reads_costs_little_memory(sturdy: Node, topic: str) -> None:
    """It asks for 1 MiB five hundred times on each of eight connections, and takes none of it."""
    Confluent().produce(sturdy.bootstrap, topic, make_rows(3000, 1))
    frame = encode_request(fetch_request(topic, 0))
    connections = [RawConnection(sturdy.bootstrap, 1) for _ in range(8)]
    before = sturdy.rss_bytes() if sturdy.running else 0
    try:
        for connection in connections:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                for _ in range(500):
                    connection.send_frame(frame)
            except TimeoutError:
                continue  # it reads no more requests while its answers are not taken
        time.sleep(0.5)
        if sturdy.running:
            assert sturdy.rss_bytes() - before < 64 * MIB
    finally:
        for connection in connections:
            connection.socket.close()


def test_broken_requests_of_every_kind_do_no_harm(sturdy: Node, topic: str) -> None:
    """Requests with bytes flipped, cut, doubled or replaced. Whatever of it is accepted can be read."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"SEED={seed}")
    source = random.Random(seed)
    originals = [
        encode_request(produce_request(topic, 0, batch(FIVE))),
        encode_request(produce_request(topic, 0, batch(FIVE, codec=ZSTD), version=7)),
        encode_request(fetch_request(topic, 0)),
        encode_request(metadata_request()),
    ]
    before = sturdy.rss_bytes() if sturdy.running else 0
    for _ in range(600):
        frame = bytearray(source.choice(originals))
        for _ in range(source.randint(1, 4)):
            position = source.randrange(len(frame))
            match source.randrange(5):
                case 0:
                    frame[position] ^= 1 << source.randrange(8)
                case 1:
                    del frame[position:]
                case 2:
                    frame[position:position] = frame[position:]
                case 3:
                    frame[position : position + 4] = b"\x7f\xff\xff\xff"
                case _:
                    frame[position : position + 8] = source.randbytes(8)
            frame = frame or bytearray(b"x")
        with RawConnection(sturdy.bootstrap) as connection:
            try:
                connection.send_frame(bytes(frame))
                connection.send_frame(encode_request(metadata_request(), 2))
                connection.socket.settimeout(2)
                while struct.unpack_from(">i", connection.receive_frame())[0] != 2:
                    pass
            except (ConnectionLost, TimeoutError):
                continue  # a fetch may have been turned into one that waits for hours
    end = end_offset(sturdy.bootstrap, topic, 0)
    rows = Confluent().read(sturdy.bootstrap, topic, 0, 0, end)
    assert {row.value for row in rows} <= set(FIVE)
    if sturdy.running:
        assert sturdy.rss_bytes() - before < 64 * MIB


def test_after_all_of_it_the_node_restarts_cleanly(sturdy: Node, bystander: Bystander) -> None:
    if not sturdy.running:
        pytest.skip("not ours to restart")
    bystander.check()
    with RawConnection(sturdy.bootstrap) as connection:
        topics = [topic.name for topic in connection.call(metadata_request()).topics]
    ends = {topic: end_offset(sturdy.bootstrap, topic, 0) for topic in topics if topic.startswith("bad-")}
    assert "Traceback" not in sturdy.stderr_path.read_text()
    sturdy.restart()
    assert {topic: end_offset(sturdy.bootstrap, topic, 0) for topic in ends} == ends
