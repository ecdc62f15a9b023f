"""Snapshot files: ``<20-digit end offset>-<10-digit epoch>.checkpoint``, beside the log (KIP-630).

They hold batches, which the publisher interprets (`metadata/snapshot_codec.py`). An unfinished file ends in
``.part``; a file with its own name is complete and durable. Blocking; for a `log-io` thread.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from service.base.disk import Disk, DiskError, MissingFile, Open
from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.metadata.raft.keys import SnapshotId
from service.records.batch import HEADER_SIZE, complete_headers, read_header

SUFFIX: Final = ".checkpoint"
_PART: Final = ".part"
_DAMAGED: Final = ".damaged"
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_READ_BYTES: Final = 1024 * 1024
_MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""Above every batch that Firn or Kafka writes (8 MiB); a greater length is damage."""

_logger = logging.getLogger(__name__)


def parse_name(name: str) -> SnapshotId | None:
    """Parse the file name of a snapshot; None for any other file.

    >>> parse_name("00000000000000000064-0000000003.checkpoint")
    SnapshotId(end_offset=64, epoch=3)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else SnapshotId(int(match[1]), int(match[2]))


def list_snapshots(disk: Disk, directory: Path) -> list[SnapshotId]:
    """Return the snapshots in `directory`, oldest first."""
    return sorted(found for entry in disk.list(directory) if (found := parse_name(entry.name)) is not None)


def remove_unfinished(disk: Disk, directory: Path) -> None:
    """Delete the unfinished snapshots of a crashed process."""
    for entry in disk.list(directory):
        if entry.name.endswith(SUFFIX + _PART):
            disk.unlink(directory / entry.name)


def set_aside(disk: Disk, directory: Path, snapshot: SnapshotId) -> None:
    """Rename a damaged snapshot, so that it is not read again and can still be examined."""
    path = directory / snapshot.file_name
    disk.rename(path, path.with_name(path.name + _DAMAGED))
    disk.fsync_dir(directory)


def write_snapshot(disk: Disk, directory: Path, snapshot: SnapshotId, batches: Iterable[Buffer]) -> int:
    """Write a snapshot durably; returns its size in bytes.

    Raises `DiskError`; a file with the snapshot's own name is complete even then.
    """
    path = directory / snapshot.file_name
    part = path.with_name(path.name + _PART)
    size = 0
    try:
        fd = disk.open(part, Open.TRUNCATE)
        try:
            for batch in batches:
                disk.pwrite(fd, batch, size)
                size += len(batch)
            disk.fsync(fd)
        finally:
            disk.close(fd)
        disk.rename(part, path)
        disk.fsync_dir(directory)
    except DiskError:
        with contextlib.suppress(DiskError):  # the next start deletes it
            disk.unlink(part)
        raise
    return size


def read_piece(
    disk: Disk, directory: Path, snapshot: SnapshotId, position: int, max_bytes: int
) -> tuple[int, bytes] | None:
    """Return the size of a snapshot, and up to `max_bytes` from `position`; None where there is none."""
    try:
        fd = disk.open(directory / snapshot.file_name)
    except MissingFile:
        return None
    try:
        size = disk.size(fd)
        return size, disk.pread(fd, min(max_bytes, size - position), position) if position < size else b""
    finally:
        disk.close(fd)


def store_piece(disk: Disk, directory: Path, snapshot: SnapshotId, position: int, data: bytes) -> None:
    """Write a chunk of a fetched snapshot; position 0 starts the file again."""
    fd = disk.open(_part_of(directory, snapshot), Open.TRUNCATE if position == 0 else Open.WRITE)
    try:
        disk.pwrite(fd, data, position)
    finally:
        disk.close(fd)


def sync_part(disk: Disk, directory: Path, snapshot: SnapshotId) -> None:
    """Fsync the unfinished file."""
    fd = disk.open(_part_of(directory, snapshot), Open.WRITE)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


def accept_part(disk: Disk, directory: Path, snapshot: SnapshotId) -> None:
    """Give the validated file its own name, durably."""
    disk.rename(_part_of(directory, snapshot), directory / snapshot.file_name)
    disk.fsync_dir(directory)


def _part_of(directory: Path, snapshot: SnapshotId) -> Path:
    return directory / (snapshot.file_name + _PART)


def read_part(disk: Disk, directory: Path, snapshot: SnapshotId) -> Iterator[bytes]:
    """Read an unfinished file like `read_snapshot`."""
    return _read(disk, _part_of(directory, snapshot))


def read_snapshot(disk: Disk, directory: Path, snapshot: SnapshotId) -> Iterator[bytes]:
    """Yield runs of whole batches, about 1 MiB each.

    Raises `CorruptionError` where the file ends within a batch or holds no batches; the caller verifies
    checksums.
    """
    return _read(disk, directory / snapshot.file_name)


def _read(disk: Disk, path: Path) -> Iterator[bytes]:
    fd = disk.open(path)
    try:
        size, position = disk.size(fd), 0
        while position < size:
            data = disk.pread(fd, _READ_BYTES, position)
            end = max((header.end for header in complete_headers(data)), default=0)
            if not end:
                end = _size_of_first(data)
                data = disk.pread(fd, end, position)
            if len(data) < end:
                raise CorruptionError(f"the file ends within the batch at position {position}")
            yield data[:end]
            position += end
    finally:
        disk.close(fd)


def _size_of_first(data: bytes) -> int:
    if len(data) < HEADER_SIZE:
        raise CorruptionError(f"{len(data)} bytes are left, a batch has more")
    size = read_header(data).size
    if size > _MAX_BATCH_BYTES:
        raise CorruptionError(f"a batch of {size} bytes")
    return size
