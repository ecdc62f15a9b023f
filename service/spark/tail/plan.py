"""What of a read lies behind the border of the archive, as tasks. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from service.spark.options import ReadOptions
from service.spark.plan.ranges import OffsetRange, windows
from service.spark.selection import ALL_TIMES, Times


class TailSplit(NamedTuple):
    """One task: offsets of one partition that the brokers are asked for, half open."""

    topic: str
    partition: int
    begin_offset: int
    end_offset: int
    times: Times = ALL_TIMES


def plan_tail(ranges: Iterable[OffsetRange], options: ReadOptions) -> list[TailSplit]:
    """What of the ranges lies behind the border: a task for each partition, more for many records."""
    window_of = windows(options)
    splits: list[TailSplit] = []
    for wanted in ranges:
        chosen = wanted.snapshot.chosen
        begin = max(wanted.begin_offset, wanted.snapshot.border)
        for slab in window_of(chosen.topic, chosen.partition).between(begin, wanted.end_offset):
            step = options.max_records_per_partition or slab.end_offset - slab.begin_offset
            splits += [
                TailSplit(
                    chosen.topic, chosen.partition, first, min(first + step, slab.end_offset), slab.times
                )
                for first in range(slab.begin_offset, slab.end_offset, step)
            ]
    return splits
