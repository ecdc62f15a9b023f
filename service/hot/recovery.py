"""Opening a log directory after a clean shutdown or a crash (Kafka `LogLoader`). Runs on a `log-io` thread.

What is known to be durable: everything after a clean shutdown, else what lies below the recovery point.
From there on every segment is read whole and its batches are verified; below it segments must meet.

A **torn tail** is what a crash leaves of the last write: it lies beyond the last known-durable point, and
nothing valid is behind it. It is cut. Where the machine was started anew since, its cache is gone, and with
it any of the pages that were not flushed, in no order: there the log ends before the first batch that is
missing, whatever is behind it; with ``flush.messages=1`` only where that batch lacks a page. Everything else
that is not as it was written is **damage**: bytes that are wrong or missing below that point, or in front of
batches that are sound. Then `CorruptionError` says where, and the files stay as they are: whoever opened the
log takes the replica offline.

Indexes are made anew where they were read past, that of aborted transactions where it differs
(`txn_recovery`); leader epochs that did not reach their file are learnt again.
Producer state is the latest snapshot at or before the recovery point, and the batches since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk, Entry
from service.base.errors import CorruptionError
from service.base.files import TEMPORARY, fsync_dir, read_checkpoint, remove_file, write_checkpoint
from service.base.types import NO_TIMESTAMP
from service.config.settings import LogConfig
from service.hot import names
from service.hot.cleaning.interrupted import tidy
from service.hot.epochs import LeaderEpochs
from service.hot.erased_orders import ErasedOrders
from service.hot.files import SegmentFile
from service.hot.producer_snapshot import SnapshotFiles
from service.hot.producers import ProducerStates
from service.hot.recovery_walk import Problem, Run, has_unwritten_page, recover_segment
from service.hot.segment import Segment
from service.hot.segment_indexes import IndexSettings
from service.hot.segments import Segments
from service.hot.state import LogState
from service.hot.txn_recovery import has_markers_from, settle_rows
from service.records.batch import BatchHeader
from service.records.markers import read_marker
from service.records.txn_rows import AbortedEntry, encode_row
from service.records.walk import CHUNK_BYTES, Read, find_offset, find_sound, iter_batches

_log = logging.getLogger(__name__)

_AGAIN_BYTES: Final = 1 << 20
RESTART: Final = "restart-checkpoint"
"""Lines ``<offset> <log start offset> <number of epochs>`` and ``<epoch> <start offset>`` for each: the log
is to be emptied and to go on from there. Earlier versions wrote two numbers, and the epochs to their file."""


class Known(NamedTuple):
    """Facts about a log that are known before its files are looked at."""

    recovery_point: int
    log_start_offset: int
    clean: bool
    doubtful: bool = False
    """what is not known to be on the device is to be written again"""
    lost_power: bool = False
    """of what is not known to be on the device, anything may be missing"""
    cleaned_offset: int = -1
    """up to where it was compacted, -1 if it never was"""
    high_watermark: int | None = None
    """below it all is replicated; None where there is no other replica"""


def settings_of(config: LogConfig) -> IndexSettings:
    return IndexSettings(config.segment_index_bytes, config.index_interval_bytes)


def make_log(state: LogState, producer_expiration_ms: int) -> None:
    """Begin a new log in an empty directory."""
    state.producers = ProducerStates(producer_expiration_ms)
    state.snapshots = SnapshotFiles(state.disk, state.dir, ())
    state.epochs = LeaderEpochs(state.disk, state.dir)
    now_ms = state.world.clock.now_ms()
    segment = Segment.create(state.dir, 0, settings_of(state.config), state.files, now_ms)
    segment.become_active()
    segment.let_files_go()
    state.segments = Segments([segment])


def load_log(state: LogState, known: Known, producer_expiration_ms: int) -> bool:
    """Read the log's directory into `state` and make it whole; says whether its epochs were written.

    Raises `CorruptionError` where it is damaged (see the head of this file), `DiskError` if the disk does not
    let us.
    """
    now_ms = state.world.clock.now_ms()
    entries = tidy(state.disk, state.dir, state.disk.list(state.dir))
    if known.cleaned_offset >= 0 or state.config.is_compacted:
        state.cleaned_offset = max(known.cleaned_offset, known.log_start_offset)
    sizes = _tidy(state.disk, state.dir, entries)
    settings = settings_of(state.config)
    segments = [
        Segment(state.dir, base, sizes[base][:3], settings, state.files, now_ms) for base in sorted(sizes)
    ]
    state.producers = ProducerStates(producer_expiration_ms, known.high_watermark or 0)
    state.snapshots = SnapshotFiles(state.disk, state.dir, entries)
    there = {entry.name for entry in entries}
    read_from = None
    try:
        state.epochs = LeaderEpochs(state.disk, state.dir)
        if names.LEADER_EPOCHS in there:
            state.epochs = LeaderEpochs.load(state.disk, state.dir)
    except CorruptionError as e:
        _log.warning("reading all of %s, as its leader epochs are lost: %s", state.dir, e)
        state.epochs = LeaderEpochs(state.disk, state.dir)
        read_from = 0
    if _lacks_first_epochs(state, segments, known):
        # They were forgotten for a start that moved, and a crash has forgotten the start.
        state.epochs = LeaderEpochs(state.disk, state.dir)
        read_from = 0
    loader = _Loader(state, segments, known, now_ms)
    restart = _announced(state.disk, state.dir) if RESTART in there else None
    if restart is None and names.RESTART_SNAPSHOT in there:
        remove_file(state.disk, state.dir / names.RESTART_SNAPSHOT)  # of one that was never announced
    end_offset = loader.load(read_from) if restart is None else loader.finish_restart(restart)
    loader.settle_transactions({base: found[3] for base, found in sizes.items()}, end_offset)
    known = loader.known
    if names.ERASURES in there:
        state.erased = ErasedOrders.load(state.disk, state.dir, state.world.threads, end_offset)
    first = segments[0].base_offset
    start = min(known.log_start_offset, end_offset)
    state.start = start if state.config.remote_storage_enable else max(start, first)
    # An epoch that begins at the end has no records yet.
    is_changed = state.epochs.truncate_end(end_offset + 1)
    is_changed |= state.epochs.truncate_start(state.start)
    state.snapshots.remove_strays({segment.base_offset for segment in segments})
    segments[-1].open_for_append()
    for segment in segments:
        segment.let_files_go()
    state.segments = Segments(segments)
    state.end_offset = end_offset
    state.local_start = max(state.start, first)
    state.recovery_point = end_offset if known.clean else min(known.recovery_point, end_offset)
    if state.cleaned_offset >= 0:
        # Who was cleaned may lack offsets, whatever its policy is now; a follower has its leader's gaps.
        state.gaps_below = end_offset
    if state.cleaned_offset > end_offset:
        state.cleaned_offset = state.start  # it was cut, and no checkpoint says so: what comes now is dirty
    return is_changed


def _lacks_first_epochs(state: LogState, segments: list[Segment], known: Known) -> bool:
    entries = state.epochs.entries
    if not entries or not segments or _announced(state.disk, state.dir) is not None:
        return False
    return entries[0][1] > max(known.log_start_offset, segments[0].base_offset)


class AnnouncedRestart(NamedTuple):
    """A restart that was announced. ``epochs``: None where they are in their file already."""

    offset: int
    log_start_offset: int
    epochs: list[tuple[int, int]] | None


def announce_restart(
    disk: Disk, directory: Path, offset: int, log_start_offset: int, epochs: Sequence[tuple[int, int]]
) -> None:
    """Note durably that the log begins anew (invariant L7): the next opening finishes it, however far it has
    come."""
    lines = [f"{offset} {log_start_offset} {len(epochs)}", *(f"{epoch} {start}" for epoch, start in epochs)]
    write_checkpoint(disk, directory / RESTART, lines)


def end_restart(disk: Disk, directory: Path) -> None:
    """The log is empty, and begins where it was announced to."""
    fsync_dir(disk, directory)
    remove_file(disk, directory / RESTART)
    fsync_dir(disk, directory)


def _announced(disk: Disk, directory: Path) -> AnnouncedRestart | None:
    """Return the restart that was not finished. `CorruptionError` where it cannot be read."""
    lines = read_checkpoint(disk, directory / RESTART)
    if not lines:
        return None
    try:
        (offset, start, *count), *rest = (tuple(map(int, line.split())) for line in lines)
        epochs = [(epoch, at) for epoch, at in rest]
    except ValueError:
        raise CorruptionError(f"{directory / RESTART}: not a restart: {lines}") from None
    if [len(epochs)] != (count or [0]):
        raise CorruptionError(f"{directory / RESTART}: {len(epochs)} epochs, {count} are announced")
    return AnnouncedRestart(offset, start, epochs if count else None)


def _tidy(disk: Disk, directory: Path, entries: Iterable[Entry]) -> dict[int, tuple[int, int, int, int]]:
    """Remove what a crash left half done; sizes of each segment (log, index, timeindex, txnindex), 0 for no
    index."""
    found: dict[int, dict[str, int]] = {}
    for entry in entries:
        if not entry.is_file:
            continue
        parsed = names.parse_offset_file(entry.name)
        if parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES:
            found.setdefault(parsed[0], {})[parsed[1]] = entry.size
        elif entry.name.endswith((names.DELETED, TEMPORARY)) and ".checkpoint" not in entry.name:
            disk.unlink(directory / entry.name)
    _remove_empty_txn_indexes(disk, directory, found)
    sizes = {}
    for base, files in found.items():
        if names.LOG in files:
            log, *indexes = (files.get(suffix, 0) for suffix in names.SEGMENT_SUFFIXES)
            sizes[base] = (log, indexes[0], indexes[1], indexes[2])
            continue
        _log.warning("removing indexes without a log at offset %d in %s", base, directory)
        for suffix in files:
            disk.unlink(directory / names.offset_file(base, suffix))
    return sizes


def _remove_empty_txn_indexes(disk: Disk, directory: Path, found: Mapping[int, Mapping[str, int]]) -> None:
    """Remove transaction indexes without rows, for good: a process that was killed may have cut them, and a
    loss of power would bring back what it cut."""
    empty = [base for base, files in found.items() if files.get(names.TXN_INDEX) == 0 and names.LOG in files]
    for base in empty:
        disk.unlink(directory / names.offset_file(base, names.TXN_INDEX))
    if empty:
        fsync_dir(disk, directory)


class _Loader:
    """One opening, step by step; see the head of this file."""

    def __init__(self, state: LogState, segments: list[Segment], known: Known, now_ms: int) -> None:
        self._state = state
        self._segments = segments
        self.known = known
        self._now_ms = now_ms
        self._rows: dict[int, bytearray] = {}
        """rows of aborted transactions, by base offset, of the segments that were read"""
        self._producers_from = 0
        """the state of producers was read from there on"""

    def load(self, read_from: int | None = None) -> int:
        """Bring everything up to date with the log; returns its end offset.

        `read_from`: from which offset on batches are read, where that is not the recovery point.
        """
        state, known = self._state, self.known
        self._drop_before(known.log_start_offset)
        if not self._segments:
            if known.recovery_point > known.log_start_offset:
                raise CorruptionError(
                    f"{state.dir}: no segments, and everything below {known.recovery_point} was on disk"
                )
            return self._start_afresh(None)
        if known.clean and read_from is None:
            end_offset = self._open_clean()
        else:
            end_offset = self._recover(known.recovery_point if read_from is None else read_from)
        if end_offset < known.recovery_point:
            raise CorruptionError(
                f"{state.dir} ends at {end_offset}, and everything below {known.recovery_point} was on disk"
            )
        if end_offset < known.log_start_offset:
            end_offset = self._start_afresh(end_offset)
        if end_offset == self._segments[-1].base_offset:
            state.snapshots.take(state.producers)  # of the border before an empty segment; it may be lost
        return end_offset

    def finish_restart(self, restart: AnnouncedRestart) -> int:
        """Do what is left of it: the producers at its offset were written before it was announced."""
        state, offset = self._state, restart.offset
        _log.warning("%s goes on empty from %d: finishing what was begun", state.dir, offset)
        self._drop(self._segments[:])
        state.snapshots.adopt(offset)
        state.snapshots.remove_but(offset)
        state.snapshots.restore(state.producers, offset, offset, self._now_ms)
        state.producers.end_offset = offset
        self._make(offset)
        if restart.epochs is not None:
            state.epochs.replace(restart.epochs, fsync=True)
        end_restart(state.disk, state.dir)
        self.known = self.known._replace(log_start_offset=restart.log_start_offset, recovery_point=offset)
        return offset

    def _drop_before(self, start: int) -> None:
        """Remove segments that lie wholly below the log's start: the last process ended before it did."""
        gone = 0
        while gone + 1 < len(self._segments) and self._segments[gone + 1].base_offset <= start:
            gone += 1
        if gone:
            self._drop(self._segments[:gone])

    def _start_afresh(self, end_offset: int | None) -> int:
        """Begin with one empty segment at the start: there are no files, or they end before that."""
        state, start = self._state, self.known.log_start_offset
        if end_offset is not None:
            _log.warning("%s ends at %d, before its start %d", state.dir, end_offset, start)
        self._drop(self._segments[:])
        state.snapshots.remove_above(-1)
        if any(at > start for _, at in state.epochs.entries):
            state.epochs.replace(())
        state.producers.clear(start)
        self._make(start)
        return start

    def _make(self, base_offset: int) -> None:
        state = self._state
        settings = settings_of(state.config)
        self._segments.append(Segment.create(state.dir, base_offset, settings, state.files, self._now_ms))

    def _open_clean(self) -> int:
        """Open a log that was shut down cleanly: segments must meet, the last must end with a whole batch."""
        self._drop_stray()
        self._check_borders(len(self._segments) - 1)
        end_offset = end_offset_of(self._segments[-1])
        self._state.snapshots.remove_above(end_offset)
        self._restore_producers(end_offset)
        return end_offset

    def _drop_stray(self) -> None:
        """An empty last segment that begins before the one in front of it ends is left of a failed roll."""
        while len(self._segments) > 1 and not self._segments[-1].size:
            try:
                end_offset = end_offset_of(self._segments[-2])
            except CorruptionError:
                return  # whether that is a torn tail is found out later
            if self._segments[-1].base_offset >= end_offset:
                return
            self._drop(self._segments[-1:])

    def _check_borders(self, last: int) -> None:
        """Check that each segment up to number `last` begins where the one before it ends."""
        for before, segment in zip(self._segments[:last], self._segments[1:], strict=False):
            if not before.indexes.ends_at(segment.base_offset):
                self._check_border(before, end_offset_of(before), segment)

    def _check_border(self, before: Segment, end_offset: int, segment: Segment) -> None:
        base = segment.base_offset
        if base < end_offset or (base > end_offset and not self._may_be_a_gap(base)):
            raise CorruptionError(
                f"{segment.log.path} begins at {base}, the segment before it ends at {end_offset}: "
                f"{before.log.path.name}"
            )

    def _may_be_a_gap(self, end: int) -> bool:
        """Return whether offsets in front of `end` may be gone by compaction.

        Kafka's leaves gaps between segments, ours does not: it was durable then, or a checkpoint says so.
        """
        cleaned = self._state.cleaned_offset
        return cleaned >= 0 and (self.known.clean or end <= max(self.known.recovery_point, cleaned))

    def _restore_producers(self, end_offset: int) -> None:
        state, first = self._state, self._segments[0].base_offset
        state.snapshots.restore(state.producers, end_offset, first, self._now_ms)
        self._producers_from = state.producers.end_offset
        replay_producers(state.producers, self._segments, state.snapshots, end_offset, self._now_ms)

    def _recover(self, read_from: int) -> int:
        """Verify all that may not have reached the disk; returns the end offset."""
        state = self._state
        self._drop_stray()
        bases = [segment.base_offset for segment in self._segments]
        slot = max((i for i, base in enumerate(bases) if base <= read_from), default=0)
        try:
            self._check_borders(slot)
        except CorruptionError:
            if not slot or not self._may_have_lost(bases[slot]):
                raise
            # Flushed up to its end, but what was cut from it or taken back since may be there again.
            slot -= 1
            self._check_borders(slot)
        state.snapshots.remove_above(bases[slot])
        self._restore_producers(bases[slot])
        end_offset = bases[slot]
        known_epochs = state.epochs.entries
        for i in range(slot, len(bases)):
            segment = self._segments[i]
            base = segment.base_offset
            if i > slot and base != end_offset and not (base > end_offset and self._may_be_a_gap(base)):
                self._end_before(i, end_offset)
                break
            state.producers.end_offset = segment.base_offset
            state.snapshots.take(state.producers)
            rows = self._rows[base] = bytearray()
            end_offset, problem = recover_segment(segment, partial(self._take_over, rows))
            is_last = problem is not None and self._cut(i, end_offset, problem)
            if self.known.doubtful:
                _write_again(segment)
            if is_last:
                break
        state.producers.end_offset = end_offset
        if state.epochs.entries != known_epochs or self.known.doubtful:
            state.epochs.save()
        return end_offset

    def _end_before(self, slot: int, end_offset: int) -> None:
        """Segments from `slot` on do not begin at `end_offset`: left-overs if they are empty, else damage,
        unless the power took what was between."""
        if any(segment.size for segment in self._segments[slot:]):
            before, segment = self._segments[slot - 1 : slot + 1]
            if not self._may_have_lost(min(segment.base_offset, end_offset)):
                self._check_border(before, end_offset, segment)
                return
            # One that ends beyond the next one's beginning was cut, and no flush has come since.
            _log.warning(
                "%s: the log ends at offset %d, as what came next was not flushed when the machine stopped; "
                "%d segments that do not begin there go",
                before.log.path, end_offset, len(self._segments) - slot,
            )  # fmt: skip
        self._drop(self._segments[slot:])

    def _cut(self, slot: int, end_offset: int, problem: Problem) -> bool:
        """Cut a torn tail; `CorruptionError` if it is none (invariant L3). Return whether the log ends
        there."""
        segment, known = self._segments[slot], self.known
        if known.clean or end_offset < known.recovery_point:
            raise CorruptionError(f"{problem.why}; it had been on disk for good")
        is_lost = self._may_have_lost(end_offset)
        following = self._segments[slot + 1 : slot + 2]
        if is_lost and following and following[0].base_offset == end_offset:
            # A write that failed was taken back, and the power brought it back: nothing is missing.
            self._cut_tail(segment, end_offset, problem)
            return False
        if not is_lost or (self._state.config.flush_messages == 1 and not known.doubtful):
            self._check_nothing_follows(slot, end_offset, problem, is_lost)
        self._drop(self._segments[slot + 1 :])
        self._cut_tail(segment, end_offset, problem)
        return True

    def _cut_tail(self, segment: Segment, end_offset: int, problem: Problem) -> None:
        _log.warning(
            "%s: valid up to offset %d, a torn tail of %d bytes cut: %s",
            segment.log.path, end_offset, segment.size - problem.position, problem.why,
        )  # fmt: skip
        segment.cut_tail(problem.position)
        # A tail that the next loss of power brings back would lie beyond the beginning of the next segment.
        segment.flush()

    def _may_have_lost(self, end_offset: int) -> bool:
        """Return whether what stood at `end_offset` may have gone with the machine's cache."""
        known = self.known
        return known.lost_power and not known.clean and end_offset >= known.recovery_point

    def _check_nothing_follows(self, slot: int, end_offset: int, problem: Problem, is_lost: bool) -> None:
        """`CorruptionError` where sound batches follow.

        `is_lost`: unless the machine stopped before it wrote what is in front of them. With
        ``flush.messages=1`` that is no more than what came during one flush, so it has to be seen.
        """
        segment, position = self._segments[slot], problem.position
        read = segment.log.get().pread
        behind = find_sound(read, position + 1, segment.size, end_offset + 1)
        if is_lost and has_unwritten_page(read, position, segment.size if behind is None else behind):
            return
        if behind is not None:
            raise CorruptionError(f"{problem.why}; a sound batch follows at position {behind}")
        for later in self._segments[slot + 1 :]:
            read, least = later.log.get().pread, later.base_offset
            if later.size and find_sound(read, 0, later.size, least) is not None:
                raise CorruptionError(f"{problem.why}; sound batches follow in {later.log.path}")

    def settle_transactions(self, sizes: Mapping[int, int], end_offset: int) -> None:
        """Settle the transaction index of each segment, and learn which completed transactions the high
        watermark has not passed. `sizes`: bytes of the index files."""
        state, segments, mark = self._state, self._segments, self.known.high_watermark
        settle_rows(state, segments, sizes, self._rows, end_offset, is_doubtful=self.known.doubtful)
        if mark is None or mark >= min(self._producers_from, end_offset):
            return
        if any(entry.coordinator_epoch >= 0 for _, entry in state.producers) and has_markers_from(
            segments, mark
        ):
            # A snapshot behind the high watermark does not say when these began.
            known = ProducerStates(state.producers.expiration_ms, mark)
            first = segments[0].base_offset  # the mark may be older than the segments
            state.snapshots.restore(known, max(mark, first), first, self._now_ms)
            replay_producers(known, segments, None, end_offset, self._now_ms)
            state.producers.transactions = known.transactions

    def _take_over(self, rows: bytearray, file: SegmentFile, run: Run) -> None:
        epochs, batches = self._state.epochs, run.batches
        if max(batches.leader_epochs) > epochs.latest:
            for epoch, base_offset in zip(batches.leader_epochs, batches.base_offsets, strict=True):
                if epoch > epochs.latest:
                    epochs.note(epoch, base_offset)
        producers = self._state.producers
        for header in run.producers():
            row = replay_batch(producers, file.pread, header, self._now_ms)
            if row is not None:
                rows += encode_row(row)
        producers.end_offset = batches.last_offsets[-1] + 1

    def _drop(self, segments: list[Segment]) -> None:
        """Remove segments that are not part of the log, newest first, each for good.

        One that the next loss of power brings back would not begin where the log ends then.
        """
        for segment in reversed(segments):
            _log.warning("dropping %s (%d bytes)", segment.log.path, segment.size)
            for path in segment.drop():
                remove_file(self._state.disk, path)
            fsync_dir(self._state.disk, self._state.dir)
            self._segments.remove(segment)


