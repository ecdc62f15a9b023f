"""`firn dump --records` of `__consumer_offsets`: every kind of record, unknown and damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.groups import records as classic
from service.groups import records_modern as modern
from service.hot.log_dir import encode_uuid
from service.inspect.coordinators import decoded
from service.inspect.dump import plain, write_json, write_text
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.decode import Record

TOPIC = UUID("6f8a1c3e-0000-4000-8000-000000000001")
GOLDEN = Path(__file__).parents[2] / "golden" / "groups"
MODERN = json.loads((GOLDEN / "modern-records.json").read_text())
KAFKA_LOG = GOLDEN / "kafka-offsets" / "00000000000000000000.log"


def said(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """A record as JSON has it."""
    row = decoded(Record(0, 0, 0, key, value, ()))
    found: dict[str, Any] = json.loads(json.dumps(row, default=plain))
    return found


def placed(tmp_path: Path, data: bytes, name: str = "__consumer_offsets-7") -> str:
    folder = tmp_path / name
    folder.mkdir()
    path = folder / f"{0:020d}.log"
    path.write_bytes(data)
    return str(path)


def as_json(path: str, *, records: bool = True) -> dict[str, Any]:
    out = io.StringIO()
    write_json(dump(open_source(path), records=records), out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def batch(*pairs: tuple[bytes | None, bytes | None]) -> bytes:
    builder = BatchBuilder(0, CompressionType.NONE, 0)
    for key, value in pairs:
        builder.add(1000, key, value)
    return bytes(builder.build())


def test_records_that_kafka_wrote_are_read_to_the_last_one(tmp_path: Path) -> None:
    found = as_json(placed(tmp_path, KAFKA_LOG.read_bytes()))
    assert found["kind"] == "consumer offsets log"
    assert {row["type"] for row in found["records"]} >= {"OffsetCommit", "GroupMetadata"}
    assert not [row for row in found["records"] if "error" in row or "unknown" in row["type"]]
    assert [row["offset"] for row in found["records"]] == sorted(row["offset"] for row in found["records"])


def test_every_kind_of_a_modern_group_is_named() -> None:
    kinds = set()
    for _, _, key, value in MODERN:
        row = said(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
        assert "error" not in row
        assert ("tombstone" in row) == (value is None)
        kinds.add(row["type"])
    assert kinds >= {
        "ConsumerGroupMetadata", "ConsumerGroupMemberMetadata", "ConsumerGroupTargetAssignmentMetadata",
        "ConsumerGroupTargetAssignmentMember", "ConsumerGroupCurrentMemberAssignment",
        "ConsumerGroupRegularExpression",
    }  # fmt: skip


def test_a_member_of_the_classic_protocol_in_a_modern_group_is_read() -> None:
    joined = [
        row["value"]["classic_member_metadata"]
        for row in (said(bytes.fromhex(key), value and bytes.fromhex(value)) for _, _, key, value in MODERN)
        if row["type"] == "ConsumerGroupMemberMetadata" and row["value"] is not None
    ]
    (one,) = [one for one in joined if one is not None][:1]
    assert one["supported_protocols"][0]["metadata"]["topics"]


def test_topics_as_older_brokers_kept_them_and_partitions_by_topic() -> None:
    racks = b"\x02" + (3).to_bytes(4, "big") + b"\x02\x05rack" + b"\x00"
    topic = TOPIC.bytes + b"\x08flights" + (6).to_bytes(4, "big") + racks + b"\x00"
    row = said(modern.encode_key(modern.PartitionMetadataKey("g")), b"\x00\x00\x02" + topic + b"\x00")
    assert row["type"] == "ConsumerGroupPartitionMetadata"
    (told,) = row["value"]["topics"]
    assert (told["topic_name"], told["num_partitions"]) == ("flights", 6)
    assert told["partition_metadata"] == [{"partition": 3, "racks": ["rack"]}]
    record = modern.target_record("g", "m", {TOPIC: (0, 2)})
    assert said(record.key, record.value)["value"] == {"partitions": {encode_uuid(TOPIC): [0, 2]}}


def test_offsets_of_transactions_and_what_became_of_them(tmp_path: Path) -> None:
    record = classic.encode_offset(classic.OffsetKey("g", "t", 0), classic.OffsetValue(1, -1, "", 1))
    pending = BatchBuilder(0, CompressionType.NONE, 0, producer_id=7, producer_epoch=2, is_transactional=True)
    pending.add(1000, record.key, record.value)
    marker = BatchBuilder(
        1, CompressionType.NONE, 0, producer_id=7, producer_epoch=2, is_transactional=True, is_control=True
    )
    marker.add(1000, b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x01")
    first, second = as_json(placed(tmp_path, bytes(pending.build()) + bytes(marker.build())))["records"]
    assert (first["type"], first["producer_id"], first["producer_epoch"]) == ("OffsetCommit", 7, 2)
    assert (second["type"], second["producer_id"], second["offset"]) == ("ABORT", 7, 1)


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    record = classic.encode_offset(
        classic.OffsetKey("g\n\x1b[2J\u202e", "t", 0), classic.OffsetValue(1, -1, "a\nb", 1)
    )
    out = io.StringIO()
    write_text(dump(open_source(placed(tmp_path, batch((record.key, record.value)))), records=True), out)
    assert len(out.getvalue().splitlines()) == 5
    assert "\x1b" not in out.getvalue()


def test_an_offset_its_tombstone_and_a_group() -> None:
    key = classic.OffsetKey("billing", "flights", 3)
    record = classic.encode_offset(key, classic.OffsetValue(42, 7, "note", 1000))
    row = said(record.key, record.value)
    assert (row["type"], row["group"], row["topic"], row["partition"]) == (
        "OffsetCommit", "billing", "flights", 3,
    )  # fmt: skip
    assert (row["value"]["offset"], row["value"]["leader_epoch"], row["value"]["metadata"]) == (42, 7, "note")
    gone = said(record.key, None)
    assert (gone["value"], gone["tombstone"]) == (None, True)
    group = classic.group_tombstone("billing")
    assert said(group.key, None) == {
        "type": "GroupMetadata", "group": "billing", "value": None, "tombstone": True,
    }  # fmt: skip


def test_member_data_of_other_protocols_is_shown_as_bytes() -> None:
    member = classic.ClassicMemberValue("m", None, "c", "/h", 1, 2, b"\xff\x01", b"\x00")
    for protocol_type, shape in (("connect", {"hex": "ff01"}), ("consumer", None)):
        value = classic.GroupValue(protocol_type, 1, "p", "m", 5, (member,))
        record = classic.encode_group(classic.GroupKey("g"), value)
        (told,) = said(record.key, record.value)["value"]["members"]
        if shape is not None:
            assert told["subscription"] == shape
        else:
            assert told["subscription"]["data"] == {"hex": "ff01"}
            assert told["subscription"]["error"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (12, "unknown type 12 (of share groups)"),
        (20, "unknown type 20 (of streams groups)"),
        (99, "unknown type 99"),
    ],
)
def test_types_that_are_not_known_are_named_and_shown(kind: int, words: str) -> None:
    row = said(kind.to_bytes(2, "big") + b"rest", b"what")
    assert row["type"] == words
    assert row["value"] == "what"
    assert "error" not in row


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (None, b"", "unknown"),
        (b"\x00", b"", "unknown"),
        (b"\x00\x01\x00\x09short", b"", "OffsetCommit"),
        (classic.offset_key("g", "t", 0), b"\x00\x09rest", "OffsetCommit"),
        (classic.offset_key("g", "t", 0), b"", "OffsetCommit"),
        (classic.group_tombstone("g").key, b"\x00\x03\x00", "GroupMetadata"),
        (modern.encode_key(modern.EpochKey("g")), b"\x00\x00\x00", "ConsumerGroupMetadata"),
        (modern.encode_key(modern.EpochKey("g")), b"\x00\x07", "ConsumerGroupMetadata"),
    ],
)
def test_a_malformed_record_is_shown_with_its_error(key: bytes | None, value: bytes, kind: str) -> None:
    row = said(key, value)
    assert row["type"] == kind
    assert row["error"]
    assert "value" in row


def test_a_damaged_record_does_not_hide_what_follows(tmp_path: Path) -> None:
    good = classic.encode_offset(classic.OffsetKey("g", "t", 0), classic.OffsetValue(1, -1, "", 1))
    path = placed(tmp_path, batch((b"\x00\x01\xff", b""), (good.key, good.value)))
    first, second = as_json(path)["records"]
    assert first["error"]
    assert second["value"]["offset"] == 1
    out = io.StringIO()
    write_text(dump(open_source(path), records=True), out)
    assert len(out.getvalue().splitlines()) == 6


def test_without_records_and_elsewhere_it_is_a_log_like_any_other(tmp_path: Path) -> None:
    data = batch((b"key", b"value"))
    assert as_json(placed(tmp_path, data), records=False)["kind"] == "log"
    assert as_json(placed(tmp_path, data, "flights-0"))["kind"] == "log"
    assert as_json(placed(tmp_path, data, "__consumer_offsets-x"))["kind"] == "log"


@given(key=st.binary(max_size=40), value=st.none() | st.binary(max_size=60), kind=st.integers(0, 24))
def test_no_bytes_are_too_odd(key: bytes, value: bytes | None, kind: int) -> None:
    row = said(kind.to_bytes(2, "big") + key, value)
    assert row["type"]
