"""Batches that real producers sent and Apache Kafka stored: read, verified, accepted and left as they are."""

import json
from pathlib import Path

import pytest

from service.records.batch import CompressionType, iter_headers, stamp, verify_crc
from service.records.compression import compress, decompress
from service.records.decode import Record, iter_records
from service.records.scan import scan_batches
from service.records.validation import ValidationRules, validate_produced

HERE = Path(__file__).parent
SENT = json.loads((HERE / "sent.json").read_text())
GOLDENS = sorted(HERE.glob("*.log"))
assert GOLDENS


def read(path: Path) -> tuple[str, CompressionType, bytes]:
    client, codec = path.stem.rsplit("-", 1)
    return client, CompressionType[codec.upper()], path.read_bytes()


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def expected_records(client: str) -> list[Record]:
    without_null_headers = client == "kafka-python"
    return [
        Record(
            offset,
            record["timestamp"],
            0,
            encoded(record["key"]),
            encoded(record["value"]),
            tuple(
                (key, (encoded(value) or b"") if without_null_headers else encoded(value))
                for key, value in record["headers"]
            ),
        )
        for offset, record in enumerate(SENT["records"])
    ]


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_every_record_reads_back_as_it_was_sent(path: Path) -> None:
    client, codec, data = read(path)
    headers = list(iter_headers(data))
    assert all(verify_crc(data, header) for header in headers)
    assert {header.codec for header in headers} == {codec}
    records = list(iter_records(data))
    if client == "java":
        assert [(r.key, r.value) for r in records] == [
            (b"key-1", b"value one"),
            (b"key-2", b"value two"),
            (b"key-3", b"long" * 50),
        ]
        assert records[0].headers == (("h1", b"x"), ("h2", b"y"))
    else:
        assert records == expected_records(client)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_the_batch_is_accepted_and_not_a_byte_is_changed(path: Path) -> None:
    _, _, stored = read(path)
    (header,) = iter_headers(stored)
    produced = bytearray(stored)
    stamp(produced, 0, 0, -1)
    before = bytes(produced)
    batch = validate_produced(produced, ValidationRules(), max(SENT["now_ms"], header.max_timestamp))
    assert bytes(batch.data) == before
    assert batch.max_timestamp == header.max_timestamp
    assert batch.record_count == header.record_count
    stamp(batch.data, 0, header.base_offset, header.partition_leader_epoch)
    assert bytes(batch.data) == stored


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_our_own_framing_gives_the_same_records_again(path: Path) -> None:
    _, codec, data = read(path)
    records = decompress(codec, data[61:], 1 << 20)
    assert bytes(decompress(codec, compress(codec, records), len(records))) == bytes(records)


def test_a_log_of_all_of_them_is_walked_batch_by_batch() -> None:
    log = bytearray()
    offset = 0
    for path in GOLDENS:
        position = len(log)
        log += path.read_bytes()
        for header in iter_headers(log, position):
            stamp(log, header.position, offset, 3)
            offset += header.record_count
    scan = scan_batches(log)
    assert scan.status == 0
    assert scan.end == len(log)
    assert sum(scan.record_counts) == offset
    assert list(scan.positions) == [header.position for header in iter_headers(log)]
