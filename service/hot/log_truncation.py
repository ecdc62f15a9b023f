"""Truncation at the end of a log, and a restart: an empty log that begins at another offset.

A restart is announced by a small file before any other file changes. If the process dies halfway, the next
opening finishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from service.base.disk import MissingFile
from service.base.errors import CorruptionError, StorageError
from service.base.files import FsyncFailed, fsync_dir
from service.hot import names
from service.hot.cleaning.interrupted import marked, rename
from service.hot.cleaning.swap import Swapping
from service.hot.deletion_queue import DeletionQueue
from service.hot.durability import Durability
from service.hot.log_appender import LogAppender
from service.hot.producer_snapshot import read_snapshot
from service.hot.producers import ProducerEntry, ProducerStates
from service.hot.reading import LogReader
from service.hot.recovery import (
    announce_restart,
    end_offset_of,
    end_restart,
    replay_producers,
    settings_of,
)
from service.hot.segment import Segment
from service.hot.state import LogState

_log = logging.getLogger(__name__)

_DESCRIPTORS: Final = 4
"""More files than a truncation or a restart opens at once."""


class LogTruncation:
    """Truncates one log, or restarts it. Owned by the loop, except `producers_at`.

    ``on_start_moved``: called when the log's start has moved, so that a checkpoint makes it durable soon.
    """

    __slots__ = (
        "_appender", "_durability", "_on_start_moved", "_queue", "_reader", "_swapping", "state",
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        durability: Durability,
        reader: LogReader,
        appender: LogAppender,
        swapping: Swapping,
        queue: DeletionQueue,
        on_start_moved: Callable[[], None],
    ) -> None:
        self.state = state
        self._durability = durability
        self._reader = reader
        self._appender = appender
        self._swapping = swapping
        self._queue = queue
        self._on_start_moved = on_start_moved

    def end_after(self, offset: int) -> int:
        """Return the lowest end that the log can have after `truncate_to(offset)`."""
        self.state.check()
        try:
            return self._end_after(offset)
        except CorruptionError as e:
            raise self.state.corrupt(e) from e

    def _end_after(self, offset: int) -> int:
        state, segments = self.state, self.state.segments
        if offset >= state.end_offset or offset < segments.bases[0]:
            return min(offset, state.end_offset)
        segment = segments.all[segments.slot_of(offset)]
        place = segment.indexes.find(offset)
        end = offset if place is None else min(place.base_offset, offset)
        return segment.base_offset if end <= state.gaps_below else end

    def producers_at(self, end: int) -> ProducerStates:
        """Compute the producer state as of log end `end`. For a `log-io` thread, while nobody appends or
        truncates."""
        state = self.state
        with state.lock:
            segments, files = state.segments.all[:], state.snapshots.files()
        now_ms = state.world.clock.now_ms()
        producers = ProducerStates(state.producers.expiration_ms, state.producers.high_watermark)
        producers.clear(segments[0].base_offset)
        for offset, path in reversed([one for one in files if one[0] <= end]):
            try:
                producers.load(read_snapshot(state.disk, path), offset, now_ms)
                break
            except (CorruptionError, MissingFile) as e:
                _log.warning("skipping unreadable producer snapshot %s: %s", path, e)
        replay_producers(producers, segments, None, end, now_ms)
        return producers

    def changes_producers(self, end: int) -> bool:
        """Return whether a cut to `end` may change the producer state, so that it has to be computed anew.

        A log without producers needs that, too, where it may have had some: a producer that was forgotten as
        idle has its transaction open again if the marker is cut off.
        """
        producers = self.state.producers
        if len(producers) or producers.has_expired:
            return True
        return end < max(producers.high_watermark, self.state.segments.bases[-1])

    def truncate_to(self, offset: int, producers: ProducerStates | None = None) -> int:
        """Drop all batches that reach to `offset` or beyond; returns the new end of the log, which falls by
        this and by `restart_at` alone (invariant P8).

        `producers`: the result of `producers_at`; computed here if None. A batch that contains `offset` is
        dropped whole, and so is a gap: the end may be lower than `offset`. Below the local start the whole
        local log is dropped and a new one begins at `offset`. A checkpointed recovery point above the new end
        must have been lowered before: otherwise the next opening takes the log for damaged.
        """
        return self._or_offline(offset, lambda: self._truncate_to(offset, producers), self._end_after)

    def restart_at(
        self,
        offset: int,
        log_start_offset: int | None = None,
        *,
        epochs: Sequence[tuple[int, int]] = (),
        producers: Sequence[tuple[int, ProducerEntry]] = (),
    ) -> int:
        """Drop everything and continue empty at `offset`; returns it.

        For a replica that loaded a Raft snapshot, or whose disk lost records that the bucket has.
        `log_start_offset`: start of the log as a whole; `offset` if None. `epochs`: (epoch, start offset)
        between the two; `producers`: the producer state at `offset`, as (producer id, entry).
        """
        return self._or_offline(
            offset, lambda: self._restart_at(offset, log_start_offset, epochs, producers), lambda end: end
        )

    def _or_offline(self, offset: int, work: Callable[[], int], end_after: Callable[[int], int]) -> int:
        """Run `work`, after which the log ends at `end_after(offset)` at the lowest; on an error memory and
        disk differ, and only the next opening can repair that."""
        self._appender.finish()
        self.state.check()
        self._check_descriptors(offset)
        try:
            self.state.erased.cut(end_after(offset))
        except FsyncFailed as e:
            raise self.state.fail(e) from e
        try:
            self._swapping.finish()
            return work()
        except (StorageError, CorruptionError) as e:
            raise self.state.fail(e) from e

    def _check_descriptors(self, offset: int) -> None:
        """Raise `DiskError` if files cannot be opened now, before anything changes: a truncation that fails
        halfway takes the replica offline. `LogOffline` if the log is damaged at `offset`."""
        state = self.state
        fds: list[int] = []
        try:
            self._end_after(offset)
            path = state.segments.active.log.path
            fds.extend(state.disk.open(path) for _ in range(_DESCRIPTORS))
        except CorruptionError as e:
            raise state.fail(e) from e
        finally:
            for fd in fds:
                state.disk.close(fd)

    def _truncate_to(self, offset: int, producers: ProducerStates | None) -> int:
        state, segments = self.state, self.state.segments
        if offset >= state.end_offset:
            # An epoch that begins at the end has no record; another leader's epoch may have to replace it.
            if state.epochs.truncate_end(state.end_offset):
                self._durability.note(state.epochs.path)
            return state.end_offset
        if offset < segments.bases[0]:
            # The bucket keeps what it has: a truncation never raises the start of the log as a whole.
            return self._restart_at(offset, min(state.start, offset), state.epochs.entries, ())
        state.snapshots.write_late()
        slot = segments.slot_of(offset)
        segment = segments.all[slot]
        place = segment.indexes.find(offset)
        end = offset if place is None else min(place.base_offset, offset)
        start, changes_producers = state.start, self.changes_producers(end)
        position = segment.size if place is None else place.position
        state.announce_end(segment.base_offset, segment.base_offset, position)
        with state.lock:
            state.truncations += 1
            aside: list[Path] = []
            for gone in reversed(segments.take_out(slot + 1, len(segments), f"truncation to {offset}")):
                # Newest first, each durably: a crash leaves a log that ends earlier, without a hole.
                aside += self._set_aside(gone)
                fsync_dir(state.disk, state.dir)
            before = segment.size
            segment.truncate(position, end)
            if end <= state.gaps_below:
                end = end_offset_of(segment)  # as the next opening computes it
            segments.size -= before - segment.size
            if segments.indexed:
                segments.note_rows()
            segments.active = segment
            segment.open_for_append()
            state.set_end(end)
            state.start = min(state.start, end)
            state.local_start = min(state.local_start, end)
            state.recovery_point = min(state.recovery_point, end)
            self._durability.note_cut(segment)
            state.cleaned_offset = min(state.cleaned_offset, end)
            state.gaps_below = min(state.gaps_below, end)
        self._reader.forget()
        self._queue.add(aside, state.world.clock.now_ms())
        if state.start < start:
            self._on_start_moved()  # the next opening must not skip what is written below the old start
        if state.epochs.truncate_end(end):
            self._durability.note(state.epochs.path)
        state.snapshots.remove_above(end)
        if end < state.producers.high_watermark:  # markers that come there are not replicated
            state.producers.high_watermark_moved(end)
        now_ms = state.world.clock.now_ms()
        if producers is not None and producers.end_offset == end:
            state.producers.load(producers, end, now_ms)
        elif not changes_producers:
            state.producers.clear(end)
        else:
            state.snapshots.restore(state.producers, end, segments.bases[0], now_ms)
            replay_producers(state.producers, segments.all, state.snapshots, end, now_ms)
        return end

    def _restart_at(
        self,
        offset: int,
        log_start_offset: int | None,
        epochs: Sequence[tuple[int, int]],
        producers: Sequence[tuple[int, ProducerEntry]],
    ) -> int:
        state = self.state
        start = offset if log_start_offset is None else log_start_offset
        state.snapshots.write_late()
        epochs = [one for one in epochs if one[1] < offset]
        state.producers.load(producers, offset, state.world.clock.now_ms())
        state.producers.high_watermark_moved(offset)  # what lies below is elsewhere, and committed
        state.snapshots.prepare(state.producers)
        state.announce_end(offset, offset, 0)
        announce_restart(state.disk, state.dir, offset, start, epochs)
        state.snapshots.adopt(offset)
        state.epochs.replace(epochs, fsync=True)
        with state.lock:
            state.truncations += 1
            # Files that wait for deletion have names that the new log may need.
            aside = [self._renamed(path) for path in self._queue.paths]
            self._queue.clear()
            for gone in state.segments.take_out(0, len(state.segments), f"restart at {offset}"):
                aside += self._set_aside(gone)
            state.snapshots.remove_but(offset)
            settings = settings_of(state.config)
            active = Segment.create(state.dir, offset, settings, state.files, state.world.clock.now_ms())
            state.segments.add(active)
            state.start = start
            state.recovery_point = offset
            state.set_end(offset)
            state.local_start = max(start, offset)
            state.cleaned_offset = min(state.cleaned_offset, start)
            state.gaps_below = 0
        end_restart(state.disk, state.dir)
        self._reader.forget()
        self._queue.add(aside, state.world.clock.now_ms())
        self._on_start_moved()
        return offset

    def _set_aside(self, segment: Segment) -> list[Path]:
        """Rename a segment's files, which is faster than unlinking them here; returns their new paths.

        If they are not unlinked later, the next opening does it.
        """
        for suffix in reversed(names.SEGMENT_SUFFIXES):  # the log last
            self._renamed(segment.log.path.with_suffix(suffix))
        return segment.drop(names.DELETED)

    def _renamed(self, path: Path) -> Path:
        """Add ``.deleted`` to a file's name, if the file exists; returns the new path."""
        if path.suffix == names.DELETED:
            return path
        target = marked(path, names.DELETED)
        rename(self.state.disk, path, target, must_be=False)
        return target
