"""Rules of rewriting: which batches of a run stay, and how. [P]

A *run* is some neighbouring entries of one chain, all of the manifest or all of one page. A rule makes one
object of it: the run's first and last offset stay, so start, end and borders of the chain do, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from service.base.types import TopicIdPartition
from service.records.scan import BatchScan
from service.remote.catalog import RewriteKind
from service.remote.format.manifest import SegmentEntry
from service.remote.format.run_check import MAX_OFFSET_SPAN, MAX_RUN_SEGMENTS, run_epochs


class ChainRun(NamedTuple):
    """Neighbouring entries of the chain of `tip`, at least one, as they are before the rewrite.

    `least_generation`: that of the object that replaces it is no smaller; a part of a longer run that becomes
    several objects has the generation of all of it.
    """

    tip: TopicIdPartition
    entries: tuple[SegmentEntry, ...]
    least_generation: int = 0

    @property
    def base_offset(self) -> int:
        return self.entries[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.entries[-1].last_offset

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its objects, in the chain's order."""
        return tuple(entry.key for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of its objects."""
        return sum(entry.size for entry in self.entries)

    @property
    def generation(self) -> int:
        """Generation of the object that replaces it."""
        return max(self.least_generation, 1 + max(entry.generation for entry in self.entries))

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """Leader epochs of its offsets as its entries have them, not as batches are left."""
        return run_epochs(self.entries)


def fits_one_object(run: Sequence[SegmentEntry], one: SegmentEntry, log_bytes: int) -> bool:
    """Return whether a run and the object behind it may become one, of at most so many bytes of the log."""
    return (
        len(run) < MAX_RUN_SEGMENTS
        and sum(entry.log_length for entry in run) + one.log_length <= log_bytes
        and one.last_offset - run[0].base_offset <= MAX_OFFSET_SPAN
    )


class BatchCopier(Protocol):
    """Copier of the batches of one run, in order, for one thread."""

    def copy(self, piece: memoryview, batches: BatchScan, /) -> Iterator[memoryview]:
        """Yield runs of whole batches that are written; `piece` itself where all of it is. Another buffer may
        be reused afterwards."""

    def rest(self) -> Iterator[memoryview]:
        """Yield what is left, after the last piece."""


class Rule(Protocol):
    """A rule. Its copiers write the same bytes each time, as an object is made in two passes."""

    @property
    def kind(self) -> RewriteKind: ...

    def copier(self, run: ChainRun, /) -> BatchCopier:
        """Return a copier of the run. Called on a `rewrite` thread."""


class WholeCopier:
    """Copier that keeps every batch to the byte."""

    def copy(self, piece: memoryview, batches: BatchScan) -> Iterator[memoryview]:
        yield piece

    def rest(self) -> Iterator[memoryview]:
        yield from ()


class MergeRule:
    """Many small objects become one."""

    kind: Final = RewriteKind.MERGE

    def copier(self, run: ChainRun) -> WholeCopier:
        """Return a copier of all batches."""
        return WholeCopier()
