"""What of a read lies behind the border of the archive, as tasks. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from service.spark.options import ReadOptions
from service.spark.plan.ranges import OffsetRange
from service.spark.plan.selection import Selection


class TailSplit(NamedTuple):
    """One task: offsets of one partition that the brokers are asked for, half open."""

    topic: str
    partition: int
    begin_offset: int
    end_offset: int


def plan_tail(ranges: Iterable[OffsetRange], options: ReadOptions, selection: Selection) -> list[TailSplit]:
    """What of the ranges lies behind the border: a task for each partition, more for many records."""
    splits: list[TailSplit] = []
    for wanted in ranges:
        chosen = wanted.snapshot.chosen
        begin = max(wanted.begin_offset, wanted.snapshot.border, selection.begin_offset)
        end = min(wanted.end_offset, selection.end_offset)
        step = options.max_records_per_partition or max(1, end - begin)
        splits += [
            TailSplit(chosen.topic, chosen.partition, first, min(first + step, end))
            for first in range(begin, end, step)
        ]
    return splits
