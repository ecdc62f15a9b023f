"""Segments on disk, if the log directory of a partition's leader is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk, Open
from service.base.errors import StorageError
from service.console.web.tier_layout import DISK, TierBlock
from service.hot.log_dir import read_topic_id
from service.hot.names import LOG, TIME_INDEX, offset_file, parse_offset_file, partition_dir
from service.records.segment_indexes import TIME_ENTRY

MOST_TIMED: Final = 100
"""Number of the newest segments, and about the same of others, whose time index is read."""


def blocks_on_disk(
    disk: Disk, log_dirs: str | None, topic: str, topic_id: UUID, partition: int, end: int
) -> list[TierBlock] | None:
    """Return a block for each segment in offset order, up to the log's `end`; None if they are not here.

    Blocking. Segments that are deleted meanwhile are left out.
    """
    for log_dir in (log_dirs or "").split(","):
        directory = Path(log_dir.strip()) / partition_dir(topic, partition)
        try:
            if not log_dir.strip() or read_topic_id(disk, directory) != topic_id:
                continue  # a topic of that name in another cluster
            found = sorted(
                (parsed[0], entry.size)
                for entry in disk.list(directory)
                if entry.is_file and (parsed := parse_offset_file(entry.name)) and parsed[1] == LOG
            )
        except StorageError:
            continue  # on another machine, or deleted meanwhile
        return _blocks(disk, directory, found, end)
    return None


def _blocks(disk: Disk, directory: Path, found: list[tuple[int, int]], end: int) -> list[TierBlock]:
    blocks: list[TierBlock] = []
    step = -(-len(found) // MOST_TIMED) or 1
    for number, (first, size) in enumerate(found):
        is_last = number == len(found) - 1
        block_end = end if is_last else found[number + 1][0]
        if block_end <= first and not is_last:
            continue
        is_timed = number % step == 0 or number >= len(found) - MOST_TIMED
        blocks.append(
            TierBlock(
                tier=DISK,
                first=first,
                end=max(block_end, first),
                size=size,
                segments=1,
                min_ms=None,
                max_ms=_newest_ms(disk, directory / offset_file(first, TIME_INDEX)) if is_timed else None,
                name=offset_file(first, LOG),
                is_active=is_last,
            )
        )
    return blocks


def _newest_ms(disk: Disk, time_index: Path) -> int | None:
    """Return the newest timestamp in the time index, or None."""
    try:
        fd = disk.open(time_index, Open.READ)
        try:
            entries = disk.size(fd) // TIME_ENTRY.size
            data = disk.pread(fd, TIME_ENTRY.size, max(entries - 1, 0) * TIME_ENTRY.size)
        finally:
            disk.close(fd)
    except StorageError:
        return None  # deleted meanwhile
    if len(data) != TIME_ENTRY.size:
        return None
    timestamp, _ = TIME_ENTRY.unpack(data)
    return int(timestamp) if timestamp > 0 else None
