"""The offsets that a read covers, and the splits that cover them: planning on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, islice

from service.base.errors import ConfigError
from service.base.types import NO_OFFSET
from service.records.erasure import filter_hash
from service.records.txn_rows import AbortedEntry
from service.remote.format.block_table import BlockTable
from service.remote.format.key_filter import FILTER_HASH_BYTES
from service.remote.format.manifest import Manifest, SegmentEntry, live_segments
from service.spark.errors import DataLossError
from service.spark.options import AtOffsets, AtTimestamp, Bound, LogicalOffset, PerPartition, ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.snapshots import OffsetRange, PartitionSnapshot, windows
from service.spark.plan.splits import (
    SegmentCandidate,
    Split,
    SplitLimits,
    needs_blocks,
    plan_splits,
    wanted_segments,
)
from service.spark.plan.txn_index import aborted_between
from service.spark.selection import EVERYTHING, Slab, Window

log = logging.getLogger(__name__)

_FOOTERS_AT_ONCE = 256


def resolve_ranges(archive: ArchiveReader, options: ReadOptions) -> list[OffsetRange]:
    """Return the partitions that are read, with their begin and end offsets.

    Raises `ConfigError` when the options do not fit the topics, `DataLossError` when offsets that they name
    are not in the archive (with ``failOnDataLoss=false`` the range is what there is of it).
    """
    chosen = archive.choose(options.choice)
    check_named(options.starting, [(c.asked, c.partition) for c in chosen], "startingOffsets")
    check_named(options.ending, [(c.asked, c.partition) for c in chosen], "endingOffsets")
    window = windows(options)
    snapshots = archive.snapshots(c for c in chosen if window(c.topic, c.partition))
    begins = bound_offsets(archive, snapshots, options.starting, options, is_start=True)
    ends = bound_offsets(archive, snapshots, options.ending, options, is_start=False)
    ranges = []
    for snapshot, begin, end in zip(snapshots, begins, ends, strict=True):
        inside = within(snapshot, begin, end, fail_on_data_loss=options.fail_on_data_loss)
        if inside.begin_offset < inside.end_offset:
            ranges.append(inside)
    return ranges


def check_named(bound: Bound, partitions: Sequence[tuple[str, int]], option: str) -> None:
    """Raise `ConfigError` unless offsets or times are given for exactly these partitions, like Spark."""
    if isinstance(bound, (LogicalOffset, AtTimestamp)):
        return
    rows: PerPartition = bound[0]
    given = {(topic, partition) for topic, row in rows.items() for partition in row}
    if given != set(partitions):
        missing, extra = sorted(set(partitions) - given)[:5], sorted(given - set(partitions))[:5]
        raise ConfigError(
            f"option {option} must name every partition that is read and no other; "
            f"missing: {missing or 'none'}, not read: {extra or 'none'}. "
            "Use -2 for earliest, -1 for latest"
        )


def bound_offsets(
    archive: ArchiveReader,
    snapshots: Sequence[PartitionSnapshot],
    bound: Bound,
    options: ReadOptions,
    *,
    is_start: bool,
) -> list[int]:
    """Return the offset that `bound` means in each partition; it may lie outside the archive."""
    if isinstance(bound, LogicalOffset):
        return [_edge(snapshot, bound) for snapshot in snapshots]
    if isinstance(bound, AtTimestamp):
        times = [bound.timestamp_ms] * len(snapshots)
    else:
        rows: PerPartition = bound[0]
        times = [rows[s.chosen.asked][s.chosen.partition] for s in snapshots]
    if isinstance(bound, AtOffsets):
        return [_edge(snapshot, offset) for snapshot, offset in zip(snapshots, times, strict=True)]
    found = archive.offsets_for_timestamps(snapshots, times)
    return [
        _missed(snapshot, time, options, is_start=is_start) if offset is None else offset
        for snapshot, time, offset in zip(snapshots, times, found, strict=True)
    ]


def _edge(snapshot: PartitionSnapshot, offset: int) -> int:
    if offset == LogicalOffset.EARLIEST:
        return snapshot.start_offset
    return snapshot.end_offset if offset == LogicalOffset.LATEST else offset


def _missed(snapshot: PartitionSnapshot, timestamp_ms: int, options: ReadOptions, *, is_start: bool) -> int:
    """Return the latest offset for a time that no record reaches; the start strategy may forbid it."""
    if is_start and not options.timestamp_miss_is_latest:
        chosen = snapshot.chosen
        raise ConfigError(
            f"{chosen.topic}-{chosen.partition} has no record at or after the starting timestamp "
            f"{timestamp_ms}; startingOffsetsByTimestampStrategy=latest reads nothing of it instead"
        )
    return snapshot.end_offset


def within(snapshot: PartitionSnapshot, begin: int, end: int, *, fail_on_data_loss: bool) -> OffsetRange:
    """Return the readable part of ``[begin, end)``; missing offsets are an error, or a warning."""
    name = f"{snapshot.chosen.topic}-{snapshot.chosen.partition}"
    if begin < snapshot.start_offset and begin < end:
        _lost(
            f"{name}: offsets {begin} to {min(end, snapshot.start_offset) - 1} are gone, "
            f"the archive starts at {snapshot.start_offset}",
            fail_on_data_loss,
        )
    if end > snapshot.end_offset and begin < end:
        _lost(
            f"{name}: offsets {max(begin, snapshot.end_offset)} to {end - 1} are {_beyond(snapshot)}",
            fail_on_data_loss,
        )
    begin = max(begin, snapshot.start_offset)
    return OffsetRange(snapshot, begin, max(begin, min(end, snapshot.end_offset)))


def _beyond(snapshot: PartitionSnapshot) -> str:
    """Say why offsets at and after the end cannot be read, as in *they are …*."""
    end = snapshot.end_offset
    if end < snapshot.archived_end:
        return f"undecided: a transaction that began at {end} is open, and read_committed ends there"
    if snapshot.live and snapshot.stable_end is not None:
        return f"not in the log, or undecided: its last stable offset is {end}"
    return f"not in the {'log' if snapshot.live else 'archive'}, which ends before {end}"


def _lost(message: str, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise DataLossError(f"{message} (failOnDataLoss=false reads what there is)")
    log.warning("%s", message)


def plan_ranges(
    archive: ArchiveReader, ranges: Sequence[OffsetRange], options: ReadOptions, *, parallelism: int = 1
) -> list[Split]:
    """Return splits that cover the wanted rows of the ranges; ``where=`` decides which rows those are."""
    limits = SplitLimits(
        options.max_partition_bytes,
        max(options.min_partitions or 0, parallelism, 1),
        options.max_records_per_partition,
        wave=parallelism,
    )
    candidates: Iterable[SegmentCandidate] = _candidates(archive, ranges, options)
    if options.where is not None and options.where.keys is not None:
        candidates = list(candidates)  # found by their filters, which are read once
    splits = plan_splits(candidates, limits)
    if not splits or len(splits) >= (options.min_partitions or 0):
        return splits
    # There are too few bytes for minPartitions splits: cut inside blocks, by offsets.
    limits = replace(limits, max_records=_records_each(splits, options))
    if not isinstance(candidates, list):
        candidates = _candidates(archive, ranges, options)
    return plan_splits(candidates, limits)


def _records_each(splits: Sequence[Split], options: ReadOptions) -> int:
    spans = sum(piece.end_offset - piece.begin_offset for split in splits for piece in split.pieces)
    each = max(1, spans // max(options.min_partitions or 1, 1))
    return min(each, options.max_records_per_partition or each)


def _candidates(
    archive: ArchiveReader, ranges: Sequence[OffsetRange], options: ReadOptions
) -> Iterator[SegmentCandidate]:
    window_of = windows(options)
    for wanted in ranges:
        manifest, chosen = wanted.snapshot.manifest, wanted.snapshot.chosen
        begin, end = wanted.begin_offset, min(wanted.end_offset, wanted.snapshot.border)
        window = window_of(chosen.topic, chosen.partition)
        if manifest is None or not window.between(begin, end):
            continue
        aborted = _aborted(archive, manifest, begin, end) if options.read_committed else []
        if options.read_committed:
            aborted += archive.decided_later(wanted.snapshot)
        entries = wanted_segments(manifest, archive.loader(manifest), begin, end, window)
        if options.where is not None and options.where.keys is not None:
            entries = _with_keys(archive, entries, options.where.keys)
        for entry, slabs, blocks in _with_blocks(archive, entries, begin, end, window):
            # Tasks do not need the leader epochs, which may be many.
            bare = entry._replace(leader_epochs=())
            for slab in slabs:
                first, last, times = slab
                yield SegmentCandidate(
                    chosen.topic,
                    chosen.partition,
                    bare,
                    first,
                    last,
                    aborted_between(aborted, first, last),
                    blocks,
                    times,
                )


def _with_keys(
    archive: ArchiveReader, entries: Iterator[SegmentEntry], keys: frozenset[bytes]
) -> Iterator[SegmentEntry]:
    """Yield the segments of which a record may have one of the keys."""
    hashes = b"".join(filter_hash(key).to_bytes(FILTER_HASH_BYTES, "big") for key in keys)
    for group in _groups(entries):
        yield from compress(group, archive.may_have_keys(group, hashes))


def _with_blocks(
    archive: ArchiveReader, entries: Iterator[SegmentEntry], begin: int, end: int, window: Window
) -> Iterator[tuple[SegmentEntry, list[Slab], BlockTable | None]]:
    """Yield each segment with its wanted slabs, and its block table where the planner needs it.

    Reads the tables of a group of segments at a time.
    """
    for group in _groups(entries):
        slabs = [window.between(max(begin, e.base_offset), min(end, e.last_offset + 1)) for e in group]
        needed = [
            entry
            for entry, wanted in zip(group, slabs, strict=True)
            if any(needs_blocks(entry, slab.begin_offset, slab.end_offset, slab.times) for slab in wanted)
        ]
        footers = dict(zip((entry.key for entry in needed), archive.footers(needed), strict=True))
        for entry, wanted in zip(group, slabs, strict=True):
            footer = footers.get(entry.key)
            yield entry, wanted, footer.blocks if footer else None


def _aborted(
    archive: ArchiveReader, manifest: Manifest, begin_offset: int, end_offset: int
) -> list[AbortedEntry]:
    """Return the aborted transactions of the range: its segments' indexes, and later ones as needed."""
    load = archive.loader(manifest)
    found: list[AbortedEntry] = []
    last: SegmentEntry | None = None
    for group in _groups(wanted_segments(manifest, load, begin_offset, end_offset, EVERYTHING)):
        last = group[-1]
        for rows in archive.aborted_of(group):
            found.extend(rows)
    if last is None or not _may_span(end_offset, archive, manifest, last):
        return found
    for group in _groups(live_segments(manifest, load, last.last_offset + 1)):
        for rows in archive.aborted_of(group):
            found.extend(rows)
            if any(row.last_stable_offset >= end_offset for row in rows):
                return found
    return found


def _may_span(offset: int, archive: ArchiveReader, manifest: Manifest, entry: SegmentEntry) -> bool:
    """Return whether a transaction that began before `offset` may be decided after this segment."""
    if entry.last_offset + 1 >= manifest.end_offset:
        return False
    if entry.open_from != NO_OFFSET:
        return entry.open_from < offset
    opened = archive.open_after(manifest, entry)
    return opened is None or any(first < offset for first in opened.values())


def _groups(segments: Iterator[SegmentEntry]) -> Iterator[list[SegmentEntry]]:
    while group := list(islice(segments, _FOOTERS_AT_ONCE)):
        yield group
