"""Both sparse indexes of one segment: entries for new batches, lookups, and the rebuild from the log.

Indexes are hints: an entry that cannot be written is skipped and the next batch retries; the lookup that
needs a lost or wrong index rebuilds it from the log. So once a batch is written, nothing can refuse it.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from service.base.disk import DiskError, MissingFile
from service.base.errors import CorruptionError
from service.base.files import fsync_file
from service.base.types import NO_TIMESTAMP
from service.hot import names
from service.hot.files import FileCache, FileHandle
from service.hot.index_check import IndexedSegment, index_error, index_problem
from service.hot.indexes import OffsetIndex, TimeIndex
from service.records.batch import BatchHeader
from service.records.produce_kernel import LAST_OFFSET, MAX_TIMESTAMP, ROW_FIELDS, SIZE
from service.records.produced_run import ProducedRun
from service.records.scan import BatchScan
from service.records.segment_indexes import IndexBuilder, due_entries
from service.records.walk import LOOKUP_BYTES, BatchPlace, Read, find_offset, iter_batches, last_place

_log = logging.getLogger(__name__)

_MOST_DOUBTS: Final = 4


class IndexSettings(NamedTuple):
    """``segment.index.bytes`` and ``index.interval.bytes`` of a topic."""

    max_bytes: int
    interval_bytes: int


class SegmentIndexes:
    """The indexes of the batches in `log`. Owned by the loop; `flush` and `distrust` are for any thread.

    ``is_growing``: batches are appended, so the time index does not end with the greatest timestamp yet.
    ``is_checked``: False until the first lookup has checked the files, and after `distrust`.
    """

    __slots__ = (
        "_base_offset", "_doubts", "_has_skipped", "_log", "_newest", "_since_entry", "is_checked",
        "is_growing", "offset", "settings", "time",
    )  # fmt: skip

    def __init__(
        self,
        log: FileHandle,
        base_offset: int,
        sizes: tuple[int, int],
        settings: IndexSettings,
        cache: FileCache,
    ) -> None:
        """`sizes`: current bytes of offset index and time index."""
        offset_size, time_size = sizes
        self._log = log
        self._base_offset = base_offset
        self.settings = settings
        offset = FileHandle(log.path.with_suffix(names.OFFSET_INDEX), offset_size, cache)
        time = FileHandle(log.path.with_suffix(names.TIME_INDEX), time_size, cache)
        self.offset = OffsetIndex(offset, base_offset, settings.max_bytes)
        self.time = TimeIndex(time, base_offset, settings.max_bytes)
        self.is_growing = False
        self.is_checked = False
        self._newest: tuple[int, int] | None = None
        self._since_entry = 0
        self._has_skipped = False
        self._doubts = _MOST_DOUBTS

    @property
    def newest(self) -> tuple[int, int]:
        """Greatest timestamp and the last offset of its batch; -1 and the base offset if there is none."""
        if self._newest is None:
            self.check()
        if self._newest is None:
            try:
                self._newest = self.time.last()
            except (CorruptionError, DiskError):
                self._newest = self._newest_behind(0, (NO_TIMESTAMP, self._base_offset))
        return self._newest

    @property
    def knows_newest(self) -> bool:
        """Return whether `newest` reads no file."""
        return self._newest is not None

    def _newest_behind(self, position: int, known: tuple[int, int]) -> tuple[int, int]:
        """Return the greatest (timestamp, offset); `known`: that of the batches before `position`."""
        for header in self._headers(position):
            if header.max_timestamp > known[0]:
                known = (header.max_timestamp, header.last_offset)
        return known

    def _headers(self, position: int, **options: int) -> Iterator[BatchHeader]:
        log = self._log
        return iter_batches(log.get().pread, position, log.size, name=log.path, **options)

    # Entries for new batches

    def is_full_after(self, entries: int) -> bool:
        """Return whether an index is full once both have `entries` more."""
        offset, time = self.offset, self.time
        return (
            offset.entries + entries >= offset.max_entries or time.entries + entries >= time.max_entries - 1
        )

    def resume(self) -> None:
        """Grow again, as the active segment: compute the exact greatest timestamp."""
        self.is_growing = True
        if self._log.size and self._newest is None:
            self.check()
            if self._newest is None:
                last = self.offset.last()
                self._newest = self._newest_behind(last[1] if last else 0, self.time.last())

    def add(self, last_offset: int, max_timestamp: int, position: int, size: int) -> None:
        """Account for the batch of `size` bytes at `position`. Raises nothing, as it is in the log."""
        newest = self._newest
        if newest is None or max_timestamp > newest[0]:
            newest = self._newest = (max_timestamp, last_offset)
        if self._since_entry > self.settings.interval_bytes:
            self._add_entries(last_offset, position, newest)
        self._since_entry += size

    def add_produced(self, run: ProducedRun, position: int) -> None:
        """Account for a produced run at `position`, as `add` does for each of its batches."""
        rows, end = run.rows, run.batches * ROW_FIELDS
        interval, since, newest = self.settings.interval_bytes, self._since_entry, self._newest
        if since + len(run.data) - rows[end - ROW_FIELDS + SIZE] <= interval:  # no entry is due
            self._since_entry = since + len(run.data)
            if newest is None or run.newest[0] > newest[0]:
                self._newest = run.newest
            return
        for at in range(0, end, ROW_FIELDS):
            if newest is None or rows[at + MAX_TIMESTAMP] > newest[0]:
                newest = self._newest = (rows[at + MAX_TIMESTAMP], rows[at + LAST_OFFSET])
            if since > interval:
                self._since_entry = since
                self._add_entries(rows[at + LAST_OFFSET], position + rows[at], newest)
                since = self._since_entry
            since += rows[at + SIZE]
        self._since_entry = since

    def add_run(self, run: BatchScan, position: int, size: int) -> None:
        """Account for a run of `size` bytes at `position`. Both indexes have room for it, and it is not the
        first of the segment. Raises nothing, as it is in the log."""
        state = array("q", (self._since_entry, *self.newest))
        entries = due_entries(run, position, state, self.settings.interval_bytes)
        self._since_entry, self._newest = self._since_entry + size, (state[1], state[2])
        try:
            self.offset.append_all(entries)
            self.time.append_all(entries)
        except (DiskError, CorruptionError) as e:
            self._skip_entries(e)
        else:
            self._since_entry = state[0]

    def _add_entries(self, last_offset: int, position: int, newest: tuple[int, int]) -> None:
        """Add an entry to each index. An error does not fail the batch: the next batch retries."""
        try:
            offset, time = self.offset, self.time
            if offset.entries < offset.max_entries:
                offset.append(last_offset, position)
            if time.entries < time.max_entries - 1:
                time.maybe_append(*newest)
        except (DiskError, CorruptionError) as e:
            self._skip_entries(e)
        else:
            self._since_entry = 0

    def _skip_entries(self, error: DiskError | CorruptionError) -> None:
        if not self._has_skipped:
            _log.warning("skipping index entries of %s: %s", self._log.path, error)
        self._has_skipped = True
        if isinstance(error, MissingFile):
            self.is_checked = False  # the next lookup rebuilds it

    def finish(self) -> None:
        """Make the greatest timestamp the last entry of the time index, as in a sealed segment."""
        if self._newest is not None:
            self.time.maybe_append(*self._newest)

    def seal(self) -> None:
        """End the entries for new batches."""
        try:
            self.finish()
        except (DiskError, CorruptionError) as e:
            self._leave_to_lookup(e)
        self.is_growing = False

    def truncate(self, offset: int) -> None:
        """Remove the entries at or above `offset`, where the log was cut. `resume` is called next."""
        try:
            self.offset.truncate_to(offset)
            self.time.truncate_to(offset)
        except (DiskError, CorruptionError) as e:
            self._leave_to_lookup(e)
        self._since_entry = 0
        self._newest = None

    def flush(self) -> None:
        """Make both files durable. `FsyncFailed`."""
        for index in (self.offset, self.time):
            try:
                file = index.handle.get()
                fd = file.fd
            except MissingFile:  # a hint; the next lookup rebuilds it
                continue
            fsync_file(file.disk, fd)

    # Lookups

    def find(self, offset: int, read: Read | None = None) -> BatchPlace | None:
        """Find the first batch whose last offset is at or above `offset`; None if there is none. `read` reads
        headers."""
        log = self._log
        limit = log.size
        if not limit:
            return None
        if not self.is_checked:
            self.check()
        why: Exception
        try:
            position, before = self.offset.lookup(offset)
        except (CorruptionError, DiskError) as e:
            why = index_error(e)
        else:
            try:
                if position >= limit:
                    raise CorruptionError(f"an entry points beyond the log, at {position}")
                place = find_offset(read or log.get().pread, offset, position, limit, log.path)
                if place is not None:
                    self._doubt(place, position, before, offset)
                return place
            except CorruptionError as e:
                why = e
        self._rebuild_if_possible(why)
        position = _without_error(lambda: self.offset.lookup(offset)[0])
        return find_offset(log.get().pread, offset, position, limit, log.path)

    def _doubt(self, place: BatchPlace, position: int, before: int, offset: int) -> None:
        """Raise `CorruptionError` if the entry for `position` points behind `offset`, or entries are missing.

        `place`: the batch found from there on; `before`: the position of the previous entry.
        """
        log = self._log
        if place.position == position:
            # A batch that begins behind the offset follows a gap, or the entry is wrong.
            is_behind = bool(position) and place.base_offset > offset
            if is_behind and find_offset(log.get().pread, offset, before, log.size, log.path) != place:
                raise CorruptionError(f"the entry for {offset} points behind it, at {position}")
            return
        far = 16 * self.settings.interval_bytes
        if place.position - position <= far or self.offset.is_full or not self._doubts:
            return
        self._doubts -= 1
        *_, last = iter_batches(log.get().pread, position, place.position, name=log.path)
        if last.position - position > far:  # a batch in front of it may be large
            raise CorruptionError(f"entries between {position} and {place.position} are missing")

    def offset_behind(self, position: int) -> int | None:
        """Return an offset that no batch in front of `position` has or exceeds, near to it; None where no
        sound entry tells."""
        log = self._log
        if not self.is_checked:
            self.check()
        try:
            entry = self.offset.first_from(position)
            if entry is None or not position <= entry[1] < log.size:
                return None
            place = find_offset(log.get().pread, entry[0], entry[1], log.size, log.path)
        except (CorruptionError, DiskError):
            return None
        if place is None or (place.position, place.last_offset) != (entry[1], entry[0]):
            return None
        return place.base_offset

    def least_offset_for(self, timestamp: int) -> int:
        """Return an offset before which no record is as late as `timestamp`; at least the base offset."""
        if not self.is_checked:
            self.check()
        try:
            return self.time.lookup(timestamp)
        except (CorruptionError, DiskError) as e:
            self._rebuild_if_possible(index_error(e))
        return _without_error(lambda: self.time.lookup(timestamp)) or self._base_offset

    def ends_at(self, offset: int) -> bool:
        """Return whether the log's last batch ends just before `offset`, by one read behind the last index
        entry.

        False if that read does not show it. Leaves no file open, as a start checks every segment.
        """
        disk, size = self._log.disk, self._log.size
        try:
            position = self.offset.peek_last_position()
            if not position < size <= position + LOOKUP_BYTES:
                return False
            fd = disk.open(self._log.path)
            try:
                tail = disk.pread(fd, size - position, position)
            finally:
                disk.close(fd)
            place = last_place(tail)
        except (CorruptionError, MissingFile):
            return False
        return place.position + place.size == len(tail) and place.last_offset + 1 == offset

    def near_end(self) -> int:
        """Return the position of a batch near the log's end, by the last index entry; 0 if that is wrong."""
        log = self._log
        try:
            last = self.offset.last()
            if last is None or not 0 < last[1] < log.size:
                return 0
            place = find_offset(log.get().pread, self._base_offset, last[1], log.size)
        except (CorruptionError, MissingFile):
            return 0
        return last[1] if place is not None and place.last_offset == last[0] else 0

    # Check and rebuild

    def check(self) -> None:
        """Check the indexes once, and after `distrust`: rebuild them unless they are plausible."""
        if self.is_checked:
            return
        self.is_checked = True
        try:
            problem = "entries were skipped" if self._has_skipped else index_problem(self._indexed())
        except (CorruptionError, DiskError) as e:
            problem = str(e)
        if problem:
            self._rebuild_if_possible(problem)

    def _indexed(self) -> IndexedSegment:
        log = self._log
        return IndexedSegment(
            log.get().pread, log.path, log.size, self.offset, self.time, self.settings.interval_bytes
        )

    def distrust(self) -> None:
        """Have the next lookup rebuild the indexes. Safe from any thread."""
        self._has_skipped = True
        self.is_checked = False

    def _leave_to_lookup(self, error: DiskError | CorruptionError) -> None:
        _log.warning("the next lookup rebuilds the indexes of %s: %s", self._log.path, error)
        self.distrust()

    def _rebuild_if_possible(self, why: object) -> None:
        """Rebuild the indexes. If the disk refuses, or the files are being renamed, lookups scan the log.
        `CorruptionError`."""
        try:
            if self._log.path.suffix == names.LOG:
                _log.warning("rebuilding the indexes of %s: %s", self._log.path, why)
                self.rebuild()
                return
        except DiskError as e:
            _log.warning("%s has no indexes for now: %s", self._log.path, e)
        for index in (self.offset, self.time):
            index.forget()
        self.is_checked = False

    def rebuild(self) -> None:
        """Rebuild both indexes from the headers in the log, with the entries that appends would have made."""
        for index in (self.offset, self.time):
            index.handle.create()
            index.truncate_entries(0)
        self.is_checked = True
        self._has_skipped = False
        self._newest = None
        self._since_entry = 0
        for header in self._headers(0, chunk_bytes=1 << 20):
            self.add(header.last_offset, header.max_timestamp, header.position, header.size)
        if not self.is_growing:
            self.finish()

    def note_built(self, built: IndexBuilder) -> None:
        """Note that the files hold what `built` made from the whole log: the first lookup need not check."""
        self._newest = built.newest if self._log.size else None
        self.is_checked = True

    def replace(self, built: IndexBuilder) -> None:
        """Replace the indexes by `built`, which was made from the whole log."""
        self.note_built(built)
        self._since_entry = built.since
        self._has_skipped = False
        data = built.finish()
        try:
            self.offset.replace(data.offset_index)
            self.time.replace(data.time_index)
        except DiskError as e:
            self._leave_to_lookup(e)


def _without_error(lookup: Callable[[], int]) -> int:
    try:
        return lookup()
    except (CorruptionError, DiskError):
        return 0
