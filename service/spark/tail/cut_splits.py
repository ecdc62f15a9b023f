"""Tasks behind the border of the archive that read tails from the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.remote.format.coverage import Piece
from service.spark.options import ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.snapshots import OffsetRange
from service.spark.plan.splits import AbortedTransaction
from service.spark.plan.txn_index import aborted_between
from service.spark.selection import Times
from service.spark.tail.cut_archive import CutArchiveReader
from service.spark.tail.plan import TailSplit, plan_tail


class CutSplit(NamedTuple):
    """One task: offsets of one partition, half open, in sections of tails."""

    topic: str
    partition: int
    begin_offset: int
    end_offset: int
    times: Times
    pieces: tuple[Piece, ...]
    aborted: tuple[AbortedTransaction, ...]
    size_bytes: int


def plan_behind(
    archive: ArchiveReader, ranges: Sequence[OffsetRange], options: ReadOptions
) -> list[TailSplit] | list[CutSplit]:
    """Return the tasks behind the border: to read tails of a cut, or to ask brokers."""
    splits = plan_tail(ranges, options, archive.loader)
    if not isinstance(archive, CutArchiveReader) or not splits:
        return splits
    snapshots = {
        (one.snapshot.chosen.topic_id, one.snapshot.chosen.partition): one.snapshot for one in ranges
    }
    found: list[CutSplit] = []
    for split in splits:
        snapshot = snapshots[split.topic_id, split.partition]
        begin, end = split.begin_offset, split.end_offset
        rows = archive.decided_later(snapshot) if options.read_committed else []
        pieces = archive.pieces(snapshot.chosen, begin, end)
        if pieces:
            found.append(
                CutSplit(
                    split.topic,
                    split.partition,
                    begin,
                    end,
                    split.times,
                    pieces,
                    aborted_between(rows, begin, end),
                    sum(piece.span.section.length for piece in pieces),
                )
            )
    return found
