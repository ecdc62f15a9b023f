"""Search objects and tails for records of an order's keys. Blocks; safe from any thread.

An object's key filter says that it has none of the keys, or that it may have some; only its records say that
it has. Footer and filter come by one ranged GET where they lie together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.records.erasure import count_hits
from service.records.scan import scan_pieces
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import KEY_FILTER, Footer
from service.remote.format.tail_object import TailSection
from service.remote.opened_order import OpenOrder
from service.remote.order_end import OrderEnd
from service.remote.reading.key_filters import ObjectEnd, open_key_filter
from service.remote.reading.object_reader import footer_of
from service.remote.reading.tail_records import read_section as read_tail_section
from service.remote.reading.tails import find_tail
from service.remote.stores.errors import ObjectNotFound, ObjectTruncated, naming
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress

_BEFORE_FOOTER: Final = 128 << 10
"""Bytes before an object's footer that are read with it: most filters are smaller."""
_PIECE_BYTES: Final = 4 << 20


class ObjectLook(NamedTuple):
    """Result of looking at one object. `hits` is the number of records that are to go, at least 1 where the
    search ended with the first of them. `is_read`: the object was read whole, up to its first hit."""

    hits: int
    requests: int
    bytes_read: int
    is_read: bool


def look_at_object(
    store: ObjectStore,
    entry: SegmentEntry,
    order: OpenOrder,
    end: OrderEnd,
    progress: CallProgress,
    *,
    counts_all: bool = False,
    reads_objects: bool = True,
) -> ObjectLook:
    """Return whether one object of a chain has records of the keys that the order's `end` covers.

    `counts_all`: all records are read and counted, whatever the footer and the filter say. Without
    `reads_objects` an object that may have some counts as one hit. Raises `CorruptionError` or what the store
    raises.
    """
    end_offset = end.within(entry.leader_epochs)
    if entry.base_offset >= end_offset:
        return ObjectLook(0, 0, 0, is_read=False)
    progress.advance(1)
    footer, tail = _read_end(store, entry)
    requests, read = 1, len(tail.data)
    if footer.keyed_record_count == 0 and not counts_all:
        return ObjectLook(0, requests, read, is_read=False)
    section = footer.sections.get(KEY_FILTER)
    if section is not None and section.length and not counts_all:
        key_filter = open_key_filter(store, footer, tail)
        if section.position < tail.start:
            requests, read = requests + 1, read + section.length
        if key_filter is not None and not key_filter.hits(order.order.filter_hashes):
            return ObjectLook(0, requests, read, is_read=False)
    if not reads_objects:
        return ObjectLook(1, requests, read, is_read=False)
    hits = 0
    with naming(entry.key):
        pieces = scan_pieces(
            lambda position, length: store.get_range(entry.key, position, length),
            0,
            entry.log_length,
            first_offset=entry.base_offset,
            name="log",
            piece_bytes=_PIECE_BYTES,
        )
        for batches, _, piece in pieces:
            progress.advance(len(piece))
            requests, read = requests + 1, read + len(piece)
            hits += count_hits(order.keys, piece, batches, end_offset)
            if hits and not counts_all:
                break
    return ObjectLook(hits, requests, read, is_read=True)


def _read_end(store: ObjectStore, entry: SegmentEntry) -> tuple[Footer, ObjectEnd]:
    """Return an object's footer, and the bytes that were read with it."""
    start = max(min(entry.log_length, entry.footer_position), entry.footer_position - _BEFORE_FOOTER)
    with naming(entry.key):
        try:
            data = store.get_range(entry.key, start, entry.size - start)
        except ObjectTruncated as e:
            raise CorruptionError("shorter than the manifest says") from e
    return footer_of(entry, memoryview(data)[entry.footer_position - start :]), ObjectEnd(start, data)


def count_in_section(
    store: ObjectStore,
    key: str,
    section: TailSection,
    order: OpenOrder,
    progress: CallProgress,
) -> int:
    """Return how many records of the keys one section of a tail has, all of it proved."""
    end = order.end(section.topic_id, section.partition)
    if section.first_offset >= end.offset:
        return 0
    hits = 0
    for run in read_tail_section(store, key, section):
        progress.advance(len(run.data))
        hits += count_hits(order.keys, run.data, run.batches, end.in_batches(run.batches))
    return hits


def count_in_tail(store: ObjectStore, key: str, order: OpenOrder, progress: CallProgress) -> int:
    """Return how many records of the keys a tail has; 0 where it is gone, as the cut is that named it."""
    try:
        found = find_tail(store, key)
    except ObjectNotFound:
        return 0
    return sum(count_in_section(store, key, section, order, progress) for section in found.footer.sections)
