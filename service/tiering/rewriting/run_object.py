"""Make the one object that replaces a run: read, let the rule's copier write, lay out, upload, check.

Runs on a `rewrite` thread, in two passes, as a copy of a segment does (`tiering/copier.py`): the first
verifies every batch of the run and finds what the footer says of those that stay, the second uploads them,
each block compared with the table of the first. Memory: a few blocks, and the sections of one object.

Kept from the run: its leader epochs as its entries have them; producer snapshot, epoch history and open
transactions of its last object; rows of aborted transactions, as markers always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, NO_TIMESTAMP, Buffer
from service.records.compaction import filling_batch
from service.records.kernel_status import Status
from service.records.producer_snapshot import decode_rows
from service.records.scan import BatchScan, scan_batches
from service.records.segment_indexes import IndexBuilder
from service.remote.format.key_filter import KeyFilterBuilder
from service.remote.format.manifest import SegmentEntry
from service.remote.format.rewrite_origin import RewriteOrigin
from service.remote.format.segment_object import (
    EPOCH_HISTORY,
    MAX_TXN_INDEX_BYTES,
    LeaderEpochs,
    PlannedObject,
    SegmentIdentity,
    check_history,
    decode_epoch_history,
    plan_object,
)
from service.remote.format.stamp import Stamp
from service.remote.reading.log_scan import MAX_INFLATED_BYTES, LogScanner, ScannedLog, offset_of_newest
from service.remote.reading.object_reader import entry_of
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress, verify_arrival
from service.tiering.ports import SegmentRun
from service.tiering.rewriting.rules import ChainRun, Rule
from service.tiering.rewriting.run_source import RunSource

_NO_BATCH: Final = b""
MOST_KEPT_BYTES: Final = 32 << 20
"""A run whose logs have at most so many bytes is read once: what it leaves waits in memory for the upload."""
_KEPT_OF_LAST: Final = ("producer_snapshot", EPOCH_HISTORY)
"""Sections that are those of the run's last object."""


def _unlimited(size: int) -> None:
    """Spend nothing: no quota is in force."""


class MadeObject(NamedTuple):
    """The object of a run, uploaded and checked; `record_count` of before, `bytes_read` from the bucket."""

    entry: SegmentEntry
    record_count: int
    bytes_read: int


