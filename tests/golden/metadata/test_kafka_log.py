"""The metadata log of a real Apache Kafka 4.3.1 node: read, applied, and written again byte for byte.

The folder holds its log over two starts (with a controlled shutdown between), its snapshot, bootstrap file
and quorum-state.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.metadata.batches import MetadataBatch, decode_batches, encode_batch, encode_control_batch
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.metadata.image_frames import image_frames
from service.metadata.publication import apply_batch
from service.metadata.raft.snapshots import parse_name
from service.metadata.raft.state import decode_state, encode_state
from service.metadata.records import RegisterBrokerRecord, RegisterControllerRecord
from service.metadata.snapshot_codec import decode_snapshot

KAFKA = Path(__file__).parent / "kafka-4.3.1"
SNAPSHOT = "00000000000000000064-0000000003.checkpoint"


def encode(batch: MetadataBatch) -> bytes:
    place = {"base_offset": batch.base_offset, "epoch": batch.epoch, "timestamp_ms": batch.timestamp_ms}
    if batch.frames:
        return bytes(encode_batch(batch.frames, **place))
    (control,) = batch.control
    assert control.message is not None
    return bytes(encode_control_batch(control.message, **place))


@pytest.mark.parametrize("name", ["00000000000000000000.log", SNAPSHOT, "bootstrap.checkpoint"])
def test_every_batch_is_written_again_byte_for_byte(name: str) -> None:
    data = (KAFKA / name).read_bytes()
    batches = list(decode_batches(data))
    assert b"".join(map(encode, batches)) == data


def test_the_log_up_to_the_snapshot_says_what_the_snapshot_says() -> None:
    snapshot = parse_name(SNAPSHOT)
    assert snapshot is not None
    image = MetadataImage()
    for batch in decode_batches((KAFKA / "00000000000000000000.log").read_bytes()):
        if batch.last_offset < snapshot.end_offset:
            image, _ = apply_batch(image, batch)
    assert image == decode_snapshot([(KAFKA / SNAPSHOT).read_bytes()], **snapshot._asdict())


def test_a_snapshot_of_ours_holds_the_records_that_kafkas_holds() -> None:
    data = (KAFKA / SNAPSHOT).read_bytes()
    kafkas = [frame for batch in decode_batches(data) for frame in batch.frames]
    snapshot = parse_name(SNAPSHOT)
    assert snapshot is not None
    ours = list(image_frames(decode_snapshot([data], **snapshot._asdict())))
    assert sorted(map(text_of, ours)) == sorted(map(text_of, kafkas))
    assert [frame.api_key for frame in ours[:6]] == [frame.api_key for frame in kafkas[:6]]


def text_of(frame: Frame) -> str:
    """A frame as text; features of a node have no order."""
    record = frame.record
    if isinstance(record, RegisterBrokerRecord | RegisterControllerRecord):
        features: Any = tuple(sorted(record.features, key=lambda f: f.name))
        record = replace(record, features=features)
    return repr(frame._replace(record=record))


def test_leaders_change_with_the_broker_as_kafka_changed_them() -> None:
    image = MetadataImage()
    for batch in decode_batches((KAFKA / "00000000000000000000.log").read_bytes()):
        image, _ = apply_batch(image, batch)
    partition = image.topics_by_name["plain"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 2, 2)
    assert partition.isr == (1,)
    assert image.next_producer_id == 1000
    assert image.brokers[1].is_active


def test_quorum_state_is_written_as_kafka_wrote_it() -> None:
    data = (KAFKA / "quorum-state").read_bytes()
    state = decode_state(data)
    assert (state.epoch, state.leader_id, state.voters) == (4, 1, (1,))
    assert encode_state(state) == data
