"""Transactions of a log that is opened: the rows of each segment, and what the high watermark has not passed.

The log says what is right (X6). The rows of segments that recovery has read are those that it found; those of
others are taken from their files, compared with the log (`_proved`), and made anew from it where they are
wrong. Runs on a `log-io` thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from service.base.disk import MissingFile
from service.base.errors import CorruptionError
from service.base.files import fsync_dir, read_file, remove_file
from service.base.types import Buffer
from service.hot.index_proof import MAX_INDEX_BYTES
from service.hot.producer_snapshot import MAX_SNAPSHOT_BYTES
from service.hot.segment import Segment
from service.hot.state import LogState
from service.hot.txn_index import TxnIndex, check_rows
from service.records.batch import HEADER_SIZE, read_header
from service.records.markers import read_marker
from service.records.open_spans import RowReplay
from service.records.producer_snapshot import ProducerRow
from service.records.producer_snapshot import decode_rows as decode_producers
from service.records.scan import scan_pieces
from service.records.txn_rows import ROW, AbortedEntry, iter_rows
from service.records.walk import LOOKUP_BYTES, iter_batches

_log = logging.getLogger(__name__)


def settle_rows(
    state: LogState,
    segments: Sequence[Segment],
    sizes: Mapping[int, int],
    read: Mapping[int, Buffer],
    end_offset: int,
    *,
    is_doubtful: bool,
) -> None:
    """Give each of `segments`, all of a log that ends at `end_offset`, its transaction index.

    `sizes`: bytes of the files that exist, by base offset; `read`: rows of the segments that recovery has
    read, `is_doubtful`: whose files are written again, as an fsync has failed and another would not write
    them. `CorruptionError` if rows are lost and the log is damaged, `DiskError`.
    """
    for slot, segment in enumerate(segments):
        base = segment.base_offset
        size, right = sizes.get(base, 0), read.get(base)
        if not size and not right:
            continue
        end = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        path = state.txn_index_of(segment).path
        found, why = b"", "it differs from its log"
        try:
            found = read_file(state.disk, path, MAX_INDEX_BYTES) if size else b""
            if right is None:
                check_rows(found, base, end)
                right = _proved(state, segments, slot, found)
        except (CorruptionError, MissingFile) as e:
            right, why = _rows_of(state, segments, slot), str(e)
        index = TxnIndex(state.txn_index_of(segment, size), state.world.threads.lock())
        if found == right and is_doubtful and base in read:
            index.replace(right)
        elif found == right:
            # The process that wrote it may have been killed before it flushed.
            index.take(right, is_durable=base not in read)
        else:
            _log.warning("%s is made anew from the log, with %d rows: %s", path, len(right) // ROW.size, why)
            if not right:
                remove_file(state.disk, path)
                fsync_dir(state.disk, state.dir)
                continue
            index.replace(right)
        segment.txn_index = index


def _proved(state: LogState, segments: Sequence[Segment], slot: int, found: bytes) -> Buffer:
    """Return the right rows of segment number `slot`, whose index file has the rows `found`.

    Each is looked up in the log; the whole segment is replayed where that reads no more. `CorruptionError`
    for a row that the log contradicts. What is damaged there contradicts nothing: its readers are told.
    """
    segment, is_compacted = segments[slot], state.cleaned_offset >= 0
    try:
        if not is_compacted and len(found) // ROW.size * 2 * LOOKUP_BYTES >= segment.size:
            producers = _producers_at(state, segment)
            if producers is not None:
                right = _replayed(producers, (segment,))
                if right == found or not _began_before(segment, found, right):
                    return right
        wrong = next((row for row in iter_rows(found) if _is_wrong(segment, row, is_compacted)), None)
    except CorruptionError as e:
        _log.warning("the transaction index of %s cannot be proved: %s", segment.log.path, e)
        return found
    if wrong is not None:
        raise CorruptionError(f"the log has no such transaction: {wrong}")
    return found


def _began_before(segment: Segment, found: bytes, right: Buffer) -> bool:
    """Return whether `found` has a marker that `right` lacks, of a transaction that began before the segment:
    the row or the snapshot is wrong, and nothing here tells which (ADR 44)."""
    markers = {row.last_offset for row in iter_rows(right)}
    return any(
        row.first_offset < segment.base_offset and row.last_offset not in markers for row in iter_rows(found)
    )


def _is_wrong(segment: Segment, row: AbortedEntry, is_compacted: bool) -> bool:
    """Return whether the log has something else than the row's marker, or than its first batch."""
    read = segment.log.get().pread
    for offset, is_marker in ((row.last_offset, True), (row.first_offset, False)):
        if offset < segment.base_offset:
            continue  # that is in an earlier segment
        place = segment.indexes.find(offset)
        if place is None or place.base_offset != offset:
            if is_compacted:
                continue
            return True
        header = read_header(read(HEADER_SIZE, place.position))
        if is_compacted and (header.producer_id < 0 or not header.record_count):
            continue  # compaction has left an empty batch
        if header.producer_id != row.producer_id or header.is_control is not is_marker:
            return True
        if is_marker:
            marker = read_marker(read, header._replace(position=place.position))
            if marker is None or marker.is_commit:
                return True
    return False


def _producers_at(state: LogState, segment: Segment) -> list[ProducerRow] | None:
    """Return the producers of the snapshot at the base of `segment`; None if nothing tells."""
    path = state.snapshots.path(segment.base_offset)
    if path is not None:
        try:
            return decode_producers(read_file(state.disk, path, MAX_SNAPSHOT_BYTES))
        except (CorruptionError, MissingFile) as e:
            _log.warning("skipping unreadable producer snapshot %s: %s", path, e)
    return None if segment.base_offset else []


def _rows_of(state: LogState, segments: Sequence[Segment], slot: int) -> Buffer:
    """Compute the rows of segment number `slot` from the log, and the last snapshot before it."""
    for first in range(slot, -1, -1):
        producers = _producers_at(state, segments[first])
        if producers is not None:
            break
    return _replayed(producers or [], segments[first : slot + 1])


def _replayed(producers: list[ProducerRow], segments: Sequence[Segment]) -> Buffer:
    """Return the rows of the last of `segments`; `producers` are those at the base of the first."""
    replay = RowReplay(producers)
    for segment in segments:
        replay.rows.clear()
        for run, _, piece in scan_pieces(
            segment.log.get().read,
            0,
            segment.size,
            first_offset=segment.base_offset,
            name=str(segment.log.path),
        ):
            replay.add(run, piece)
    return replay.rows


def has_markers_from(segments: Iterable[Segment], offset: int) -> bool:
    """Return whether these segments have a producer's control batch at or above `offset`."""
    for segment in segments:
        place = segment.indexes.find(offset)
        if place is None:
            continue
        read = segment.log.get().pread
        for header in iter_batches(read, place.position, segment.size, name=segment.log.path):
            if header.is_control and header.producer_id >= 0:
                return True
    return False
