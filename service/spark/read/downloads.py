"""Downloads of segment blocks ahead of their use, in the order of their offsets.

Where only offsets are wanted, a block is not downloaded if its row in the block table tells them. An object
that a rewrite has replaced, and that is gone, is read from what took its place (`rewritten`).

One `Downloads` serves one task on a few threads. It opens the next objects early (their footers), then
fetches ranges of neighbouring blocks while earlier ones are decoded. Bytes in flight or not yet taken stay
within a budget; only a single range may exceed it. The download threads verify checksums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import iter_headers
from service.remote.format.block_table import LogBlock
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import footer_of, open_footer_of
from service.remote.stores.errors import ObjectNotFound, ObjectTruncated, naming
from service.remote.stores.store import ObjectStore
from service.spark.errors import DataLossError, PlanOutdated
from service.spark.plan.splits import SegmentPiece, wanted_blocks
from service.spark.read.rewritten import Rewritten
from service.spark.selection import ALL_TIMES

THREADS: Final = 4
OPEN_AHEAD: Final = 4
SMALL_OBJECT_BYTES: Final = 1 << 20
"""Largest object that one GET fetches whole, with its footer."""


Part = memoryview | range
"""Whole batches, or the offsets of records where only offsets are wanted."""


class _Run(NamedTuple):
    """Neighbouring blocks of an object, to be fetched together for the piece with this number.

    `is_known`: the block table tells all that is wanted of them, so nothing is fetched.
    """

    number: int
    entry: SegmentEntry
    blocks: tuple[LogBlock, ...]
    is_known: bool = False

    @property
    def position(self) -> int:
        return self.blocks[0].position

    @property
    def length(self) -> int:
        """The bytes to be fetched."""
        return 0 if self.is_known else self.blocks[-1].end - self.blocks[0].position


class _Opened(NamedTuple):
    """The wanted blocks of an object; `data` is the whole log where it came along.

    `has_markers` is False where no record is a control record or may belong to an aborted transaction.
    """

    entry: SegmentEntry
    blocks: list[LogBlock]
    data: memoryview | None
    has_markers: bool = True


class Downloads:
    """The wanted bytes of `pieces`: ``for piece, parts in downloads``, each part being whole batches.

    With `offsets_alone` a part may be a range instead, the offsets of existing records. Parts that are not
    taken before the next piece are dropped. Missing objects are passed to `lost` as a message; without it
    `DataLossError` is raised. `CorruptionError` names object and offsets.
    """

    def __init__(
        self,
        store: ObjectStore,
        pieces: Sequence[SegmentPiece],
        *,
        fetch_bytes: int,
        budget_bytes: int,
        offsets_alone: bool = False,
        lost: Callable[[str], None] | None = None,
        threads: int = THREADS,
    ) -> None:
        self._store = store
        self._pieces = pieces
        self._fetch_bytes = fetch_bytes
        self._budget_bytes = budget_bytes
        self._offsets_alone = offsets_alone
        self._lost = lost
        self._rewritten = Rewritten(store)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="firn-read")
        self._openings: deque[tuple[int, Future[list[_Opened]]]] = deque()
        self._next_piece = 0
        self._runs: deque[tuple[_Run, memoryview | None]] = deque()
        self._fetches: deque[tuple[_Run, Future[Part | None]]] = deque()
        self._ahead_bytes = 0

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is in flight."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[tuple[SegmentPiece, Iterator[Part]]]:
        for number, piece in enumerate(self._pieces):
            yield piece, self._parts(number)
            for _ in self._parts(number):
                pass  # parts that the caller did not take

    def _parts(self, number: int) -> Iterator[Part]:
        while self._has_more(number):
            run, fetch = self._fetches.popleft()
            data = fetch.result()
            # From here on the caller accounts for it, one range at a time.
            self._ahead_bytes -= run.length
            if data is not None:
                self._fill()
                yield data

    def _has_more(self, number: int) -> bool:
        """Return whether the next fetch is of this piece. All queues keep the pieces' order."""
        while True:
            self._fill()
            if self._fetches:
                return self._fetches[0][0].number == number
            if not self._openings or self._openings[0][0] > number:
                return False
            self._queue_runs()

    def _fill(self) -> None:
        """Start openings, and as many fetches as the budget allows, at least one."""
        while len(self._openings) < OPEN_AHEAD and self._next_piece < len(self._pieces):
            piece = self._pieces[self._next_piece]
            self._openings.append((self._next_piece, self._pool.submit(self._open, piece)))
            self._next_piece += 1
        while True:
            while not self._runs and self._openings and self._openings[0][1].done():
                self._queue_runs()
            if not self._runs:
                return
            run, data = self._runs[0]
            if self._fetches and self._ahead_bytes + run.length > self._budget_bytes:
                return
            self._runs.popleft()
            self._ahead_bytes += run.length
            self._fetches.append((run, self._pool.submit(self._fetch, run, data)))

    def _queue_runs(self) -> None:
        number, opening = self._openings.popleft()
        for opened in opening.result():
            self._queue_opened(number, opened)

    def _queue_opened(self, number: int, opened: _Opened) -> None:
        may_know = self._offsets_alone and not opened.has_markers
        for is_known, blocks in groupby(opened.blocks, lambda block: may_know and _is_dense(block)):
            ends = _has_gap if is_known else self._is_enough
            self._runs += (
                (_Run(number, opened.entry, run, is_known), opened.data) for run in _runs(blocks, ends)
            )

    def _is_enough(self, run: list[LogBlock], block: LogBlock) -> bool:
        """One GET fetches blocks that touch, so many bytes of them; a larger block is fetched by itself."""
        return block.position != run[-1].end or block.end - run[0].position > self._fetch_bytes

    def _open(self, piece: SegmentPiece) -> list[_Opened]:
        """Open the object of a piece, or those in its place where it is gone; none where the rows are."""
        entry = piece.entry
        try:
            return [self._opened(piece, entry, piece.first_byte, piece.end_byte)]
        except ObjectNotFound:
            there = list(self._others(piece, entry))
        if piece.is_cut and there:
            raise PlanOutdated(
                f"{piece.topic}-{piece.partition}: {entry.key} was rewritten after this read was planned, "
                "and several tasks share its rows. All of them are there: load() makes a new plan"
            )
        return there

    def _others(self, piece: SegmentPiece, gone: SegmentEntry) -> Iterator[_Opened]:
        """Open what has the rows of `gone` now."""
        for entry in self._in_place_of(piece, gone, piece.begin_offset, piece.end_offset):
            try:
                yield self._opened(piece, entry)
            except ObjectNotFound:
                yield from self._others(piece, entry)  # it was rewritten, too

    def _opened(
        self, piece: SegmentPiece, entry: SegmentEntry, first_byte: int = 0, end_byte: int | None = None
    ) -> _Opened:
        data: memoryview | None = None
        if entry is not piece.entry:
            footer = self._rewritten.footer(entry)
        elif entry.size <= SMALL_OBJECT_BYTES and not self._offsets_alone:
            footer, data = self._open_whole(entry)
        else:
            footer = open_footer_of(self._store, entry)
        begin, end = piece.begin_offset, piece.end_offset
        blocks = wanted_blocks(footer.blocks, piece.times, begin, end, first_byte, end_byte)
        return _Opened(entry, blocks, data, has_markers=footer.transactional_batch_count != 0)

    def _in_place_of(
        self, piece: SegmentPiece, gone: SegmentEntry, begin_offset: int, end_offset: int
    ) -> tuple[SegmentEntry, ...]:
        """Return what has these offsets, exclusive of the end, instead of `gone`. What nothing has is told as
        lost."""
        found = self._rewritten.in_place_of(gone, begin_offset, end_offset)
        start = end_offset if found is None else found.start_offset
        if start > max(begin_offset, gone.base_offset):
            self._missing(piece, gone, max(begin_offset, gone.base_offset), min(start, gone.last_offset + 1))
        return () if found is None else found.entries

    def _open_whole(self, entry: SegmentEntry) -> tuple[Footer, memoryview]:
        with naming(entry.key):
            data = memoryview(self._store.get_range(entry.key, 0, entry.size))
            return footer_of(entry, data[entry.footer_position :]), data

    def _fetch(self, run: _Run, data: memoryview | None) -> Part | None:
        piece = self._pieces[run.number]
        first, last = run.blocks[0].first_offset, run.blocks[-1].last_offset
        if run.is_known:
            return range(max(first, piece.begin_offset), min(last + 1, piece.end_offset))
        try:
            return self._proved(run, data)
        except ObjectNotFound:
            there = self._in_place_of(piece, run.entry, first, last + 1)
        found = bytearray()
        for entry in there:
            for part in self._batches(entry, first, last):
                found += part
        return memoryview(found).toreadonly() if found else None

    def _proved(self, run: _Run, data: memoryview | None) -> memoryview:
        """Return the blocks of a run, compared with their checksums. `data`: the object's log, if it came
        with the footer."""
        first, last = run.blocks[0].first_offset, run.blocks[-1].last_offset
        with naming(run.entry.key):
            if data is not None:
                part: Buffer = data[run.position : run.position + run.length]
            else:
                try:
                    part = self._store.get_range(run.entry.key, run.position, run.length)
                except ObjectTruncated as e:
                    raise CorruptionError(f"offsets {first} to {last}: {e}") from e
            view = memoryview(part).toreadonly()
            for block in run.blocks:
                start = block.position - run.position
                if crc32c(view[start : start + block.length]) != block.crc32c:
                    raise CorruptionError(
                        f"wrong checksum of the block at {block.position} ({block.length} bytes), "
                        f"offsets {block.first_offset} to {block.last_offset}"
                    )
        return view

    def _batches(self, entry: SegmentEntry, first_offset: int, last_offset: int) -> Iterator[memoryview]:
        """Yield the batches of these offsets, inclusive, of an object: its blocks are others than those of
        the objects that it replaced, its batches are not."""
        blocks = self._rewritten.footer(entry).blocks
        for block in wanted_blocks(blocks, ALL_TIMES, first_offset, last_offset + 1):
            view = self._proved(_Run(0, entry, (block,)), None)
            for header in iter_headers(view):
                if first_offset <= header.base_offset and header.last_offset <= last_offset:
                    yield view[header.position : header.end]

    def _missing(self, piece: SegmentPiece, gone: SegmentEntry, first_offset: int, end_offset: int) -> None:
        message = (
            f"{piece.topic}-{piece.partition}: offsets {first_offset} to {end_offset - 1} are lost: "
            f"there is no object {gone.key}, it was deleted after this read was planned: "
            "by retention, or with its topic. A DataFrame keeps the plan of its first action, "
            "load() makes a new one"
        )
        if self._lost is None:
            raise DataLossError(f"{message} (failOnDataLoss=false reads on)")
        self._lost(message)


def _is_dense(block: LogBlock) -> bool:
    """Return whether every offset of the block is that of a record: none compacted away."""
    return block.record_count == block.last_offset - block.first_offset + 1


def _has_gap(run: list[LogBlock], block: LogBlock) -> bool:
    return block.first_offset != run[-1].last_offset + 1


def _runs(
    blocks: Iterable[LogBlock], ends: Callable[[list[LogBlock], LogBlock], bool]
) -> Iterator[tuple[LogBlock, ...]]:
    """Blocks in runs; `ends` says whether a run so far ends before a block."""
    run: list[LogBlock] = []
    for block in blocks:
        if run and ends(run, block):
            yield tuple(run)
            run = []
        run.append(block)
    if run:
        yield tuple(run)
