"""Dumper of `__consumer_offsets` segments: offsets, groups and members, record by record.

A record without a value is a tombstone. A record of an unknown type or version is named and shown raw; so is
one whose key or value does not parse, with the reason: the records after it are shown all the same, as the
checksum of its batch was right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.groups import records as classic
from service.groups import records_modern as modern
from service.groups.protocol import (
    CONSUMER_PROTOCOL,
    MalformedEmbedded,
    decode_assignment,
    decode_subscription,
)
from service.hot.log_dir import encode_uuid
from service.inspect.dump import Dump, Row, plain
from service.inspect.segment import base_offset_of, describe_control, describe_record, iter_batches
from service.inspect.source import Source
from service.records.batch import BatchHeader
from service.records.decode import Record, iter_records

OFFSETS_TOPIC: Final = "__consumer_offsets"

_NAMES: Final[Mapping[int, str]] = {
    0: "LegacyOffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}
_FAMILIES: Final = ((range(10, 16), "share groups"), (range(17, 24), "streams groups"))
_MEMBER_STATES: Final[Mapping[int, str]] = {
    0: "STABLE",
    1: "UNREVOKED_PARTITIONS",
    2: "UNRELEASED_PARTITIONS",
}


def is_offsets_folder(folder: str) -> bool:
    """Return whether a folder is a partition directory of `__consumer_offsets`."""
    topic, _, partition = folder.rpartition("-")
    return topic == OFFSETS_TOPIC and partition.isdecimal()


def dump_offsets_log(source: Source) -> Dump:
    """Dump a segment of `__consumer_offsets`: one row for each record."""
    rows = (row for header, data in iter_batches(source) for row in _rows(header, data))
    head = {"base_offset": base_offset_of(source), "size": source.size}
    return Dump("consumer offsets log", head, (("records", rows),))


def _rows(header: BatchHeader, data: bytes) -> Iterator[Row]:
    transaction: dict[str, object] = {}
    if header.is_transactional or header.is_control:
        transaction = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
    if header.is_control:
        for record in iter_records(data, include_control=True):
            yield {**describe_control(record), **transaction}
        return
    for record in iter_records(data):
        place = {"offset": record.offset, "timestamp": record.timestamp}
        yield {**place, **transaction, **decoded(record)}


def decoded(record: Record) -> dict[str, object]:
    """Return type, version, key and value of a record; an undecodable one is shown raw, beside an `error`."""
    raw = {name: found for name, found in describe_record(record).items() if name in ("key", "value")}
    if record.key is None:
        return {"type": "unknown", **raw, "error": "a record without a key"}
    try:
        kind = classic.record_type(record.key)
    except CorruptionError as e:
        return {"type": "unknown", **raw, "error": str(e)}
    if kind not in _NAMES:
        family = next((f" (of {words})" for kinds, words in _FAMILIES if kind in kinds), "")
        return {"type": f"unknown type {kind}{family}", **raw}
    row: dict[str, object] = {"type": _NAMES[kind]}
    try:
        key: Any = classic.decode_key(record.key) or modern.decode_key(record.key)
    except CorruptionError as e:
        return {**row, **raw, "error": str(e)}
    row |= {"group": key.group} if isinstance(key, classic.GroupKey) else key._asdict()
    if "group_id" in row:
        row = {"type": row["type"], "group": row.pop("group_id"), **row}
    if record.value is None:
        return {**row, "value": None, "tombstone": True}
    if len(record.value) >= 2:
        row["version"] = int.from_bytes(record.value[:2], "big", signed=True)
    try:
        row["value"] = _value(key, record.value)
    except (CorruptionError, UnknownVersion) as e:
        row |= {"value": record.value, "error": str(e)}
    return row


def _value(key: Any, value: bytes) -> dict[str, object]:
    if isinstance(key, classic.OffsetKey):
        return classic.decode_offset_value(value)._asdict()
    if isinstance(key, classic.GroupKey):
        return _group(classic.decode_group_value(value))
    found = _fields(modern.decode_value(key, value))
    if isinstance(key, modern.CurrentKey):
        found["state"] = _MEMBER_STATES.get(found["state"], found["state"])
    if isinstance(key, modern.MemberKey) and (joined := found["classic_member_metadata"]) is not None:
        joined = _fields(joined)
        joined["supported_protocols"] = [
            {"name": name, "metadata": _embedded(decode_subscription, data)}
            for name, data in joined["supported_protocols"]
        ]
        found["classic_member_metadata"] = joined
    return found


def _group(group: classic.GroupValue) -> dict[str, object]:
    """Return the fields of a classic group. Members' data are decoded only in groups of consumers."""
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    found = _fields(group)
    found["members"] = []
    for member in group.members:
        fields = _fields(member)
        if is_consumer:
            fields["subscription"] = _embedded(decode_subscription, member.subscription)
            fields["assignment"] = _embedded(decode_assignment, member.assignment)
        found["members"].append(fields)
    return found


def _embedded(decode: Any, data: bytes) -> object:
    """Return decoded client data, raw where it is not of the consumer protocol."""
    try:
        return _fields(decode(data)) if data else None
    except MalformedEmbedded as e:
        return {"error": str(e), "data": data}


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a value; topic ids as keys are strings, in Kafka's form."""
    return {name: _plain(found) for name, found in plain(value).items()}


def _plain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {encode_uuid(k) if isinstance(k, UUID) else str(k): _plain(v) for k, v in value.items()}


__all__ = ["OFFSETS_TOPIC", "decoded", "dump_offsets_log", "is_offsets_folder"]
