"""From the live segments of partitions to splits of equal bytes. [P]

A *candidate* is what a read wants of one segment. A *piece* is the part of it that one task reads: a range of
the log's bytes and a range of offsets. A block belongs to the piece that its first byte lies in, so a range
may be cut at any byte, without knowing where blocks begin, and every block is still read once::

    log of a segment   |--block--|----block----|--block--|-----block-----|--block--|
    cut by size        |. . . . . . . . . . . . . .|. . . . . . . . . . . . . . . .|
    blocks of piece 1  |=========|=============|=========|
    blocks of piece 2                                    |===============|=========|

So a plan of everything costs the manifests alone. Where a filter leaves only some blocks of a segment, the
planner is given its block table and counts the bytes that are really read.

Everything that a task needs is in its split: key, size, footer position and checksum of each object as the
manifest had them at planning. What is committed or expired later changes neither the rows nor their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.remote.block_table import Block, BlockTable
from service.remote.manifest import Child, Load, Manifest, SegmentEntry
from service.spark.plan.selection import Selection

OPEN_COST_BYTES: Final = 256 << 10
"""What it costs to open one more object, in bytes that could have been read instead."""
SMALLEST_CUT_BYTES: Final = 1 << 20
"""No piece of a segment shorter than a block is cut off for the sake of balance."""
SMALLEST_SHARE_BYTES: Final = 64 << 10
"""However many splits are asked for, none is cut to less than this (`SplitLimits.max_records` may)."""


class AbortedTransaction(NamedTuple):
    """Records of this producer from `first_offset` to `last_offset` (the marker's) were never committed."""

    producer_id: int
    first_offset: int
    last_offset: int


class Candidate(NamedTuple):
    """What a read wants of one segment: offsets `begin_offset` to before `end_offset`.

    `blocks` is None when all blocks are wanted and the planner need not see them.
    """

    topic: str
    partition: int
    entry: SegmentEntry
    begin_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    blocks: BlockTable | None = None


class Piece(NamedTuple):
    """What one task reads of one segment: blocks that begin in ``[first_byte, end_byte)``, rows in
    ``[begin_offset, end_offset)``.
    """

    topic: str
    partition: int
    entry: SegmentEntry
    first_byte: int
    end_byte: int
    begin_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class Split(NamedTuple):
    """One task. `size_bytes` is about what it reads of the bucket."""

    pieces: tuple[Piece, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """`max_bytes` per split; at least `min_splits` of them; at most `max_records` offsets in each.

    `wave` is how many tasks run side by side: so many splits, or a multiple, leave none idle at the end.
    """

    max_bytes: int
    min_splits: int = 1
    max_records: int | None = None
    wave: int = 1


class _Unit(NamedTuple):
    """A run of wanted bytes of one candidate; `blocks` are in it if they are known."""

    candidate: Candidate
    first_byte: int
    end_byte: int
    begin_offset: int
    end_offset: int
    cost: int
    records: int
    divisible: bool


def wanted_segments(
    manifest: Manifest, load: Load, begin_offset: int, end_offset: int, selection: Selection
) -> Iterator[SegmentEntry]:
    """Live segments with offsets in the range that may hold a row that passes; other pages are not read."""
    begin = max(begin_offset, manifest.start_offset)
    yield from _walk(manifest.children, load, begin, end_offset, selection)


def _walk(
    children: Sequence[Child], load: Load, begin: int, end: int, selection: Selection
) -> Iterator[SegmentEntry]:
    for child in children:
        if child.last_offset < begin or child.base_offset >= end:
            continue
        if not selection.takes_times(child.min_timestamp, child.max_timestamp):
            continue
        if isinstance(child, SegmentEntry):
            yield child
        else:
            yield from _walk(load(child).children, load, begin, end, selection)


def needs_blocks(
    entry: SegmentEntry, begin_offset: int, end_offset: int, selection: Selection, limits: SplitLimits
) -> bool:
    """Whether the planner has to see this segment's block table to know what will be read of it."""
    span = min(end_offset, entry.last_offset + 1) - max(begin_offset, entry.base_offset)
    if limits.max_records is not None and span > limits.max_records:
        return True
    whole = begin_offset <= entry.base_offset and end_offset > entry.last_offset
    whole = whole and selection.takes_all_times(entry.min_timestamp, entry.max_timestamp)
    return not whole and entry.log_length > SMALLEST_CUT_BYTES


def wanted_blocks(
    blocks: Iterable[Block],
    selection: Selection,
    begin_offset: int,
    end_offset: int,
    first_byte: int = 0,
    end_byte: int | None = None,
) -> list[Block]:
    """The blocks that begin in the byte range and may hold a wanted row."""
    return [
        block
        for block in blocks
        if block.last_offset >= begin_offset
        and block.first_offset < end_offset
        and block.position >= first_byte
        and (end_byte is None or block.position < end_byte)
        and selection.takes_times(block.min_timestamp, block.max_timestamp)
    ]


def plan_splits(candidates: Iterable[Candidate], selection: Selection, limits: SplitLimits) -> list[Split]:
    """Splits of equal bytes, in the order of the candidates; none is longer than `limits` allow.

    A big segment is spread over several splits, small ones share one. The bytes of a split differ from the
    others' by about a block. Splits of a partition follow its offsets.
    """
    units = [unit for candidate in candidates for unit in _units(candidate, selection, limits)]
    total = sum(unit.cost for unit in units)
    if not total:
        return []
    count = max(-(-total // limits.max_bytes), limits.min_splits)
    count += -count % limits.wave
    shares = _shared(units, max(-(-total // count), SMALLEST_SHARE_BYTES))
    if limits.max_records is not None:
        shares = [part for share in shares for part in _by_records(share, limits.max_records)]
    return [Split(tuple(_pieces(share)), sum(unit.cost for unit in share)) for share in shares]


def _units(candidate: Candidate, selection: Selection, limits: SplitLimits) -> Iterator[_Unit]:
    entry = candidate.entry
    begin = max(candidate.begin_offset, entry.base_offset)
    end = min(candidate.end_offset, entry.last_offset + 1)
    # Units outlive the look at the block table, so they do not hold it.
    bare = candidate._replace(blocks=None)
    cost = entry.log_length + OPEN_COST_BYTES
    whole = _Unit(bare, 0, entry.log_length, begin, end, cost, end - begin, divisible=True)
    if candidate.blocks is None:
        yield whole
        return
    blocks = wanted_blocks(candidate.blocks, selection, begin, end)
    if len(blocks) == len(candidate.blocks) and limits.max_records is None:
        yield whole
        return
    extra = OPEN_COST_BYTES
    for block in blocks:
        for first, last in _spans(block, begin, end, limits.max_records):
            span = last - first
            yield _Unit(
                bare,
                block.position,
                block.end,
                first,
                last,
                block.length + extra,
                min(span, block.record_count),
                divisible=False,
            )
            extra = 0


def _spans(block: Block, begin: int, end: int, max_records: int | None) -> Iterator[tuple[int, int]]:
    """The wanted offsets of a block, in ranges that one split may hold."""
    first, last = max(block.first_offset, begin), min(block.last_offset + 1, end)
    if max_records is None or block.record_count <= max_records:
        yield first, last
        return
    for start in range(first, last, max_records):
        yield start, min(start + max_records, last)


def _shared(units: Sequence[_Unit], share: int) -> list[list[_Unit]]:
    """Units laid end to end and cut every `share` bytes; what cannot be cut goes where its middle lies."""
    shares: dict[int, list[_Unit]] = {}
    position = 0
    for unit in units:
        end = position + unit.cost
        if not unit.divisible:
            shares.setdefault((position + end) // 2 // share, []).append(unit)
            position = end
            continue
        for number, part in _cut(unit, position, share):
            shares.setdefault(number, []).append(part)
        position = end
    return [shares[number] for number in sorted(shares)]


def _cut(unit: _Unit, position: int, share: int) -> Iterator[tuple[int, _Unit]]:
    """The parts of a divisible unit that begins at `position`, each with the number of its share."""
    # The cost of opening lies before the first byte, so that cuts count from the same origin as bytes do.
    origin = position + unit.cost - (unit.end_byte - unit.first_byte) - unit.first_byte
    smallest = min(SMALLEST_CUT_BYTES, share // 8)
    first, cost = unit.first_byte, position
    while first < unit.end_byte:
        number = cost // share
        cut = (number + 1) * share - origin
        if unit.end_byte - first < 2 * smallest:
            number, cut = (cost + (unit.end_byte - first) // 2) // share, unit.end_byte
        elif cut - first < smallest:
            number, cut = number + 1, cut + share
        if unit.end_byte - cut < smallest:
            cut = unit.end_byte
        yield number, unit._replace(first_byte=first, end_byte=cut, cost=origin + cut - cost)
        first, cost = cut, origin + cut


def _by_records(share: Sequence[_Unit], max_records: int) -> Iterator[list[_Unit]]:
    taken: list[_Unit] = []
    count = 0
    for unit in share:
        if taken and count + unit.records > max_records:
            yield taken
            taken, count = [], 0
        taken.append(unit)
        count += unit.records
    if taken:
        yield taken


def _pieces(share: Sequence[_Unit]) -> Iterator[Piece]:
    """The units of one split, neighbours of one segment as one piece."""
    last: Piece | None = None
    for unit in share:
        if last is not None and last.entry is unit.candidate.entry:
            last = last._replace(
                end_byte=max(last.end_byte, unit.end_byte), end_offset=max(last.end_offset, unit.end_offset)
            )
            continue
        if last is not None:
            yield last
        last = _piece(unit)
    if last is not None:
        yield last


def _piece(unit: _Unit) -> Piece:
    candidate = unit.candidate
    return Piece(
        candidate.topic,
        candidate.partition,
        candidate.entry,
        unit.first_byte,
        unit.end_byte,
        unit.begin_offset,
        unit.end_offset,
        candidate.aborted,
    )
