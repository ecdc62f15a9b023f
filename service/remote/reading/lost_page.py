"""Recover an unreadable manifest page from the keys and footers of the segments that it listed.

The parent of the page has its ends, its sums and the checksum of its bytes. A run of segments in the bucket
that has these ends and sums, each with a verified footer, is what the page listed: keys have a uuid, footers
a checksum, and an offset is live in one object only. Where the page's exact bytes can be rebuilt, by their
checksum, they can be put back under the page's key, and the parent stays valid. Pages written by this version
of Firn have no stamp, for that reason; the stamp of an older page may be readable in what is left of it.
Otherwise, as where segments below the log's start are deleted already, the segments are known but the page is
a new one: a new manifest has to name it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, product
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, NO_TIMESTAMP
from service.remote.format.documents import MAX_STORED_BYTES, unpack
from service.remote.format.fields import int_field, objects_field, parse_json_object, saturated
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import (
    MAX_LEVELS,
    MAX_MANIFEST_ENTRIES,
    MAX_PAGE_REFS,
    Child,
    Manifest,
    ManifestPage,
    PageRef,
    SegmentEntry,
    check_chain,
    page_ref,
)
from service.remote.format.manifest_codec import decode_page, encode_page
from service.remote.format.stamp import Stamp, stamp_of
from service.remote.reading.chain_proof import Recover
from service.remote.reading.partition_listing import (
    ListedPage,
    ListedSegment,
    PartitionListing,
    list_partition,
)
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

NOTHING_MASKED: Final = (0, 0)
_MOST_RUNS: Final = 4096
"""Most runs of pages that are tried where several have the same range."""
_HEAD_BYTES: Final = 4096
"""Enough of a page's JSON to hold its stamp."""


class RecoveredPage(NamedTuple):
    """The live segments below `ref`. `data` are the page's own bytes, None where they cannot be rebuilt."""

    ref: PageRef
    entries: tuple[SegmentEntry, ...]
    data: bytes | None


def recover_page(
    store: ObjectStore,
    listing: PartitionListing,
    manifest: Manifest,
    ref: PageRef,
    masked: tuple[int, int] = NOTHING_MASKED,
) -> RecoveredPage:
    """Rebuild and verify the page that `ref` names below `manifest`.

    `masked` are segments and bytes that it lists and that are not live any more. Raises `CorruptionError`,
    which says why it cannot be rebuilt, and what the store raises.
    """
    if ref.owner is not None:
        raise CorruptionError(f"{ref.key}: it belongs to another partition")
    runs = _proved(listing, manifest, ref, masked)
    for run in runs:
        entries = _entries(listing, run)
        data = _exact(store, listing, manifest, ref, entries, masked)
        if data is not None:
            return RecoveredPage(ref, entries, data)
    if any(not listing.are_alike(runs[0], other) for other in runs[1:]):
        raise CorruptionError(f"{ref.key}: ambiguous, several runs of different objects match what it listed")
    return RecoveredPage(ref, _entries(listing, runs[0]), None)


def _entries(listing: PartitionListing, run: Sequence[ListedSegment]) -> tuple[SegmentEntry, ...]:
    return tuple(entry for one in run if (entry := listing.entry(one)) is not None)


def recovering(store: ObjectStore, manifest: Manifest) -> Recover:
    """Return a `Recover` for `proved_segments` that rebuilds unreadable pages.

    It lists the partition at the first of them.
    """
    key = HeadKey(manifest.topic_id, manifest.partition)
    listings: list[PartitionListing] = []

    def recover(ref: PageRef, masked: tuple[int, int]) -> tuple[SegmentEntry, ...] | None:
        if not listings:
            listings.append(list_partition(store, key))
        try:
            return recover_page(store, listings[0], manifest, ref, masked).entries
        except CorruptionError:
            return None

    return recover


def _proved(
    listing: PartitionListing, manifest: Manifest, ref: PageRef, masked: tuple[int, int]
) -> list[tuple[ListedSegment, ...]]:
    """Return runs of segments that can be what the page listed: one, unless an upload was made twice."""
    first = max(ref.base_offset, manifest.start_offset)
    sums = (ref.segments - masked[0], ref.size_bytes - masked[1])
    proved: list[tuple[ListedSegment, ...]] = []
    seen = unreadable = 0
    for base in listing.first_holding(first, ref.base_offset):
        for path in listing.paths(base, ref.last_offset):
            seen += 1
            if (len(path), sum(one.size for one in path)) != sums:
                continue
            wrong = _mismatch(listing, ref, path, is_whole=masked == NOTHING_MASKED)
            if wrong is None:
                proved.append(path)
            unreadable += wrong is not None
    if not proved:
        what = (
            "one of the objects there cannot be read"
            if unreadable
            else f"no run of the objects there has {sums[0]} segments of {sums[1]} bytes"
            if seen
            else "objects are missing"
        )
        raise CorruptionError(f"{ref.key}: offsets {first} to {ref.last_offset}: {what}")
    return proved


def _mismatch(
    listing: PartitionListing, ref: PageRef, path: Sequence[ListedSegment], *, is_whole: bool
) -> str | None:
    read = _entries(listing, path)
    if len(read) < len(path):
        return "a footer cannot be read"
    if any(entry.size != one.size for entry, one in zip(read, path, strict=True)):
        return "an object of another size than its footer says"
    try:
        check_chain(read)
    except CorruptionError as e:
        return str(e)
    if read[-1].last_epoch != ref.last_epoch:
        return "another leader epoch at its end"
    newest = saturated(max(entry.max_timestamp for entry in read))
    if is_whole and (read[0].first_epoch, newest) != (ref.first_epoch, saturated(ref.max_timestamp)):
        return "another first leader epoch, or another greatest timestamp"
    return None


