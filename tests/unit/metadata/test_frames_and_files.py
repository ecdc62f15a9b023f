"""Bytes that are not as they should be: frames, control records, quorum-state, snapshots."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.base.disk import SystemDisk
from service.base.errors import CorruptionError
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame, UnknownRecord, decode_frame, encode_frame, newest
from service.metadata.image import MetadataImage
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.snapshots import list_snapshots, read_snapshot, write_snapshot
from service.metadata.raft.state import decode_state
from service.metadata.records import (
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoteLogRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import decode_snapshot, encode_snapshot
from service.records.builder import BatchBuilder

TOPIC_ID = UUID(int=77)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x14\x00",
        b"\x02\x14\x00\x00",
        b"\x01",
        b"\x01\x14",
        b"\x01\x80\x80\x80\x80",
        b"\x01\xff\xff\x03\x00",
        b"\x01\x14\x00\x00\x00",
        b"\x01\x02\x00\xff\xff\xff\xff\x0fx",
        b"\x01\x02\x00\x05abcd",
        b"\x01\x02\x00\x05\xff\xff\xff\xff" + bytes(17),
        b"\x01\x03\x02" + bytes(24) + b"\xff\xff\xff\xff\x07",
    ],
)
def test_a_frame_that_is_not_one_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_frame(data)


def test_a_frame_cut_anywhere_is_corrupt() -> None:
    record = RemoteLogRecord(
        topic_id=TOPIC_ID,
        partition_id=3,
        version=9,
        manifest_key="data/x/manifest",
        leader_epoch=4,
        start_offset=0,
        end_offset=100,
        segments=2,
        size_bytes=12345,
    )
    data = encode_frame(newest(record))
    assert decode_frame(data) == newest(record)
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_frame(data[:size])


def test_a_record_of_a_later_version_is_kept_and_not_applied() -> None:
    data = b"\x01\x02\x09whatever"
    frame = decode_frame(data)
    assert frame == Frame(UnknownRecord(2, b"whatever"), 9)
    assert encode_frame(frame) == data
    with pytest.raises(CorruptionError, match="unknown type"):
        MetadataDelta(MetadataImage()).replay(frame.record)


def test_a_version_that_a_layout_is_not_is_never_written() -> None:
    with pytest.raises(ValueError, match="PartitionRecord cannot be written in version 0"):
        encode_frame(Frame(PartitionRecord(topic_id=TOPIC_ID, replicas=(), isr=(), directories=()), 0))


@pytest.mark.parametrize(
    "records",
    [
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1)],
        [TopicRecord(name="a", topic_id=TOPIC_ID), TopicRecord(name="a", topic_id=UUID(int=5))],
        [
            TopicRecord(name="a", topic_id=TOPIC_ID),
            PartitionRecord(partition_id=1, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), directories=()),
        ],
        [
            ProducerIdsRecord(broker_id=1, next_producer_id=1000),
            ProducerIdsRecord(broker_id=1, next_producer_id=0),
        ],
    ],
)
def test_records_that_make_no_sense_are_refused(records: list[NoOpRecord]) -> None:
    with pytest.raises(CorruptionError):
        MetadataDelta(MetadataImage()).replay_all(records).build(1, 1, 0)


def test_a_batch_with_a_flipped_bit_is_corrupt() -> None:
    batch = encode_batch([newest(NoOpRecord())], base_offset=0, epoch=1, timestamp_ms=0)
    batch[-2] ^= 1
    with pytest.raises(CorruptionError, match="checksum"):
        list(decode_batches(batch))


def test_records_without_value_or_control_records_without_type_are_corrupt() -> None:
    plain = BatchBuilder()
    plain.add(0, None, None)
    control = BatchBuilder(is_control=True)
    control.add(0, b"\x00", b"\x00\x00")
    for builder in (plain, control):
        with pytest.raises(CorruptionError):
            list(decode_batches(builder.build()))


def test_control_records_of_other_types_are_passed_over() -> None:
    builder = BatchBuilder(is_control=True)
    builder.add(0, b"\x00\x00\x00\x07", b"\x00\x00other")
    (batch,) = decode_batches(builder.build())
    assert batch.control[0][:2] == (7, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data_version":2}',
        b'{"data_version":0,"leaderEpoch":-1,"leaderId":1,"votedId":-1}',
        b'{"data_version":0,"leaderEpoch":"x","leaderId":1,"votedId":-1}',
        b"\xff\xfe",
    ],
)
def test_a_quorum_state_that_is_not_one_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="quorum-state"):
        decode_state(data)


def test_a_snapshot_cut_anywhere_is_corrupt(tmp_path: Path) -> None:
    snapshot = SnapshotId(10, 2)
    feature = newest(FeatureLevelRecord(name="metadata.version", feature_level=30))
    disk, path = SystemDisk(), tmp_path / snapshot.file_name
    size = write_snapshot(
        disk, tmp_path, snapshot, encode_snapshot([feature], epoch=2, last_timestamp_ms=5, now_ms=6)
    )
    assert list_snapshots(disk, tmp_path) == [snapshot]
    data = path.read_bytes()
    assert len(data) == size

    def image_of(content: bytes) -> MetadataImage:
        path.write_bytes(content)
        return decode_snapshot(read_snapshot(disk, tmp_path, snapshot), **snapshot._asdict())

    image = image_of(data)
    assert (image.offset, image.epoch, image.timestamp_ms) == (9, 2, 5)
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            image_of(data[:end])
    with pytest.raises(CorruptionError, match="follows its footer"):
        image_of(data + data)
