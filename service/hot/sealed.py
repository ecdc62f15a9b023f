"""What the tiering room is told of a sealed segment."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from service.base.disk import MissingFile
from service.base.files import read_file
from service.hot.epochs import LeaderEpochs
from service.hot.files import FileHandle, SegmentFile
from service.hot.producer_snapshot import SnapshotFiles
from service.hot.segment import Segment
from service.records.segment_indexes import ProveIndexes


class SealedSegment(NamedTuple):
    """A segment that will not change any more. Offsets inclusive, size in bytes, times in ms.

    ``producer_snapshot_path``: the state after it, that is before the next segment. ``leader_epochs``:
    (epoch, start offset) of its records. ``log``: where its file is; what waits for its copy holds no
    descriptor. ``prove_indexes``: as `Segment`'s.
    """

    base_offset: int
    last_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    sealed_at_ms: int
    txn_index_path: Path | None
    producer_snapshot_path: Path | None
    leader_epochs: tuple[tuple[int, int], ...]
    log: FileHandle
    prove_indexes: ProveIndexes

    @property
    def log_file(self) -> SegmentFile:
        """Its file, which opens at its first use and stays open as long as it is held, even if the segment is
        deleted meanwhile. Any thread may ask."""
        return self.log.peek()

    def side_file(self, path: Path | None, most_bytes: int) -> bytes:
        """All of a file beside the log, none where it is not there; it may have been deleted meanwhile.

        `CorruptionError` where it is larger than `most_bytes`, `DiskError`.
        """
        if path is None:
            return b""
        try:
            return read_file(self.log.disk, path, most_bytes)
        except MissingFile:
            return b""


def describe(
    segment: Segment, end_offset: int, snapshots: SnapshotFiles, epochs: LeaderEpochs
) -> SealedSegment:
    """Facts of a sealed `segment` whose successor begins at `end_offset`."""
    return SealedSegment(
        base_offset=segment.base_offset,
        last_offset=end_offset - 1,
        size=segment.size,
        max_timestamp=segment.max_timestamp,
        max_timestamp_offset=segment.max_timestamp_offset,
        sealed_at_ms=segment.sealed_at_ms,
        txn_index_path=segment.txn_index_path,
        producer_snapshot_path=snapshots.path(end_offset),
        leader_epochs=epochs.in_range(segment.base_offset, end_offset),
        log=segment.log,
        prove_indexes=segment.prove_indexes,
    )
