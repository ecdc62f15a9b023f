"""Steps against a file system that fills up, by the bytes that are left. [P]

    FREE            nothing
    UPLOADS_FIRST   tiered partitions of the directory are copied to the bucket before those of others
    SHRINK          their local copies are deleted as soon as the bucket has them, before local retention
    THROTTLE        producers to the directory are throttled, the more the less is left
    REFUSE          their records are refused with a retriable error

Each step has those below it. A step is entered where less is left than its watermark, and left again where
more is left than that and a margin: so it does not come and go with each segment. Watermarks are shares of
the file system, of which `DiskWatermarks.counted_bytes` count at most; `reserve_bytes` are kept in any case,
as the metadata log, checkpoints and indexes need room after clients' records have none.

>>> marks = DiskWatermarks(True, (80, 85, 92, 97), 1, 1 << 38, 0, 1000)
>>> assess(Step.FREE, 1000, 110, marks, is_tiered=True).step.name
'SHRINK'
>>> assess(Step.SHRINK, 1000, 155, marks, is_tiered=True).step.name  # it ends with 150 and a margin of 10
'SHRINK'
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

LEAST_ALARM_BYTES: Final = 1 << 20
"""Bytes that are appended at least before the disk is checked out of turn, however near the next step is."""


class Step(IntEnum):
    """One step; each includes those below it."""

    FREE = 0
    UPLOADS_FIRST = 1
    SHRINK = 2
    THROTTLE = 3
    REFUSE = 4


class DiskWatermarks(NamedTuple):
    """``firn.disk.*``. ``percents``: how full the file system is where each step above FREE begins, 100 for
    never; ``margin_percent``: how much less full it is where the step ends.
    """

    is_on: bool
    percents: tuple[int, int, int, int]
    margin_percent: int
    counted_bytes: int
    reserve_bytes: int
    throttle_max_ms: int


class DiskState(NamedTuple):
    """State of a directory: its step, the throttle time of producers, and what is left of its file system.

    ``is_in_reserve``: less is left than the reserve, so followers append nothing either. ``to_free``: bytes
    to delete to end the steps from SHRINK on. ``alarm_bytes``: after so many appended bytes the disk is
    checked out of turn. ``most_bytes``: no more is appended before that check has ended; then half of the
    reserve is left, whatever filled the rest.
    """

    step: Step
    throttle_ms: int
    total: int
    usable: int
    is_in_reserve: bool
    to_free: int
    alarm_bytes: int
    most_bytes: int
    led: int = 0
    """partitions of several replicas that are led there though nothing can be written"""
    moves_leaders: bool = True
    """whether the controller moves them, once another in-sync replica has room"""


def min_free_bytes(total: int, marks: DiskWatermarks) -> int:
    """Return how many bytes of `total` must be free for all steps to end."""
    counted = min(total, marks.counted_bytes)
    left = marks.reserve_bytes + marks.reserve_bytes // 8
    if marks.is_on:
        left = max(left, counted * (100 - min(marks.percents) + marks.margin_percent) // 100)
    return left


def assess(
    before: Step,
    total: int,
    usable: int,
    marks: DiskWatermarks,
    *,
    is_tiered: bool,
    was_in_reserve: bool = False,
) -> DiskState:
    """Compute a directory's state from its step `before`, and `total` and `usable` bytes of its file system.

    Without tiered partitions (`is_tiered`) nothing is freed by itself: only the reserve counts.
    """
    counted = min(total, marks.counted_bytes)
    floors = [0, 0, 0, 0]
    if marks.is_on and is_tiered:
        floors = [counted * (100 - percent) // 100 for percent in marks.percents]
    margins = [counted * marks.margin_percent // 100] * len(floors)
    if marks.reserve_bytes > floors[-1]:
        floors[-1], margins[-1] = marks.reserve_bytes, marks.reserve_bytes // 8
    reserve = marks.reserve_bytes
    is_in_reserve = usable < (reserve + reserve // 8 if was_in_reserve else reserve)
    step = Step.FREE
    for candidate, floor, margin in zip(list(Step)[1:], floors, margins, strict=True):
        if usable < (floor + margin if floor and before >= candidate else floor):
            step = candidate
    wanted = 0
    if marks.is_on and is_tiered and step >= Step.SHRINK:
        # REFUSE must end, too, if the reserve is larger than all shares.
        wanted = max(floor + margin for floor, margin in zip(floors[1:step], margins[1:step], strict=True))
    return DiskState(
        step,
        _throttle_ms(step, usable, floors, marks),
        total,
        usable,
        is_in_reserve,
        max(wanted - usable, 0),
        max(
            (usable - max((floor for floor in (*floors, reserve) if floor < usable), default=0)) // 2,
            LEAST_ALARM_BYTES,
        ),
        max(usable - marks.reserve_bytes // 2, LEAST_ALARM_BYTES),
    )


def _throttle_ms(step: Step, usable: int, floors: list[int], marks: DiskWatermarks) -> int:
    """Interpolate from 1 ms, where throttling begins, to the maximum, where records are refused."""
    if step is Step.REFUSE:
        return marks.throttle_max_ms
    if step is not Step.THROTTLE:
        return 0
    begin, end = floors[2], floors[3]
    share = (begin - usable) / (begin - end) if begin > end else 1.0
    return max(round(min(share, 1.0) * marks.throttle_max_ms), 1)


def min_sealed_bytes(step: Step, segment_bytes: int) -> int:
    """Return the size from which an active segment is sealed early, to be copied; from SHRINK on.

    At REFUSE nothing else seals a segment, so nearly all are sealed; while appends continue, each one becomes
    a small object, so the size is larger.
    """
    part = {Step.SHRINK: 4, Step.THROTTLE: 16}.get(step, 1024)
    return max(segment_bytes // part, 1)


def describe(standing: DiskState) -> str:
    """Describe how full it is, and what is done about it.

    >>> marks = DiskWatermarks(True, (80, 85, 92, 97), 1, 1 << 38, 64 << 20, 1000)
    >>> describe(assess(Step.FREE, 1 << 30, 140 << 20, marks, is_tiered=True))
    '86% full (140 MiB left): local copies of what the bucket has go early'
    """
    used = round(100 - 100 * standing.usable / max(standing.total, 1))
    said = f"{used}% full ({_size(standing.usable)} left): {_DONE[standing.step]}"
    if standing.is_in_reserve:
        said += ", and replicas do not follow here, as what is left is firn.disk.reserve.bytes"
    if standing.led:
        why = _NO_ROOM if standing.moves_leaders else _NOT_MOVED
        said += f"; {standing.led} partitions of several replicas are led here all the same: {why}"
    return said


_NO_ROOM: Final = "no other in-sync replica of theirs has room"
_NOT_MOVED: Final = "the active controller (Apache Kafka's, or an older one) does not move them"
_DONE: Final = {
    Step.FREE: "nothing is done about it",
    Step.UPLOADS_FIRST: "its tiered partitions are copied to the bucket first",
    Step.SHRINK: "local copies of what the bucket has go early",
    Step.THROTTLE: "producers are slowed down",
    Step.REFUSE: "records are refused until there is room",
}


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 10_000 or unit == "GiB":
            break
        count >>= 10
    return f"{count} {unit}"
