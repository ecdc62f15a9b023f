"""Cuts that are not complete yet: the partitions whose chains they wait for. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.base.errors import CorruptionError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import CutRef
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.completeness import EntryOf, Lack, chain_end_of


class _Pending(NamedTuple):
    ref: CutRef
    lacks: list[Lack]


class PendingCuts:
    """Newest cuts with what each of them lacks. `entry_of` returns the catalog's entry of a partition."""

    def __init__(self, entry_of: EntryOf) -> None:
        self._entry_of = entry_of
        self._cuts: dict[int, _Pending] = {}

    def clear(self) -> None:
        """Forget all cuts."""
        self._cuts.clear()

    def add(self, ref: CutRef, lacks: Sequence[Lack]) -> None:
        """Add the newest cut."""
        self._cuts[ref.cut] = _Pending(ref, list(lacks))

    def keep(self, kept: Iterable[CutRef]) -> None:
        """Forget the cuts that are not kept."""
        numbers = {ref.cut for ref in kept}
        self._cuts = {number: one for number, one in self._cuts.items() if number in numbers}

    @property
    def newest_lacks(self) -> Sequence[Lack]:
        """Partitions that the newest cut lacks."""
        return self._cuts[max(self._cuts)].lacks if self._cuts else ()

    def judged(self, ref: CutRef) -> CutRef:
        """Return what `CUT` is to say of a cut. One that was complete stays so."""
        one = self._cuts.get(ref.cut)
        is_complete = ref.is_complete or (one is not None and one.ref.key == ref.key and not one.lacks)
        return ref._replace(is_complete=is_complete)

    async def move(self, context: TieringContext) -> bool:
        """Compare what cuts lack with the chains as they are now; return whether another cut is complete.

        Cuts older than one that is complete and exact are not looked at any more: nobody needs them first.
        """
        is_moved = False
        for number in sorted(self._cuts, reverse=True):
            one = self._cuts.get(number)
            if one is None:
                continue
            if one.lacks:
                left = await Slice().go_on(self._behind(one.lacks))
                later = [
                    lack for lack, entry in left if entry is not None and not await _has(context, lack, entry)
                ]
                one.lacks[:] = [*(lack for lack, entry in left if entry is None), *later]
                is_moved = is_moved or not one.lacks
            if not one.lacks and one.ref.is_exact:
                self._cuts = {key: kept for key, kept in self._cuts.items() if key >= number}
                break
        return is_moved

    def _behind(self, lacks: Sequence[Lack]) -> Steps[list[tuple[Lack, CatalogEntry | None]]]:
        """Return, in steps, those whose chain does not reach far enough, without an entry, and those whose
        chain has been continued by a later leader, whose records may be others, with it."""
        left: list[tuple[Lack, CatalogEntry | None]] = []
        for lack in lacks:
            yield
            entry = self._entry_of(lack.topic_id, lack.partition)
            if chain_end_of(entry) < lack.end:
                left.append((lack, None))
            elif entry is not None and entry.leader_epoch > lack.leader_epoch:
                left.append((lack, entry))
        return left


async def _has(context: TieringContext, lack: Lack, entry: CatalogEntry) -> bool:
    """Return whether the chain has the cut's own records up to its end: after an unclean election it may have
    others there."""
    try:
        return await context.pool.run(_is_same_past, context, lack, entry)
    except (StorageError, CorruptionError):
        return False  # asked again at the next cut


def _is_same_past(context: TieringContext, lack: Lack, entry: CatalogEntry) -> bool:
    """Compare the leader epoch of the last record below the end. Runs on an offload thread."""
    tip = TopicIdPartition(lack.topic_id, "", lack.partition)
    chains = context.chains
    segment = chains.load(tip, entry.manifest_key).manifest.find(lack.end - 1, chains.loader(tip))
    if segment is None:
        return False
    epochs = [epoch for epoch, first in segment.leader_epochs if first < lack.end]
    return bool(epochs) and epochs[-1] <= lack.leader_epoch
