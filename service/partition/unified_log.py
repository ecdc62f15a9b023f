"""One log over two tiers.

Only this module decides which tier serves an offset: at or above the local start offset the segment file,
below it the bucket. The catalog entry alone (manifest key, start and end offset) defines the remote part:
objects that the entry does not name are not part of the log.

    log start                    local start            remote end            log end
        |---- remote only ------------|---- both tiers -----|---- local only -----|
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, Buffer, TimestampedOffset
from service.hot.files import FileSlice
from service.hot.log import LocalLog
from service.hot.search import SegmentSearch
from service.records.txn_rows import encode_pair
from service.remote.catalog import CatalogEntry

if TYPE_CHECKING:
    from service.remote.reading.aborted import AbortedRows
    from service.remote.reading.download_manager import ResponseHold
    from service.remote.reading.reader import RemoteRead, RemoteReader


class CommittedRead(NamedTuple):
    """A remote read from `offset` on, and the aborted transactions that overlap it, as far as the remote part
    `entry` has them."""

    offset: int
    read: RemoteRead
    aborted: AbortedRows
    entry: CatalogEntry


class LogRead(NamedTuple):
    """Result of a read: bytes (`parts`, `size` bytes of whole or cut batches), or a remote read to wait for.

    `hold` keeps parts from the bucket in memory; it is released when they have been sent. `aborted`: the
    aborted transactions that overlap the bytes, where they were asked for (`records.txn_rows.PAIR`).
    `next_offset`: where the bytes end, or about where the records of so many bytes end.
    """

    parts: tuple[FileSlice | Buffer, ...]
    size: int
    pending: PendingRead | None
    hold: ResponseHold | None = None
    aborted: Sequence[bytes] = ()
    next_offset: int = NO_OFFSET


PendingRead: TypeAlias = "Future[RemoteRead] | Future[CommittedRead] | asyncio.Future[LogRead]"
"""A read from the bucket, or of the local log with many aborted transactions."""


NOTHING = LogRead((), 0, None)
MOST_ABORTED: Final = 16_384
"""About the most aborted transactions of one read, unless more overlap with one batch."""
_BLOCKS_AT_ONCE: Final = 64
"""Blocks of the transaction index that are read at once."""
HIGH_WATERMARK: Final = -1
"""Offset in a DeleteRecords that stands for the high watermark."""


NOT_FOUND: Final = TimestampedOffset(NO_OFFSET, NO_TIMESTAMP, NO_LEADER_EPOCH)


class UnifiedLog:
    """Both tiers of one partition as one log. Owned by the event loop; nothing here blocks."""

    def __init__(self, local: LocalLog, reader: RemoteReader | None) -> None:
        self.local = local
        self.remote: CatalogEntry | None = None
        self.hides_archive: Callable[[], bool] = lambda: False
        """whether the bucket may have records that an order of erasure takes: nothing of it is served then"""
        self._reader = reader

    @property
    def start_offset(self) -> int:
        """First offset that a client can read, in either tier."""
        return self.local.log_start_offset

    @property
    def local_start_offset(self) -> int:
        return self.local.local_log_start_offset

    @property
    def end_offset(self) -> int:
        return self.local.log_end_offset

    @property
    def highest_remote_offset(self) -> int:
        """Last offset committed to the bucket; -1 if there is none."""
        return self.remote.end_offset - 1 if self.remote is not None else NO_OFFSET

    def remote_committed(self, entry: CatalogEntry | None) -> None:
        """Apply a committed catalog entry: its manifest is the remote part of this log from now on."""
        self.remote = entry
        if entry is None or entry.start_offset <= self.local.log_start_offset:
            return
        if entry.start_offset <= self.local.log_end_offset:  # else a follower's log, which restarts later
            self.local.deletion.advance_log_start(entry.start_offset)

    def delete_records(self, offset: int, high_watermark: int) -> bool:
        """Move the start of both tiers to `offset` (`HIGH_WATERMARK`: to that); return False where it is
        there or beyond.

        Raises `RequestError` POLICY_VIOLATION for a topic that is compacted only, OFFSET_OUT_OF_RANGE beyond
        the high watermark.
        """
        policy, tip = self.local.config.cleanup_policy, self.local.tip
        if "compact" in policy and "delete" not in policy:
            raise RequestError(
                ErrorCode.policy_violation,
                f"Records of partition {tip} can not be deleted due to the configured policy",
            )
        wanted = high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= high_watermark:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"{wanted} is not an offset up to {high_watermark}, the high watermark of {tip}",
            )
        if wanted <= self.start_offset:
            return False
        self.local.deletion.move_log_start(wanted)
        return True

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        min_one: bool,
        cold_bytes: int = sys.maxsize,
        is_committed: bool = False,
    ) -> LogRead:
        """Return up to `max_bytes` bytes from the batch that holds `offset`, ending before `end_offset`: for
        a consumer the high watermark at most (invariant P9) or, if it `is_committed`, the last stable offset;
        it gets the aborted transactions, too.

        With `min_one` the first batch comes whole even if it is larger. From the bucket come up to
        `cold_bytes` bytes. Raises `RequestError` OFFSET_OUT_OF_RANGE if `offset` is not between the log's
        start and end.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not within [{self.start_offset}, {self.end_offset}] of {self.local.tip}",
            )
        if max_bytes <= 0 and not min_one:
            return NOTHING
        if offset >= self.local_start_offset:
            found, _, more = self.local.read(offset, max_bytes, end_offset, min_one)
            if found is None or not found.size:
                return NOTHING
            parts = (found, *more) if more else (found,)
            size = _size(parts) if more else found.size
            if is_committed and self.local.state.segments.has_rows_from(offset):
                return self._with_local_aborted(offset, max_bytes, end_offset, parts)
            if size < max_bytes and offset >= self.local.state.segments.bases[-1]:
                return LogRead(parts, size, None, next_offset=end_offset)
            return LogRead(parts, size, None, next_offset=offset + self._records_in(size))
        if cold_bytes <= 0 or offset >= end_offset:
            return NOTHING
        return self._read_remote(offset, min(max_bytes, cold_bytes), end_offset, is_committed)

    def _records_in(self, size: int) -> int:
        """Return about how many offsets so many bytes of the local log cover, as they do on average."""
        local = self.local
        return max(size * (local.log_end_offset - local.local_log_start_offset) // (local.size or 1), 1)

    def _with_local_aborted(
        self, offset: int, max_bytes: int, end_offset: int, parts: tuple[FileSlice, ...]
    ) -> LogRead:
        """Return `parts`, or fewer, of a read from `offset` with the aborted transactions that overlap them.

        Where there are many, these are looked up in later turns: of the same bytes, whatever is stable then.
        """
        local = self.local
        segments, bound = local.state.segments, local.reader.end_of(offset, parts, end_offset)
        behind = segments.offset_behind_aborted(offset, MOST_ABORTED)
        if behind is not None and behind < bound:
            found, _, more = local.read(offset, max_bytes, behind)
            if found is not None and found.size:
                parts, bound = (found, *more), local.reader.end_of(offset, (found, *more), behind)
        finding = segments.aborted_from(offset, bound)
        try:
            for _ in range(_BLOCKS_AT_ONCE):
                next(finding)
        except StopIteration as e:
            return LogRead(parts, _size(parts), None, None, e.value, bound)
        return LogRead((), 0, asyncio.ensure_future(_found_later(parts, bound, finding)))

    def missing_pages(self, offset: int) -> Sequence[FileSlice]:
        """Return pages that the offset lookup of a local read would wait for; see `hot.lookup_prefetch`."""
        if not self.local_start_offset <= offset < self.end_offset or self.local.failure is not None:
            return ()
        return self.local.reader.missing_pages(offset)

    def _read_remote(self, offset: int, max_bytes: int, end_offset: int, is_committed: bool) -> LogRead:
        if self._reader is None or self.remote is None or offset >= self.remote.end_offset:
            # The start offset has moved since the request arrived, or the archive is not configured.
            raise RequestError(
                ErrorCode.offset_out_of_range, f"no tier holds offset {offset} of {self.local.tip}"
            )
        if self.hides_archive():
            return NOTHING
        share = self._reader.share()
        if not share:
            return NOTHING  # the memory for cold bytes is in use: the client fetches again
        max_bytes = min(max_bytes, share)
        entry = self.remote
        reading = self._reader.read(self.local.tip, entry.manifest_key, offset, max_bytes, end_offset)
        if is_committed:
            return self._with_aborted(self._reader, entry, offset, reading)
        return self.ready(reading) if reading.done() else LogRead((), 0, reading)

    def _with_aborted(
        self, reader: RemoteReader, entry: CatalogEntry, offset: int, reading: Future[RemoteRead]
    ) -> LogRead:
        """Return the result of `reading`, which began at `offset`, with the aborted transactions that overlap
        it."""
        whole: Future[CommittedRead] = Future()
        whole.set_running_or_notify_cancel()
        reading.add_done_callback(partial(self._look_up_aborted, reader, entry, offset, whole))
        return self.ready(whole) if whole.done() else LogRead((), 0, whole)

    # These callbacks must not make `reading` reachable from `whole`: the read's hold on memory would then be
    # part of a cycle, and a read that nobody takes would keep it until the garbage collector runs.

    def _look_up_aborted(
        self,
        reader: RemoteReader,
        entry: CatalogEntry,
        offset: int,
        whole: Future[CommittedRead],
        reading: Future[RemoteRead],
    ) -> None:
        """Start the look-up for a read that has ended; `whole` gets both."""
        if (error := reading.exception()) is not None:
            whole.set_exception(error)
            return
        read = reading.result()
        finding = reader.aborted(self.local.tip, entry.manifest_key, offset, read.next_offset)
        finding.add_done_callback(partial(_put_together, entry, offset, read, whole))

    def ready(self, future: PendingRead) -> LogRead:
        """Return the bytes of a read that has ended, or raise its error."""
        found = future.result()
        if isinstance(found, LogRead):
            return found
        if not isinstance(found, CommittedRead):
            size = sum(map(len, found.data))
            return LogRead(found.data, size, None, found.hold, next_offset=found.next_offset)
        offset, read, (rows, is_complete), entry = found
        if not is_complete:
            if self.local_start_offset > entry.end_offset:
                # Meanwhile other markers went from the local log to the bucket.
                if self._reader is None or self.remote is None or self.remote == entry:
                    _release(read)
                    return NOTHING
                reading: Future[RemoteRead] = Future()
                reading.set_result(read)
                return self._with_aborted(self._reader, self.remote, offset, reading)
            rows = [*rows, *self.local.aborted_transactions(entry.end_offset, read.next_offset)]
        return LogRead(
            read.data,
            sum(map(len, read.data)),
            None,
            read.hold,
            [*map(encode_pair, rows)],
            read.next_offset,
        )

    def search_remote(self, timestamp: int) -> Future[TimestampedOffset | None] | None:
        """Start the search for the first remote record at or after `timestamp`; None if only local segments
        matter."""
        if self._reader is None or self.remote is None or self.start_offset >= self.local_start_offset:
            return None
        return self._reader.offset_for_timestamp(
            self.local.tip, self.remote.manifest_key, timestamp, self.start_offset
        )

    def looks_by_time(self, timestamp: int) -> Iterator[SegmentSearch | None]:
        """Searches for the first local record at or after `timestamp` (ms); see `TimestampSearch`."""
        return self.local.timestamp_search.by_timestamp(timestamp)

    def looks_for_newest(self) -> Iterator[SegmentSearch | None]:
        """Yield the places of the local record with the greatest timestamp."""
        return self.local.timestamp_search.by_max_timestamp()

    def remote_max_timestamp(self) -> Future[TimestampedOffset | None] | None:
        """Start the search for the remote record with the greatest timestamp; None if no part of the log is
        only remote."""
        if self._reader is None or self.remote is None or self.start_offset >= self.local_start_offset:
            return None
        return self._reader.max_timestamp_offset(self.local.tip, self.remote.manifest_key)

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if there is
        none."""
        return self.local.end_offset_of_epoch(leader_epoch)


def _put_together(
    entry: CatalogEntry,
    offset: int,
    read: RemoteRead,
    whole: Future[CommittedRead],
    finding: Future[AbortedRows],
) -> None:
    """Resolve `whole` with a read and the aborted transactions that were found for it, or with the error."""
    if (error := finding.exception()) is not None:
        _release(read)
        whole.set_exception(error)
    else:
        whole.set_result(CommittedRead(offset, read, finding.result(), entry))


def _release(read: RemoteRead) -> None:
    """Free the memory of a read that nobody gets."""
    if read.hold is not None:
        read.hold.release()


def _size(parts: Sequence[FileSlice]) -> int:
    return sum(one.size for one in parts)


async def _found_later(parts: tuple[FileSlice, ...], bound: int, finding: Steps[list[bytes]]) -> LogRead:
    """Return `parts` with the aborted transactions that `finding` finds, in later turns."""
    piece = Slice()
    await piece.next_turn()
    return LogRead(parts, _size(parts), None, None, await piece.go_on(finding), bound)
