"""Transactions of a log that is opened: the rows of each segment, and what the high watermark has not passed.

The log says what is right (X6). The rows of segments that recovery has read are those that it found; those of
others are taken from their files, and made anew from the log where these cannot be right. Runs on a
`log-io` thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from service.base.disk import MissingFile
from service.base.errors import CorruptionError
from service.base.files import fsync_dir, read_file, remove_file
from service.hot.index_proof import MAX_INDEX_BYTES
from service.hot.producer_snapshot import MAX_SNAPSHOT_BYTES
from service.hot.segment import Segment
from service.hot.state import LogState
from service.hot.txn_index import TxnIndex, check_rows
from service.records.open_spans import RowReplay
from service.records.producer_snapshot import ProducerRow
from service.records.producer_snapshot import decode_rows as decode_producers
from service.records.scan import scan_pieces
from service.records.txn_rows import AbortedEntry, decode_rows
from service.records.walk import iter_batches

_log = logging.getLogger(__name__)


def settle_rows(
    state: LogState,
    segments: Sequence[Segment],
    sizes: Mapping[int, int],
    read: Mapping[int, list[AbortedEntry]],
    end_offset: int,
) -> None:
    """Give each of `segments`, all of a log that ends at `end_offset`, its transaction index.

    `sizes`: bytes of the files that exist, by base offset; `read`: rows of the segments that recovery has
    read. `CorruptionError` if rows are lost and the log is damaged, `DiskError`.
    """
    for slot, segment in enumerate(segments):
        base = segment.base_offset
        size, right = sizes.get(base, 0), read.get(base)
        if not size and not right:
            continue
        end = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        path = state.txn_index_of(segment).path
        found, why = None, "it lacks rows"
        try:
            found = decode_rows(read_file(state.disk, path, MAX_INDEX_BYTES)) if size else []
            check_rows(found, base, end)
        except (CorruptionError, MissingFile) as e:
            found, why = None, str(e)
        if right is None:
            right = _rows_of(state, segments, slot) if found is None else found
        index = TxnIndex(state.txn_index_of(segment, size), state.world.threads.lock())
        if found == right:
            # The process that wrote it may have been killed before it flushed.
            index.take(right, is_durable=base not in read)
        else:
            _log.warning("%s is made anew from the log, with %d rows: %s", path, len(right), why)
            if not right:
                remove_file(state.disk, path)
                fsync_dir(state.disk, state.dir)
                continue
            index.replace(right)
        segment.txn_index = index


def _rows_of(state: LogState, segments: Sequence[Segment], slot: int) -> list[AbortedEntry]:
    """Compute the rows of segment number `slot` from the log, and the last snapshot before it."""
    first, producers = 0, list[ProducerRow]()
    for number in range(slot, -1, -1):
        path = state.snapshots.path(segments[number].base_offset)
        if path is not None:
            try:
                producers = decode_producers(read_file(state.disk, path, MAX_SNAPSHOT_BYTES))
            except (CorruptionError, MissingFile) as e:
                _log.warning("skipping unreadable producer snapshot %s: %s", path, e)
            else:
                first = number
                break
    replay = RowReplay(producers)
    for segment in segments[first : slot + 1]:
        replay.rows.clear()
        for run, _, piece in scan_pieces(
            segment.log.get().read,
            0,
            segment.size,
            first_offset=segment.base_offset,
            name=str(segment.log.path),
        ):
            replay.add(run, piece)
    return decode_rows(replay.rows)


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
