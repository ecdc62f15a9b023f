"""Chain of one partition of a restored cluster: that of the cut, extended as far as the cut goes. [P]

The cut's catalog entry names a manifest, which lives for the grace of deleted objects: what retention,
DeleteRecords or the deletion of the topic took since is back. Segments that were sealed after it and end at
or below the cut's end follow; of one that reaches beyond, only the leader that loads the partition takes what
lies below. A rewrite may since have put one segment in the place of some before and some behind the end of
the cut's chain: it takes the place of the former here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from service.remote.format.keys import MAX_EPOCH, ManifestKey, parse_key
from service.remote.format.manifest import (
    Child,
    Load,
    Manifest,
    ManifestChange,
    PageEncoder,
    PageRef,
    SegmentEntry,
)
from service.remote.format.stamp import Stamp


class HeirChain(NamedTuple):
    """Archive that the heir begins with of one partition.

    `base` is the cut's chain, with nothing above the cut's end, `following` are the segments that come
    after it. `is_published`: HEAD names exactly that already. `overlap` is the segment that begins below the
    cut's end and reaches beyond it, None without one.
    """

    base: Manifest
    following: tuple[SegmentEntry, ...]
    start_offset: int
    is_published: bool
    overlap: SegmentEntry | None

    @property
    def end_offset(self) -> int:
        return self.following[-1].last_offset + 1 if self.following else self.base.end_offset

    @property
    def segments(self) -> int:
        return self.base.segments + len(self.following)

    @property
    def size_bytes(self) -> int:
        return self.base.size_bytes + sum(entry.size for entry in self.following)


class NewVersion(NamedTuple):
    """Numbers of a manifest that a restore writes: its version is above all that were ever written."""

    cluster_id: str
    version: int
    leader_epoch: int
    stamp: Stamp


def heir_chain(
    of_cut: Manifest | None,
    newest: Manifest | None,
    empty: Manifest,
    start: int,
    end: int,
    load: Load,
    *,
    epoch: int = MAX_EPOCH,
) -> HeirChain:
    """Return the chain for a log of the offsets from `start` to `end`, exclusive, led in `epoch` at the cut.

    `of_cut` is the manifest of the cut's entry, `newest` the one that HEAD names; None where there is none.
    """
    known = of_cut if of_cut is not None else empty
    base = _cut_at(known, end, load)
    following: tuple[SegmentEntry, ...] = ()
    overlap: SegmentEntry | None = None
    across = _across(base, newest, end, epoch, load) if newest is not None and base.children else None
    if across is not None and across.last_offset >= end:
        overlap = across
    elif newest is not None:
        if across is not None:
            base = _cut_at(base, across.base_offset, load)
        # A chain without segments may begin anew where records are.
        following, overlap = _following(newest, base.end_offset, end, epoch, load, is_new=not base.children)
    if base.children and start > base.start_offset:
        base = _drop_before(base, min(start, base.end_offset), load)
    start_offset = base.start_offset
    if not base.children:
        following = tuple(entry for entry in following if entry.last_offset >= start)
        if following:
            start_offset = max(following[0].base_offset, start)
    is_published = newest is not None and _is_same(base, following, start_offset, newest)
    return HeirChain(base, following, start_offset, is_published, overlap)


def _across(base: Manifest, newest: Manifest, end: int, epoch: int, load: Load) -> SegmentEntry | None:
    """Return the rewritten segment of `newest` that has records of both sides of the end of `base`.

    None where there is none, and where it does not begin with a segment of `base`.
    """
    at = base.end_offset
    entry = newest.find(at, load) if at < end else None
    if entry is None or not entry.generation or entry.base_offset >= at:
        return None
    begins = base.find(entry.base_offset, load)
    if begins is not None and begins.base_offset != entry.base_offset:
        return None
    return entry if is_of_the_cut(entry, end, epoch) else None


def _cut_at(manifest: Manifest, end: int, load: Load) -> Manifest:
    """Return the chain without segments that reach beyond `end`."""
    if manifest.end_offset <= end:
        return manifest
    kept = [one for one in _below(manifest.children, end, load) if one.last_offset >= manifest.start_offset]
    is_masked = bool(kept) and kept[0] == manifest.children[0]
    return replace(
        manifest,
        pages=tuple(one for one in kept if isinstance(one, PageRef)),
        entries=tuple(one for one in kept if isinstance(one, SegmentEntry)),
        start_offset=manifest.start_offset if kept else min(manifest.start_offset, end),
        dropped_segments=manifest.dropped_segments if is_masked else 0,
        dropped_bytes=manifest.dropped_bytes if is_masked else 0,
    )


def _below(children: Sequence[Child], end: int, load: Load) -> Iterator[Child]:
    for child in children:
        if child.last_offset < end:
            yield child
        elif isinstance(child, PageRef) and child.base_offset < end:
            yield from _below(load(child).children, end, load)
            return
        else:
            return


def _drop_before(manifest: Manifest, start: int, load: Load) -> Manifest:
    dropped = manifest.drop_before(start, leader_epoch=manifest.leader_epoch, load=load).manifest
    return replace(dropped, version=manifest.version, parent_version=manifest.parent_version)


def _following(
    newest: Manifest, first: int, end: int, epoch: int, load: Load, *, is_new: bool
) -> tuple[tuple[SegmentEntry, ...], SegmentEntry | None]:
    """Return the segments from `first` on that end at or below `end`, and the one that then reaches
    beyond. `is_new`: the first may begin anywhere."""
    found: list[SegmentEntry] = []
    at = first
    for entry in _segments(newest.children, max(first, newest.start_offset), load):
        if entry.base_offset >= end or (entry.base_offset != at and (found or not is_new)):
            break
        if not is_of_the_cut(entry, end, epoch):
            break
        if entry.last_offset >= end:
            return tuple(found), entry
        found.append(entry)
        at = entry.last_offset + 1
    return tuple(found), None


def is_of_the_cut(entry: SegmentEntry, end: int, epoch: int) -> bool:
    """Return whether a segment has the records of a cut below its end, which was led in `epoch` then: after
    an unclean election a later leader may have written others there."""
    return all(one <= epoch for one, begins in entry.leader_epochs if begins < end)


def _segments(children: Sequence[Child], first: int, load: Load) -> Iterator[SegmentEntry]:
    for child in children:
        if child.last_offset < first:
            continue
        if isinstance(child, PageRef):
            yield from _segments(load(child).children, first, load)
        else:
            yield child


def _is_same(base: Manifest, following: Sequence[SegmentEntry], start_offset: int, newest: Manifest) -> bool:
    """Return whether `newest` is this chain. Where it has moved segments into pages since, it does not
    count as such: one manifest more does no harm."""
    return (
        start_offset == newest.start_offset
        and base.pages == newest.pages
        and (*base.entries, *following) == newest.entries
    )


def _beginning_at(empty: Manifest, first: SegmentEntry) -> Manifest:
    return replace(empty, start_offset=first.base_offset)


def next_manifest(
    chain: HeirChain,
    before: Manifest | None,
    numbers: NewVersion,
    new_uuid: Callable[[], UUID],
    encode_page: PageEncoder,
) -> ManifestChange:
    """Return the manifest of the heir's chain, and the pages to be written before it. `before` is the
    manifest that HEAD names."""
    change = ManifestChange(chain.base, ())
    if chain.following:
        begins = chain.base if chain.base.children else _beginning_at(chain.base, chain.following[0])
        change = begins.append(
            chain.following,
            leader_epoch=numbers.leader_epoch,
            new_uuid=new_uuid,
            encode_page=encode_page,
            stamp=numbers.stamp,
        )
    parent = before.stored_key if before is not None else None
    parsed = parse_key(parent) if parent is not None else None
    manifest = replace(
        change.manifest,
        cluster_id=numbers.cluster_id,
        version=numbers.version,
        parent_version=parsed.version if isinstance(parsed, ManifestKey) else 0,
        parent_key=parent if isinstance(parsed, ManifestKey) else None,
        leader_epoch=numbers.leader_epoch,
        start_offset=chain.start_offset,
        stamp=numbers.stamp,
        stored_key=None,
    )
    return change._replace(manifest=manifest)
