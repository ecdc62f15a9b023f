"""Copy one sealed segment into one object: verify it, lay it out, upload it, check what arrived.

Runs on an `offload` thread. The file is read twice, a block at a time. The first pass verifies every batch
and builds the block table; the second uploads the blocks, each checked against the table again, so the
uploaded bytes are the verified ones (invariant T9). Every attempt has a key of its own (a fresh uuid): a
request that timed out and arrives late can only write an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from service.base.errors import CorruptionError, StorageError
from service.base.types import NO_OFFSET, Buffer
from service.records.scan import scan_pieces
from service.records.segment_indexes import IndexBuilder, IndexBytes, Take
from service.records.walk import find_offset
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import (
    TRAILER,
    LeaderEpochs,
    PlannedObject,
    SegmentIdentity,
    check_history,
    plan_object,
)
from service.remote.format.stamp import Stamp
from service.remote.reading.log_scan import ScannedLog, offset_of_newest, scan_log
from service.remote.reading.object_reader import entry_of
from service.remote.stores.store import ObjectStore
from service.tiering.planner import Copy
from service.tiering.ports import Sealed
from service.tiering.transaction_proof import TransactionProof


class CallCancelled(StorageError):
    """The watchdog or a shutdown cancelled this call."""


class CallProgress:
    """Progress of a call, shared by its thread (which counts) and the loop (which watches and cancels)."""

    __slots__ = ("cancelled", "moved_bytes")

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.cancelled = False

    def advance(self, size: int) -> None:
        """Count `size` more bytes to verify or to upload; raise `CallCancelled` when the call was
        cancelled."""
        if self.cancelled:
            raise CallCancelled("the call was cancelled")
        self.moved_bytes += size


def copy_segment(
    store: ObjectStore,
    copy: Copy[Sealed],
    identity: SegmentIdentity,
    progress: CallProgress,
    block_bytes: int,
    stamp: Stamp | None = None,
    history: LeaderEpochs = (),
) -> SegmentEntry:
    """Upload `copy` under ``identity.key``, stamped with `stamp`, and return its manifest entry.

    `history` are the log's leader epochs, as far as they are known; the object has those up to its end.

    Raises `WrongRows` when the transaction index is to be built anew first, `CorruptionError` when the local
    bytes or those that arrived are wrong, `StorageError` when the disk or the store fails, `CallCancelled`
    when `progress` was cancelled. Changes no local file.
    """
    source = _Source(copy, progress)
    scanned = source.scan(block_bytes)
    transactions = source.transactions.finish(scanned.transactional_batch_count)
    leader_epochs = _leader_epochs(copy.from_offset, scanned)
    try:
        planned = plan_object(
            identity,
            log=lambda: source.blocks(scanned),
            log_length=scanned.length,
            blocks=scanned.blocks,
            offset_index=source.indexes.offset_index,
            time_index=source.indexes.time_index,
            txn_index=transactions.txn_index,
            producer_snapshot=transactions.producer_snapshot,
            leader_epochs=leader_epochs,
            epoch_history=_history(history, leader_epochs, identity.last_offset),
            key_filter=scanned.key_filter,
            keyed_record_count=scanned.keyed_record_count,
            transactional_batch_count=scanned.transactional_batch_count,
            max_timestamp_offset=source.offset_of_newest(scanned),
            stamp=stamp,
            open_from=transactions.open_from,
        )
    except ValueError as e:
        raise CorruptionError(f"{source.name} cannot be laid out as an object: {e}") from e
    store.put_stream(planned.key, planned.parts(), planned.size)
    verify_arrival(store, planned)
    return entry_of(planned.footer)


def verify_arrival(store: ObjectStore, planned: PlannedObject) -> None:
    """Raise `StorageError` unless the store shows the object's size and last bytes (invariant T3): after the
    commit local bytes may go."""
    suffix, size = store.get_suffix(planned.key, TRAILER.size)
    if size != planned.size or suffix != planned.tail[-TRAILER.size :]:
        raise StorageError(f"{planned.key}: {planned.size} bytes written, the store shows {size} others")


class _Source:
    """Local segment from the first batch that is copied on."""

    def __init__(self, copy: Copy[Sealed], progress: CallProgress) -> None:
        self._copy = copy
        self._file = copy.segment.log_file
        self._progress = progress
        self.name = str(self._file.path)
        self.start = 0
        self.is_whole = copy.from_offset == copy.segment.base_offset
        if not self.is_whole:
            place = find_offset(self._file.pread, copy.from_offset, 0, copy.segment.size, self.name)
            if place is None or place.base_offset < copy.from_offset:
                raise CorruptionError(
                    f"{self.name}: no batch begins at {copy.from_offset}, where the chain ends"
                )
            self.start = place.position
        self.indexes = IndexBytes(b"", b"")
        self.transactions = TransactionProof(copy.segment, copy.from_offset)

    def read(self, position: int, length: int) -> Buffer:
        self._progress.advance(length)
        return self._file.read(position, length)

    def scan(self, block_bytes: int) -> ScannedLog:
        """Verify every batch and get the indexes ready: reads the log once, unless an index is wrong."""
        segment = self._copy.segment
        scanned = ScannedLog()

        def walk(take: Take) -> None:
            nonlocal scanned
            self.transactions = TransactionProof(segment, self._copy.from_offset)
            self._add_below(block_bytes)
            scanned = scan_log(
                self.read,
                self.start,
                segment.size,
                first_offset=self._copy.from_offset,
                last_offset=segment.last_offset,
                name=self.name,
                block_bytes=block_bytes,
                on_batches=take,
                on_pieces=self.transactions.add,
                with_key_filter=True,
            )

        if self.is_whole:
            self.indexes = segment.prove_indexes(walk)
        else:
            builder = IndexBuilder(self._copy.from_offset)
            walk(builder.add)
            self.indexes = builder.finish()
        return scanned

    def _add_below(self, block_bytes: int) -> None:
        """Replay the transactions of what lies below the copy, which decide on its rows, too."""
        segment = self._copy.segment
        for batches, _, piece in scan_pieces(
            self.read,
            0,
            self.start,
            first_offset=segment.base_offset,
            name=self.name,
            piece_bytes=block_bytes,
        ):
            self.transactions.add(batches, piece)
        self.transactions.begin_copy()

    def blocks(self, scanned: ScannedLog) -> Iterator[Buffer]:
        """Yield the verified bytes, a block at a time, each checked once more."""
        for block in scanned.blocks:
            data = self.read(self.start + block.position, block.length)
            if crc32c(data) != block.crc32c:
                raise CorruptionError(f"{self.name}: bytes at {block.position} changed while they were read")
            yield data

    def offset_of_newest(self, scanned: ScannedLog) -> int:
        """Return the offset of the first record with the greatest timestamp; -1 where it cannot be found."""
        if scanned.newest is None:
            return NO_OFFSET
        position, size = scanned.newest
        return offset_of_newest(self.read(self.start + position, size), scanned.max_timestamp)


def _history(known: LeaderEpochs, own: LeaderEpochs, last_offset: int) -> LeaderEpochs:
    """Return the log's leader epochs up to the segment's end; empty where they do not end in its `own`, which
    its batches have: readers then walk along the chain."""
    history = tuple(one for one in known if one[1] <= last_offset)
    try:
        check_history(history, own, last_offset)
    except CorruptionError:
        return ()
    return history


def _leader_epochs(from_offset: int, scanned: ScannedLog) -> LeaderEpochs:
    """Return (epoch, first offset) as the batches have them, so the object proves its own epochs."""
    first, *others = scanned.leader_epochs
    return ((first[0], from_offset), *others)
