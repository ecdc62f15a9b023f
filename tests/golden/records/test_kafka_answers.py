"""Our answers to batches and the stored batches equal those of Apache Kafka 4.3.1; exceptions say why."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import RequestError
from service.config.settings import LogConfig
from service.records.batch import HEADER_SIZE, read_header, stamp, verify_crc
from service.records.compression import decompress
from service.records.validation import rules_of, validate_produced

ANSWERS = json.loads((Path(__file__).parent / "answers.json").read_text())
CASES = {case["name"]: case for case in ANSWERS["cases"]}

NOT_AS_KAFKA = {
    # an internal exception of Kafka's
    **{f"codec {codec}": "unsupported_compression_type" for codec in (5, 6, 7)},
    **{
        f"{codec}, {what}": "invalid_record"
        for codec in ("gzip", "snappy", "lz4", "zstd")
        for what in ("uncompressed records", "cut payload", "empty payload")
    },
    "length 2147483647": "invalid_record",
    "48 bytes, all there": "corrupt_message",
    "record length varint of 6 bytes": "invalid_record",
    # Kafka cuts off what cannot be a batch
    "5 zero bytes after the batch": "invalid_record",
    "5 high bytes after the batch": "invalid_record",
    "length 74": "invalid_record",
    # the whole request fails in Kafka, as it has no transactional id
    "transactional": "invalid_producer_id_mapping",
    # Kafka stores what nobody checked
    "offsets not in order": "invalid_record",
    "typed append time": "invalid_timestamp",
    **{
        f"{topic}: typed append time": "invalid_timestamp"
        for topic in ("bounded", "to-uncompressed", "to-gzip", "to-snappy", "to-lz4", "to-zstd")
    },
}


def produced_bytes(case: dict[str, Any]) -> bytearray:
    text = case["produced"]
    if " then " not in text:
        return bytearray.fromhex(text)
    head, rest = text.split(" then ")
    fill, _, size, _, _, last = rest.split(" ")
    data = bytearray.fromhex(head).ljust(int(size), bytes.fromhex(fill))
    data[-1:] = bytes.fromhex(last)
    return data


def log_config(case: dict[str, Any]) -> LogConfig:
    values = {key.replace(".", "_"): value for key, value in case["config"].items()}
    fields: dict[str, Any] = {key: int(v) if v.isdigit() else v for key, v in values.items()}
    return LogConfig(**fields)


@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if case["error"] != "none" or n in NOT_AS_KAFKA]
)
def test_a_bad_batch_gets_kafkas_error(name: str) -> None:
    case = CASES[name]
    with pytest.raises(RequestError) as raised:
        validate_produced(produced_bytes(case), rules_of(log_config(case), 64 << 20), ANSWERS["now_ms"])
    assert raised.value.code.name == NOT_AS_KAFKA.get(name, case["error"])
    assert raised.value.message


@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if "stored" in case and n not in NOT_AS_KAFKA]
)
def test_a_good_batch_is_stored_with_kafkas_bytes(name: str) -> None:
    case = CASES[name]
    stored = bytes.fromhex(case["stored"])
    kafka = read_header(stored)
    now_ms = kafka.max_timestamp if kafka.is_log_append_time else ANSWERS["now_ms"]
    batch = validate_produced(produced_bytes(case), rules_of(log_config(case), 64 << 20), now_ms)
    stamp(batch.data, 0, kafka.base_offset, kafka.partition_leader_epoch)
    if "compression.type" not in case["config"]:
        assert bytes(batch.data) == stored
        return
    ours = read_header(batch.data)
    same = {"crc": 0, "batch_length": 0}
    assert ours._replace(**same) == kafka._replace(**same)
    assert verify_crc(batch.data, ours)
    assert inflated(bytes(batch.data)) == inflated(stored)


def inflated(batch: bytes) -> bytes:
    return bytes(decompress(read_header(batch).codec, batch[HEADER_SIZE:], 1 << 20))
