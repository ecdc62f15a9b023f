"""The metadata log on disk: a `LocalLog` in ``__cluster_metadata-0``, with snapshots beside it.

Bytes and offsets: what the batches say is the publisher's business. Opened on a `log-io` thread; then
appended to on the event loop and flushed on a `log-io` thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.metadata.raft.durable_offset import DurableOffset, keep_durable_offset, read_durable_offset
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log_check import Durable, LogEnd, check_log
from service.metadata.raft.state import QuorumState
from service.metadata.raft.state_file import write_state
from service.records.batch import complete_headers

METADATA_TOPIC: Final = TopicIdPartition(UUID(int=1), "__cluster_metadata", 0)
_INDEX_BYTES: Final = 1024 * 1024
_NEVER_MS: Final = 2**62


class MetadataLog:
    """The log's files. Offsets are of records; ends are exclusive."""

    def __init__(
        self, directory: Path, disk: Disk, log: LocalLog, end: LogEnd, durable: DurableOffset
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._log = log
        self._durable = durable
        self._last_epoch = end.epoch

    @classmethod
    def open(
        cls,
        directory: Path,
        world: World,
        *,
        segment_bytes: int,
        snapshots: Sequence[SnapshotId],
        snapshot: SnapshotId | None,
        state: QuorumState | None,
    ) -> MetadataLog:
        """Check the log, cut off a torn tail, and open it. Blocks.

        `snapshots`: those in the directory, oldest first; `snapshot`: the one that is read, None to read the
        log from its beginning. Raises `CorruptionError` where anything but a torn tail is wrong, having
        changed nothing; `StorageError` where the disk does not let us.
        """
        noted = read_durable_offset(world.disk, directory)
        start = 0 if snapshot is None else snapshot.end_offset
        newest = snapshots[-1].end_offset if snapshots else 0
        durable = Durable(
            start, max(newest, noted or 0), noted is not None, None if state is None else state.epoch
        )
        try:
            end = check_log(world.disk, directory, durable)
        except CorruptionError:
            # Else the next start could take for a torn tail what is known to be damage.
            keep_durable_offset(world.disk, directory)
            raise
        config = LogConfig(
            segment_bytes=segment_bytes,
            segment_ms=_NEVER_MS,
            segment_index_bytes=_INDEX_BYTES,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        local = LocalLog.open(
            directory,
            METADATA_TOPIC,
            config,
            world=world,
            recovery_point=start,
            log_start_offset=min(start, snapshots[0].end_offset) if snapshots else 0,
        )
        try:
            if local.log_end_offset != end.offset:
                raise CorruptionError(f"{directory}: ends at {local.log_end_offset}, it was {end.offset}")
            local.flush()
            point = DurableOffset(world.disk, directory, local.log_end_offset)
        except BaseException:
            local.close(clean=False)
            raise
        return cls(directory, world.disk, local, end, point)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Whole batches from the one that holds `offset` on, below `end_offset`: about `max_bytes`, at least
        one batch.

        Raises `CorruptionError` where nothing is there.
        """
        found = self._log.read(offset, max_bytes, end_offset).slice
        data = b"" if found is None else found.read()
        end = max((header.end for header in complete_headers(data)), default=0)
        if not end:
            raise CorruptionError(f"{self.directory}: nothing is at offset {offset} of the metadata log")
        return data[:end]

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """Epoch of the last leader that wrote here before it was opened; -1 for none."""
        return self._last_epoch

    def append(self, batch: bytearray) -> None:
        """Write one batch; it is not on disk before `flush`."""
        self._log.append_raw(memoryview(batch))

    def flush(self, end_offset: int) -> None:
        """Make everything below `end_offset` durable, and note that it is. Blocks; for a `log-io` thread."""
        self._log.flush(end_offset)
        self._durable.write(end_offset)

    def write_state(self, state: QuorumState) -> None:
        """Replace ``quorum-state``, durably. Blocks; for a `log-io` thread."""
        write_state(self._disk, self.directory, state)

    def seal(self) -> None:
        """Begin a new segment, so that the ones before it can go once nobody needs them."""
        self._log.roll()

    def truncate_to(self, end_offset: int) -> None:
        """Drop what is at or beyond `end_offset`: another leader's log goes on differently. Blocks."""
        self._durable.write(end_offset)
        self._durable.sync()
        self._log.truncate_to(end_offset)

    def forget_before(self, offset: int, now_ms: int) -> list[Path]:
        """Let go of what lies below `offset`, the end of a snapshot.

        Returns the files that are no part of the log any more, for a `log-io` thread to remove.
        """
        self._log.advance_log_start(offset)
        return self._log.take_removals(now_ms)

    def note_durable(self) -> None:
        """Let a crash of the machine remember, too, how far the log was flushed. Blocks."""
        self._durable.sync()

    def close(self, *, clean: bool = True) -> None:
        """Let go of the files; where not `clean`, nothing more is written. Blocks."""
        try:
            self._log.close(clean)
            if clean:
                self._durable.write(self._log.log_end_offset)
                self._durable.sync()
        finally:
            self._durable.close()