def _exact(
    store: ObjectStore,
    listing: PartitionListing,
    manifest: Manifest,
    ref: PageRef,
    entries: tuple[SegmentEntry, ...],
    masked: tuple[int, int],
) -> bytes | None:
    """Return the bytes that the page had, verified by its checksum; None where other bytes come out."""
    runs: tuple[tuple[Child, ...], ...]
    if ref.level > 0:
        runs = tuple(_pages_below(store, listing, ref))
    elif masked == NOTHING_MASKED:
        bare = tuple(entry._replace(min_timestamp=NO_TIMESTAMP) for entry in entries)
        runs = (entries, bare) if ref.min_timestamp == NO_TIMESTAMP else (entries,)
        if any(entry.open_from != NO_OFFSET for entry in entries):  # an older writer drops that from its rows
            runs += tuple(tuple(one._replace(open_from=NO_OFFSET) for one in run) for run in runs)
    else:
        return None
    stamps = (None, *([stamp] if (stamp := _stamp_left(store, ref)) is not None else []))
    for children in runs:
        for stamp in stamps:
            page = ManifestPage(manifest.topic_id, manifest.partition, ref.level, children, stamp)
            data = encode_page(page)
            if len(data) == ref.stored_size and crc32c(data) == ref.crc32c:
                return data
    return None


def _pages_below(store: ObjectStore, listing: PartitionListing, ref: PageRef) -> Iterator[tuple[Child, ...]]:
    """Yield the runs of pages of lower levels that have the range and the sums of `ref`; none where a page is
    missing.

    Each is read and described as its parent would describe it. Levels fall along the chain as in a manifest.
    Where a rewrite has replaced a page the one before it stays for a grace, with the same range and level.
    """
    choices: list[tuple[PageRef, ...]] = []
    offset = ref.base_offset
    while offset <= ref.last_offset:
        here = [
            one
            for one in listing.pages
            if one.parsed.base_offset == offset
            and one.parsed.last_offset <= ref.last_offset
            and one.parsed.level < ref.level
        ]
        # A page of a higher level contains those of the lower ones: the parent names the higher.
        for _, alike in groupby(sorted(here, key=_range_of, reverse=True), key=_range_of):
            described = tuple(one for page in alike if (one := _page_ref_of(store, page)) is not None)
            if described:
                choices.append(described)
                offset = described[0].last_offset + 1
                break
        else:
            return
    for run in islice(product(*choices), _MOST_RUNS):
        if (sum(one.segments for one in run), sum(one.size_bytes for one in run)) == ref[3:5]:
            yield run


def _range_of(page: ListedPage) -> tuple[int, int]:
    return page.parsed.level, page.parsed.last_offset


def _page_ref_of(store: ObjectStore, listed: ListedPage) -> PageRef | None:
    """Return the parent's reference to the page as stored; None where it cannot be read."""
    key = listed.info.key
    try:
        data = store.get(key, max_size=MAX_STORED_BYTES)
        page = decode_page(data, reference_of(data, key), *listed.parsed[:2])
    except (ObjectNotFound, CorruptionError):
        return None
    return page_ref(page, key, data)


def reference_of(data: bytes, key: str) -> PageRef:
    """Return a reference to a page, made from the page itself: `decode_page` then checks its chain and its
    keys.

    It does not check leader epochs, which are left at 0.
    """
    document = parse_json_object(unpack(data, key), key)
    rows = objects_field(document, "children", MAX_MANIFEST_ENTRIES)
    if not rows:
        raise CorruptionError("a page without children")
    level = int_field(document, "level", 0, MAX_LEVELS)
    limit = 2**63 - 1
    return PageRef(
        base_offset=int_field(rows[0], "base_offset", 0, limit),
        last_offset=int_field(rows[-1], "last_offset", 0, limit),
        level=level,
        segments=sum(int_field(row, "segments", 1, limit) for row in rows) if level else len(rows),
        size_bytes=sum(int_field(row, "size_bytes" if level else "size", 1, limit) for row in rows),
        max_timestamp=max(int_field(row, "max_timestamp", -1, limit) for row in rows),
        first_epoch=0,
        last_epoch=0,
        key=key,
        stored_size=len(data),
        crc32c=crc32c(data),
    )


def _stamp_left(store: ObjectStore, ref: PageRef) -> Stamp | None:
    """Return the stamp in what is left of a damaged page; None where nothing of it can be inflated."""
    try:
        data = store.get(ref.key, max_size=MAX_STORED_BYTES)
        head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, _HEAD_BYTES)
        before, children, _ = head.partition(b',"children":')
        return stamp_of(parse_json_object(before + b"}" if children else head, ref.key))
    except (ObjectNotFound, CorruptionError, zlib.error):
        return None


def pages_of(
    entries: Sequence[SegmentEntry], level: int, manifest: Manifest, new_uuid: Callable[[], UUID]
) -> tuple[PageRef, list[tuple[str, bytes]]]:
    """Return a page of `level` that lists `entries`, itself or through further pages, and the pages to
    write."""
    written: list[tuple[str, bytes]] = []

    def write(level: int, children: Sequence[Child]) -> PageRef:
        page = ManifestPage(manifest.topic_id, manifest.partition, level, tuple(children))
        key, data = page.key(new_uuid()), encode_page(page)
        written.append((key, data))
        return page_ref(page, key, data)

    children: Sequence[Child] = entries
    size = MAX_MANIFEST_ENTRIES
    for at in range(level):
        children = [write(at, children[i : i + size]) for i in range(0, len(children), size)]
        size = MAX_PAGE_REFS
    return write(level, children), written
