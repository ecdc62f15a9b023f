"""Records of KIP-848 groups, as Apache Kafka 4.3 writes them: types 3 to 8 and 16. [P]

A key is ``[type: int16]`` and strings, a value ``[version: int16]`` and a flexible struct; every value is of
version 0, later fields are tagged. A tombstone is a key without a value. Kept per group:

- 3 the group's epoch and the hash of its subscribed topics · 4 topics, as brokers before 4.1 kept them (read,
  tombstoned) · 16 the topics that match a regular expression
- 5 a member's subscription · 7 its target assignment · 8 its current assignment
- 6 the epoch of the target assignments

Source: ``group-coordinator/src/main/resources/common/message/ConsumerGroup*.json``.

>>> epoch_record("g", 7, 0).value.hex()
'00000000000700'
"""

# Annotations are evaluated here, not postponed: kio reads field types from them.

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.static.constants import EntityType
from kio.static.primitive import i16

from service.base.errors import CorruptionError, UnknownVersion
from service.coordinator.shard import CoordinatorRecord
from service.wire.errors import MalformedMessage
from service.wire.primitives import (
    Cursor,
    uuid_from_bytes,
    write_compact_bytes,
    write_compact_string,
    write_nullable_compact_string,
    write_string,
    write_uvarint,
)
from service.wire.schema import Codec, compile_steps

VALUE_VERSION: Final = 0
_ONE_PARTITION = struct.Struct(">16sBiB")
"""topic id, compact count, partition, tags"""

Partitions: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id, sorted."""
Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, with the member epoch in which each was assigned."""


# Keys.


class EpochKey(NamedTuple):
    """Type 3, ConsumerGroupMetadata."""

    group_id: str


class PartitionMetadataKey(NamedTuple):
    """Type 4, ConsumerGroupPartitionMetadata."""

    group_id: str


class MemberKey(NamedTuple):
    """Type 5, ConsumerGroupMemberMetadata."""

    group_id: str
    member_id: str


class TargetEpochKey(NamedTuple):
    """Type 6, ConsumerGroupTargetAssignmentMetadata."""

    group_id: str


class TargetKey(NamedTuple):
    """Type 7, ConsumerGroupTargetAssignmentMember."""

    group_id: str
    member_id: str


class CurrentKey(NamedTuple):
    """Type 8, ConsumerGroupCurrentMemberAssignment."""

    group_id: str
    member_id: str


class RegexKey(NamedTuple):
    """Type 16, ConsumerGroupRegularExpression."""

    group_id: str
    regex: str


ModernKey: TypeAlias = (
    EpochKey | PartitionMetadataKey | MemberKey | TargetEpochKey | TargetKey | CurrentKey | RegexKey
)

KEY_TYPES: Final[Mapping[int, type[ModernKey]]] = {
    3: EpochKey,
    4: PartitionMetadataKey,
    5: MemberKey,
    6: TargetEpochKey,
    7: TargetKey,
    8: CurrentKey,
    16: RegexKey,
}
_TYPE_OF: Final = {kind: number for number, kind in KEY_TYPES.items()}


# Values.


