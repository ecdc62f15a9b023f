"""Records that a restored partition lacks, from the tails of a cut or from a segment that reaches beyond it.

Blocking: for threads. Everything is proved before it is handed out, or before the end of the run is reached:
whoever appends the runs begins anew where one of them fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.metadata.image import RestoredTail
from service.records.compaction import filling_batch
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.remote.format.cut_codec import Cut, Place, TailRef, decode_cut
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.keys import CutKey, parse_key
from service.remote.format.tail_object import TailFooter
from service.remote.reading.object_reader import open_cluster_file, open_footer
from service.remote.reading.tail_records import SectionSums, TailRun, read_pieces, within
from service.remote.reading.tails import (
    Offsets,
    TailIndex,
    open_cuts,
    open_named_cut,
    open_tail,
    owners_of,
)
from service.remote.stores.errors import UNREADABLE, naming, raise_of_the_store
from service.remote.stores.store import ObjectStore

_AT_ONCE: Final = 64
"""Footers that are read before their sections are sorted in."""


class CutTails(NamedTuple):
    """Sections of a cut's tails by partition, and the tails that cannot be read, with the reasons."""

    sections: TailIndex
    unreadable: tuple[str, ...]


def open_cut_tails(
    store: ObjectStore, cut_key: str, limits: Mapping[Place, Offsets], pool: Executor
) -> CutTails:
    """Read the footers of all tails that a cut names; of the partitions in `limits` sections are held.

    A tail that cannot be read takes only the partitions with it whose records are nowhere else. Raises
    `CorruptionError` where the cut's document is damaged, `ObjectNotFound`, and errors of the store.
    """
    owners = owners_of(open_cluster_file(store))
    with naming(cut_key):
        cut = decode_cut(store.get(cut_key, max_size=MAX_STORED_BYTES))
        parsed = parse_key(cut_key)
        if not isinstance(parsed, CutKey) or parsed.cut != cut.cut:
            raise CorruptionError(f"the document is of cut {cut.cut}")
        if cut.cluster_id not in owners:
            raise CorruptionError(f"of cluster {cut.cluster_id}, not of {', '.join(sorted(owners))}")

    def footer(ref: TailRef) -> TailFooter | Exception:
        try:
            return open_tail(store, ref, owners)
        except UNREADABLE as e:
            raise_of_the_store(e)
            return e

    index, unreadable = TailIndex(limits), []
    for at in range(0, len(cut.tails), _AT_ONCE):
        some = cut.tails[at : at + _AT_ONCE]
        for ref, found in zip(some, pool.map(footer, some), strict=True):
            if isinstance(found, TailFooter):
                index.add(ref.key, found)
            else:
                unreadable.append(str(found))
    return CutTails(index, tuple(unreadable))


def loaded_before(store: ObjectStore, life: int, tails: Mapping[Place, RestoredTail]) -> frozenset[Place]:
    """Return the partitions of which a cut of this cluster's, and of this life, has what follows their tails:
    a node that has these to load began once more with the metadata of then.

    A cut of an earlier life says nothing: the copy of the metadata that began this one
    (`firn.remote.recover`) may be from before the tails were loaded. Nor do documents that cannot be read.
    """
    try:
        cluster = open_cluster_file(store)
        if not cluster.ancestors:
            return frozenset()
        owners = owners_of(cluster)
        cuts = open_cuts(store, owners)
        newest = open_named_cut(store, cuts.newest, owners)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return frozenset()
    if newest.cluster_id != cluster.cluster_id or newest.metadata.life < life:
        return frozenset()
    return frozenset(place for place, tail in tails.items() if _end_of(newest, place) >= tail.go_on)


def _end_of(cut: Cut, place: Place) -> int:
    rows = cut.topics.get(place[0], ())
    return rows[place[1]].end if place[1] < len(rows) else 0


def tail_runs(
    store: ObjectStore, tails: CutTails | None, place: Place, tail: RestoredTail, last_epoch: int
) -> Iterator[TailRun]:
    """Yield the batches of a restored partition behind its chain, up to the cut's end.

    `tails`: those of its cut; None where it needs none. `last_epoch`: the leader epoch of the last batch
    below the chain's end, -1 without one. Raises `CorruptionError`, which names the object, where a record is
    missing or damaged.
    """
    if tail.chain_end == tail.end_offset:
        return
    if tail.segment_key:
        yield from _segment_runs(store, tail.segment_key, place, tail, last_epoch)
        return
    assert tails is not None, "needs_tails"
    found = tails.sections.pieces(place, tail.chain_end, tail.end_offset, last_epoch=last_epoch)
    if found.reaches < tail.end_offset:
        why = "; ".join(tails.unreadable) or "no tail of the cut has them"
        raise CorruptionError(
            f"{tail.cut_key}: offsets {found.reaches} to {tail.end_offset - 1} cannot be loaded: {why}"
        )
    yield from read_pieces(store, found.pieces, last_epoch=last_epoch)


def needs_tails(tail: RestoredTail) -> bool:
    """Return whether tails of its cut have the records of a restored partition."""
    return tail.chain_end < tail.end_offset and not tail.segment_key


def _segment_runs(
    store: ObjectStore, key: str, place: Place, tail: RestoredTail, last_epoch: int
) -> Iterator[TailRun]:
    """Yield the batches of a segment from the chain's end up to the cut's, block by block."""
    sums = SectionSums()
    sums.last_batch_epoch = last_epoch
    footer = open_footer(store, key)
    identity = footer.identity
    first, end = tail.chain_end, tail.end_offset
    with naming(key):
        if (identity.topic_id, identity.partition) != place or not (
            identity.base_offset <= first and end <= identity.last_offset + 1
        ):
            raise CorruptionError(
                f"a segment of other offsets than {_named(place)} lacks, {first} to {end - 1}"
            )
        for block in footer.blocks:
            if block.last_offset < first:
                continue
            if block.first_offset >= end:
                return
            data = memoryview(store.get_range(key, block.position, block.length))
            if crc32c(data) != block.crc32c:
                raise CorruptionError(f"the block at {block.position} has a wrong checksum")
            batches = scan_batches(data, next_offset=block.first_offset)
            if batches.status is not Status.OK:
                raise CorruptionError(f"the block at {block.position}: {batches.status.reason}")
            # The log may start within a batch.
            is_first = sums.last_offset < 0
            run = within(_cut_at(TailRun(batches, data), first, end), first, end, may_begin_before=is_first)
            if run is not None:
                sums.add(*run)
                yield run


def _cut_at(run: TailRun, first: int, end: int) -> TailRun:
    """Return the run with an empty batch that reaches beyond `end` cut there: it stands for offsets of which
    nothing is left, and may begin below `first`."""
    batches, data = run
    at = bisect_left(batches.base_offsets, end) - 1
    if at < 0 or batches.last_offsets[at] < end or batches.record_counts[at]:
        return run
    base, epoch = max(batches.base_offsets[at], first), batches.leader_epochs[at]
    cut = bytes(data[: batches.positions[at]]) + filling_batch(base, end - 1, epoch)
    return TailRun(scan_batches(cut), memoryview(cut))


def _named(place: tuple[UUID, int]) -> str:
    return f"{place[0]}/{place[1]}"
