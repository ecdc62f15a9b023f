"""Count records of an order's keys, a part at a time: in a chain, in tails, in a local log. Blocks.

For `firn erase plan` and `verify`, which ask for one part after the other, so that no request takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from service.base.types import TopicIdPartition
from service.records.erasure import count_hits
from service.records.scan import scan_pieces
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import TailKey, parse_key
from service.remote.opened_order import OpenOrder
from service.remote.order_end import OrderEnd
from service.remote.reading.tails import find_tail
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.copier import CallProgress
from service.tiering.erasing.bucket_work import live_of
from service.tiering.erasing.hits import count_in_section, look_at_object
from service.tiering.ports import SegmentRun
from service.tiering.rewriting.chain_units import units_from
from service.wire.erasure_counts import END, Counted

PART_OBJECTS: Final = 64
PART_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20


class CountedPart(NamedTuple):
    """Counts of a part, and from where to go on: an offset, or the number of a cut; `END` at the end."""

    counted: Counted
    next_offset: int


def count_in_chain(
    store: ObjectStore,
    chains: ChainStore,
    tip: TopicIdPartition,
    entry: CatalogEntry | None,
    order: OpenOrder,
    offset: int,
    progress: CallProgress,
    *,
    reads_objects: bool,
) -> CountedPart:
    """Count in the objects of a chain from `offset` on; `entry` is the catalog's. Without `reads_objects`
    filters alone are read, and an object that may have records of the keys counts as one that has."""
    end = order.end(tip.topic_id, tip.partition)
    found = Counted()
    if entry is None or not entry.segments:
        return CountedPart(found, END)
    manifest = chains.load(tip, entry.manifest_key).manifest
    for unit in units_from(manifest, chains.loader(tip), offset):
        for one in live_of(unit, manifest, offset):
            if not end.reaches(one):
                return CountedPart(found, END)
            if found.objects >= PART_OBJECTS or found.bytes_read >= PART_BYTES:
                return CountedPart(found, one.base_offset)
            look = look_at_object(
                store, one, order, end, progress, counts_all=reads_objects, reads_objects=reads_objects
            )
            is_hit = look.hits > 0
            found = found.plus(
                Counted(
                    1,
                    one.size,
                    int(is_hit),
                    one.size if is_hit else 0,
                    look.hits if reads_objects else 0,
                    look.requests,
                    look.bytes_read,
                )
            )
    return CountedPart(found, END)


def count_in_log(
    runs: Sequence[SegmentRun],
    log_end: int,
    end: OrderEnd,
    offset: int,
    order: OpenOrder,
    progress: CallProgress,
) -> CountedPart:
    """Count in segments of a local log, whose records below `log_end` are whole, from `offset` up to the
    order's `end`; at most `PART_BYTES` are read."""
    found = Counted()
    until = min(log_end, end.offset)
    for run in runs:
        if run.base_offset >= until or not run.size:
            continue
        start = run.position_of(offset)
        if start >= run.size:
            continue
        read = hits = 0
        next_offset = offset
        pieces = scan_pieces(
            run.file.read, start, run.size, first_offset=0, name=run.name, piece_bytes=_PIECE_BYTES
        )
        is_cut_off = False
        for batches, _, piece in pieces:
            progress.advance(len(piece))
            read += len(piece)
            hits += count_hits(order.keys, piece, batches, min(until, end.in_batches(batches)))
            next_offset = batches.last_offsets[-1] + 1
            is_cut_off = next_offset >= until or found.bytes_read + read >= PART_BYTES
            if is_cut_off:
                break
        size = run.size if start == 0 else 0
        found = found.plus(Counted(1, size, int(hits > 0), size if hits else 0, hits, 0, read))
        offset = next_offset
        if is_cut_off:
            return CountedPart(found, END if offset >= until else offset)
    return CountedPart(found, END)


def count_in_tails(
    store: ObjectStore, tails: Sequence[str], from_cut: int, order: OpenOrder, progress: CallProgress
) -> CountedPart:
    """Count in the tails of these keys, in order, from those of a cut's number on. That is where the next
    part goes on: cuts may come and go between two parts."""
    found = Counted()
    last = from_cut
    for key in tails:
        cut = _cut_of(key)
        if cut < from_cut:
            continue
        is_enough = found.objects >= PART_OBJECTS or found.bytes_read >= PART_BYTES
        if is_enough and cut > last:
            return CountedPart(found, cut)
        last = cut
        with suppress(ObjectNotFound):  # its cuts went meanwhile
            found = found.plus(_in_tail(store, key, order, progress))
    return CountedPart(found, END)


def _cut_of(key: str) -> int:
    parsed = parse_key(key)
    return parsed.cut if isinstance(parsed, TailKey) else 0


def _in_tail(store: ObjectStore, key: str, order: OpenOrder, progress: CallProgress) -> Counted:
    tail = find_tail(store, key)
    hits = read = 0
    for section in tail.footer.sections:
        if section.first_offset < order.end(section.topic_id, section.partition).offset:
            hits += count_in_section(store, key, section, order, progress)
            read += section.length
    size = tail.ref.size
    return Counted(1, size, int(hits > 0), size if hits else 0, hits, 1, read)
