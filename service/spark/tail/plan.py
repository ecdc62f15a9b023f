"""Planning of the tail: tasks for the part of a read that lies behind the border of the archive. [P]

Brokers do not report sizes: each offset is estimated at the bytes per offset of the newest sealed segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from service.remote.format.manifest import Load, Manifest
from service.spark.options import ReadOptions
from service.spark.plan.sizes import UNKNOWN_BYTES_PER_OFFSET, bytes_per_offset
from service.spark.plan.snapshots import OffsetRange, windows
from service.spark.plan.splits import check_count
from service.spark.selection import ALL_TIMES, Times


class TailSplit(NamedTuple):
    """One task: offsets of one partition to fetch from the brokers, half open, and their `times`.

    The brokers must be of `cluster_id`, the topic of `topic_id`. `size_bytes` is about how much it reads.
    """

    topic: str
    partition: int
    begin_offset: int
    end_offset: int
    topic_id: UUID
    cluster_id: str
    size_bytes: int
    times: Times = ALL_TIMES


class _Stretch(NamedTuple):
    """The tail of one partition to read, and its estimated bytes per offset."""

    wanted: OffsetRange
    begin_offset: int
    end_offset: int
    bytes_each: int
    times: Times

    @property
    def offsets(self) -> int:
        return self.end_offset - self.begin_offset


def plan_tail(
    ranges: Sequence[OffsetRange],
    options: ReadOptions,
    load_of: Callable[[Manifest], Load],
) -> list[TailSplit]:
    """Return tasks of at most ``maxPartitionBytes`` for the part of the ranges behind the border.

    ``minPartitions`` are shared with the archive in proportion to the offsets of both, and among partitions
    likewise; ``maxRecordsPerPartition`` holds. `ConfigError` if that makes more than `MAX_SPLITS`.
    """
    stretches = list(_stretches(ranges, options, load_of))
    tail = sum(stretch.offsets for stretch in stretches)
    whole = sum(wanted.end_offset - wanted.begin_offset for wanted in ranges)
    least = -(-(options.min_partitions or 0) * tail // whole) if whole else 0
    counts = [_tasks(stretch, least, tail, options) for stretch in stretches]
    check_count(sum(counts), "the tail")
    return [split for stretch, count in zip(stretches, counts, strict=True) for split in _cut(stretch, count)]


def _stretches(
    ranges: Iterable[OffsetRange], options: ReadOptions, load_of: Callable[[Manifest], Load]
) -> Iterable[_Stretch]:
    window_of = windows(options)
    for wanted in ranges:
        chosen, manifest = wanted.snapshot.chosen, wanted.snapshot.manifest
        begin = max(wanted.begin_offset, wanted.snapshot.border)
        for slab in window_of(chosen.topic, chosen.partition).between(begin, wanted.end_offset):
            each = (
                UNKNOWN_BYTES_PER_OFFSET
                if manifest is None
                else bytes_per_offset(manifest, load_of(manifest))
            )
            yield _Stretch(wanted, slab.begin_offset, slab.end_offset, each, slab.times)


def _tasks(stretch: _Stretch, least: int, tail: int, options: ReadOptions) -> int:
    """Return the number of tasks of a stretch, when all stretches together get at least `least`."""
    share = -(-least * stretch.offsets // tail)
    by_bytes = -(-stretch.offsets * stretch.bytes_each // options.max_partition_bytes)
    by_count = -(-stretch.offsets // (options.max_records_per_partition or stretch.offsets))
    return min(stretch.offsets, max(share, by_bytes, by_count))


def _cut(stretch: _Stretch, count: int) -> Iterable[TailSplit]:
    """Yield tasks of an equal number of offsets, give or take one."""
    snapshot = stretch.wanted.snapshot
    assert snapshot.live is not None
    for number in range(count):
        begin = stretch.begin_offset + stretch.offsets * number // count
        end = stretch.begin_offset + stretch.offsets * (number + 1) // count
        yield TailSplit(
            snapshot.chosen.topic,
            snapshot.chosen.partition,
            begin,
            end,
            snapshot.chosen.topic_id,
            snapshot.live.cluster_id,
            (end - begin) * stretch.bytes_each,
            stretch.times,
        )