def _write_again(segment: Segment) -> None:
    """The same bytes in the same places, and the same size: so the next fsync has them to write."""
    file = segment.log.get()
    file.truncate(segment.size)
    for position in range(0, segment.size, _AGAIN_BYTES):
        file.pwrite(file.pread(min(_AGAIN_BYTES, segment.size - position), position), position)


def end_offset_of(segment: Segment) -> int:
    """Offset after the last batch, the base offset if there is none. `CorruptionError` on a torn end."""
    if not segment.size:
        return segment.base_offset
    position = segment.indexes.near_end()
    end_offset = segment.base_offset
    for header in iter_batches(segment.log.get().pread, position, segment.size, name=segment.log.path):
        end_offset = header.next_offset
    return end_offset


def replay_producers(
    producers: ProducerStates,
    segments: list[Segment],
    snapshots: SnapshotFiles | None,
    end_offset: int,
    now_ms: int,
) -> None:
    """Bring `producers` from where it ends to `end_offset` by the batches in between.

    When those were written is not known; `now_ms` takes them for new rather than for expired.
    Snapshots at the borders that are crossed are taken again, where they were lost; None: they are not.
    """
    for slot, segment in enumerate(segments):
        following = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        if following <= producers.end_offset or segment.base_offset >= end_offset or not segment.size:
            continue
        if segment.base_offset >= producers.end_offset:
            producers.end_offset = segment.base_offset
            if snapshots is not None:
                snapshots.take(producers)
        try:
            _replay_segment(producers, segment, end_offset, now_ms)
        except CorruptionError as e:
            # Not ours to repair: it lies below the recovery point. Its readers will be told.
            _log.error("producer state of %s is incomplete: %s", segment.log.path, e)
    producers.end_offset = end_offset


def _replay_segment(producers: ProducerStates, segment: Segment, end_offset: int, now_ms: int) -> None:
    read, path = segment.log.get().pread, segment.log.path
    place = find_offset(read, producers.end_offset, 0, segment.size, path)
    if place is None:
        return
    for header in iter_batches(read, place.position, segment.size, name=path, chunk_bytes=CHUNK_BYTES):
        if header.base_offset >= end_offset:
            return
        replay_batch(producers, read, header, now_ms)


def replay_batch(
    producers: ProducerStates, read: Read, header: BatchHeader, written_ms: int = NO_TIMESTAMP
) -> AbortedEntry | None:
    """Account for one batch of the log, as its append did, at `written_ms` if that is known.

    `read` is asked for control batches alone. Returns the row of a transaction that the batch has aborted.
    """
    row = None
    if header.producer_id >= 0:
        if header.is_control:
            marker = read_marker(read, header)
            if marker is not None:
                row = producers.end_transaction(header, marker)
        else:
            producers.update(header, header.base_offset, header.last_offset, written_ms)
    producers.end_offset = header.next_offset
    return row
