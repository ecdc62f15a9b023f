"""Snapshots of the metadata image: ``<20-digit end offset>-<10-digit epoch>.checkpoint``, in Kafka's format.

A control batch with a SnapshotHeaderRecord, batches of metadata records, a control batch with a
SnapshotFooterRecord; offsets count from 0 (KIP-630). A file that is being written ends in ``.part``; under
its own name it is whole and on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.static.primitive import i16, i64

from service.base.disk import DiskError, SystemDisk
from service.base.errors import CorruptionError, StorageError
from service.metadata.batches import ControlType, decode_batches, encode_batch, encode_control_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage

SUFFIX: Final = ".checkpoint"
_PART: Final = ".part"
_DAMAGED: Final = ".damaged"
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_RECORDS_PER_BATCH: Final = 500


class SnapshotId(NamedTuple):
    """The snapshot holds everything below `end_offset`, whose last record is of `epoch`."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    """The snapshot that a file name stands for; None for any other file.

    >>> parse_name("00000000000000000064-0000000003.checkpoint")
    SnapshotId(end_offset=64, epoch=3)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else SnapshotId(int(match[1]), int(match[2]))


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """Snapshots in `directory`, oldest first."""
    return sorted(found for name in os.listdir(directory) if (found := parse_name(name)) is not None)


def remove_unfinished(directory: Path) -> None:
    """Remove what a crash left of a snapshot that was being written."""
    for path in directory.glob(f"*{SUFFIX}{_PART}"):
        path.unlink()


def set_aside(directory: Path, snapshot: SnapshotId) -> None:
    """Rename a damaged one, so that it is never read again and can still be looked into."""
    path = directory / snapshot.file_name
    try:
        os.replace(path, path.with_name(path.name + _DAMAGED))
    except OSError as e:
        raise StorageError(f"cannot set aside {path}: {e}") from e


def write_snapshot(
    directory: Path, snapshot: SnapshotId, frames: Iterable[Frame], *, last_timestamp_ms: int, now_ms: int
) -> int:
    """Write a snapshot and make it durable; returns its size in bytes. Blocks on the disk.

    Raises `StorageError`, leaving nothing under the snapshot's own name.
    """
    path = directory / snapshot.file_name
    part = path.with_name(path.name + _PART)
    size = 0
    try:
        with open(part, "wb") as file:
            for batch in _batches(snapshot, frames, last_timestamp_ms, now_ms):
                size += file.write(batch)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        SystemDisk().fsync_dir(directory)
    except (OSError, DiskError) as e:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StorageError(f"cannot write snapshot {path}: {e}") from e
    return size


def _batches(
    snapshot: SnapshotId, frames: Iterable[Frame], last_timestamp_ms: int, now_ms: int
) -> Iterator[bytearray]:
    epoch = snapshot.epoch
    header = SnapshotHeaderRecord(version=i16(0), last_contained_log_timestamp=i64(max(last_timestamp_ms, 0)))
    yield encode_control_batch(header, base_offset=0, epoch=epoch, timestamp_ms=now_ms)
    offset = 1
    for chunk in chunks(frames, _RECORDS_PER_BATCH):
        yield encode_batch(chunk, base_offset=offset, epoch=epoch, timestamp_ms=now_ms)
        offset += len(chunk)
    footer = SnapshotFooterRecord(version=i16(0))
    yield encode_control_batch(footer, base_offset=offset, epoch=epoch, timestamp_ms=now_ms)


def chunks(frames: Iterable[Frame], size: int) -> Iterator[list[Frame]]:
    """`frames` in lists of up to `size`."""
    chunk: list[Frame] = []
    for frame in frames:
        chunk.append(frame)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def load_snapshot(directory: Path, snapshot: SnapshotId) -> MetadataImage:
    """The image that a snapshot holds. Raises `CorruptionError` where it is not whole."""
    path = directory / snapshot.file_name
    try:
        data = path.read_bytes()
    except OSError as e:
        raise StorageError(f"cannot read snapshot {path}: {e}") from e
    try:
        return decode_snapshot(data, snapshot)
    except CorruptionError as e:
        raise CorruptionError(f"{path}: {e}") from e


def decode_snapshot(data: bytes, snapshot: SnapshotId) -> MetadataImage:
    """The image in a snapshot's bytes. Raises `CorruptionError`."""
    delta = MetadataDelta(MetadataImage())
    timestamp_ms = 0
    seen: list[int] = []
    for batch in decode_batches(data):
        if ControlType.SNAPSHOT_FOOTER in seen:
            raise CorruptionError("snapshot: a batch follows its footer")
        for control in batch.control:
            seen.append(control.control_type)
            if isinstance(control.message, SnapshotHeaderRecord):
                timestamp_ms = control.message.last_contained_log_timestamp
        if seen[:1] != [ControlType.SNAPSHOT_HEADER]:
            raise CorruptionError("snapshot: it does not begin with its header")
        delta.replay_all(frame.record for frame in batch.frames)
    if seen[-1:] != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptionError("snapshot: its footer is missing")
    return delta.build(snapshot.end_offset - 1, snapshot.epoch, timestamp_ms)
