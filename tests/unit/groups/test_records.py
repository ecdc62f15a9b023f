"""Codecs of records and of the embedded protocol: all versions, and bytes that are not what they say."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.base.timeline import Journal
from service.groups import records
from service.groups.offsets import CommittedOffsets
from service.groups.protocol import (
    Assignment,
    MalformedEmbedded,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from service.groups.records import ClassicMemberValue, GroupKey, GroupValue, OffsetKey, OffsetValue


def short(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def compact(raw: bytes) -> bytes:
    return bytes((len(raw) + 1,)) + raw


ID = UUID(int=7)
MEMBER = ClassicMemberValue("m", None, "c", "/h", 3, 3, b"sub", b"ass")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (struct.pack(">hq", 0, 5) + short("m") + struct.pack(">q", 6), OffsetValue(5, -1, "m", 6)),
        (struct.pack(">hq", 1, 5) + short("m") + struct.pack(">qq", 6, 7), OffsetValue(5, -1, "m", 6, 7)),
        (struct.pack(">hq", 2, 5) + short("m") + struct.pack(">q", 6), OffsetValue(5, -1, "m", 6)),
        (struct.pack(">hqi", 3, 5, 9) + short("m") + struct.pack(">q", 6), OffsetValue(5, 9, "m", 6)),
        (
            struct.pack(">hqi", 4, 5, 9) + compact(b"m") + struct.pack(">q", 6) + b"\0",
            OffsetValue(5, 9, "m", 6),
        ),
        (
            struct.pack(">hqi", 4, 5, 9)
            + compact(b"m")
            + struct.pack(">q", 6)
            + b"\2\0\x10"
            + ID.bytes
            + b"\5\1x",
            OffsetValue(5, 9, "m", 6, -1, ID),
        ),
    ],
    ids=["v0", "v1", "v2", "v3", "v4", "v4 with tags"],
)
def test_offset_values_of_all_versions(value: bytes, read: OffsetValue) -> None:
    assert records.decode_offset_value(value) == read


def test_an_offset_before_offsets_had_epochs() -> None:
    """Type 0 is of 0.8; its keys are as those of type 1."""
    key = struct.pack(">h", 0) + short("g") + short("t") + struct.pack(">i", 3)
    assert records.decode_key(key) == OffsetKey("g", "t", 3)


@pytest.mark.parametrize("version", range(5))
def test_group_values_of_all_versions(version: int) -> None:
    def text(value: str) -> bytes:
        return compact(value.encode()) if version == 4 else short(value)

    def data(value: bytes) -> bytes:
        return compact(value) if version == 4 else struct.pack(">i", len(value)) + value

    none = b"\0" if version == 4 else b"\xff\xff"
    member = text("m") + (none if version >= 3 else b"") + text("c") + text("/h")
    member += struct.pack(">i", 3) * (2 if version >= 1 else 1) + data(b"sub") + data(b"ass")
    value = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 9) + text("range") + text("m")
    value += struct.pack(">q", 5) if version >= 2 else b""
    value += (b"\2" if version == 4 else struct.pack(">i", 1)) + member + (b"\0\0" if version == 4 else b"")
    group = GroupValue("consumer", 9, "range", "m", 5 if version >= 2 else -1, (MEMBER,))
    assert records.decode_group_value(value) == group
    for end in range(len(value) - (version == 4)):
        with pytest.raises(CorruptionError):
            records.decode_group_value(value[:end])


def test_a_session_stands_for_a_rebalance_timeout_that_is_missing() -> None:
    value = GroupValue(
        "consumer", 1, "range", "m", 5, (ClassicMemberValue("m", "i", "c", "h", -1, 8, b"", b""),)
    )
    read = records.decode_group_value(records.encode_group(GroupKey("g"), value).value or b"")
    assert read.members[0].rebalance_timeout_ms == 8


@pytest.mark.parametrize(
    "decode",
    [records.decode_offset_value, records.decode_group_value],
    ids=["offset", "group"],
)
@pytest.mark.parametrize("version", [-1, 5, 99])
def test_an_unknown_record_version_is_corruption(decode: Callable[[bytes], object], version: int) -> None:
    with pytest.raises(CorruptionError, match=f"version {version}"):
        decode(struct.pack(">h", version) + bytes(100))


def test_a_list_that_lies_about_its_length() -> None:
    value = (
        struct.pack(">h", 3)
        + short("consumer")
        + struct.pack(">i", 9)
        + b"\xff\xff" * 2
        + struct.pack(">q", 5)
    )
    for count in (2**31 - 1, -1, 1000):
        with pytest.raises(CorruptionError):
            records.decode_group_value(value + struct.pack(">i", count) + bytes(64))


def test_strings_longer_than_a_record_allows_are_refused() -> None:
    for write in (
        lambda: records.offset_key("g" * 32_768, "t", 0),
        lambda: records.encode_group(GroupKey("g"), GroupValue("consumer", 1, "p" * 32_768, None, 0)),
        lambda: records.offset_value(OffsetValue(1, -1, "m" * 32_768, 5, 6)),
    ):
        with pytest.raises(ValueError, match="32768"):
            write()


TEXT = st.text(max_size=20)
OFFSETS = st.builds(
    OffsetValue,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=300),
    st.integers(0, 2**62),
    st.just(-1),
    st.none() | st.uuids().filter(lambda u: u.int != 0),
)
MEMBERS = st.builds(
    ClassicMemberValue,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=50),
    st.binary(max_size=50),
)
GROUPS = st.builds(
    GroupValue,
    TEXT,
    st.integers(0, 2**31 - 1),
    st.none() | TEXT,
    st.none() | TEXT,
    st.integers(-1, 2**62),
    st.lists(MEMBERS, max_size=4).map(tuple),
)


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), OFFSETS, GROUPS)
def test_offset_and_group_records_round_trip(
    group: str, topic: str, partition: int, offset: OffsetValue, value: GroupValue
) -> None:
    written = records.encode_offset(OffsetKey(group, topic, partition), offset)
    assert records.decode_key(written.key) == OffsetKey(group, topic, partition)
    assert records.decode_offset_value(written.value or b"") == offset
    written = records.encode_group(GroupKey(group), value)
    assert records.decode_key(written.key) == GroupKey(group)
    assert records.decode_group_value(written.value or b"") == value


@given(st.binary(max_size=60))
def test_bytes_are_records_or_corrupt(data: bytes) -> None:
    for decode in (records.decode_key, records.decode_offset_value, records.decode_group_value):
        try:
            decode(data)
        except CorruptionError:
            continue


def kept(value: bytes) -> tuple[object, ...] | None:
    """Return what a shard keeps of a value; None for a corrupt one."""
    offsets = CommittedOffsets(Journal())
    group, rest = records.split_offset_key(records.offset_key("g", "t", 3))
    try:
        offsets.replay(8, group, rest, value, -1)
    except CorruptionError:
        return None
    return offsets.get("g", "t", 3)


def read(value: bytes) -> tuple[object, ...] | None:
    try:
        return (*records.decode_offset_value(value), 8)
    except CorruptionError:
        return None


LIKELY = st.one_of(
    OFFSETS.map(records.offset_value),
    OFFSETS.map(lambda value: records.offset_value(value._replace(expire_ms=5, leader_epoch=-1))),
    st.builds(lambda head, rest: head + rest, st.sampled_from([b"\0\4", b"\0\3"]), st.binary(max_size=60)),
    st.builds(lambda value, end: records.offset_value(value)[:end], OFFSETS, st.integers(0, 60)),
    st.builds(lambda value, more: records.offset_value(value)[:-1] + more, OFFSETS, st.binary(max_size=30)),
)


@given(LIKELY)
def test_a_position_is_kept_as_it_is_read(value: bytes) -> None:
    """What is common is not decoded on its way; it must come to the same."""
    assert kept(value) == read(value)


@given(st.binary(max_size=60), st.integers(0, 3))
def test_bytes_are_of_the_embedded_protocol_or_malformed(data: bytes, version: int) -> None:
    for decode in (decode_subscription, decode_assignment, lambda given: subscribed_topics([given])):
        try:
            decode(struct.pack(">h", version) + data)
        except MalformedEmbedded:
            continue


PLACES = st.lists(st.tuples(TEXT, st.lists(st.integers(0, 99), max_size=4).map(tuple)), max_size=4).map(tuple)


@given(st.lists(TEXT, max_size=4).map(tuple), PLACES, st.none() | st.binary(max_size=9), st.integers(-1, 9))
def test_subscriptions_and_assignments_are_read_as_written(
    topics: tuple[str, ...],
    places: tuple[tuple[str, tuple[int, ...]], ...],
    user_data: bytes | None,
    generation: int,
) -> None:
    subscription = Subscription(3, topics, user_data, places, generation, "rack")
    written = encode_subscription(subscription)
    assert decode_subscription(written) == subscription
    newer = struct.pack(">h", 9) + written[2:] + b"more"
    assert decode_subscription(newer) == subscription, "newer versions are read as the newest known"
    assert decode_subscription(encode_subscription(Subscription(0, topics, user_data))).topics == topics
    assert subscribed_topics([written, encode_subscription(Subscription(0, ("x",)))]) == {*topics, "x"}
    assignment = Assignment(1, places, user_data)
    assert decode_assignment(encode_assignment(assignment)) == assignment
