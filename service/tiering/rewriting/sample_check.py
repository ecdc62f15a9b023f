"""Check of a sample of what a worker elsewhere has made, before the leader publishes it.

`report_check` compares what the worker says: entries, footers, sizes. Here some of the bytes are read: all
sections of each new object, its filter of keys among them, and a few blocks, which the worker cannot guess.
Every batch of these is verified, and their keys have to be in the filter: one that lacks a key would hide
records from an erasure for ever. A merge keeps every byte, so its blocks are compared with the old objects.

It costs a leader a few MiB for each new object, whatever its size. What is damaged beside the sample is found
by `firn fsck`, which reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.catalog import RewriteKind
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import OpenSegment
from service.remote.reading.segment_proof import prove_sample
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.rewriting.report_check import RewriteRefused
from service.tiering.rewriting.rules import ChainRun

SAMPLED_BLOCKS: Final = 3
"""Blocks of each new object that are read."""
MOST_BLOCK_BYTES: Final = 8 << 20
"""Larger blocks, each of one large batch, are not read: a leader has no memory set aside for them."""


class SampleCheck:
    """Check of the new objects of one report. Blocking, for an offload thread.

    Memory: one block, twice, or a few MiB of one section.
    """

    def __init__(self, store: ObjectStore, run: ChainRun, kind: RewriteKind, progress: CallProgress) -> None:
        self._store = store
        self._run = run
        self._kind = kind
        self._progress = progress

    def check(self, new: Sequence[OpenSegment], number: int) -> None:
        """Raise `RewriteRefused` where a sample of the objects is not what it should be, and what the store
        raises. `number` is random, of 100 bits or more, and chooses the sample."""
        position = 0
        for entry, footer in new:
            blocks = sample_of(footer.blocks, number)

            def read(at: int, length: int, key: str = entry.key) -> Buffer:
                return self._read(key, at, length)

            try:
                prove_sample(entry, footer, read, blocks)
            except CorruptionError as e:
                raise RewriteRefused(f"{entry.key}: {e}") from e
            if self._kind is RewriteKind.MERGE:
                for block in blocks:
                    self._compare(entry, block, position + block.position)
            position += footer.log_length

    def _compare(self, entry: SegmentEntry, block: LogBlock, position: int) -> None:
        """Raise `RewriteRefused` unless a block has the bytes at `position` of all old logs together."""
        made, at = memoryview(self._read(entry.key, block.position, block.length)), 0
        for key, begin, length in self._old_ranges(position, block.length):
            if made[at : at + length] != memoryview(self._read(key, begin, length)):
                raise RewriteRefused(f"{entry.key}: the merged block at {block.position} differs from {key}")
            at += length

    def _old_ranges(self, position: int, length: int) -> Iterator[tuple[str, int, int]]:
        """Yield key, position and length of each part of a range of all old logs together."""
        begins = 0
        for old in self._run.entries:
            begin, end = max(position, begins), min(position + length, begins + old.log_length)
            if begin < end:
                yield old.key, begin - begins, end - begin
            begins += old.log_length

    def _read(self, key: str, position: int, length: int) -> Buffer:
        self._progress.advance(length)
        return self._store.get_range(key, position, length)


def sample_of(blocks: BlockTable, number: int) -> list[LogBlock]:
    """Return some of the blocks, all where there are few, chosen by `number`."""
    some = [block for block in blocks if block.length <= MOST_BLOCK_BYTES]
    if len(some) <= SAMPLED_BLOCKS:
        return some
    chosen = []
    for _ in range(SAMPLED_BLOCKS):
        number, index = divmod(number, len(some))
        chosen.append(some.pop(index))
    return chosen
