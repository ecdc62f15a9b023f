"""The newest complete cut, kept from one plan to the next: one GET of `CUT` while nothing is new.

Of a cut that is new its document is read, and the footers of tails that no cut before named. One that cannot
be read is passed over for the one before it, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.records.txn_rows import AbortedEntry
from service.remote.format.coverage import Coverage, Piece
from service.remote.format.cut_codec import Cut, CutRef, PartitionCut, Place
from service.remote.format.keys import MAX_OFFSET
from service.remote.format.tail_object import TailFooter
from service.remote.reading.tails import TailIndex, open_cuts, open_named_cut, open_tail
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, raise_of_the_store
from service.remote.stores.store import ObjectStore

log = logging.getLogger(__name__)

_TRIED: Final = 8
"""Complete cuts that are tried, newest first, before their damage is an error."""


class Decisions(NamedTuple):
    """Transactions of a partition up to an offset in its tails: those that are open there, by producer, and
    those that were aborted, with markers behind the chain. `leader_epoch` is the cut's: what another leader
    saved is read anew."""

    leader_epoch: int
    end_offset: int
    last_epoch: int
    opened: Mapping[int, int]
    rows: tuple[AbortedEntry, ...]


class CutView(NamedTuple):
    """A cut, and the sections of its tails of the partitions that are read."""

    ref: CutRef
    cut: Cut
    tails: TailIndex

    def row(self, place: Place) -> PartitionCut | None:
        """Return the partition at the cut, None where it had none."""
        rows = self.cut.topics.get(place[0], ())
        return rows[place[1]] if place[1] < len(rows) else None

    def pieces(self, place: Place, start: int, end: int, last_epoch: int) -> Coverage:
        return self.tails.pieces(place, start, end, last_epoch=last_epoch)


class Behind(NamedTuple):
    """The part of a partition behind its chain, up to `end_offset`: sections that have it, of the cut
    `view`."""

    view: CutView
    row: PartitionCut
    pieces: tuple[Piece, ...]
    end_offset: int


class CutViews:
    """The view of the newest complete cut of one bucket, and what was made of it for the partitions that are
    read. Owned by the thread that plans."""

    def __init__(self) -> None:
        self.behind: dict[Place, Behind] = {}
        self.decisions: dict[Place, Decisions] = {}
        self._view: CutView | None = None
        self._footers: dict[str, TailFooter] = {}
        self._places: frozenset[Place] = frozenset()
        self._warned: set[str] = set()

    def newest(self, store: ObjectStore, places: Collection[Place]) -> CutView | None:
        """Return the newest complete cut that can be read, with the sections of these partitions; None, with
        a warning, where no cut is complete yet.

        Raises the error of the newest one where none can be read.
        """
        try:
            cuts = open_cuts(store)
        except ObjectNotFound:
            self._warn("includeTail=cut: no cut was ever taken under this url: only the segments are read")
            return None
        wanted = frozenset(places)
        failed: Exception | None = None
        complete = [ref for ref in reversed(cuts.kept) if ref.is_complete]
        if not complete:
            self._warn("includeTail=cut: no cut is complete yet: only the segments are read")
        for ref in complete[:_TRIED]:
            if self._view is not None and self._view.ref.key == ref.key and wanted <= self._places:
                return self._view
            try:
                self._view = self._open(store, ref, wanted)
                return self._view
            except UNREADABLE as e:
                raise_of_the_store(e)
                self._warn(f"includeTail=cut: cut {ref.cut} is passed over: {e}")
                failed = failed or e
        if failed is not None:
            raise failed
        return None

    def _open(self, store: ObjectStore, ref: CutRef, wanted: frozenset[Place]) -> CutView:
        cut = open_named_cut(store, ref)
        if not wanted <= self._places:
            self._footers, self._places = {}, wanted
        limits = dict.fromkeys(self._places, (0, MAX_OFFSET))
        index = TailIndex(limits)
        known: dict[str, TailFooter] = {}
        for tail in cut.tails:
            footer = self._footers.get(tail.key)
            if footer is None:
                footer = open_tail(store, tail)
                ours = (one for one in footer.sections if (one.topic_id, one.partition) in limits)
                footer = footer._replace(sections=tuple(ours))
            known[tail.key] = footer
            index.add(tail.key, footer)
        self._footers = known
        return CutView(ref, cut, index)

    def _warn(self, message: str) -> None:
        """Log a warning once: streams plan again and again."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)


def lacks(view: CutView, place: Place, first: int, end: int) -> CorruptionError:
    """Return the error of records that a complete cut lacks."""
    return CorruptionError(
        f"{view.ref.key}: offsets {first} to {end - 1} of {place[0]}/{place[1]} are neither in its chain nor "
        "in a tail (firn fsck)"
    )
