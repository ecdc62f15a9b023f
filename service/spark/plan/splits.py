"""Division of partitions' live segments into splits of equal bytes. [P]

A *candidate* is the wanted part of one segment. A *piece* is the part of it that one task reads: a range of
the log's bytes and a range of offsets. A block belongs to the piece that its first byte lies in, so a range
may be cut at any byte, without knowing where blocks begin, and every block is still read once::

    log of a segment   |--block--|----block----|--block--|-----block-----|--block--|
    cut by size        |. . . . . . . . . . . . . .|. . . . . . . . . . . . . . . .|
    blocks of piece 1  |=========|=============|=========|
    blocks of piece 2                                    |===============|=========|

So planning a full read needs the manifests alone. Where only some blocks of a segment are wanted, the planner
gets its block table and counts the bytes that will be read, in runs of neighbouring blocks.

A split holds everything that a task needs: key, size, footer position and checksum of each object, as in the
manifest at planning. A later commit or expiry changes neither the rows nor their number; nor does a merge
(`read/rewritten.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.manifest import Child, Load, Manifest, SegmentEntry
from service.spark.selection import ALL_TIMES, Times, Window, all_match, may_match

OPEN_COST_BYTES: Final = 256 << 10
"""Cost of opening one more object, in bytes that could have been read instead."""
SMALLEST_CUT_BYTES: Final = 1 << 20
"""Shortest piece of a segment that is cut off for the sake of balance: about a block."""
_WHOLE: Final = 8
"""A segment of at most such a part of a split is not cut: a merge may replace it while the read lasts, and
then only what was planned whole is found again by its offsets."""
SMALLEST_SHARE_BYTES: Final = 64 << 10
"""Least bytes of a split, however many are requested; `SplitLimits.max_records` may cut smaller ones."""
MAX_SPLITS: Final = 200_000
"""Most tasks of a read: Spark keeps them all on the driver before the first one runs."""


class AbortedTransaction(NamedTuple):
    """Uncommitted records of a producer, from `first_offset` to `last_offset`, the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class SegmentCandidate(NamedTuple):
    """The wanted part of one segment: the `times` of its records in ``[begin_offset, end_offset)``.

    `blocks` is None when all blocks are wanted and the planner need not see them.
    """

    topic: str
    partition: int
    entry: SegmentEntry
    begin_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    blocks: BlockTable | None = None
    times: Times = ALL_TIMES


class SegmentPiece(NamedTuple):
    """The part of one segment that one task reads.

    It is the blocks that begin in ``[first_byte, end_byte)``, and of their rows those in
    ``[begin_offset, end_offset)`` and in `times`. `is_cut`: others have the rest of these rows, and only the
    object's block table tells which are whose.
    """

    topic: str
    partition: int
    entry: SegmentEntry
    first_byte: int
    end_byte: int
    begin_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    times: Times = ALL_TIMES
    is_cut: bool = False


