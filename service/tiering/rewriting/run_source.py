"""Read the objects of a run: verified batches, a block at a time, and the sections that the new object needs.

Bytes of a log come from local segments where these have them, else from the bucket; the object's block table
proves both (invariant T24). Local bytes that differ, because compaction or an erasure has changed them, or
that are gone, are read from the bucket. Memory: some blocks of one object. For a `rewrite` thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError, StorageError
from service.base.types import Buffer
from service.records.kernel_status import Status
from service.records.scan import BatchScan, scan_batches
from service.remote.format.block_table import LogBlock
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import check_entry, footer_of, read_section
from service.remote.reading.segment_proof import block_windows
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.ports import SegmentRun

_WHOLE_BYTES: Final = 4 << 20
"""An object of at most so many bytes is read with one request, its log and its tail together."""


class _LocalPart(NamedTuple):
    """Part of a local segment that has bytes of an object's log, which begin at `begin` there."""

    run: SegmentRun
    position: int
    begin: int
    length: int


class LocalBytes:
    """Bytes of the log of one object in local segments; None from `read` where they are not all there."""

    def __init__(self, runs: Sequence[SegmentRun], entry: SegmentEntry) -> None:
        self._runs = runs
        self._entry = entry
        self._parts: list[_LocalPart] | None = None

    def read(self, position: int, length: int) -> bytes | None:
        """Return these bytes of the object's log, not verified."""
        try:
            if self._parts is None:
                self._parts = list(self._find())
            found = bytearray()
            for part in self._parts:
                start, end = max(position, part.begin), min(position + length, part.begin + part.length)
                if start < end:
                    found += part.run.file.read(part.position + start - part.begin, end - start)
        except (StorageError, CorruptionError):
            return None
        return bytes(found) if len(found) == length else None

    def _find(self) -> Iterator[_LocalPart]:
        begin, left = 0, self._entry.log_length
        first = bisect_right(self._runs, self._entry.base_offset, key=lambda run: run.base_offset)
        for run in self._runs[max(first - 1, 0) :]:
            if not left or run.base_offset > self._entry.last_offset:
                return
            if not begin and run.base_offset > self._entry.base_offset:
                return
            position = run.position_of(self._entry.base_offset)
            length = min(run.size - position, left)
            if length > 0:
                yield _LocalPart(run, position, begin, length)
                begin, left = begin + length, left - length


class RunSource:
    """One object of a run. `open` it first; `batches` may be called again after that."""

    def __init__(
        self,
        store: ObjectStore,
        entry: SegmentEntry,
        local: Sequence[SegmentRun],
        progress: CallProgress,
    ) -> None:
        """`local`: segments of the local log that may have its bytes, oldest first."""
        self.entry = entry
        self._store = store
        self._local: LocalBytes | None = LocalBytes(local, entry) if local else None
        self._progress = progress
        self._footer: Footer | None = None
        self._whole: memoryview | None = None
        """all of the object, until its log was read once"""
        self.bytes_read = 0
        """bytes that came from the bucket"""

    @property
    def footer(self) -> Footer:
        assert self._footer is not None
        return self._footer

    def open(self) -> Footer:
        """Read the footer, and a small object with it. `CorruptionError` unless it is the one that the entry
        names."""
        entry, begin = self.entry, self.entry.footer_position
        is_whole = self._local is None and entry.size <= _WHOLE_BYTES
        data = memoryview(self._get(0 if is_whole else begin, entry.size if is_whole else entry.size - begin))
        with naming(entry.key):
            self._footer = footer_of(entry, data[begin:] if is_whole else data)
            check_entry(entry, self._footer)
        self._whole = data if is_whole else None
        return self._footer

    def section(self, name: str) -> bytes:
        """Return a section, verified; empty where the object has none of that name."""
        section = self.footer.sections.get(name)
        if section is None or not section.length:
            return b""
        if self._whole is None:
            self._count(section.length)
            return read_section(self._store, self.entry.key, section)
        data = bytes(self._whole[section.position : section.end])
        if crc32c(data) != section.crc32c:
            raise CorruptionError(f"{self.entry.key}: {name}: wrong checksum")
        return data

    def batches(self) -> Iterator[tuple[BatchScan, memoryview]]:
        """Yield all batches, verified, a block at a time, with their bytes, in which their positions count.

        Raises `CorruptionError`, `CallCancelled`, and what the store raises.
        """
        next_offset = self.entry.base_offset
        for window in block_windows(self.footer.blocks):
            for block, piece in self._blocks(window):
                found = scan_batches(piece, next_offset=next_offset)
                if found.status != Status.OK or found.end != len(piece):
                    raise CorruptionError(
                        f"{self.entry.key}: batch at {block.position + found.end}: {found.status.reason}"
                    )
                next_offset = found.last_offsets[-1] + 1
                yield found, piece
        self._whole = None
        if next_offset > self.entry.last_offset + 1:
            raise CorruptionError(f"{self.entry.key}: holds offset {next_offset - 1}")

    def _blocks(self, window: list[LogBlock]) -> Iterator[tuple[LogBlock, memoryview]]:
        """Yield the blocks of one read, each compared with its checksum."""
        begin, length = window[0].position, window[-1].end - window[0].position
        for data in self._candidates(begin, length):
            pieces = [(one, data[one.position - begin : one.end - begin]) for one in window]
            wrong = next((one for one, piece in pieces if crc32c(piece) != one.crc32c), None)
            if wrong is None:
                yield from pieces
                return
        assert wrong is not None
        raise CorruptionError(f"{self.entry.key}: block at {wrong.position}: wrong checksum")

    def _candidates(self, begin: int, length: int) -> Iterator[memoryview]:
        """Yield these bytes as the local log has them, if it does, then as the bucket has them."""
        if self._local is not None:
            self._progress.advance(length)
            data = self._local.read(begin, length)
            if data is not None:
                yield memoryview(data)
            self._local = None
        if self._whole is not None:
            self._progress.advance(length)
            yield self._whole[begin : begin + length]
        else:
            yield memoryview(self._get(begin, length))

    def _get(self, position: int, length: int) -> Buffer:
        self._progress.advance(length)
        data = self._store.get_range(self.entry.key, position, length)
        self._count(length)
        return data

    def _count(self, length: int) -> None:
        self.bytes_read += length
