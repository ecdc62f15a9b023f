"""Metadata of a cut: a checkpoint in the bucket, and the records behind it in tails of the keeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.errors import StorageError
from service.base.steps import at_once
from service.remote.format.cut_codec import METADATA_PLACE
from service.remote.format.metadata_ref import MetadataRef
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.cut_objects import write_metadata_tail
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.ports import CutCluster, MetadataGone, MetadataTail
from service.tiering.cuts.tail_table import TailTable
from service.tiering.metadata_copy import MetadataCopies

MOST_BYTES: Final = 32 << 20
"""Most bytes of the metadata log that go into a tail; beyond, a new checkpoint is written."""


class CutMetadata(NamedTuple):
    """Metadata that a cut names: the checkpoint, and where the records behind it end, exclusive."""

    checkpoint: MetadataRef
    end: int
    epoch: int


class _Prepared(NamedTuple):
    checkpoint: MetadataRef
    first: int
    end: int
    tail: MetadataTail | None
    """None: nothing that changes the metadata is lacking in tails"""
    epoch: int


class SavedMetadata:
    """Metadata as the newest cut has it, and as the next one will. Owned by the event loop."""

    def __init__(
        self,
        context: TieringContext,
        cluster: CutCluster,
        copies: MetadataCopies,
        documents: KeptDocuments,
        wake_copies: Callable[[], None],
    ) -> None:
        """`wake_copies`: a copy of the metadata is due."""
        self._wake_copies = wake_copies
        self._context = context
        self._cluster = cluster
        self._copies = copies
        self._documents = documents
        self._named: CutMetadata | None = None
        """of the newest cut"""
        self._next: _Prepared | None = None

    async def begin(self, named: CutMetadata | None) -> None:
        """Begin with what the newest cut has; None where that is of another cluster, or there is none. Write
        a copy of the metadata, or find that it is there. Raises what that raises."""
        self._named, self._next = named, None
        self._copies.begin()
        await self._copies.run_due(self._context.clock.monotonic_ms())

    def forget(self) -> None:
        """Forget what was known: another process may write cuts now."""
        self._named = self._next = None

    async def prepare(self, table: TailTable, metadata_end: int, *, is_wanted: bool = False) -> bool:
        """Choose the checkpoint of a cut that has all metadata below `metadata_end`, and read the records
        that tails lack. Returns whether they change anything since the newest cut. Records that do nothing
        are left out, unless the cut `is_wanted` for them.

        Raises `StorageError` where there is none yet: a copy is asked for then.
        """
        checkpoint = self._checkpoint(table, metadata_end)
        self._documents.will_name(checkpoint.key)
        named = self._named
        first = max(table.update(METADATA_PLACE, checkpoint.end_offset, metadata_end), checkpoint.end_offset)
        epoch = checkpoint.epoch
        has_news = named is None
        if named is not None and first == named.end:
            epoch = named.epoch
        elif named is not None and named.end < first:
            has_news = await self._has_news(named.end, first)
        tail: MetadataTail | None = None
        if first < metadata_end:
            try:
                tail = await self._cluster.metadata_tail(first, metadata_end, MOST_BYTES)
            except MetadataGone as e:
                self._want_copy()
                raise StorageError(f"a newer checkpoint of the metadata is needed first: {e}") from e
            has_news = has_news or tail.has_news or is_wanted
            tail = tail if tail.has_news or is_wanted else None
        self._next = _Prepared(checkpoint, first, first if tail is None else metadata_end, tail, epoch)
        return has_news

    def _checkpoint(self, table: TailTable, metadata_end: int) -> MetadataRef:
        named, life = self._named, self._cluster.life
        known = (self._copies.newest, None if named is None else named.checkpoint)
        usable = [
            one for one in known if one is not None and one.life == life and one.end_offset <= metadata_end
        ]
        if not usable:
            self._want_copy()
            raise StorageError("the bucket has no checkpoint of the metadata yet that a cut could name")
        if named is not None and named.checkpoint.life != life:
            at_once(table.forget([METADATA_PLACE]))  # offsets of another log
            self._named = None
        return max(usable, key=lambda one: one.position)

    def _want_copy(self) -> None:
        self._copies.changed(0)
        self._wake_copies()

    async def _has_news(self, start: int, end: int) -> bool:
        try:
            return (await self._cluster.metadata_tail(start, end, MOST_BYTES)).has_news
        except MetadataGone:
            return True

    async def save(self, table: TailTable, number: int) -> CutMetadata:
        """Write what was prepared as a tail of cut `number`; return what the cut is to name."""
        prepared, context = self._next, self._context
        assert prepared is not None
        made = CutMetadata(prepared.checkpoint, prepared.end, prepared.epoch)
        if prepared.tail is not None:
            ref, section = await context.pool.run(
                write_metadata_tail,
                context.store,
                context.cluster_id,
                prepared.tail,
                prepared.first,
                prepared.end,
                number,
                context.new_uuid(),
                context.stamps(),
            )
            at_once(table.add(ref, 0, [section]))
            table.update(METADATA_PLACE, made.checkpoint.end_offset, made.end)
            made = made._replace(epoch=prepared.tail.epoch)
        self._named, self._next = made, None
        return made