class RunMaker:
    """Maker of the object of one run."""

    def __init__(
        self,
        store: ObjectStore,
        run: ChainRun,
        rule: Rule,
        progress: CallProgress,
        *,
        local: Sequence[SegmentRun] = (),
        block_bytes: int = 1 << 20,
        spend: Callable[[int], None] = _unlimited,
    ) -> None:
        """`local`: segments of the local log from the run's first offset on, oldest first. `spend` is called
        with each number of bytes before they are uploaded."""
        self._store = store
        self._run = run
        self._rule = rule
        self._progress = progress
        self._block_bytes = block_bytes
        self._spend = spend
        self._sources = [RunSource(store, entry, local, progress) for entry in run.entries]
        self._newest: tuple[int, bytes] = (NO_TIMESTAMP, _NO_BATCH)
        """greatest timestamp of a batch, and the first batch with it"""
        self._kept: dict[str, bytes] = {}
        size = sum(entry.log_length for entry in run.entries)
        self._written: list[bytes] | None = [] if size <= MOST_KEPT_BYTES else None
        """what the first pass wrote, for the second; None where that is too much"""

    def make(self, identity: SegmentIdentity, rewrite_id: UUID, stamp: Stamp | None) -> MadeObject:
        """Upload the object under ``identity.key``.

        Raises `CorruptionError` where an object of the run, or what arrived, is damaged, or the run cannot
        become one object; `CallCancelled`, and what the store raises.
        """
        rows = bytearray()
        scanned, indexes = self._scan(rows)
        records = sum(source.footer.record_count for source in self._sources)
        epochs = self._run.leader_epochs
        _check_epochs(epochs, scanned.leader_epochs, self._run)
        snapshot = self._kept["producer_snapshot"]
        newest_ms, newest_batch = self._newest
        try:
            planned = plan_object(
                identity,
                log=lambda: self._parts(scanned),
                log_length=scanned.length,
                blocks=scanned.blocks,
                offset_index=indexes[0],
                time_index=indexes[1],
                txn_index=bytes(rows),
                producer_snapshot=snapshot,
                leader_epochs=epochs,
                epoch_history=self._history(epochs),
                transactional_batch_count=scanned.transactional_batch_count,
                max_timestamp_offset=offset_of_newest(newest_batch, newest_ms),
                generation=self._run.generation,
                stamp=stamp,
                open_from=self._open_from(snapshot, scanned.transactional_batch_count),
                key_filter=scanned.key_filter,
                keyed_record_count=scanned.keyed_record_count,
                rewrite=RewriteOrigin(
                    rewrite_id, self._rule.kind.name.lower(), len(self._run.entries), records
                ),
            )
        except ValueError as e:
            raise CorruptionError(f"{identity.key} cannot be laid out: {e}") from e
        self._upload(planned)
        return MadeObject(entry_of(planned.footer), records, sum(one.bytes_read for one in self._sources))

    # -- first pass ------------------------------------------------------------------------------------------

    def _scan(self, rows: bytearray) -> tuple[ScannedLog, tuple[bytes, bytes]]:
        """Read the run once; put its rows of aborted transactions into `rows`."""
        run = self._run
        name = f"the object of {run.base_offset} to {run.last_offset} of {run.tip}"
        keys = KeyFilterBuilder(
            sum(entry.log_length for entry in run.entries),
            run.last_offset - run.base_offset + 1,
            MAX_INFLATED_BYTES,
        )
        scanner = LogScanner(last_offset=run.last_offset, name=name, block_bytes=self._block_bytes, keys=keys)
        index = IndexBuilder(run.base_offset)
        length = 0
        for batches, piece in self._output(rows):
            index.add(batches, length)
            scanner.add(batches, piece)
            self._note_newest(batches, piece)
            length += len(piece)
            if self._written is not None:
                self._written.append(bytes(piece))
        scanned = scanner.finish()
        scanned.key_filter, scanned.keyed_record_count = keys.finish(), keys.keyed_record_count
        return scanned, index.finish()

    def _output(self, rows: bytearray | None = None) -> Iterator[tuple[BatchScan, memoryview]]:
        """Yield what the copier writes, with its scan. `rows`: the first pass, which opens the objects."""
        copier = self._rule.copier(self._run)
        is_empty = True
        for source in self._sources:
            if rows is not None:
                source.open()
                rows += source.section("txn_index")
                if len(rows) > MAX_TXN_INDEX_BYTES:
                    raise CorruptionError(f"a transaction index of more than {MAX_TXN_INDEX_BYTES} bytes")
                if source is self._sources[-1]:
                    self._kept = {name: source.section(name) for name in _KEPT_OF_LAST}
            for batches, piece in source.batches():
                for written in copier.copy(piece, batches):
                    is_empty = False
                    yield (batches, piece) if written is piece else self._scanned(written)
        for written in copier.rest():
            is_empty = False
            yield self._scanned(written)
        if is_empty:
            run = self._run
            epoch = run.leader_epochs[0][0]  # of its first offset, as of every batch
            yield self._scanned(memoryview(filling_batch(run.base_offset, run.last_offset, epoch)))

    def _scanned(self, written: memoryview) -> tuple[BatchScan, memoryview]:
        """Return what a copier wrote, verified, and as bytes of its own: the copier uses its buffer again."""
        own = memoryview(bytes(written))
        found = scan_batches(own, next_offset=self._run.base_offset)
        if found.status != Status.OK or found.end != len(own):
            raise CorruptionError(f"{self._run.tip}: a rewritten batch: {found.status.reason}")
        return found, own

    def _note_newest(self, batches: BatchScan, piece: memoryview) -> None:
        newest = max(batches.max_timestamps)
        if newest > self._newest[0]:
            at = batches.max_timestamps.index(newest)
            start = batches.positions[at]
            self._newest = newest, bytes(piece[start : start + batches.sizes[at]])

    def _history(self, epochs: LeaderEpochs) -> LeaderEpochs:
        """Return the epoch history of the last object; empty where it has none that ends in `epochs`."""
        data = self._kept[EPOCH_HISTORY]
        if not data:
            return ()
        history = decode_epoch_history(data, self._sources[-1].footer)
        try:
            check_history(history, epochs, self._run.last_offset)
        except CorruptionError:
            return ()
        return history

    def _open_from(self, snapshot: bytes, transactional_batches: int) -> int:
        """Return where the oldest transaction begins that is open at the end, as `SegmentEntry.open_from`."""
        footer = self._sources[-1].footer
        if footer.open_from != NO_OFFSET:
            return footer.open_from
        if not transactional_batches or not snapshot:
            return NO_OFFSET
        with naming(self._sources[-1].entry.key):
            firsts = [row.txn_first_offset for row in decode_rows(snapshot) if row.txn_first_offset >= 0]
        return min(firsts, default=self._run.last_offset + 1)

    # -- second pass -----------------------------------------------------------------------------------------

    def _parts(self, scanned: ScannedLog) -> Iterator[Buffer]:
        """Yield the same bytes again. `CorruptionError` where they differ from the first pass."""
        blocks = iter(scanned.blocks)
        block, position, crc = next(blocks, None), 0, 0
        pieces = (piece for _, piece in self._output()) if self._written is None else self._written
        for piece in pieces:
            position, crc = position + len(piece), crc32c(piece, crc)
            if block is None or position > block.end or (position == block.end and crc != block.crc32c):
                raise CorruptionError(f"{self._run.tip}: a rewritten run changed while it was read")
            self._progress.advance(len(piece))
            self._spend(len(piece))
            yield piece
            if position == block.end:
                block, crc = next(blocks, None), 0

    def _upload(self, planned: PlannedObject) -> None:
        self._store.put_stream(planned.key, planned.parts(), planned.size)
        verify_arrival(self._store, planned)


def _check_epochs(epochs: LeaderEpochs, found: Sequence[tuple[int, int]], run: ChainRun) -> None:
    """Raise `CorruptionError` unless each batch has the leader epoch that the run's entries say."""
    for epoch, offset in found:
        said = max((one for one in epochs if one[1] <= offset), default=None)
        if said is None or said[0] != epoch:
            raise CorruptionError(
                f"{run.tip}: a batch of leader epoch {epoch} at {offset}, the chain says {said}"
            )
