"""Tier layout of one partition: the offset ranges in the bucket and on disk, on a scale. [P]

Everything is placed by offset. A `Scale` maps offsets to a length (offsets, time or bytes), linearly between
anchors, so that blocks, edges and marks follow one rule on every scale, and the inverse map gives the offset
of a retention edge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

OFFSETS: Final = "offset"
TIME: Final = "time"
BYTES: Final = "bytes"
SCALES: Final = (OFFSETS, TIME, BYTES)

BUCKET: Final = "bucket"
DISK: Final = "disk"


class TierBlock(NamedTuple):
    """Adjacent objects of the bucket, or segments on disk. `end` is exclusive; None: unknown.

    `max_ms` is the newest timestamp in it. `name` is the object's key or the file's name, "" for several.
    """

    tier: str
    first: int
    end: int
    size: int | None
    segments: int | None
    min_ms: int | None
    max_ms: int | None
    name: str
    is_active: bool = False


class PublishedTier(NamedTuple):
    """Archive of one partition, as its HEAD names it; `end` is exclusive."""

    blocks: tuple[TierBlock, ...]
    size: int
    objects: int
    end: int
    version: int


class RetentionEdge(NamedTuple):
    """Border of a retention setting: offsets below `offset` are deleted next."""

    what: str
    value: str
    offset: float


@dataclass(frozen=True, slots=True)
class TierLayout:
    """Layout of one partition. End offsets are exclusive; `bucket_end` and `local_start` may overlap.

    `problems` are errors, as text.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int = 0
    local_start: int = 0
    bucket_end: int = 0
    end: int = 0
    blocks: tuple[TierBlock, ...] = ()
    bucket_bytes: int | None = None
    bucket_objects: int | None = None
    disk_bytes: int | None = None
    disk_segments: int | None = None
    waiting_bytes: int | None = None
    waiting_segments: int | None = None
    waiting_since_ms: int | None = None
    manifest_version: int | None = None
    edges: tuple[RetentionEdge, ...] = ()
    is_tiered: bool = True
    problems: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return max(self.end - self.start, 0)


class Scale:
    """Ascending, piecewise linear map from offsets to a length."""

    def __init__(self, anchors: Iterable[tuple[float, float]]) -> None:
        self._at: list[float] = []
        self._value: list[float] = []
        for at, value in anchors:
            if self._at and at <= self._at[-1]:
                self._value[-1] = max(self._value[-1], float(value))
                continue
            self._at.append(float(at))
            self._value.append(max(float(value), self._value[-1] if self._value else float(value)))

    @property
    def is_usable(self) -> bool:
        return len(self._at) > 1 and self._value[-1] > self._value[0]

    @property
    def low(self) -> float:
        return self._value[0]

    @property
    def high(self) -> float:
        return self._value[-1]

    def __call__(self, offset: float) -> float:
        index = bisect_right(self._at, offset)
        if index == 0:
            return self._value[0]
        if index == len(self._at):
            return self._value[-1]
        return _between(
            offset, self._at[index - 1], self._at[index], self._value[index - 1], self._value[index]
        )

    def offset_of(self, value: float) -> float:
        """Return the offset at which the map reaches `value`."""
        index = bisect_left(self._value, value)
        if index == 0:
            return self._at[0]
        if index == len(self._at):
            return self._at[-1]
        return _between(
            value, self._value[index - 1], self._value[index], self._at[index - 1], self._at[index]
        )


def _between(x: float, x0: float, x1: float, y0: float, y1: float) -> float:
    return y0 if x1 <= x0 else min(max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), y0), y1)


def chain(layout: TierLayout) -> list[TierBlock]:
    """Return the blocks that a reader of the whole log reads: the bucket's, then those on disk after them."""
    bucket = [block for block in layout.blocks if block.tier == BUCKET]
    end = bucket[-1].end if bucket else layout.start
    return bucket + [block for block in layout.blocks if block.tier == DISK and block.end > end]


def scale_of(layout: TierLayout, kind: str) -> Scale:
    """Return the scale of one partition; not usable if it needs unknown values."""
    if kind == TIME:
        return Scale(_time_anchors(layout))
    if kind == BYTES:
        return Scale(_byte_anchors(layout))
    return Scale([(layout.start, layout.start), (layout.end, layout.end)])


