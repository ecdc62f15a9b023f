"""Batches, records, acks and transactions that a broker refuses, and their errors."""

from __future__ import annotations

import struct
import time
import zlib
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.conftest import NewTopic
from tests.support.batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, batch, compress, record
from tests.support.wire import ConnectionLost, RawConnection, end_offset, leader_of, produce_request, schema

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
CODECS = pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
BAD_TIMESTAMPS = "One or more records have been rejected due to invalid timestamp"


def ask(bootstrap: str, request: Any) -> list[Any]:
    """The answers of all partitions that `request` names, by who leads the first of its topics."""
    with RawConnection(leader_of(bootstrap, request.topic_data[0].name)) as connection:
        topics = connection.call(request).responses
    return [partition for topic in topics for partition in topic.partition_responses]


def send(bootstrap: str, topic: str, records: bytes | None, acks: int = -1, version: int = 9) -> Any:
    (answer,) = ask(bootstrap, produce_request(topic, 0, records, acks, version))  # type: ignore[arg-type]
    return answer


def error(bootstrap: str, topic: str, records: bytes | None, acks: int = -1, version: int = 9) -> str:
    name: str = send(bootstrap, topic, records, acks, version).error_code.name
    return name


def named(answer: Any) -> list[tuple[int, str]]:
    return [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors]


def keyed(*keys: bytes | None, codec: int = NONE, deltas: tuple[int, ...] = (), **fields: Any) -> bytes:
    """A batch with a record for each key, so many ms after now."""
    deltas = deltas or (0,) * len(keys)
    rows = zip(keys, deltas, strict=True)
    body = b"".join(record(n, b"v", key, delta) for n, (key, delta) in enumerate(rows))
    fields = {"codec": codec, "base_timestamp": NOW_MS, "max_timestamp": NOW_MS + max(deltas), **fields}
    return batch(payload=compress(codec, body), count=len(keys), **fields)


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
@CODECS
def test_records_without_a_key_are_named_from_version_8_on(
    codec: int, version: int, bootstrap: str, new_topic: NewTopic
) -> None:
    if codec == ZSTD and version < 7:
        pytest.skip("there is no zstd in this version")
    topic = new_topic(cleanup_policy="compact")
    answer = send(bootstrap, topic, keyed(None, b"k", None, codec=codec), version=version)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_record, -1)
    if version >= 8:
        why = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
        assert named(answer) == [(0, why), (2, why)]
        shown = ", ".join(f"RecordError(batchIndex={n}, message='{why}')" for n in (0, 2))
        assert answer.error_message == (
            "One or more records have been rejected due to 2 record errors in total, and only showing the "
            f"first three errors at most: [{shown}]"
        )
    assert end_offset(bootstrap, topic, 0) == 0
    assert error(bootstrap, topic, keyed(b"a", b"", codec=codec), version=version) == "none"


