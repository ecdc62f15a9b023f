"""Our batches are byte for byte those of other implementations, and we read theirs."""

import io
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch

from service.records.batch import CompressionType, read_header, verify_crc
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.validation import ValidationRules, validate_produced

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
blobs = st.none() | st.binary(max_size=200)
names = st.text(max_size=6)
records = st.lists(
    st.tuples(
        st.integers(0, 4_000_000_000_000),
        blobs,
        blobs,
        st.lists(st.tuples(names, st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)
producers = st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))
Rows = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]]


def ours(
    rows: Rows, producer: tuple[int, int, int], codec: CompressionType = CompressionType.NONE
) -> bytearray:
    builder = BatchBuilder(0, codec, 0, *producer)
    for row in rows:
        builder.add(*row)
    return builder.build()


@given(rows=records, producer=producers)
@settings(deadline=None)
def test_kio_writes_the_same_bytes(rows: Rows, producer: tuple[int, int, int]) -> None:
    # kio cuts milliseconds from a float, so 8165 becomes 8164: whole seconds are safe
    rows = [(row[0] // 1000 * 1000, *row[1:]) for row in rows]
    batch = NewRecordBatch(
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        attributes=0,
        records=tuple(
            KioRecord(
                attributes=0,
                timestamp=EPOCH + timedelta(milliseconds=timestamp),
                offset=offset,
                key=key,
                value=value,
                headers=tuple(RecordHeader(key=k.encode(), value=v) for k, v in headers),
            )
            for offset, (timestamp, key, value, headers) in enumerate(rows)
        ),
    )
    out = io.BytesIO()
    write_batch(out, batch)
    assert out.getvalue() == ours(rows, producer)
    theirs, size = read_batch(bytes(ours(rows, producer)), 0)
    assert size == len(out.getvalue())
    assert [(r.key, r.value) for r in theirs.records] == [(row[1], row[2]) for row in rows]


@given(rows=records, producer=producers, codec=st.sampled_from(CompressionType))
@settings(deadline=None)
def test_kafka_python_writes_the_same_records(
    rows: Rows, producer: tuple[int, int, int], codec: CompressionType
) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 30,
    )
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        builder.append(offset, timestamp, key, value, headers)
    theirs = bytearray(builder.build())
    assert verify_crc(theirs, read_header(theirs))
    assert list(iter_records(theirs)) == list(iter_records(ours(rows, producer, codec)))
    if codec is CompressionType.NONE:
        mine = ours(rows, producer)
        mine[12:16] = theirs[12:16]
        assert mine == theirs


@given(rows=records, producer=producers, codec=st.sampled_from(CompressionType))
@settings(deadline=None)
def test_kafka_python_reads_what_we_write(
    rows: Rows, producer: tuple[int, int, int], codec: CompressionType
) -> None:
    batch = DefaultRecordBatch(bytes(ours(rows, producer, codec)))
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, r.headers) for r in batch] == [
        (timestamp, key, value, headers) for timestamp, key, value, headers in rows
    ]


@given(rows=records, codec=st.sampled_from(CompressionType))
@settings(deadline=None)
def test_a_broker_accepts_what_we_write_and_changes_nothing(rows: Rows, codec: CompressionType) -> None:
    data = ours(rows, (-1, -1, -1), codec)
    before = bytes(data)
    batch = validate_produced(data, ValidationRules(timestamp_after_max_ms=2**62), 0)
    assert bytes(batch.data) == before
    timestamps = [row[0] for row in rows]
    assert batch.max_timestamp == max(timestamps)
    assert timestamps[batch.offset_delta_of_max_timestamp] == max(timestamps)