class Split(NamedTuple):
    """One task. `size_bytes` is about how much it reads of the bucket."""

    pieces: tuple[SegmentPiece, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Limits of splits: `max_bytes` each; at least `min_splits`; at most `max_records` offsets each.

    `wave` is the number of tasks that run side by side: with a multiple of it none is idle at the end.
    """

    max_bytes: int
    min_splits: int = 1
    max_records: int | None = None
    wave: int = 1


class _Unit(NamedTuple):
    """A run of wanted bytes of one candidate."""

    candidate: SegmentCandidate
    first_byte: int
    end_byte: int
    begin_offset: int
    end_offset: int
    cost: int
    is_cut: bool = False


def wanted_segments(
    manifest: Manifest, load: Load, begin_offset: int, end_offset: int, window: Window
) -> Iterator[SegmentEntry]:
    """Yield live segments with offsets in the range that may hold a wanted row; skips other pages."""
    begin = max(begin_offset, manifest.start_offset)
    yield from _walk(manifest.children, load, begin, end_offset, window)


def _walk(
    children: Sequence[Child], load: Load, begin: int, end: int, window: Window
) -> Iterator[SegmentEntry]:
    for child in children:
        if child.last_offset < begin or child.base_offset >= end:
            continue
        first, last = max(child.base_offset, begin), min(child.last_offset, end - 1)
        if not window.may_want(first, last, child.min_timestamp, child.max_timestamp):
            continue
        if isinstance(child, SegmentEntry):
            yield child
        else:
            yield from _walk(load(child).children, load, begin, end, window)


def needs_blocks(entry: SegmentEntry, begin_offset: int, end_offset: int, times: Times) -> bool:
    """Return whether the planner needs this segment's block table to know how much of it will be read."""
    whole = begin_offset <= entry.base_offset and end_offset > entry.last_offset
    whole = whole and all_match(times, entry.min_timestamp, entry.max_timestamp)
    return not whole and entry.log_length > SMALLEST_CUT_BYTES


def wanted_blocks(
    blocks: Iterable[LogBlock],
    times: Times,
    begin_offset: int,
    end_offset: int,
    first_byte: int = 0,
    end_byte: int | None = None,
) -> list[LogBlock]:
    """Return the blocks that begin in the byte range and may hold a wanted row."""
    return [
        block
        for block in blocks
        if block.last_offset >= begin_offset
        and block.first_offset < end_offset
        and block.position >= first_byte
        and (end_byte is None or block.position < end_byte)
        and may_match(times, block.min_timestamp, block.max_timestamp)
    ]


def plan_splits(candidates: Iterable[SegmentCandidate], limits: SplitLimits) -> list[Split]:
    """Return splits of equal bytes, in the order of the candidates, within `limits`.

    A big segment is spread over several splits, small ones share one. The bytes of a split differ from the
    others' by about a block. Splits of a partition follow its offsets. `ConfigError` above `MAX_SPLITS`.
    """
    units = [unit for candidate in candidates for unit in _units(candidate)]
    total = sum(unit.cost for unit in units)
    if not total:
        return []
    count = max(-(-total // limits.max_bytes), limits.min_splits)
    count += -count % limits.wave
    share = max(-(-total // count), SMALLEST_SHARE_BYTES)
    check_count(-(-total // share), f"{total:,} bytes, {share:,} in a task,")
    if limits.max_records is None:
        return [_split(units) for units in _shared(units, share)]
    return _by_records(units, share, limits.max_records)


def check_count(count: int, reason: str) -> None:
    """Raise `ConfigError` for more than `MAX_SPLITS` tasks; `reason` says what needs so many."""
    if count > MAX_SPLITS:
        raise ConfigError(
            f"{reason} would be {count:,} tasks, more than the {MAX_SPLITS:,} that a read is cut into: "
            "make them larger, or read less at once"
        )


def _units(candidate: SegmentCandidate) -> Iterator[_Unit]:
    entry = candidate.entry
    begin = max(candidate.begin_offset, entry.base_offset)
    end = min(candidate.end_offset, entry.last_offset + 1)
    # Units outlive planning from the block table, so they do not hold it.
    bare = candidate._replace(blocks=None)
    cost = entry.log_length + OPEN_COST_BYTES
    whole = _Unit(bare, 0, entry.log_length, begin, end, cost)
    if candidate.blocks is None:
        yield whole
        return
    blocks = wanted_blocks(candidate.blocks, candidate.times, begin, end)
    if len(blocks) == len(candidate.blocks):
        yield whole
        return
    extra = OPEN_COST_BYTES
    for first, last in _runs(blocks):
        span = max(first.first_offset, begin), min(last.last_offset + 1, end)
        yield _Unit(bare, first.position, last.end, *span, last.end - first.position + extra)
        extra = 0


def _runs(blocks: Iterable[LogBlock]) -> Iterator[tuple[LogBlock, LogBlock]]:
    """Yield the first and last block of each run of contiguous blocks."""
    first: LogBlock | None = None
    last: LogBlock | None = None
    for block in blocks:
        if last is None or block.position != last.end:
            if first is not None and last is not None:
                yield first, last
            first = block
        last = block
    if first is not None and last is not None:
        yield first, last


def _shared(units: Iterable[_Unit], share: int) -> Iterator[list[_Unit]]:
    """Lay units end to end and cut them every `share` bytes."""
    taken: list[_Unit] = []
    current = position = 0
    for unit in units:
        for number, part in _cut(unit, position, share):
            if number != current and taken:
                yield taken
                taken = []
            current = number
            taken.append(part)
        position += unit.cost
    if taken:
        yield taken


def _cut(unit: _Unit, position: int, share: int) -> Iterator[tuple[int, _Unit]]:
    """Yield the parts of a unit that begins at `position`, each with the number of its share."""
    # The cost of opening lies before the first byte, so that cuts count from the same origin as bytes do.
    origin = position + unit.cost - (unit.end_byte - unit.first_byte) - unit.first_byte
    smallest = min(SMALLEST_CUT_BYTES, share // 8)
    first, cost = unit.first_byte, position
    if unit.cost <= share // _WHOLE:
        yield (position + unit.cost // 2) // share, unit
        return
    while first < unit.end_byte:
        number = cost // share
        cut = (number + 1) * share - origin
        if unit.end_byte - first < 2 * smallest:
            number, cut = (cost + (unit.end_byte - first) // 2) // share, unit.end_byte
        elif cut - first < smallest:
            number, cut = number + 1, cut + share
        if unit.end_byte - cut < smallest:
            cut = unit.end_byte
        is_cut = unit.is_cut or (first, cut) != (unit.first_byte, unit.end_byte)
        part = unit._replace(first_byte=first, end_byte=cut, cost=origin + cut - cost, is_cut=is_cut)
        yield number, part
        first, cost = cut, origin + cut


def _by_records(units: Sequence[_Unit], share: int, max_records: int) -> list[Split]:
    """Return splits of at most `max_records` offsets. A block on a border is read twice, each row once."""
    spans = sum(unit.end_offset - unit.begin_offset for unit in units)
    reason = f"{spans:,} offsets, at most {max_records:,} in a task,"
    check_count(-(-spans // max_records), reason)
    splits: list[Split] = []
    taken: list[_Unit] = []
    records = cost = 0
    for part in (part for unit in units for part in _in_spans(unit, share, max_records)):
        size = part.end_offset - part.begin_offset
        if taken and (records + size > max_records or cost + part.cost > share):
            splits.append(_split(taken))
            taken, records, cost = [], 0, 0
            if len(splits) >= MAX_SPLITS:
                check_count(len(splits) + 1, reason)
        taken.append(part)
        records, cost = records + size, cost + part.cost
    splits.append(_split(taken))
    return splits


def _in_spans(unit: _Unit, share: int, max_records: int) -> Iterator[_Unit]:
    """Cut the unit by offsets. Splits differ in bytes where bytes and offsets do not grow alike."""
    size = unit.end_offset - unit.begin_offset
    step = min(max_records, max(1, size * share // unit.cost)) if unit.cost > share else max_records
    for begin in range(unit.begin_offset, unit.end_offset, step):
        end = min(begin + step, unit.end_offset)
        yield unit._replace(begin_offset=begin, end_offset=end, cost=-(-unit.cost * (end - begin) // size))


def _split(units: Sequence[_Unit]) -> Split:
    return Split(tuple(_pieces(units)), sum(unit.cost for unit in units))


def _pieces(share: Sequence[_Unit]) -> Iterator[SegmentPiece]:
    """Yield the units of one split, neighbours of one candidate as one piece."""
    last: SegmentPiece | None = None
    candidate: SegmentCandidate | None = None
    for unit in share:
        if last is not None and unit.candidate is candidate:
            last = last._replace(
                end_byte=max(last.end_byte, unit.end_byte),
                end_offset=max(last.end_offset, unit.end_offset),
                is_cut=last.is_cut or unit.is_cut,
            )
            continue
        if last is not None:
            yield last
        last, candidate = _piece(unit), unit.candidate
    if last is not None:
        yield last


def _piece(unit: _Unit) -> SegmentPiece:
    candidate = unit.candidate
    return SegmentPiece(
        candidate.topic,
        candidate.partition,
        candidate.entry,
        unit.first_byte,
        unit.end_byte,
        unit.begin_offset,
        unit.end_offset,
        candidate.aborted,
        candidate.times,
        unit.is_cut,
    )
