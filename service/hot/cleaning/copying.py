"""Steps of one compaction, for a `log-cleaner` thread: each yields the bytes that it has read or written.

Two passes: the keys of the dirty part are put into a map, then segments are copied, group by group, without
the records that a later record replaces. Output is verified like input, with checksums, before it is used. A
generator that is closed early leaves no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from service.base.disk import Disk, MissingFile
from service.hot.cleaning.segment_copy import BufferSizes, CleaningCounts, SegmentCopy, Steps, pieces_of
from service.hot.cleaning.transactions import CleanedTransactions, aborted_between
from service.hot.segment import Segment
from service.hot.state import LogState
from service.records import txn_rows
from service.records.compaction import CompactionCopier, CopyRules, LastBatches, filling_batch
from service.records.key_map import KeyMap
from service.records.segment_indexes import MAX_RELATIVE_OFFSET
from service.records.txn_rows import AbortedEntry


def map_keys(
    segments: Sequence[Segment], following: Sequence[Segment], first_dirty: int, end_offset: int,
    keys: KeyMap, sizes: BufferSizes,
) -> Steps:  # fmt: skip
    """Put the keys of `segments`, from `first_dirty` on, into `keys`, up to `end_offset` or until it is full.

    `following`: later segments, whose transaction indexes may list transactions aborted in these.
    """
    fates = CleanedTransactions()
    fates.add(aborted_between(_indexes([*segments, *following]), first_dirty, end_offset))
    for number, segment in enumerate(segments):
        for batches, _, piece in pieces_of(segment, sizes):
            if not keys.add(piece, batches, first_dirty, fates):
                return
            yield len(piece)
        after = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        keys.reached(after)


def _indexes(segments: Iterable[Segment]) -> Iterator[list[AbortedEntry]]:
    """Read the transaction indexes of these segments, one after the other; most have none."""
    for segment in segments:
        if segment.txn_index is not None:
            try:
                yield segment.txn_index.rows()
            except MissingFile:
                continue


class GroupCopy(SegmentCopy):
    """Merges segments that are compacted."""

    def __init__(
        self,
        state: LogState,
        old: Sequence[Segment],
        following: Sequence[Segment],
        rules: CopyRules,
        keys: KeyMap,
        fates: CleanedTransactions,
        last_batches: LastBatches,
        sizes: BufferSizes,
        counts: CleaningCounts,
    ) -> None:
        """`following`: see `map_keys`. `fates` and `counts` are shared by all groups."""
        super().__init__(state, old, rules.end_offset, sizes, counts)
        self._following = tuple(following)
        self._rules = rules
        self._fates = fates
        self._copier = CompactionCopier(keys, fates, rules, last_batches, sizes.out)

    def _write(self, disk: Disk, fd: int) -> Steps:
        kept = len(self._fates.kept)
        epoch = -1
        for number, segment in enumerate(self.old):
            end = self.old[number + 1].base_offset if number + 1 < len(self.old) else self._rules.end_offset
            behind = [*self.old[number:], *self._following]
            self._fates.add(aborted_between(_indexes(behind), segment.base_offset, end))
            for batches, _, piece in pieces_of(segment, self._sizes):
                before = self._position
                for part in self._copier.copy(piece, batches):
                    self._append(disk, fd, part)
                epoch = max(epoch, batches.leader_epochs[-1])
                self._counts.bytes_read += len(piece)
                yield len(piece) + self._position - before
        for part in self._copier.rest():
            self._append(disk, fd, part)
        # A segment written by Apache Kafka may precede a gap that is wider than a segment can span.
        last_offset = min(self._rules.end_offset - 1, self.old[0].base_offset + MAX_RELATIVE_OFFSET)
        if self._next_offset <= last_offset:
            self._append(disk, fd, filling_batch(self._next_offset, last_offset, epoch))
        self._counts.records_read += self._copier.records_read
        self._counts.records_kept += self._copier.records_kept
        self._rows = b"".join(map(txn_rows.encode_row, self._fates.kept[kept:]))
        yield 0
