"""Write one tail: whole batches of many partitions, verified, laid out and uploaded.

Runs on an `offload` thread. Files are read twice, a piece at a time, as for a segment's copy
(`tiering/copier.py`): `lay_out` verifies every batch and finds what the footer says, `upload` sends the
pieces, each compared with its checksum, so the uploaded bytes are the verified ones. Between the two the
caller leaves out what this node does not lead any more: its log may have been truncated. Retention and
compaction may take files away meanwhile: what is there no more is left out, or ends the upload.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, StorageError
from service.base.types import Buffer
from service.records.scan import BatchScan, scan_pieces
from service.remote.format.cut_codec import Place, TailRef
from service.remote.format.keys import TailKey, tail_key
from service.remote.format.stamp import Stamp
from service.remote.format.tail_object import (
    MAX_SECTION_BYTES,
    MAX_SECTIONS,
    TRAILER,
    TailSection,
    encode_footer,
)
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.ports import SegmentRun

MAX_OBJECT_BYTES: Final = 256 << 20
"""Bound of one tail; the rest goes with the next cut."""
_PIECE_BYTES: Final = 1 << 20
_MOST_FILES: Final = 256
"""Files that one tail opens beside those that logs hold open."""


class Wanted(NamedTuple):
    """Offsets of one partition from `first` to `end`, exclusive, and the segments with them."""

    place: Place
    leader_epoch: int
    first: int
    end: int
    runs: Sequence[SegmentRun]


class TailIdentity(NamedTuple):
    """Name of a tail: whose it is, and at which cut it was written."""

    cluster_id: str
    cut: int
    level: int
    node_id: int
    uuid: UUID

    @property
    def key(self) -> str:
        """Key of the object."""
        return tail_key(TailKey(self.cut, self.level, self.node_id, self.uuid))


class _Piece(NamedTuple):
    run: SegmentRun
    position: int
    length: int
    crc: int


class LaidOut(NamedTuple):
    """Section that was read and verified, with the pieces of files that it has; its position is not final."""

    facts: TailSection
    pieces: Sequence[_Piece]

    @property
    def place(self) -> Place:
        """Partition of the section."""
        return self.facts.topic_id, self.facts.partition


class Layout(NamedTuple):
    """Sections of a tail, and the partitions whose bytes could not be read, each with its error."""

    sections: list[LaidOut]
    failed: list[tuple[Place, Exception]]


def upload(
    store: ObjectStore,
    identity: TailIdentity,
    laid_out: Iterable[LaidOut],
    stamp: Stamp,
    progress: CallProgress,
) -> tuple[TailRef, tuple[TailSection, ...]]:
    """Upload a tail with these sections, at least one. Blocks.

    Raises `StorageError` where the store fails, or a file is gone or changed since it was read;
    `CorruptionError` where no tail can have these sections; `CallCancelled`.
    """
    sections = sorted(laid_out, key=lambda one: one.place)
    placed: list[TailSection] = []
    position = 0
    for one in sections:
        placed.append(one.facts._replace(position=position))
        position += one.facts.length
    try:
        footer = encode_footer(identity.cluster_id, identity.cut, identity.level, placed, stamp)
    except ValueError as e:
        raise CorruptionError(f"{identity.key} cannot be laid out: {e}") from e
    size = position + len(footer)
    store.put_stream(identity.key, _parts(sections, footer, progress), size)
    crc = TRAILER.unpack_from(footer, len(footer) - TRAILER.size)[1]
    return TailRef(identity.key, size, position, crc), tuple(placed)


def lay_out(wanted: Iterable[Wanted], budget: int, progress: CallProgress) -> Layout:
    """Read and verify as much of `wanted`, in its order, as `budget` bytes take, at least one batch. Blocks.

    A section may end before what is wanted does. A partition whose files are damaged, or are gone, has none.
    Raises `CallCancelled`.
    """
    found = Layout([], [])
    left, files = min(budget, MAX_OBJECT_BYTES), 0
    for one in wanted:
        if left <= 0 or files >= _MOST_FILES or len(found.sections) == MAX_SECTIONS:
            break
        walk = _Walk(one, progress, is_first=not found.sections)
        try:
            walk.run(min(left, MAX_SECTION_BYTES), _MOST_FILES - files)
        except (CorruptionError, StorageError) as e:
            if progress.cancelled:
                raise
            found.failed.append((one.place, e))
            continue
        files += walk.files
        section = walk.section()
        if section is not None:
            found.sections.append(section)
            left -= section.facts.length
    return found


class _Walk:
    """Walk over the batches of one partition."""

    def __init__(self, wanted: Wanted, progress: CallProgress, *, is_first: bool) -> None:
        self._wanted = wanted
        self._is_first = is_first
        self._progress = progress
        self._pieces: list[_Piece] = []
        self._begins = self._last = self._last_epoch = -1
        self._length = self._crc = self._records = 0
        self._newest = -1
        self._end: int | None = None
        """where the section ends, if that is not behind its last batch"""
        self.files = 0

    def run(self, budget: int, files: int) -> None:
        """Walk until the end, or until `budget` bytes or so many files that nobody holds open."""
        wanted = self._wanted
        for run in wanted.runs:
            if run.base_offset >= wanted.end:
                break
            if self._length >= budget or self.files >= files:
                return
            if run.size:
                self.files += not run.is_held
                if not self._walk(run, budget):
                    return
        # Offsets up to the end that have no batch were taken by compaction.
        self._end = wanted.end

    def _walk(self, run: SegmentRun, budget: int) -> bool:
        """Walk over one segment; return False where the walk ends in it, before the end of what is wanted."""
        wanted = self._wanted
        start = run.position_of(wanted.first)
        if start >= run.size:
            return True

        def read(position: int, length: int) -> Buffer:
            self._progress.advance(length)
            return run.file.read(position, length)

        pieces = scan_pieces(
            read, start, run.size, first_offset=self._last + 1, name=run.name, piece_bytes=_PIECE_BYTES
        )
        for batches, position, piece in pieces:
            count = bisect_left(batches.last_offsets, wanted.end)
            count = min(count, self._fitting(batches, budget - self._length))
            if count:
                end = batches.positions[count] if count < batches.batches else batches.end
                self._take(run, start + position, batches, count, piece[:end])
            if count < batches.batches:
                return batches.base_offsets[count] >= wanted.end
        return True

    def _fitting(self, batches: BatchScan, room: int) -> int:
        """Return how many batches fit into `room` bytes; the first of a tail always does."""
        count = batches.batches if batches.end <= room else bisect_right(batches.positions, room) - 1
        return max(count, int(self._is_first and not self._pieces))

    def _take(
        self, run: SegmentRun, position: int, batches: BatchScan, count: int, piece: memoryview
    ) -> None:
        self._last_epoch = self._checked_epoch(run, batches.leader_epochs[:count])
        if self._begins < 0:
            self._begins = batches.base_offsets[0]
        self._last = batches.last_offsets[count - 1]
        self._length += len(piece)
        self._crc = crc32c(piece, self._crc)
        self._records += sum(batches.record_counts[:count])
        self._newest = max(self._newest, max(batches.max_timestamps[:count]))
        self._pieces.append(_Piece(run, position, len(piece), crc32c(piece)))

    def _checked_epoch(self, run: SegmentRun, epochs: Sequence[int]) -> int:
        """Return the last leader epoch. Raises `CorruptionError` where they fall, or are of a later leader's:
        then the file was truncated and written again."""
        lowest, most = self._last_epoch, self._wanted.leader_epoch
        for epoch in epochs if min(epochs) != max(epochs) else epochs[-1:]:
            if not lowest <= epoch <= most:
                raise CorruptionError(
                    f"{run.name}: a batch of leader epoch {epoch}, behind one of {lowest}, in epoch {most}"
                )
            lowest = epoch
        return lowest

    def section(self) -> LaidOut | None:
        """Return the section; None where there is no batch."""
        if not self._pieces:
            return None
        wanted = self._wanted
        facts = TailSection(
            *wanted.place,
            leader_epoch=wanted.leader_epoch,
            first_offset=min(wanted.first, self._begins),
            end_offset=self._last + 1 if self._end is None else self._end,
            position=0,
            length=self._length,
            crc32c=self._crc,
            record_count=self._records,
            max_timestamp=self._newest,
            last_batch_epoch=max(self._last_epoch, 0),
        )
        return LaidOut(facts, self._pieces)


def _parts(sections: Sequence[LaidOut], footer: bytes, progress: CallProgress) -> Iterator[Buffer]:
    """Yield the bytes of the object; the verified ones, or an error."""
    for section in sections:
        for piece in section.pieces:
            progress.advance(piece.length)
            data = piece.run.file.read(piece.position, piece.length)
            if crc32c(data) != piece.crc:
                raise StorageError(
                    f"{piece.run.name}: bytes at {piece.position} changed while they were read"
                )
            yield data
    yield footer