class ConsumerRecordEntity:
    """Common class attributes of the entities below, for kio."""

    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochValue(ConsumerRecordEntity):
    """Epoch of the group, and hash of its subscribed topics."""

    epoch: int = field(metadata={"kafka_type": "int32"})
    metadata_hash: int = field(metadata={"kafka_type": "int64", "tag": 0}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRacks(ConsumerRecordEntity):
    """Deprecated part of the deprecated record."""

    partition: int = field(metadata={"kafka_type": "int32"})
    racks: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata(ConsumerRecordEntity):
    """A subscribed topic, as brokers before 4.1 kept it."""

    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    topic_name: str = field(metadata={"kafka_type": "string"})
    num_partitions: int = field(metadata={"kafka_type": "int32"})
    partition_metadata: tuple[PartitionRacks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadataValue(ConsumerRecordEntity):
    """Subscribed topics, as brokers before 4.1 kept them."""

    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """JoinGroup data of a member that uses the classic protocol: (name, metadata) of each of its
    protocols."""

    session_timeout_ms: int
    supported_protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberValue:
    """Subscription of a member."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpochValue(ConsumerRecordEntity):
    """Group epoch of the target assignments, and when they were made (ms; 0: not known)."""

    assignment_epoch: int = field(metadata={"kafka_type": "int32"})
    assignment_timestamp: int = field(metadata={"kafka_type": "int64", "tag": 0}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetValue:
    """Target assignment of a member."""

    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentValue:
    """Current assignment of a member, on its way to its target. `state` is the number of a `MemberState`."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: Owned
    pending_revocation: Owned


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexValue(ConsumerRecordEntity):
    """Topics that matched a regular expression, with the version of the metadata and the time (ms) of the
    match."""

    topics: tuple[str, ...] = field(metadata={"kafka_type": "string"})
    version: int = field(metadata={"kafka_type": "int64"})
    timestamp: int = field(metadata={"kafka_type": "int64"})


ModernValue: TypeAlias = (
    EpochValue
    | PartitionMetadataValue
    | MemberValue
    | TargetEpochValue
    | TargetValue
    | CurrentValue
    | RegexValue
)


# Reading.


def decode_key(key: bytes) -> ModernKey | None:
    """Decode the key of a KIP-848 group's record; None for any other type. Raises CorruptionError."""
    if len(key) < 2:
        raise CorruptionError(f"a record's key of {len(key)} bytes has no type")
    kind = KEY_TYPES.get(int.from_bytes(key[:2], "big", signed=True))
    if kind is None:
        return None
    try:
        group_end = 4 + int.from_bytes(key[2:4], "big", signed=True)
        if len(kind._fields) == 2 and 4 <= group_end <= len(key) - 2:
            end = group_end + 2 + int.from_bytes(key[group_end : group_end + 2], "big", signed=True)
            if group_end + 2 <= end <= len(key):
                return kind(*[str(key[4:group_end], "utf-8"), str(key[group_end + 2 : end], "utf-8")])
        cursor = Cursor(key, 2)
        return kind(*[cursor.string() for _ in kind._fields])
    except (MalformedMessage, struct.error, UnicodeDecodeError) as e:
        raise CorruptionError(f"a key of {kind.__name__} does not parse: {e}") from e


def decode_value(key: ModernKey, value: bytes) -> ModernValue:
    """Decode the value of a record with this key. Raises CorruptionError; `UnknownVersion` for a later
    version."""
    if len(value) < 2:
        raise CorruptionError(f"a record's value of {len(value)} bytes has no version")
    version = int.from_bytes(value[:2], "big", signed=True)
    if version != VALUE_VERSION:
        raise UnknownVersion(f"version {version} of {type(key).__name__}'s value is not known")
    cursor = Cursor(value, 2)
    try:
        if type(key) is MemberKey:
            return _read_member(cursor)
        if type(key) is TargetKey:
            return _read_target(cursor)
        if type(key) is CurrentKey:
            return _read_current(cursor)
        decoded: ModernValue = _codec(_VALUE_OF[type(key)]).read(cursor)
        return decoded
    except (MalformedMessage, struct.error) as e:
        raise CorruptionError(f"a value of {type(key).__name__} does not parse: {e}") from e


def _read_member(cursor: Cursor) -> MemberValue:
    instance_id, rack_id = cursor.nullable_compact_string(), cursor.nullable_compact_string()
    client_id, client_host = cursor.compact_string(), cursor.compact_string()
    names = tuple([cursor.compact_string() for _ in range(cursor.count(True))])
    regex, timeout_ms = cursor.nullable_compact_string(), cursor.int32()
    assignor, classic = cursor.nullable_compact_string(), None
    for _ in range(cursor.tagged_fields()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        start = cursor.position
        if tag != 0:
            cursor.take(size)
        elif cursor.uvarint():
            classic = _read_classic(cursor)
        if cursor.position - start != size:
            raise MalformedMessage(f"tagged field {tag} of {size} bytes holds {cursor.position - start}")
    return MemberValue(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=regex,
        rebalance_timeout_ms=timeout_ms,
        server_assignor=assignor,
        classic_member_metadata=classic,
    )


def _read_classic(cursor: Cursor) -> ClassicMemberMetadata:
    session_ms, protocols = cursor.int32(), []
    for _ in range(cursor.count(True, 3)):
        protocols.append((cursor.compact_string(), bytes(cursor.compact_bytes())))
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    return ClassicMemberMetadata(session_timeout_ms=session_ms, supported_protocols=tuple(protocols))


def _read_target(cursor: Cursor) -> TargetValue:
    partitions: dict[UUID, tuple[int, ...]] = {}
    data = cursor.data
    for _ in range(cursor.count(True, 18)):
        at = cursor.position
        if at + _ONE_PARTITION.size <= cursor.end:
            raw_id, count, partition, tags = _ONE_PARTITION.unpack_from(data, at)
            if count == 2 and not tags:  # the common case in a group of many members
                partitions[uuid_from_bytes(raw_id)] = (partition,)
                cursor.position = at + _ONE_PARTITION.size
                continue
        topic_id = cursor.uuid()
        partitions[topic_id] = tuple(sorted(set(_read_int32s(cursor))))
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    return TargetValue(partitions=partitions)


def _read_current(cursor: Cursor) -> CurrentValue:
    epoch, previous, state = cursor.int32(), cursor.int32(), cursor.int8()
    assigned = _read_owned(cursor, epoch)
    pending = _read_owned(cursor, epoch)
    cursor.skip_tagged_fields()
    return CurrentValue(
        member_epoch=epoch,
        previous_member_epoch=previous,
        state=state,
        assigned=assigned,
        pending_revocation=pending,
    )


def _read_owned(cursor: Cursor, member_epoch: int) -> Owned:
    """Read owned partitions. Where epochs are missing or too few, the member's epoch stands for them, at
    least 0."""
    owned = {}
    for _ in range(cursor.count(True, 18)):
        topic_id = cursor.uuid()
        partitions = _read_int32s(cursor)
        epochs: tuple[int, ...] | None = None
        for _ in range(cursor.tagged_fields()):
            tag, size = cursor.uvarint(), cursor.uvarint()
            if tag != 0:
                cursor.take(size)
                continue
            start = cursor.position
            epochs = _read_nullable_int32s(cursor)
            if cursor.position - start != size:
                raise MalformedMessage(f"assignment epochs of {size} bytes hold {cursor.position - start}")
        if epochs is None or len(epochs) != len(partitions):
            epochs = (max(member_epoch, 0),) * len(partitions)
        owned[topic_id] = dict(sorted(zip(partitions, epochs, strict=True)))
    return owned


def _read_int32s(cursor: Cursor) -> tuple[int, ...]:
    count = cursor.count(True, 4)
    return struct.unpack(f">{count}i", cursor.take(4 * count))


def _read_nullable_int32s(cursor: Cursor) -> tuple[int, ...] | None:
    count = cursor.uvarint() - 1
    if count < 0:
        return None
    cursor.bound(count, 4)
    return struct.unpack(f">{count}i", cursor.take(4 * count))


# Writing.


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return a record of type 3."""
    return _record(EpochKey(group_id), EpochValue(epoch=epoch, metadata_hash=metadata_hash))


def member_record(group_id: str, member_id: str, value: MemberValue) -> CoordinatorRecord:
    """Return a record of type 5. A member that is not classic has an explicit null: Kafka reads an absent
    field as one of defaults."""
    out = bytearray(_VERSION)
    write_nullable_compact_string(out, value.instance_id)
    write_nullable_compact_string(out, value.rack_id)
    write_compact_string(out, value.client_id)
    write_compact_string(out, value.client_host)
    write_uvarint(out, len(value.subscribed_topic_names) + 1)
    for name in value.subscribed_topic_names:
        write_compact_string(out, name)
    write_nullable_compact_string(out, value.subscribed_topic_regex)
    out += value.rebalance_timeout_ms.to_bytes(4, "big", signed=True)
    write_nullable_compact_string(out, value.server_assignor)
    classic = _classic(value.classic_member_metadata)
    out += b"\x01\x00"
    write_uvarint(out, len(classic))
    out += classic
    return CoordinatorRecord(encode_key(MemberKey(group_id, member_id)), bytes(out))


def _classic(metadata: ClassicMemberMetadata | None) -> bytearray:
    if metadata is None:
        return bytearray(1)
    out = bytearray(b"\x01")
    out += metadata.session_timeout_ms.to_bytes(4, "big", signed=True)
    write_uvarint(out, len(metadata.supported_protocols) + 1)
    for name, data in metadata.supported_protocols:
        write_compact_string(out, name)
        write_compact_bytes(out, data)
        out.append(0)
    out.append(0)
    return out


def target_epoch_record(group_id: str, epoch: int, timestamp: int) -> CoordinatorRecord:
    """Return a record of type 6."""
    value = TargetEpochValue(assignment_epoch=epoch, assignment_timestamp=timestamp)
    return _record(TargetEpochKey(group_id), value)


def target_record(group_id: str, member_id: str, partitions: Partitions) -> CoordinatorRecord:
    """Return a record of type 7."""
    out = bytearray(_VERSION)
    write_uvarint(out, len(partitions) + 1)
    for topic_id, numbers in partitions.items():
        out += topic_id.bytes
        _write_int32s(out, numbers)
        out.append(0)
    out.append(0)
    return CoordinatorRecord(encode_key(TargetKey(group_id, member_id)), bytes(out))


def current_record(group_id: str, member_id: str, value: CurrentValue) -> CoordinatorRecord:
    """Return a record of type 8."""
    out = bytearray(_VERSION)
    out += _CURRENT.pack(value.member_epoch, value.previous_member_epoch, value.state)
    _write_owned(out, value.assigned)
    _write_owned(out, value.pending_revocation)
    out.append(0)
    return CoordinatorRecord(encode_key(CurrentKey(group_id, member_id)), bytes(out))


def regex_record(
    group_id: str, regex: str, topics: Iterable[str], version: int, timestamp: int
) -> CoordinatorRecord:
    """Return a record of type 16."""
    value = RegexValue(topics=tuple(sorted(topics)), version=version, timestamp=timestamp)
    return _record(RegexKey(group_id, regex), value)


def tombstone(key: ModernKey) -> CoordinatorRecord:
    """Return the record that deletes what `key` names."""
    return CoordinatorRecord(encode_key(key), None)


def encode_key(key: ModernKey) -> bytes:
    """Return the bytes of a key."""
    out = bytearray(_TYPE_OF[type(key)].to_bytes(2, "big"))
    for text in key:
        write_string(out, text)
    return bytes(out)


_VERSION: Final = VALUE_VERSION.to_bytes(2, "big")
_CURRENT: Final = struct.Struct(">iib")
_VALUE_OF: Final[Mapping[type[Any], type[Any]]] = {
    EpochKey: EpochValue,
    PartitionMetadataKey: PartitionMetadataValue,
    TargetEpochKey: TargetEpochValue,
    RegexKey: RegexValue,
}


_CODECS: Final[dict[type[Any], Codec]] = {}


def _codec(kind: type[Any]) -> Codec:
    codec = _CODECS.get(kind)
    if codec is None:
        codec = _CODECS[kind] = compile_steps(kind, kind)
    return codec


def _record(key: ModernKey, value: ModernValue) -> CoordinatorRecord:
    out = bytearray(_VERSION)
    _codec(type(value)).write(out, value)
    return CoordinatorRecord(encode_key(key), bytes(out))


def _write_int32s(out: bytearray, numbers: Iterable[int]) -> None:
    numbers = tuple(numbers)
    write_uvarint(out, len(numbers) + 1)
    out += struct.pack(f">{len(numbers)}i", *numbers)


def _write_owned(out: bytearray, owned: Owned) -> None:
    write_uvarint(out, len(owned) + 1)
    for topic_id, epochs in owned.items():
        out += topic_id.bytes
        _write_int32s(out, epochs)
        tagged = bytearray()
        _write_int32s(tagged, epochs.values())
        out += b"\x01\x00"
        write_uvarint(out, len(tagged))
        out += tagged
