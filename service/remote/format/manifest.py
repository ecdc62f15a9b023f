"""Manifest: the live segments of one partition, as one contiguous chain. [P]

A manifest is immutable; a change makes the next version. It lists the newest segments itself. When it would
list more than 1,024, the oldest 1,024 move into a *page*, an immutable object of its own that the manifest
refers to; when it would refer to more than 256 pages of one level, the oldest 64 move into one of the next::

    Manifest  pages: [level 1: 0..99_999] [level 0: 100_000..109_999] …   entries: [segment] [segment] …

So a manifest has a bounded size however long the partition lives, a commit writes it and rarely a page, and a
lookup reads one page per level. Segments leave only at the old end: `start_offset` rises, pages wholly below
it leave the manifest, and a page that straddles it stays unchanged; its segments below are not live. A
rewrite puts others in place of a run of segments: its page, and those above it, are written anew.

Every function that may have to read a page takes `load`, which returns it or raises. Callers that must not
block pass one that raises for a page that is not in memory, download it, and call again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, StorageError
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP
from service.remote.format.fields import saturated
from service.remote.format.keys import ManifestKey, PageKey, manifest_key, page_key
from service.remote.format.run_check import check_run
from service.remote.format.stamp import Stamp

MAX_MANIFEST_ENTRIES: Final = 1024
MAX_PAGE_REFS: Final = 64
MAX_HELD_REFS: Final = 256
"""Enough that any of 250,000 segments is one page away."""
MAX_LEVELS: Final = 16


class KeyOwner(NamedTuple):
    """The partition that an object's key belongs to, and that alone may delete the object."""

    topic_id: UUID
    partition: int


class SegmentEntry(NamedTuple):
    """One live segment. Offsets are inclusive; `size` (the object's) and `log_length` are bytes.

    `footer_position` is where the object's tail begins (`segment_object.Footer.tail_position`), `footer_crc`
    the checksum in its trailer. `leader_epochs` are (epoch, first offset) pairs that cover the segment; the
    first may begin below it. `max_timestamp` is -1 where no record has one, `min_timestamp` where it is not
    known: any record may be older then. `generation` counts rewrites of the range, 0 for the uploaded
    segment. `owner` is None where the key belongs to the partition that lists it. `open_from` is the least
    first offset of a transaction that is open at the segment's end, the offset after it where none is; -1
    where the segment has no batch of a transaction and none is open, and of an older writer.
    """

    base_offset: int
    last_offset: int
    size: int
    log_length: int
    max_timestamp: int
    max_timestamp_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    key: str
    footer_position: int
    footer_crc: int
    min_timestamp: int = NO_TIMESTAMP
    generation: int = 0
    owner: KeyOwner | None = None
    open_from: int = NO_OFFSET

    @property
    def segments(self) -> int:
        return 1

    @property
    def size_bytes(self) -> int:
        return self.size

    def holds(self, offset: int) -> bool:
        """Return whether `offset` lies in its range."""
        return self.base_offset <= offset <= self.last_offset

    @property
    def first_epoch(self) -> int:
        return self.leader_epochs[0][0]

    @property
    def last_epoch(self) -> int:
        return self.leader_epochs[-1][0]


class PageRef(NamedTuple):
    """Reference to a page, with sums over all segments below it.

    `min_timestamp` is -1 where it is not known of every segment. `stored_size` and `crc32c` are of the stored
    object, `owner` is as a segment's.
    """

    base_offset: int
    last_offset: int
    level: int
    segments: int
    size_bytes: int
    max_timestamp: int
    first_epoch: int
    last_epoch: int
    key: str
    stored_size: int
    crc32c: int
    min_timestamp: int = NO_TIMESTAMP
    owner: KeyOwner | None = None


Child = SegmentEntry | PageRef


@dataclass(frozen=True, slots=True)
class ManifestPage:
    """An immutable run of the chain: segments on level 0, pages of the level below on the others."""

    topic_id: UUID
    partition: int
    level: int
    children: tuple[Child, ...]
    stamp: Stamp | None = None

    def key(self, uuid: UUID) -> str:
        first, last = self.children[0].base_offset, self.children[-1].last_offset
        return page_key(PageKey(self.topic_id, self.partition, first, last, self.level, uuid))


