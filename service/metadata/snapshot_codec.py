"""Encodes and decodes a snapshot: the image as batches of records, between a header and a footer. [P]

A control batch with a SnapshotHeaderRecord, batches of metadata records, a control batch with a
SnapshotFooterRecord; offsets start at 0, and all batches have the snapshot's epoch (KIP-630).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.static.primitive import i16, i64

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.metadata.batches import (
    ControlType,
    MetadataBatch,
    decode_batches,
    encode_batch,
    encode_control_batch,
)
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.metadata.image_frames import image_frames
from service.metadata.raft.control import NO_VOTER_RECORDS, VoterRecords, apply_voter_record, control_messages
from service.records.batch import complete_headers

_RECORDS_PER_BATCH: Final = 500


def encode_image(
    image: MetadataImage, now_ms: int, voters: VoterRecords = NO_VOTER_RECORDS
) -> Iterator[bytearray]:
    """Encode a snapshot of `image`, with the voters at its end, as batches."""
    return encode_snapshot(
        image_frames(image),
        epoch=image.epoch,
        last_timestamp_ms=image.timestamp_ms,
        now_ms=now_ms,
        voters=voters,
    )


def encode_snapshot(
    frames: Iterable[Frame],
    *,
    epoch: int,
    last_timestamp_ms: int,
    now_ms: int,
    voters: VoterRecords = NO_VOTER_RECORDS,
) -> Iterator[bytearray]:
    """Encode a snapshot of `frames` as batches. `last_timestamp_ms`: time of the last record that it
    covers."""
    header = SnapshotHeaderRecord(version=i16(0), last_contained_log_timestamp=i64(max(last_timestamp_ms, 0)))
    control = (header, *control_messages(voters))
    yield encode_control_batch(*control, base_offset=0, epoch=epoch, timestamp_ms=now_ms)
    offset = len(control)
    for chunk in chunks(frames, _RECORDS_PER_BATCH):
        yield encode_batch(chunk, base_offset=offset, epoch=epoch, timestamp_ms=now_ms)
        offset += len(chunk)
    footer = SnapshotFooterRecord(version=i16(0))
    yield encode_control_batch(footer, base_offset=offset, epoch=epoch, timestamp_ms=now_ms)


def chunks(frames: Iterable[Frame], size: int) -> Iterator[list[Frame]]:
    """Split `frames` into lists of up to `size`."""
    chunk: list[Frame] = []
    for frame in frames:
        chunk.append(frame)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class SnapshotContent(NamedTuple):
    """Decoded snapshot."""

    image: MetadataImage
    voters: VoterRecords


def decode_snapshot(runs: Iterable[Buffer], *, end_offset: int, epoch: int) -> MetadataImage:
    """Decode a snapshot, given in runs of whole batches, with the end offset and epoch of its name.

    Raises `CorruptionError` where it is incomplete, or a batch has another offset or epoch.
    """
    return decode_content(runs, end_offset=end_offset, epoch=epoch).image


def decode_content(runs: Iterable[Buffer], *, end_offset: int, epoch: int) -> SnapshotContent:
    """Decode a snapshot as `decode_snapshot` does, with its voters."""
    voters = NO_VOTER_RECORDS
    delta = MetadataDelta(MetadataImage())
    timestamp_ms = next_offset = 0
    seen: list[int] = []
    for batch in _batches(runs):
        if ControlType.SNAPSHOT_FOOTER in seen:
            raise CorruptionError("snapshot: a batch follows its footer")
        if (batch.base_offset, batch.epoch) != (next_offset, epoch):
            raise CorruptionError(
                f"snapshot: a batch of offset {batch.base_offset} and epoch {batch.epoch} instead of "
                f"{next_offset} and {epoch}"
            )
        next_offset = batch.last_offset + 1
        for control in batch.control:
            seen.append(control.control_type)
            if isinstance(control.message, SnapshotHeaderRecord):
                timestamp_ms = control.message.last_contained_log_timestamp
            voters = apply_voter_record(control, voters)
        if seen[:1] != [ControlType.SNAPSHOT_HEADER]:
            raise CorruptionError("snapshot: the header is missing")
        delta.replay_all(frame.record for frame in batch.frames)
    if seen[-1:] != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptionError("snapshot: the footer is missing")
    delta.set_kraft_version(voters.version)
    return SnapshotContent(delta.build(end_offset - 1, epoch, timestamp_ms), voters)


def last_contained_ms(head: bytes) -> int:
    """Return the time of the last record that a snapshot covers, from its first batch; -1 where that is
    damaged."""
    try:
        ends = [header.end for header in complete_headers(head)][:1]
        for batch in decode_batches(head[: ends[0]] if ends else b""):
            for control in batch.control:
                if isinstance(control.message, SnapshotHeaderRecord):
                    return int(control.message.last_contained_log_timestamp)
    except CorruptionError:
        return -1  # the decoder of the whole snapshot reports it
    return -1


def _batches(runs: Iterable[Buffer]) -> Iterator[MetadataBatch]:
    for run in runs:
        yield from decode_batches(run)
