"""The archive and the tails of the newest complete cut behind it, as one range of offsets, without brokers.

A plan puts the border at the end of the chain that it has read: offsets below it come from segments, those
from it on from tails, up to the cut's end. Once they are in a segment the same offsets come from there, with
the same rows. For `read_committed` the read ends at the cut's last stable offset. Transactions that are open
where the chain ends are decided by markers in the tails, so the planner reads these up to the cut's end, each
section once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.base.types import NO_LEADER_EPOCH
from service.records.by_time import first_in_batches
from service.records.open_spans import OpenSpans, RowReplay
from service.records.txn_rows import AbortedEntry, decode_rows
from service.remote.format.coverage import Piece
from service.remote.format.cut_codec import PartitionCut, Place
from service.remote.format.fields import saturated
from service.remote.reading.tail_records import read_pieces
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.plan.snapshots import ChosenPartition, LogBounds, PartitionSnapshot
from service.spark.tail.cut_view import Behind, CutView, CutViews, Decisions, lacks


class CutArchiveReader(ArchiveReader):
    """An archive whose partitions reach to the ends of the newest complete cut."""

    def __init__(
        self,
        store: ObjectStore,
        views: CutViews,
        *,
        read_committed: bool = False,
        cache: PlanCache | None = None,
    ) -> None:
        super().__init__(store, read_committed=read_committed, cache=cache)
        self._views = views

    def snapshots(self, chosen: Iterable[ChosenPartition]) -> list[PartitionSnapshot]:
        """Read the chains first, then the cut, so that it lacks nothing that a chain had before."""
        return self.renewed(super().snapshots(chosen))

    def renewed(self, snapshots: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
        """Return the snapshots with the ends of the newest complete cut: one GET where that is known."""
        if not snapshots:
            return []
        view = self._views.newest(self.store, [_place(one.chosen) for one in snapshots])
        return [self._reaching(one, view) for one in snapshots]

    def pieces(self, chosen: ChosenPartition, begin_offset: int, end_offset: int) -> tuple[Piece, ...]:
        """Return the sections with these offsets, which lie behind the chain of the newest snapshot."""
        behind = self._views.behind.get(_place(chosen))
        found = behind.pieces if behind is not None else ()
        return tuple(one for one in found if one.end > begin_offset and one.first < end_offset)

    def decided_later(self, snapshot: PartitionSnapshot) -> list[AbortedEntry]:
        """Return the aborted transactions whose markers are in tails, read once for each section."""
        place, manifest = _place(snapshot.chosen), snapshot.manifest
        behind = self._views.behind.get(place)
        if behind is None or not behind.pieces:
            return []
        epoch = behind.row.leader_epoch
        known = self._views.decisions.get(place)
        if known is None or known.leader_epoch != epoch or known.end_offset < snapshot.archived_end:
            opened = self._open_transactions(manifest) if manifest is not None else {}
            last_epoch = manifest.last_epoch if manifest is not None else NO_LEADER_EPOCH
            start = behind.pieces[0].first
            known = Decisions(epoch, start, last_epoch, opened, ())
        if known.end_offset < behind.end_offset:
            rows = tuple(row for row in known.rows if row.last_offset >= snapshot.archived_end)
            known = self._follow(known._replace(rows=rows), behind, place)
            self._views.decisions[place] = known
        # The chain's own indexes have the others.
        return [row for row in known.rows if row.last_offset >= snapshot.archived_end]

    def _follow(self, known: Decisions, behind: Behind, place: Place) -> Decisions:
        replay = RowReplay(())
        replay.spans = OpenSpans(known.opened.items())
        more = behind.view.pieces(place, known.end_offset, behind.end_offset, known.last_epoch)
        last_epoch = known.last_epoch
        for run in read_pieces(self.store, more.pieces, last_epoch=last_epoch):
            replay.add(run.batches, run.data)
            last_epoch = run.batches.leader_epochs[-1]
        rows = (*known.rows, *decode_rows(bytes(replay.rows)))
        return Decisions(known.leader_epoch, behind.end_offset, last_epoch, dict(replay.spans), rows)

    def offsets_for_timestamps(
        self, snapshots: Sequence[PartitionSnapshot], timestamps_ms: Sequence[int]
    ) -> list[int | None]:
        found = super().offsets_for_timestamps(snapshots, timestamps_ms)
        return [
            self._by_time(snapshot, time) if offset is None else offset
            for snapshot, time, offset in zip(snapshots, timestamps_ms, found, strict=True)
        ]

    def _by_time(self, snapshot: PartitionSnapshot, timestamp_ms: int) -> int | None:
        behind = self._views.behind.get(_place(snapshot.chosen))
        for piece in behind.pieces if behind is not None else ():
            if piece.span.section.max_timestamp < saturated(timestamp_ms):
                continue
            for run in read_pieces(self.store, [piece]):
                with naming(piece.span.tail):
                    record = first_in_batches(run.data, 0, len(run.data), timestamp_ms, piece.first)
                if record is not None:
                    return record.offset if record.offset < snapshot.end_offset else None
        return None

    def _reaching(self, snapshot: PartitionSnapshot, view: CutView | None) -> PartitionSnapshot:
        """Return the snapshot up to the cut's end."""
        place = _place(snapshot.chosen)
        self._views.behind.pop(place, None)
        row = view.row(place) if view is not None else None
        if view is None or row is None or not row.is_promised:
            return self._alone(snapshot)
        behind = self._covered(snapshot, view, row)
        if behind is None:
            again = self._snapshot(snapshot.chosen)  # the chain may have taken over what tails had
            if again.archived_end > snapshot.archived_end:
                snapshot = again
                behind = self._covered(snapshot, view, row)
        if behind is None:
            if not row.waits and _version(snapshot) >= row.version:
                raise lacks(view, place, snapshot.archived_end, row.end)
            return self._alone(snapshot)  # HEAD is written a moment after the commit
        self._views.behind[place] = behind
        own = self._alone(snapshot)
        if own.stable_end is None:
            return own._replace(live=LogBounds(row.start, behind.end_offset, view.cut.cluster_id))
        stable = min(row.stable, behind.end_offset)
        border = own.stable_end
        if behind.end_offset > snapshot.archived_end:
            border = min(max(border, stable), snapshot.archived_end)
        return own._replace(stable_end=border, live=LogBounds(row.start, stable, view.cut.cluster_id))

    def _covered(self, snapshot: PartitionSnapshot, view: CutView, row: PartitionCut) -> Behind | None:
        """Return the sections behind the chain; None where some are missing."""
        manifest, start = snapshot.manifest, max(snapshot.archived_end, row.start)
        if max(start, row.tailed_end) < row.end:
            return None
        is_after = manifest is not None and snapshot.archived_end >= row.start
        last_epoch = manifest.last_epoch if manifest is not None and is_after else NO_LEADER_EPOCH
        found = view.pieces(_place(snapshot.chosen), start, row.end, last_epoch)
        if found.reaches < row.end:
            return None
        return Behind(view, row, found.pieces, max(snapshot.archived_end, row.end))

    def _alone(self, snapshot: PartitionSnapshot) -> PartitionSnapshot:
        """Return the snapshot of the chain alone."""
        manifest = snapshot.manifest
        if not self._read_committed:
            return snapshot._replace(live=None, stable_end=None)
        stable = self._stable_end(manifest) if manifest is not None else 0
        return snapshot._replace(live=None, stable_end=stable)


def _place(chosen: ChosenPartition) -> Place:
    return chosen.topic_id, chosen.partition


def _version(snapshot: PartitionSnapshot) -> int:
    return snapshot.manifest.version if snapshot.manifest is not None else 0