Load = Callable[[PageRef], ManifestPage]


WrittenPage = tuple[ManifestPage, PageRef, bytes]


class ManifestChange(NamedTuple):
    """The next version, and the new pages that have to be written before it, in order."""

    manifest: Manifest
    pages: tuple[WrittenPage, ...]


class ManifestDrop(NamedTuple):
    """The next version, and what it no longer names.

    `unread` are those of `pages` that could not be read: what they list is dropped as well, and known only by
    its keys.
    """

    manifest: Manifest
    segments: tuple[SegmentEntry, ...]
    pages: tuple[PageRef, ...]
    unread: tuple[PageRef, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that may be deleted once this is committed and a grace has passed; keys of other owners are
        left out."""
        return _own_keys((*self.segments, *self.pages))


class ManifestReplacement(NamedTuple):
    """The next version, the new pages that have to be written before it, in order, and what it no longer
    names."""

    manifest: Manifest
    pages: tuple[WrittenPage, ...]
    dropped: tuple[SegmentEntry, ...]
    dropped_pages: tuple[PageRef, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that may be deleted once this is committed and a grace has passed; keys of other owners are
        left out."""
        return _own_keys((*self.dropped, *self.dropped_pages))


def _own_keys(children: Sequence[Child]) -> tuple[str, ...]:
    return tuple(child.key for child in children if child.owner is None)


class ManifestLimits(NamedTuple):
    """Sizes at which a manifest spills. The format allows less than the defaults, never more.

    `held_refs`, if greater, is how many pages of one level a manifest refers to before the oldest `page_refs`
    of them move.
    """

    entries: int = MAX_MANIFEST_ENTRIES
    page_refs: int = MAX_PAGE_REFS
    held_refs: int = 0


USUAL_LIMITS: Final = ManifestLimits(held_refs=MAX_HELD_REFS)
PageEncoder = Callable[[ManifestPage], bytes]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of one partition's chain. `version` counts from 1; `parent_version` is 0 for the first.

    `start_offset` is the first live offset; `dropped_segments` and `dropped_bytes` are those of the first
    page that lie below it. `leader_epoch` is the writer's, `parent_key` the key of the version that this one
    replaces (None for the first, and where it is not known). `stored_key` is the key of this version, None
    until it is written.
    """

    cluster_id: str
    topic_id: UUID
    topic: str
    partition: int
    version: int = 0
    parent_version: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    pages: tuple[PageRef, ...] = ()
    entries: tuple[SegmentEntry, ...] = ()
    dropped_segments: int = 0
    dropped_bytes: int = 0
    parent_key: str | None = None
    stamp: Stamp | None = None
    stored_key: str | None = field(default=None, compare=False)

    @property
    def children(self) -> tuple[Child, ...]:
        """Pages, then segments: the whole chain in offset order."""
        return (*self.pages, *self.entries)

    @property
    def end_offset(self) -> int:
        """Offset after the last one; equal to `start_offset` when nothing is live."""
        if self.entries:
            return self.entries[-1].last_offset + 1
        return self.pages[-1].last_offset + 1 if self.pages else self.start_offset

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last record; -1 without segments."""
        if self.entries:
            return self.entries[-1].leader_epochs[-1][0]
        return self.pages[-1].last_epoch if self.pages else NO_LEADER_EPOCH

    @property
    def segments(self) -> int:
        """Number of live segments."""
        return sum(child.segments for child in self.children) - self.dropped_segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all live objects, footers included."""
        return sum(child.size_bytes for child in self.children) - self.dropped_bytes

    def key(self, uuid: UUID) -> str:
        """Return the key under which to write this version."""
        return manifest_key(ManifestKey(self.topic_id, self.partition, self.version, self.leader_epoch, uuid))

    def append(
        self,
        entries: Sequence[SegmentEntry],
        *,
        leader_epoch: int,
        new_uuid: Callable[[], UUID],
        encode_page: PageEncoder,
        limits: ManifestLimits = USUAL_LIMITS,
        stamp: Stamp | None = None,
    ) -> ManifestChange:
        """Return the next version with `entries` at its end. Raises `ValueError` when they do not continue
        the chain."""
        previous = self.end_offset if self.children or self.version else entries[0].base_offset
        for entry in entries:
            if entry.base_offset != previous or entry.last_offset < entry.base_offset:
                raise ValueError(
                    f"segment {entry.base_offset} to {entry.last_offset} does not continue at {previous}"
                )
            previous = entry.last_offset + 1
        chain = [*self.entries, *entries]
        refs = list(self.pages)
        written: list[WrittenPage] = []

        def spill(level: int, children: Sequence[Child]) -> PageRef:
            # Without a stamp: the same segments then make the same bytes, should the page ever be lost.
            page = ManifestPage(self.topic_id, self.partition, level, tuple(children))
            data = encode_page(page)
            ref = page_ref(page, page.key(new_uuid()), data)
            written.append((page, ref, data))
            return ref

        while len(chain) > limits.entries:
            refs.append(spill(0, chain[: limits.entries]))
            del chain[: limits.entries]
            _merge_levels(refs, spill, limits)
        manifest = replace(
            self._next(leader_epoch, stamp),
            start_offset=self.start_offset if self.children else entries[0].base_offset,
            pages=tuple(refs),
            entries=tuple(chain),
        )
        return ManifestChange(manifest, tuple(written))

    def drop_before(
        self, offset: int, *, leader_epoch: int, load: Load, stamp: Stamp | None = None
    ) -> ManifestDrop:
        """Return the next version with the log starting at `offset`: segments wholly below it are not live
        any more.

        An `offset` below `start_offset` changes only the version; one beyond the end drops everything. A page
        that `load` cannot read does not matter where all of it goes. Where the log would start inside such a
        page, it starts at the page's first offset, or does not move.
        """
        start = min(max(offset, self.start_offset), self.end_offset)
        start = max(_readable_start(self.children, start, load), self.start_offset)
        gone = _Gone()
        pages = tuple(ref for ref in self.pages if ref.last_offset >= start)
        entries = tuple(entry for entry in self.entries if entry.last_offset >= start)
        masked = self.dropped_segments, self.dropped_bytes
        if start != self.start_offset:
            gone.collect(self.children, self.start_offset, start, load)
            masked = _masked(pages[0], start, load) if pages and pages[0].base_offset < start else (0, 0)
        manifest = replace(
            self._next(leader_epoch, stamp),
            start_offset=start,
            pages=pages,
            entries=entries,
            dropped_segments=masked[0],
            dropped_bytes=masked[1],
        )
        return ManifestDrop(manifest, tuple(gone.segments), tuple(gone.pages), tuple(gone.unread))

    def give_up(self, *, leader_epoch: int, load: Load, stamp: Stamp | None = None) -> ManifestDrop:
        """Return the next version without segments or an end offset: a chain may begin at any offset after
        it."""
        drop = self.drop_before(self.end_offset, leader_epoch=leader_epoch, load=load, stamp=stamp)
        return drop._replace(manifest=replace(drop.manifest, start_offset=0))

    def replace_run(
        self,
        base_offset: int,
        last_offset: int,
        entries: Sequence[SegmentEntry],
        *,
        leader_epoch: int,
        load: Load,
        new_uuid: Callable[[], UUID],
        encode_page: PageEncoder,
        stamp: Stamp | None = None,
    ) -> ManifestReplacement:
        """Return the next version with `entries` in place of the live segments from `base_offset` to
        `last_offset`, inclusive.

        The run lies in one page of level 0 or in the manifest itself. Start, end, borders and epochs stay,
        and what is masked below the start. Raises `ValueError` where there is no such run, or where `entries`
        may not take its place (`run_check`).
        """
        dropped_pages: list[PageRef] = []
        written: list[WrittenPage] = []
        dropped: list[SegmentEntry] = []

        def swapped(children: Sequence[Child]) -> tuple[Child, ...]:
            child = _child_at(children, base_offset)
            if not isinstance(child, PageRef):
                dropped.extend(_run(children, base_offset, last_offset))
                check_run(dropped, entries)
                at = children.index(dropped[0])
                return (*children[:at], *entries, *children[at + len(dropped) :])
            # Without a stamp, as in `append`. The new page is this partition's, whoever owns the old one.
            inner = swapped(load(child).children)
            page = ManifestPage(self.topic_id, self.partition, child.level, inner)
            data = encode_page(page)
            ref = page_ref(page, page.key(new_uuid()), data)
            written.append((page, ref, data))
            dropped_pages.append(child)
            return tuple(ref if one is child else one for one in children)

        children = swapped(self.children)
        if dropped[0].last_offset < self.start_offset:
            raise ValueError(f"{dropped[0].key} lies below the start {self.start_offset}")
        manifest = replace(
            self._next(leader_epoch, stamp),
            pages=tuple(child for child in children if isinstance(child, PageRef)),
            entries=tuple(child for child in children if isinstance(child, SegmentEntry)),
        )
        return ManifestReplacement(manifest, tuple(written), tuple(dropped), tuple(dropped_pages))

    def _next(self, leader_epoch: int, stamp: Stamp | None) -> Manifest:
        return replace(
            self,
            version=self.version + 1,
            parent_version=self.version,
            leader_epoch=leader_epoch,
            parent_key=self.stored_key,
            stamp=stamp,
            stored_key=None,
        )

    def find(self, offset: int, load: Load) -> SegmentEntry | None:
        """Return the live segment that holds `offset`; None outside ``start_offset <= offset <
        end_offset``."""
        if not self.start_offset <= offset < self.end_offset:
            return None
        child = _child_at(self.children, offset)
        while isinstance(child, PageRef):
            child = _child_at(load(child).children, offset)
        return child

    def find_by_timestamp(self, timestamp: int, load: Load, from_offset: int = 0) -> SegmentEntry | None:
        """Return the first live segment, holding `from_offset` or later, with a record not older than
        `timestamp`.

        The segment may have that record only below `from_offset`: then call again from the next segment.
        """
        start = max(from_offset, self.start_offset)
        return _first_newer(self.children, saturated(timestamp), start, load)

    def max_timestamp(self, load: Load) -> int:
        """Return the largest timestamp of any live segment, -1 when none has one."""
        return _newest(self.children, self.start_offset, load)


def live_segments(manifest: Manifest, load: Load, from_offset: int = 0) -> Iterator[SegmentEntry]:
    """Yield live segments from the one that holds `from_offset` on, oldest first; pages are read one at a
    time."""
    yield from _segments_from(manifest.children, max(from_offset, manifest.start_offset), load)


def page_ref(page: ManifestPage, key: str, data: bytes) -> PageRef:
    """Return the reference to `page`, stored as `data` under `key`."""
    children = page.children
    return PageRef(
        base_offset=children[0].base_offset,
        last_offset=children[-1].last_offset,
        level=page.level,
        segments=sum(child.segments for child in children),
        size_bytes=sum(child.size_bytes for child in children),
        max_timestamp=saturated(max(child.max_timestamp for child in children)),
        first_epoch=children[0].first_epoch,
        last_epoch=children[-1].last_epoch,
        key=key,
        stored_size=len(data),
        crc32c=crc32c(data),
        min_timestamp=oldest(children),
    )


def oldest(children: Sequence[Child]) -> int:
    """Return the least timestamp below `children`, -1 if it is not known of one of them."""
    return min(child.min_timestamp for child in children)


def check_chain(children: Sequence[Child]) -> None:
    """Raise `CorruptionError` unless children follow each other without gap or overlap, epochs never
    falling."""
    for child in children:
        if child.last_offset < child.base_offset:
            raise CorruptionError(f"{child.key}: offsets {child.base_offset} to {child.last_offset}")
    for before, after in pairwise(children):
        if after.base_offset != before.last_offset + 1:
            raise CorruptionError(f"{after.key} does not follow offset {before.last_offset}")
        if after.first_epoch < before.last_epoch:
            raise CorruptionError(f"{after.key}: leader epoch falls from {before.last_epoch}")


def _merge_levels(
    refs: list[PageRef], spill: Callable[[int, Sequence[Child]], PageRef], limits: ManifestLimits
) -> None:
    """Move the oldest pages of a level that has too many into one page of the next, in place."""
    level = 0
    while level < MAX_LEVELS:
        first = next((i for i, ref in enumerate(refs) if ref.level == level), len(refs))
        count = sum(1 for ref in refs if ref.level == level)
        if count > max(limits.held_refs, limits.page_refs):
            end = first + limits.page_refs
            refs[first:end] = [spill(level + 1, refs[first:end])]
        level += 1


def _run(children: Sequence[Child], base_offset: int, last_offset: int) -> list[SegmentEntry]:
    """Return the neighbouring segments that have exactly these offsets."""
    found = [
        child
        for child in children
        if isinstance(child, SegmentEntry)
        and base_offset <= child.last_offset
        and child.base_offset <= last_offset
    ]
    if not found or (found[0].base_offset, found[-1].last_offset) != (base_offset, last_offset):
        raise ValueError(
            f"offsets {base_offset} to {last_offset} are not whole segments of one page or of the manifest"
        )
    return found


def _child_at(children: Sequence[Child], offset: int) -> Child | None:
    index = bisect_right(children, offset, key=lambda child: child.base_offset) - 1
    return children[index] if index >= 0 and children[index].last_offset >= offset else None


def _segments_from(children: Sequence[Child], offset: int, load: Load) -> Iterator[SegmentEntry]:
    for child in children:
        if child.last_offset < offset:
            continue
        if isinstance(child, PageRef):
            yield from _segments_from(load(child).children, offset, load)
        else:
            yield child


def _first_newer(
    children: Sequence[Child], timestamp: int, from_offset: int, load: Load
) -> SegmentEntry | None:
    for child in children:
        if child.max_timestamp < timestamp or child.last_offset < from_offset:
            continue
        if isinstance(child, SegmentEntry):
            return child
        found = _first_newer(load(child).children, timestamp, from_offset, load)
        if found is not None:
            return found
    return None


def _newest(children: Sequence[Child], start_offset: int, load: Load) -> int:
    newest = -1
    for child in children:
        if child.last_offset < start_offset or child.max_timestamp <= newest:
            continue
        if isinstance(child, PageRef) and child.base_offset < start_offset:
            newest = max(newest, _newest(load(child).children, start_offset, load))
        else:
            newest = child.max_timestamp
    return newest


def _readable_start(children: Sequence[Child], start: int, load: Load) -> int:
    """Return `start`, or the first offset of the page that it lies in, if that cannot be read."""
    child = _child_at(children, start)
    while isinstance(child, PageRef) and child.base_offset < start:
        try:
            children = load(child).children
        except (StorageError, CorruptionError):
            return child.base_offset
        child = _child_at(children, start)
    return start


class _Gone:
    """Segments and pages that a chain no longer names once its start has moved, pages after what they
    list."""

    def __init__(self) -> None:
        self.segments: list[SegmentEntry] = []
        self.pages: list[PageRef] = []
        self.unread: list[PageRef] = []

    def collect(self, children: Sequence[Child], old_start: int, start: int, load: Load) -> None:
        """Collect the children wholly below `start` that did not lie below `old_start`."""
        for child in children:
            if child.last_offset < old_start or child.base_offset >= start:
                continue
            is_gone = child.last_offset < start
            if isinstance(child, PageRef):
                self._collect_page(child, old_start, start, load, is_gone=is_gone)
            elif is_gone:
                self.segments.append(child)

    def _collect_page(self, page: PageRef, old_start: int, start: int, load: Load, *, is_gone: bool) -> None:
        try:
            self.collect(load(page).children, old_start, start, load)
        except (StorageError, CorruptionError):
            if not is_gone:
                raise
            self.unread.append(page)
        if is_gone:
            self.pages.append(page)


def _masked(ref: PageRef, start: int, load: Load) -> tuple[int, int]:
    """Return segments and bytes of a page that lie below `start`."""
    segments = size = 0
    for child in load(ref).children:
        if child.last_offset < start:
            segments += child.segments
            size += child.size_bytes
        elif isinstance(child, PageRef) and child.base_offset < start:
            inner = _masked(child, start, load)
            segments += inner[0]
            size += inner[1]
    return segments, size