@CODECS
def test_each_record_has_to_keep_the_bounds_of_time(codec: int, bootstrap: str, new_topic: NewTopic) -> None:
    bounds = {
        "message_timestamp_before_max_ms": str(HOUR_MS),
        "message_timestamp_after_max_ms": str(2 * HOUR_MS),
    }
    topic = new_topic(**bounds)
    deltas = (0, -2 * HOUR_MS, HOUR_MS, 3 * HOUR_MS, -1 - NOW_MS)
    answer = send(bootstrap, topic, keyed(*[b"k"] * 5, deltas=deltas, codec=codec))
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_timestamp, BAD_TIMESTAMPS)
    assert [index for index, _ in named(answer)] == [1, 3]
    for index, message in named(answer):
        start = f"Timestamp {NOW_MS + deltas[index]} of message with offset {index} is out of range. "
        assert message.startswith(start + "The timestamp should be within [")
    good = (0, HOUR_MS, 1 - HOUR_MS // 2, -1 - NOW_MS)
    assert error(bootstrap, topic, keyed(*[b"k"] * 4, deltas=good, codec=codec)) == "none"
    assert end_offset(bootstrap, topic, 0) == 4


@CODECS
def test_log_append_time_topics_refuse_no_timestamp_but_the_type(
    codec: int, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="0")
    before = int(time.time() * 1000) - 1000
    answer = send(bootstrap, topic, keyed(b"k", b"k", deltas=(-NOW_MS, 9 * HOUR_MS), codec=codec))
    assert answer.error_code == ErrorCode.none
    stamped = answer.log_append_time
    assert before <= stamped.timestamp() * 1000 <= time.time() * 1000 + 1000
    typed = send(bootstrap, topic, keyed(b"k", b"k", codec=codec, attributes=codec | 8))
    assert (typed.error_code, typed.error_message) == (ErrorCode.invalid_timestamp, BAD_TIMESTAMPS)
    assert [index for index, _ in named(typed)] == [0, 1]
    assert end_offset(bootstrap, topic, 0) == 2


def test_the_key_is_looked_at_before_the_time(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    late = 2 * HOUR_MS
    answer = send(bootstrap, topic, keyed(None, b"k", b"k", None, deltas=(late, 0, late, 0)))
    assert answer.error_code == ErrorCode.invalid_timestamp
    assert [(index, why.split()[0]) for index, why in named(answer)] == [
        (0, "Compacted"),
        (2, "Timestamp"),
        (3, "Compacted"),
    ]
    answer = send(bootstrap, topic, keyed(None, b"k", deltas=(late, 0)))
    assert (answer.error_code, len(named(answer))) == (ErrorCode.invalid_record, 1)


LIKE_ZSTD_MS = 4 << 24
"""the fifth byte of this time stands where a batch says its codec"""


def old_message(magic: int, codec: int = NONE, timestamp_ms: int = NOW_MS) -> bytes:
    """A message set of magic 0 or 1 with one message."""
    body = bytes([magic, codec]) + (struct.pack(">q", timestamp_ms) if magic else b"")
    body += struct.pack(">ii", -1, 5) + b"value"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


GOOD = batch([b"v"], base_timestamp=NOW_MS)

REFUSED = {
    "nothing": (b"", "invalid_record"),
    "magic 0": (old_message(0), "invalid_record"),
    "magic 1": (old_message(1), "invalid_record"),
    "magic 1 at another time": (old_message(1, timestamp_ms=LIKE_ZSTD_MS), "invalid_record"),
    "two messages of magic 1": (old_message(1) * 2, "invalid_record"),
    "magic 3": (batch([b"v"], magic=3), "corrupt_message"),
    "two batches": (GOOD + GOOD, "invalid_record"),
    "half a batch": (GOOD[:50], "invalid_record"),
    "checksum": (batch([b"v"], crc=1), "corrupt_message"),
    "base offset": (batch([b"v"], base_offset=7), "invalid_record"),
    "control": (batch([b"v"], attributes=0x20), "invalid_record"),
    "no records": (batch([], count=0), "invalid_record"),
    "last offset delta": (batch([b"v"], last_offset_delta=3), "invalid_record"),
    "negative delta": (batch([b"v"], last_offset_delta=-1), "invalid_record"),
    "more counted": (batch([b"v"], count=2, last_offset_delta=1), "invalid_record"),
    "fewer counted": (batch([b"v"] * 2, count=1, last_offset_delta=0), "invalid_record"),
    "producer without sequence": (batch([b"v"], producer_id=5, producer_epoch=0), "invalid_record"),
    "too large": (batch([b"v" * 1_100_000], base_timestamp=NOW_MS), "message_too_large"),
}


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("name", REFUSED)
def test_batches_that_no_producer_sends_are_refused(
    name: str, version: int, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    records, expected = REFUSED[name]
    assert error(bootstrap, topic, records, version=version) == expected
    assert end_offset(bootstrap, topic, 0) == 0


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_acks_of_another_number_are_refused_after_what_cannot_be_read(
    acks: int, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    assert error(bootstrap, topic, GOOD, acks) == "invalid_required_acks"
    assert error(bootstrap, topic, batch([b"v"], crc=1), acks) == "invalid_required_acks"
    assert error(bootstrap, topic, old_message(1), acks) == "invalid_record"
    assert error(bootstrap, topic, GOOD + GOOD, acks) == "invalid_record"
    assert error(bootstrap, f"no-{topic}", GOOD, acks) == "unknown_topic_or_partition"
    assert end_offset(bootstrap, topic, 0) == 0


def transactional(sequence: int = 0) -> bytes:
    ids: dict[str, Any] = {"producer_id": 1 << 40, "producer_epoch": 0, "base_sequence": sequence}
    return batch([b"v"], base_timestamp=NOW_MS, attributes=0x10, **ids)


@pytest.mark.parametrize("others", [0, 1, 300])
def test_transactional_records_without_a_transactional_id_fail_the_whole_request(
    others: int, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    module = schema(0, 9)
    parts = [module.PartitionProduceData(index=0, records=GOOD)] if others else []
    parts += [module.PartitionProduceData(index=9 + n, records=transactional()) for n in range(others or 1)]
    request = module.ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=(module.TopicProduceData(name=topic, partition_data=tuple(parts)),),
    )
    answers = ask(bootstrap, request)
    assert len(answers) == len(parts)
    assert {one.error_code.name for one in answers} == {"transactional_id_authorization_failed"}
    assert end_offset(bootstrap, topic, 0) == 0


def test_an_unknown_transactional_id_writes_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    module = schema(0, 9)
    request = module.ProduceRequest(
        transactional_id="nobody",
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=(
            module.TopicProduceData(
                name=topic, partition_data=(module.PartitionProduceData(index=0, records=transactional()),)
            ),
        ),
    )
    (answer,) = ask(bootstrap, request)
    # The other while the topic of transactions is not there.
    assert answer.error_code.name in ("invalid_producer_id_mapping", "not_enough_replicas")
    assert end_offset(bootstrap, topic, 0) == 0
    # Records that are not transactional are anybody's.
    (answer,) = ask(bootstrap, produce_request(topic, 0, GOOD))
    assert answer.error_code == ErrorCode.none


def test_a_refused_batch_without_acks_closes_the_connection(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        from tests.support.wire import encode_request

        connection.send_frame(encode_request(produce_request(topic, 0, GOOD, acks=0)))
        assert connection.call(produce_request(topic, 0, GOOD)).responses[0].partition_responses[
            0
        ].base_offset == (1)
        connection.send_frame(encode_request(produce_request(topic, 0, batch([b"v"], crc=1), acks=0)))
        with pytest.raises(ConnectionLost):
            connection.receive_frame()
    assert end_offset(bootstrap, topic, 0) == 2