def _time_anchors(layout: TierLayout) -> Iterable[tuple[float, float]]:
    known = [block for block in chain(layout) if block.max_ms is not None and block.max_ms >= 0]
    for block in known:
        if block is known[0]:
            begin = block.min_ms if block.min_ms is not None and block.min_ms >= 0 else block.max_ms
            yield max(block.first, layout.start), begin or 0
        yield block.end, block.max_ms or 0


def _byte_anchors(layout: TierLayout) -> Iterable[tuple[float, float]]:
    total, at = 0.0, float(layout.start)
    yield at, total
    for block in chain(layout):
        if block.size is None:
            return
        length = max(block.end - block.first, 1)
        begin = max(block.first, at)
        total += block.size * (block.end - begin) / length
        at = float(block.end)
        yield at, total


def retention_edges(layout: TierLayout, settings: dict[str, int], now_ms: int) -> tuple[RetentionEdge, ...]:
    """Return the borders of retention: of the whole log, and of the disk's copy of archived segments.

    `settings`: ``retention.ms``, ``retention.bytes``, ``local.retention.ms``, ``local.retention.bytes``;
    -1 is without bound, -2 (of the local ones) as for the log.
    """
    found = []
    time, bytes_ = scale_of(layout, TIME), scale_of(layout, BYTES)
    for what, value in settings.items():
        if value < 0:
            continue
        if what.endswith("ms") and time.is_usable:
            cut = now_ms - value
            if time.low < cut < time.high:
                found.append(RetentionEdge(what, str(value), time.offset_of(cut)))
        elif what.endswith("bytes") and bytes_.is_usable:
            cut_bytes = bytes_.high - value
            if cut_bytes > bytes_.low:
                found.append(RetentionEdge(what, str(value), bytes_.offset_of(cut_bytes)))
    return tuple(found)


class LinePiece(NamedTuple):
    """A block as drawn, or several that are too thin: from `x` to `x_end` (0 to 1), in a lane."""

    x: float
    x_end: float
    lane: str
    blocks: tuple[TierBlock, ...]


WHOLE: Final = "whole"
UPPER: Final = "upper"
LOWER: Final = "lower"


def lay_out_pieces(
    layout: TierLayout, scale: Scale, low: float, high: float, thinnest: float
) -> list[LinePiece]:
    """Return the pieces of a line from `low` to `high` of `scale`, none thinner than `thinnest` of its
    length.

    Where both tiers have the same offsets, the bucket gets the upper half and the disk the lower.
    """
    length = max(high - low, 1e-9)

    def place(offset: float) -> float:
        return min(max((scale(offset) - low) / length, 0.0), 1.0)

    pieces: list[LinePiece] = []
    for tier, lane, cut_from, cut_to in (
        (BUCKET, WHOLE, layout.start, layout.local_start),
        (BUCKET, UPPER, layout.local_start, layout.end),
        (DISK, LOWER, layout.local_start, layout.bucket_end),
        (DISK, WHOLE, max(layout.bucket_end, layout.local_start), layout.end),
    ):
        blocks = [block for block in layout.blocks if block.tier == tier]
        pieces += _merged(_cut(blocks, cut_from, cut_to), lane, place, thinnest)
    return pieces


def _cut(blocks: Sequence[TierBlock], low: int, high: int) -> Iterable[tuple[int, int, TierBlock]]:
    for block in blocks:
        first, end = max(block.first, low), min(block.end, high)
        if first < end:
            yield first, end, block


def _merged(
    cut: Iterable[tuple[int, int, TierBlock]], lane: str, place: Callable[[float], float], thinnest: float
) -> list[LinePiece]:
    pieces: list[LinePiece] = []
    begin = until = 0.0
    held: list[TierBlock] = []

    def end_piece() -> None:
        if held:
            pieces.append(LinePiece(begin, max(until, begin), lane, tuple(held)))
            held.clear()

    for first, end, block in cut:
        x, x_end = place(first), place(end)
        is_thin = x_end - begin < thinnest or until - begin < thinnest
        if block.is_active or not is_thin:
            end_piece()
        if not held:
            begin = x
        until = x_end
        held.append(block)
    end_piece()
    return pieces
