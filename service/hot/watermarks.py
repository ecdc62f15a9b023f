"""What is done about a file system that fills up: a ladder of steps, by what is left of it. [P]

    FREE            nothing
    UPLOADS_FIRST   tiered partitions of the directory are copied to the bucket before those of others
    SHRINK          their local copies go as soon as the bucket has them, whatever local retention says
    THROTTLE        producers to the directory are told to wait, the longer the less is left
    REFUSE          their records are refused, with an error that they come back after

Each step has those below it. A step is entered where less is left than its watermark, and left again where
more is left than that and a margin: so it does not come and go with each segment. Watermarks are shares of
the file system, of which no more than `Marks.counted_bytes` count; `reserve_bytes` are kept in any case, as
the metadata log, checkpoints and indexes need room after clients' records have none.

>>> marks = Marks(True, (80, 85, 92, 97), 1, 1 << 38, 0, 1000)
>>> look(Step.FREE, 1000, 110, marks, is_tiered=True).step.name
'SHRINK'
>>> look(Step.SHRINK, 1000, 155, marks, is_tiered=True).step.name  # it ends with 150 and a margin of 10
'SHRINK'
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

LEAST_ALARM_BYTES: Final = 1 << 20
"""So much is appended before the disk is asked again out of turn, however near the next step is."""


class Step(IntEnum):
    """Of the ladder, each with those below it."""

    FREE = 0
    UPLOADS_FIRST = 1
    SHRINK = 2
    THROTTLE = 3
    REFUSE = 4


class Marks(NamedTuple):
    """``firn.disk.*``. ``percents``: how full the file system is where each step above FREE begins, 100 for
    never; ``margin_percent``: how much less full it is where the step ends.
    """

    is_on: bool
    percents: tuple[int, int, int, int]
    margin_percent: int
    counted_bytes: int
    reserve_bytes: int
    throttle_max_ms: int


class Standing(NamedTuple):
    """Where a directory stands: its step, how long producers wait, and what is left of its file system.

    ``is_in_reserve``: less is left than the reserve, so replicas do not follow there either. ``to_free``:
    bytes that have to go for the steps from SHRINK on to end. ``alarm_bytes``: when so much was appended the
    disk is asked again, out of turn. ``most_bytes``: no more than that is appended before it has answered;
    half of the reserve is left by then, whoever has filled the rest.
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


def free_of_steps(total: int, marks: Marks) -> int:
    """Bytes of a file system of `total` that have to be left so that no step is on, or ends."""
    counted = min(total, marks.counted_bytes)
    left = marks.reserve_bytes + marks.reserve_bytes // 8
    if marks.is_on:
        left = max(left, counted * (100 - min(marks.percents) + marks.margin_percent) // 100)
    return left


def look(
    before: Step, total: int, usable: int, marks: Marks, *, is_tiered: bool, was_in_reserve: bool = False
) -> Standing:
    """Where a directory stands now that stood on `before`; `total` and `usable` bytes of its file system.

    Without tiered partitions (`is_tiered`) nothing could come free by itself: only the reserve counts.
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
        # What refuses is to end, too, where the reserve is larger than all shares.
        wanted = max(floor + margin for floor, margin in zip(floors[1:step], margins[1:step], strict=True))
    return Standing(
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


def _throttle_ms(step: Step, usable: int, floors: list[int], marks: Marks) -> int:
    """From next to nothing where throttling begins to the most where records are refused."""
    if step is Step.REFUSE:
        return marks.throttle_max_ms
    if step is not Step.THROTTLE:
        return 0
    begin, end = floors[2], floors[3]
    share = (begin - usable) / (begin - end) if begin > end else 1.0
    return max(round(min(share, 1.0) * marks.throttle_max_ms), 1)


def least_sealed(step: Step, segment_bytes: int) -> int:
    """From SHRINK on: with how many bytes an active segment is sealed before its time, so that it is copied.

    Where nobody may append nothing else seals one, so in the end nearly all are; while appends go on, each
    becomes an object that is small, so not too soon.
    """
    part = {Step.SHRINK: 4, Step.THROTTLE: 16}.get(step, 1024)
    return max(segment_bytes // part, 1)


def in_words(standing: Standing) -> str:
    """Of people: how full it is, and what is done about it.

    >>> marks = Marks(True, (80, 85, 92, 97), 1, 1 << 38, 64 << 20, 1000)
    >>> in_words(look(Step.FREE, 1 << 30, 140 << 20, marks, is_tiered=True))
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
