"""Metadata log on disk: a `LocalLog` in ``__cluster_metadata-0``, and the snapshots beside it.

It knows bytes and offsets, and interprets only the control records of voters. Opened on a `log-io` thread;
then appended to on the event loop and flushed on a `log-io` thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.files import remove_file
from service.base.types import Buffer, TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.metadata.batches import MetadataBatch, decode_batches
from service.metadata.raft.control import NO_VOTER_RECORDS, VoterRecords, learn
from service.metadata.raft.durable_offset import DurableOffset, keep_durable_offset, read_durable_offset
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log_check import Durable, LogEnd, check_log
from service.metadata.raft.log_view import EpochIndex
from service.metadata.raft.snapshots import list_snapshots, read_piece, store_piece, sync_part
from service.metadata.raft.state import QuorumState
from service.metadata.raft.state_file import write_state
from service.metadata.raft.voters import VoterHistory, VoterSet
from service.records.batch import complete_headers, iter_headers, verify_crc

METADATA_TOPIC: Final = TopicIdPartition(UUID(int=1), "__cluster_metadata", 0)
_INDEX_BYTES: Final = 1024 * 1024
_NEVER_MS: Final = 2**62

_logger = logging.getLogger(__name__)


class MetadataLog:
    """The log's files. Offsets are of records; ends are exclusive."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        log: LocalLog,
        durable: DurableOffset,
        snapshots: Sequence[SnapshotId],
        voters: VoterHistory,
    ) -> None:
        self.directory = directory
        self.snapshots = tuple(snapshots)
        """oldest first"""
        self.voters = voters
        self.changing = asyncio.Lock()
        """Held by readers on the event loop, and while a thread truncates, restarts or rolls the log."""
        self._disk = disk
        self._log = log
        self._durable = durable
        start = log.log_start_offset
        base = next((one.epoch for one in self.snapshots if one.end_offset == start), 0)
        self.epochs = EpochIndex(log.epochs.entries, base=base, start_offset=start)

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
        static_voters: VoterSet | None = None,
        voter_records: VoterRecords = NO_VOTER_RECORDS,
        is_acknowledged: bool = True,
    ) -> MetadataLog:
        """Check the log, cut off a torn tail, and open it. Blocks.

        `snapshots`: those in the directory, oldest first. `snapshot`: the one that is loaded; None to read
        the log from its beginning. `voter_records`: the voters in it. `is_acknowledged`: as in `Durable`.

        A log that does not contain the end of `snapshot` restarts there: the snapshot was fetched, and the
        process ended before it had replaced the log, which is too short or has diverged from the committed
        one.

        Raises `CorruptionError` for damage other than a torn tail, before it changes anything, and
        `StorageError` where the disk fails.
        """
        noted = read_durable_offset(world.disk, directory)
        start = 0 if snapshot is None else snapshot.end_offset
        newest = snapshots[-1].end_offset if snapshots else 0
        durable = Durable(
            start,
            newest if noted is None else noted,
            noted is not None,
            None if state is None else state.epoch,
            is_acknowledged,
        )
        try:
            control: list[bytes] = []
            end = check_log(world.disk, directory, durable, control)
        except CorruptionError:
            # Else the next start could take this damage for a torn tail.
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
            recovery_point=min(start, end.offset),
            log_start_offset=min(start, end.offset, snapshots[0].end_offset) if snapshots else 0,
        )
        try:
            if local.log_end_offset != end.offset:
                raise CorruptionError(
                    f"{directory}: the log ends at {local.log_end_offset}, its check ended at {end.offset}"
                )
            local.durability.flush()
            restarts = snapshot is not None and _is_diverged(snapshot, end)
            voters = _history(
                static_voters or VoterSet(), snapshot, voter_records, [] if restarts else control
            )
            point = DurableOffset(world.disk, directory, local.log_end_offset)
        except BaseException:
            local.close(clean=False)
            raise
        log = cls(directory, world.disk, local, point, snapshots, voters)
        if snapshot is not None and restarts:
            log._restart_at_snapshot(snapshot, voter_records)
        return log

    def _restart_at_snapshot(self, snapshot: SnapshotId, voter_records: VoterRecords) -> None:
        end, name = self.end_offset, snapshot.file_name
        _logger.warning(
            "%s: the log ends at %d, before or beside the snapshot %s: it restarts at the snapshot",
            self.directory,
            end,
            name,
        )
        try:
            self.restart_at(snapshot, voter_records)
        except BaseException:
            self.close(clean=False)
            raise

    def voters_at(self, end_offset: int) -> VoterRecords:
        """Return the voters in the log below `end_offset`, for a snapshot that ends there."""
        return VoterRecords(*self.voters.at(end_offset))

    def set_snapshots(self, snapshots: Sequence[SnapshotId]) -> None:
        """Set the list of snapshots, oldest first."""
        self.snapshots = tuple(snapshots)

    def slice(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from the one that holds `offset`, for a follower: at least one of them."""
        return self.read(offset, max_bytes, self.end_offset)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Read whole batches from the one that holds `offset`, below `end_offset`: about `max_bytes`, at
        least one.

        Raises `CorruptionError` where no batch is there.
        """
        found = self._log.read(offset, max_bytes, end_offset).slice
        data = b"" if found is None else found.read()
        end = max((header.end for header in complete_headers(data)), default=0)
        if not end:
            raise CorruptionError(f"{self.directory}: the metadata log has no batch at offset {offset}")
        return data[:end]

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._log.size

    def append(self, data: Buffer) -> None:
        """Append whole batches, without a flush. Their voters take effect at once."""
        control: list[MetadataBatch] = []
        for header in iter_headers(data):
            if header.is_control:
                control += decode_batches(memoryview(data)[header.position : header.end])
        self._log.appender.append_raw(memoryview(data))
        for header in iter_headers(data):
            self.epochs.note(header.partition_leader_epoch, header.base_offset)
        for batch in control:
            learn(self.voters, batch)

    def append_fetched(self, data: Buffer, epoch: int) -> bool:
        """Append whole batches from a leader of `epoch` that continue the log; return whether there were any.

        Raises `CorruptionError` for invalid ones; nothing is written then.
        """
        headers, next_offset, last = list(complete_headers(data)), self.end_offset, self.epochs.latest
        for header in headers:
            if header.base_offset != next_offset or header.last_offset_delta < 0:
                raise CorruptionError(f"a batch of offset {header.base_offset} instead of {next_offset}")
            if not last <= header.partition_leader_epoch <= epoch:
                raise CorruptionError(
                    f"a batch of epoch {header.partition_leader_epoch} after {last}, from a leader of {epoch}"
                )
            if not verify_crc(data, header):
                raise CorruptionError(f"the checksum of the batch at offset {next_offset} is wrong")
            next_offset, last = header.next_offset, header.partition_leader_epoch
        if headers:
            self.append(memoryview(data)[: headers[-1].end])
        return bool(headers)

    def flush(self, end_offset: int) -> None:
        """Fsync the log below `end_offset`, and write its durable offset. Blocks; for a `log-io` thread."""
        self._log.durability.flush(end_offset)
        self._durable.write(end_offset)

    def flush_up_to(self, end_offset: int) -> None:
        """Fsync the log below `end_offset` unless it is durable. Does not write the durable offset."""
        if self._log.recovery_point < end_offset:
            self._log.durability.flush(end_offset)

    def write_state(self, state: QuorumState) -> None:
        """Replace ``quorum-state`` durably. Blocks; for a `log-io` thread."""
        write_state(self._disk, self.directory, state)

    def seal(self) -> None:
        """Roll a new segment, so that the older ones can be deleted."""
        self._log.appender.roll()

    def truncate_to(self, end_offset: int) -> None:
        """Truncate the log to `end_offset`, where it diverges from the leader's. Blocks."""
        self._durable.write(end_offset)
        self._durable.sync()
        self._log.truncation.truncate_to(end_offset)
        self.epochs.truncate(end_offset)
        self.voters.truncate(end_offset)

    def restart_at(self, snapshot: SnapshotId, voter_records: VoterRecords) -> None:
        """Replace the log by a snapshot that is on disk and holds these voters. Blocks."""
        self._durable.write(min(snapshot.end_offset, self._log.recovery_point))
        self._durable.sync()
        self._log.truncation.restart_at(snapshot.end_offset)
        self._durable.write(snapshot.end_offset)
        self._durable.sync()
        for old in list_snapshots(self._disk, self.directory):
            if old.end_offset < snapshot.end_offset:  # the log no longer continues it
                remove_file(self._disk, self.directory / old.file_name)
        self.snapshots = (snapshot,)
        self.epochs.restart(snapshot)
        self.voters.restart(snapshot.end_offset, voter_records.voters, voter_records.version)

    def forget_before(self, offset: int, now_ms: int) -> list[Path]:
        """Advance the log's start to `offset`, the end of a snapshot.

        Returns the files to delete, for a `log-io` thread.
        """
        self._log.deletion.advance_log_start(offset)
        self.epochs.forget_before(offset)
        self.voters.forget_before(offset)
        return self._log.deletion_queue.take_due(now_ms)

    def note_durable(self) -> None:
        """Fsync the durable offset. Blocks."""
        self._durable.sync()

    # -- snapshots in chunks; blocking, for a `log-io` thread

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Return a snapshot's size and a chunk of it; None where it is gone. Raises `DiskError`."""
        return read_piece(self._disk, self.directory, snapshot, position, max_bytes)

    def store_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write a chunk of a fetched snapshot to its ``.part`` file; position 0 starts the file again."""
        store_piece(self._disk, self.directory, snapshot, position, data)

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        """Fsync a snapshot whose chunks are all written. It gets its own name once it is validated."""
        sync_part(self._disk, self.directory, snapshot)

    def close(self, *, clean: bool = True) -> None:
        """Close the files; where not `clean`, write nothing more. Blocks."""
        try:
            self._log.close(clean)
            if clean:
                self._durable.write(self._log.log_end_offset)
                self._durable.sync()
        finally:
            self._durable.close()


def _is_diverged(snapshot: SnapshotId, end: LogEnd) -> bool:
    """Return whether the log ends before the snapshot, or has another epoch at the snapshot's end."""
    if end.offset < snapshot.end_offset:
        return True
    return end.epoch_at_start not in (-1, snapshot.epoch)


def _history(
    static: VoterSet, snapshot: SnapshotId | None, voter_records: VoterRecords, control: Sequence[bytes]
) -> VoterHistory:
    """Build the voter history from the snapshot and the log behind it."""
    history, start = VoterHistory(static), 0
    if snapshot is not None:
        start = snapshot.end_offset
        history.restart(start, voter_records.voters, voter_records.version)
    for data in control:
        for batch in decode_batches(data):
            if batch.base_offset >= start:
                learn(history, batch)
    return history
