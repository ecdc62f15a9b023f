"""Plan which sealed segments may be uploaded now, from which offset on, and in which order. [P]

A segment may be uploaded when it is sealed and lies wholly below the high watermark and the last stable
offset: uploaded records can then never be truncated. Segments go in offset order, and each continues the
chain exactly at its end by the catalog. The chain may end inside a local segment, because an earlier leader
rolled its segments elsewhere; that segment is then uploaded from the chain's end on (chains always end at a
batch border).

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

_URGENT: Final = 1
_COPY: Final = 2
FAILURE_DELAY_MS: Final = 600_000


class SegmentSpan(Protocol):
    """Attributes of a sealed segment that the planner reads."""

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
    """Uploads in order, the lag of the bucket, and the obstacle.

    `blocked` is None, or why nothing can be copied although something should be. It resolves itself when the
    chain lies wholly below the log start offset (expiry drops it); otherwise records are missing.
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

    `sealed` is in offset order and may hold the oldest ones only: the lag is that of those given.
    `chain_start == chain_end` stands for an empty chain, which may begin at any offset at or above
    `chain_end`; offsets below `log_start_offset` are deleted and not copied.
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
        if expected is not None and from_offset != expected:  # invariant T2
            blocked = f"offsets {expected} to {from_offset - 1} are in no tier"
            break
        copies.append(Copy(segment, from_offset))
        expected = segment.last_offset + 1
    return CopyPlan(tuple(copies), len(copies), sum(copy.segment.size for copy in copies), blocked)


def priority(plan: CopyPlan[S], sealed_at_ms: int, *, is_urgent: bool = False) -> tuple[int, int, int]:
    """Return the sort key of a plan with copies, smallest first: longest waiting, then most bytes.

    `sealed_at_ms` is that of its oldest segment. Plans of a disk that fills up (`is_urgent`) go first; the
    leading number leaves 0 for short tasks that must not wait for uploads.
    """
    return (_URGENT if is_urgent else _COPY, sealed_at_ms, -plan.lag_bytes)


def priority_after_failure(before: tuple[int, int, int], failed_at_ms: int) -> tuple[int, int, int]:
    """Return the sort key of a failed task whose key was `before`.

    It sorts as if its segment were sealed `FAILURE_DELAY_MS` after the failure. So it goes after every task
    that has not failed and waits by then, and a segment that the store refuses again and again never delays
    others; yet it gets its turn however many others arrive. Where the disk fills up it sorts as if its
    segment were sealed when it failed.
    """
    is_urgent = before[0] == _URGENT
    return (_COPY, failed_at_ms + (0 if is_urgent else FAILURE_DELAY_MS), before[2])
