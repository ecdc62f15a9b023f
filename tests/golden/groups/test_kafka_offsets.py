"""A partition of ``__consumer_offsets`` that Apache Kafka wrote: the same bytes, and the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.coordinator.shard import Schedule
from service.groups import records
from service.groups.admin import GroupFilter
from service.groups.protocol import decode_assignment, decode_subscription
from service.groups.requests import OffsetFetchGroup, OffsetFetchTopic
from service.groups.shard import GroupShard
from service.records.batch import iter_headers
from service.records.decode import Record, iter_records
from tests.support.groups import Topics, classic_shard

GOLDEN = Path(__file__).parent / "kafka-offsets"
LOG = (GOLDEN / f"{0:020}.log").read_bytes()
RECORDS = list(iter_records(LOG))


@pytest.fixture(scope="module")
def expected() -> Any:
    return json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture(scope="module")
def shard(expected: Any) -> GroupShard:
    """As it is after a load."""
    topics = Topics()
    for name, topic_id in expected["topics"].items():
        topics.make(name, 3, UUID(topic_id).int)
    made = classic_shard(topics)
    for header in iter_headers(LOG):
        for record in iter_records(LOG[header.position : header.end], include_control=True):
            made.journal.at(record.offset)
            assert record.key is not None
            if header.is_control:
                committed = int.from_bytes(record.key[2:4], "big") == 1
                made.replay_marker(header.producer_id, header.producer_epoch, committed)
            else:
                producer_id = header.producer_id if header.is_transactional else -1
                made.replay(record.offset, record.key, record.value, producer_id, header.producer_epoch)
            made.journal.commit(record.offset + 1)
    made.loaded(RECORDS[-1].timestamp)
    return made


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.offset))
def test_our_bytes_are_kafkas(record: Record) -> None:
    assert record.key is not None
    key = records.decode_key(record.key)
    if isinstance(key, records.OffsetKey):
        ours = records.offset_tombstone(key)
        if record.value is not None:
            ours = records.encode_offset(key, records.decode_offset_value(record.value))
    else:
        assert isinstance(key, records.GroupKey)
        ours = records.group_tombstone(key.group)
        if record.value is not None:
            ours = records.encode_group(key, records.decode_group_value(record.value))
    assert (ours.key, ours.value) == (record.key, record.value)


def test_offsets_are_what_kafka_answered(shard: GroupShard, expected: Any) -> None:
    assert expected["offsets"]
    for group_id, offsets in expected["offsets"].items():
        fetched = at_once(shard.fetch_all_offsets(OffsetFetchGroup(group_id, None)))
        told = sorted(
            # The client that wrote them ends its texts with a zero, and reads them without.
            [topic.name, p.partition_index, p.committed_offset, p.metadata.rstrip("\0")]
            for topic in fetched.topics
            for p in topic.partitions
        )
        assert told == [[*place, metadata.rstrip("\0 ")] for *place, metadata in offsets], group_id


def test_groups_are_what_kafka_answered(shard: GroupShard, expected: Any) -> None:
    for group_id, told in expected["groups"].items():
        (ours,) = shard.describe_groups([group_id], 6)
        assert ours.group_state.upper() == told["state"], group_id
        if told["state"] != "STABLE":
            continue
        assert (ours.protocol_type, ours.protocol_data) == ("consumer", told["protocol"])
        members = sorted(
            [
                *(m.member_id, m.client_id, m.group_instance_id or "", m.client_host),
                *sorted(
                    f"{t}-{p}" for t, ps in decode_assignment(m.member_assignment).partitions for p in ps
                ),
            ]
            for m in ours.members
        )
        assert members == told["members"]
        topics = {topic for m in ours.members for topic in decode_subscription(m.member_metadata).topics}
        assert topics == {"orders", "bills"}
    assert {g.group_id for g in at_once(shard.list_groups(GroupFilter(None, None)))} == {
        "shop",
        "lone",
        "assigned",
        "exact",
    }


def test_an_open_transaction_is_waited_for(shard: GroupShard) -> None:
    request = OffsetFetchGroup("exact", (OffsetFetchTopic("orders", None, (0, 1, 2)),))
    told = shard.fetch_stable_offsets(request).response.topics[0].partitions
    assert [p.error_code for p in told] == [ErrorCode.none, ErrorCode.none, ErrorCode.unstable_offset_commit]
    assert [p.committed_offset for p in told] == [9, -1, -1]


def test_timers_of_a_group_begin_with_the_load(shard: GroupShard) -> None:
    effects = shard.loaded(0)
    names = [e.name for e in effects if isinstance(e, Schedule) and "classic session" in str(e.name)]
    assert len(names) == 2
