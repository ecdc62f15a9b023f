"""Which sealed segments may go to the bucket now, from which offset on, and whose turn it is. [P]

A segment may go when it is sealed and lies wholly below the high watermark and the last stable offset:
what is uploaded can never be truncated again. Segments go in offset order and each continues the chain
exactly where the catalog says that it ends. The chain may end inside a local segment, because an earlier
leader rolled its segments elsewhere; that segment then goes from the chain's end on (chains always end at
a batch border).

>>> class Segment(NamedTuple):
...     base_offset: int
...     last_offset: int
...     size: int
>>> plan = plan_copies(
...     [Segment(0, 9, 100), Segment(10, 19, 100), Segment(20, 29, 100)],
...     chain_start=0, chain_end=5, log_start_offset=0, high_watermark=25, last_stable_offset=25,
... )
>>> [(copy.segment.base_offset, copy.from_offset) for copy in plan.copies]
[(0, 5), (10, 10)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

_HURRIED: Final = 1
_COPY: Final = 2
YIELDS_MS: Final = 600_000


class SegmentSpan(Protocol):
    """What the planner must know of a sealed segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=SegmentSpan)


class Copy(NamedTuple, Generic[S]):
    """One upload: `segment` from the batch at `from_offset` on (its base offset unless the chain ends
    inside)."""

    segment: S
    from_offset: int


class CopyPlan(NamedTuple, Generic[S]):
    """What may be copied, in order; how far behind the bucket is; what stands in the way.

    `blocked` is None, or why nothing can be copied although something should be. It goes away by itself
    when the chain lies wholly below the log start offset (expiry drops it); otherwise records are missing.
    """

    copies: tuple[Copy[S], ...]
    lag_segments: int
    lag_bytes: int
    blocked: str | None


def plan_copies(
    sealed: Sequence[S],
    *,
    chain_start: int,
    chain_end: int,
    log_start_offset: int,
    high_watermark: int,
    last_stable_offset: int,
) -> CopyPlan[S]:
    """Plan the uploads of one partition.

    `sealed` is in offset order, and may be the oldest ones alone: the lag is that of those given.
    `chain_start == chain_end` stands for an empty chain, which may begin at any offset at or above
    `chain_end`; offsets below `log_start_offset` are gone for good and are not copied.
    """
    limit = min(high_watermark, last_stable_offset)
    is_empty = chain_start == chain_end
    floor = max(chain_end, log_start_offset if is_empty else 0)
    copies: list[Copy[S]] = []
    blocked = None
    expected = None if is_empty else chain_end
    for segment in sealed:
        if segment.last_offset < floor or segment.size == 0:
            continue
        if segment.last_offset >= limit:
            break
        from_offset = max(segment.base_offset, chain_end)
        if expected is not None and from_offset != expected:
            blocked = f"offsets {expected} to {from_offset - 1} are in no tier"
            break
        copies.append(Copy(segment, from_offset))
        expected = segment.last_offset + 1
    return CopyPlan(tuple(copies), len(copies), sum(copy.segment.size for copy in copies), blocked)


def priority(plan: CopyPlan[S], sealed_at_ms: int, *, is_hurried: bool = False) -> tuple[int, int, int]:
    """Sort key of a plan with copies, the smallest goes first: who has waited longest, then who has most.

    `sealed_at_ms` is of its oldest segment. Those whose disk fills up (`is_hurried`) go before all others;
    0 in front leaves room before them for what is short and should not wait for uploads.
    """
    return (_HURRIED if is_hurried else _COPY, sealed_at_ms, -plan.lag_bytes)


def priority_after_failure(before: tuple[int, int, int], failed_at_ms: int) -> tuple[int, int, int]:
    """Sort key of what has failed, and had `before` otherwise.

    It stands among the copies as if its segment were sealed `YIELDS_MS` after it failed: behind all that
    has not failed and waits by then, so that what a store refuses again and again never comes before the
    turn of others; and yet it has its turn while others come without end. Where a disk fills up it stands as
    if its segment were sealed when it failed.
    """
    is_hurried = before[0] == _HURRIED
    return (_COPY, failed_at_ms + (0 if is_hurried else YIELDS_MS), before[2])
