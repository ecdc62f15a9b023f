"""Check of a rewritten run: what may take the place of neighbouring segments of a chain. [P]

A rewrite makes fewer or other objects of the same offsets. Every border of a new segment is one of the old
run's, so the chain's start, end and contiguity stay; leader epochs stay as the old entries have them, also
where no batch of an epoch is left.

>>> old = [SegmentOutline(0, 9, ((1, 0),), 0), SegmentOutline(10, 19, ((1, 0), (3, 15)), 0)]
>>> check_run(old, [SegmentOutline(0, 19, ((1, 0), (3, 15)), 1)])
>>> check_run(old, [SegmentOutline(0, 14, ((1, 0),), 1), SegmentOutline(15, 19, ((3, 15),), 1)])
Traceback (most recent call last):
ValueError: segment 0 to 14 ends where no segment of the run did
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

MAX_RUN_SEGMENTS: Final = 256
MAX_OFFSET_SPAN: Final = (1 << 31) - 1
"""Kafka's indexes have offsets relative to the segment's first one in 31 bits."""

LeaderEpochs = tuple[tuple[int, int], ...]


class RunSegment(Protocol):
    """A segment of a chain, as `manifest.SegmentEntry`."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def generation(self) -> int: ...


class SegmentOutline(NamedTuple):
    """Offsets (inclusive), leader epochs and generation of a segment."""

    base_offset: int
    last_offset: int
    leader_epochs: LeaderEpochs
    generation: int


def check_run(old: Sequence[RunSegment], new: Sequence[RunSegment]) -> None:
    """Raise `ValueError` unless one rewrite may put the segments `new` in the place of `old`, a run without
    gaps.

    They have the run's offsets and epochs, borders that it had, and a generation above all of it.
    """
    if len(old) > MAX_RUN_SEGMENTS:
        raise ValueError(f"a run of {len(old)} segments, at most {MAX_RUN_SEGMENTS} are rewritten at once")
    check_rewritten(old, new)


def check_rewritten(old: Sequence[RunSegment], new: Sequence[RunSegment]) -> None:
    """Raise `ValueError` unless some rewrites of `old`, a run without gaps, have left the segments `new`."""
    if not 1 <= len(new) <= len(old):
        raise ValueError(f"{len(new)} segments in place of {len(old)}")
    generation = 1 + max(segment.generation for segment in old)
    ends = {segment.last_offset for segment in old}
    epochs = run_epochs(old)
    at = old[0].base_offset
    for segment in new:
        what = f"segment {segment.base_offset} to {segment.last_offset}"
        if segment.base_offset != at:
            raise ValueError(f"{what} does not continue at {at}")
        if segment.last_offset not in ends or segment.last_offset < at:
            raise ValueError(f"{what} ends where no segment of the run did")
        if segment.last_offset - at > MAX_OFFSET_SPAN:
            raise ValueError(f"{what} has more than {MAX_OFFSET_SPAN} offsets")
        if segment.generation < generation:
            raise ValueError(f"{what} is of generation {segment.generation}, at least {generation} is needed")
        if _clipped(segment.leader_epochs, segment) != _clipped(epochs, segment):
            raise ValueError(f"{what} has leader epochs {segment.leader_epochs[:3]}, not the run's")
        at = segment.last_offset + 1
    if at != old[-1].last_offset + 1:
        raise ValueError(f"the new segments end at {at}, the run at {old[-1].last_offset + 1}")


def run_epochs(segments: Sequence[RunSegment]) -> LeaderEpochs:
    """Return the leader epochs of a run of neighbouring segments, each with its first offset.

    >>> run_epochs([SegmentOutline(5, 9, ((1, 2),), 0), SegmentOutline(10, 14, ((1, 2), (4, 12)), 0)])
    ((1, 2), (4, 12))
    """
    firsts: dict[int, int] = {}
    for segment in segments:
        for epoch, first in segment.leader_epochs:
            firsts.setdefault(epoch, first)
    return tuple(firsts.items())


def segment_epochs(epochs: LeaderEpochs, base_offset: int, last_offset: int) -> LeaderEpochs:
    """Return those of `epochs` that have offsets from `base_offset` to `last_offset`.

    >>> segment_epochs(((1, 2), (4, 15), (6, 20)), 10, 19)
    ((1, 2), (4, 15))
    """
    begun = [pair for pair in epochs if pair[1] <= last_offset]
    before = sum(1 for pair in begun if pair[1] <= base_offset)
    return tuple(begun[max(before - 1, 0) :])


def _clipped(epochs: LeaderEpochs, segment: RunSegment) -> LeaderEpochs:
    """Return the leader epochs of `segment` alone: the first one may have begun below it."""
    own = segment_epochs(epochs, segment.base_offset, segment.last_offset)
    return tuple((epoch, max(first, segment.base_offset)) for epoch, first in own)
