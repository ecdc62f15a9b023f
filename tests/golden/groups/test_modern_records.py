"""The records of KIP-848 groups as Apache Kafka 4.3.1 wrote them: read, and written again byte for byte.

``modern-records.json`` is what three groups left in ``__consumer_offsets``, in rows of partition, offset, key
and value (hex; null is a tombstone): `modern` (three members, one of them static, with a rack and an
assignor of its own), `regex` (librdkafka, ``^orders.*``) and `mixed` (a classic member among them). At the
end every member has left, but for the static one, which is away.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.base.timeline import Journal
from service.coordinator.shard import CoordinatorRecord
from service.groups import records_modern as modern
from service.groups.consumer.group import AWAY_EPOCH, ConsumerGroup, GroupState
from service.groups.consumer.replay import apply

ROWS = json.loads((Path(__file__).parent / "modern-records.json").read_text())


def rows() -> list[CoordinatorRecord]:
    assert len(ROWS) > 50
    return [
        CoordinatorRecord(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
        for _, _, key, value in ROWS
    ]


def parsed(record: CoordinatorRecord) -> tuple[modern.ModernKey, modern.ModernValue | None]:
    key = modern.decode_key(record.key)
    assert key is not None
    return key, None if record.value is None else modern.decode_value(key, record.value)


def written(key: modern.ModernKey, value: modern.ModernValue | None) -> CoordinatorRecord:
    match value:
        case None:
            return modern.tombstone(key)
        case modern.EpochValue():
            return modern.epoch_record(key.group_id, value.epoch, value.metadata_hash)
        case modern.MemberValue():
            return modern.member_record(key.group_id, key.member_id, value)
        case modern.TargetEpochValue():
            return modern.target_epoch_record(
                key.group_id, value.assignment_epoch, value.assignment_timestamp
            )
        case modern.TargetValue():
            return modern.target_record(key.group_id, key.member_id, value.partitions)
        case modern.CurrentValue():
            return modern.current_record(key.group_id, key.member_id, value)
        case modern.RegexValue():
            return modern.regex_record(key.group_id, key.regex, value.topics, value.version, value.timestamp)
        case _:
            raise AssertionError(value)


def test_every_record_is_written_again_byte_for_byte() -> None:
    for record in rows():
        assert written(*parsed(record)) == record


def test_all_kinds_that_kafka_writes_are_there() -> None:
    kinds = {type(parsed(record)[0]) for record in rows()}
    assert kinds == set(modern.KEY_TYPES.values()) - {modern.PartitionMetadataKey}


def test_a_record_that_is_cut_short_is_refused_wherever_it_is_cut() -> None:
    for record in rows():
        for size in range(2, len(record.key)):
            with pytest.raises(CorruptionError):
                modern.decode_key(record.key[:size])
        if record.value is None:
            continue
        key = modern.decode_key(record.key)
        assert key is not None
        for size in range(len(record.value)):
            with pytest.raises(CorruptionError):
                modern.decode_value(key, record.value[:size])


def test_a_value_of_a_later_version_is_refused() -> None:
    record = rows()[0]
    key = modern.decode_key(record.key)
    assert key is not None
    assert record.value is not None
    with pytest.raises(CorruptionError, match="version 1"):
        modern.decode_value(key, b"\0\1" + record.value[2:])


def test_types_of_others_are_not_looked_at() -> None:
    assert modern.decode_key(b"\0\2\0\1g") is None
    assert modern.decode_key(b"\0\x0a\0\1g") is None
    with pytest.raises(CorruptionError):
        modern.decode_key(b"\0")


def test_the_log_of_kafka_adds_up_to_its_groups() -> None:
    groups: dict[str, ConsumerGroup] = {}
    journal = Journal()
    for record in rows():
        key, value = parsed(record)
        apply(groups.setdefault(key.group_id, ConsumerGroup(key.group_id, journal)), key, value)
    assert {name: group.state() for name, group in groups.items()} == {
        "modern": GroupState.ASSIGNING,
        "mixed": GroupState.EMPTY,
        "regex": GroupState.EMPTY,
    }
    (away,) = groups["modern"].members.values()
    assert (away.instance_id, away.epoch, away.rack_id) == ("static-1", AWAY_EPOCH, "rack-a")
    ((topic_id, partitions),) = away.assigned.items()
    assert [groups["modern"].owner(topic_id, n) for n in range(3)] == [away.member_id, None, None]
    assert partitions == {0: 0}
    assert groups["modern"].target(away.member_id) == {topic_id: (0, 1)}
    assert not groups["regex"].regexes.keys()
    assert not groups["regex"].subscribed.keys()


def test_the_metadata_of_brokers_before_4_1_is_read() -> None:
    key = modern.PartitionMetadataKey("g")
    topic = "00000000000000000000000000000007" + "026f" + "00000003"
    racks = "02" + "00000001" + "01" + "00"
    value = bytes.fromhex("0000" + "02" + topic + racks + "00" + "00")
    decoded = modern.decode_value(key, value)
    assert isinstance(decoded, modern.PartitionMetadataValue)
    assert decoded.topics[0].topic_name == "o"
    assert decoded.topics[0].num_partitions == 3
