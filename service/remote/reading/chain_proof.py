"""Verify one partition's chain, from HEAD to the footer of each segment: for `firn fsck` and for audits.

Findings are reported to `error`, as where (an object, or the partition's folder) and what, in the same words
for both. segment_proof.py verifies the records of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from service.base.errors import CorruptionError
from service.remote.format.keys import HeadKey, ManifestKey, manifest_prefix, parse_key, partition_prefix
from service.remote.format.manifest import Child, Load, Manifest, PageRef, SegmentEntry
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import Chain, check_entry, open_footer_of, open_published
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

ReportError = Callable[[str, str], None]
"""(where, what)"""
Recover = Callable[[PageRef, tuple[int, int]], Iterable[SegmentEntry] | None]
"""(an unreadable page, segments and bytes of it that are not live) -> the live ones, where known"""


def no_recovery(ref: PageRef, masked: tuple[int, int]) -> None:
    """Return None: no page is recovered."""


def published_chain(
    store: ObjectStore,
    key: HeadKey,
    *,
    owners: Collection[str] | None,
    topic: str | None,
    error: ReportError,
) -> Chain | None:
    """Return the chain that HEAD names; None where nothing was published, or, with an error, where it cannot
    be read.

    The manifest must be of a cluster of `owners` and of `topic`; None where these are not known.
    """
    where = partition_prefix(key.topic_id, key.partition)
    try:
        chain = open_published(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        error(where, f"HEAD, or the manifest that it names, cannot be read: {e}")
        return None
    if chain is None:
        keys = (parse_key(info.key) for info in store.list(manifest_prefix(*key)))
        newest = max((one.version for one in keys if isinstance(one, ManifestKey)), default=0)
        if newest > 1:
            error(where, head_is_gone(newest))
        return None
    check_identity(chain, key, owners=owners, topic=topic, error=error)
    return chain


def head_is_gone(newest_version: int) -> str:
    """Return the finding for a missing HEAD beside a manifest that is not the first: HEAD existed before."""
    return f"HEAD is gone: there is a manifest of version {newest_version}"


def check_identity(
    chain: Chain,
    key: HeadKey,
    *,
    owners: Collection[str] | None,
    topic: str | None,
    error: ReportError,
) -> None:
    """Report an error unless the manifest is of the known topic and of one of the clusters `owners`."""
    manifest, where = chain.manifest, partition_prefix(key.topic_id, key.partition)
    if owners is not None and manifest.cluster_id not in owners:
        error(where, f"the manifest is of cluster {manifest.cluster_id}, not {', '.join(sorted(owners))}")
    if topic is not None and manifest.topic != topic:
        error(where, f"the manifest is of topic {manifest.topic!r}, not {topic!r}")


def proved_segments(
    chain: Chain, load: Load, error: ReportError, recover: Recover = no_recovery
) -> Iterator[SegmentEntry]:
    """Yield the live segments, oldest first, while verifying that they are one chain and add up.

    A page that cannot be read is an error, and `recover` may know the segments that it listed. The walk
    continues after it in any case; where the segments of a page are not known, sums are not compared.
    """
    walk = _Walk(chain.manifest, load, error, recover)
    manifest = chain.manifest
    yield from walk.children(manifest.children, (manifest.dropped_segments, manifest.dropped_bytes))
    end = manifest.start_offset if walk.expected is None else walk.expected
    if end != manifest.end_offset:
        error(chain.key, f"the chain ends before {end}, not before {manifest.end_offset}")
    if walk.is_whole and (walk.segments, walk.size_bytes) != (manifest.segments, manifest.size_bytes):
        error(
            chain.key,
            f"{walk.segments} segments of {walk.size_bytes} bytes, "
            f"the manifest sums up {manifest.segments} of {manifest.size_bytes}",
        )


class _Walk:
    """A walk over live segments: the offset where the next one has to begin, and sums of those before."""

    def __init__(self, manifest: Manifest, load: Load, error: ReportError, recover: Recover) -> None:
        self._manifest = manifest
        self._load = load
        self._error = error
        self._recover = recover
        self.expected: int | None = None
        self.segments = self.size_bytes = 0
        self.is_whole = True

    def children(self, children: Iterable[Child], masked: tuple[int, int]) -> Iterator[SegmentEntry]:
        """Yield live segments below `children`, of which `masked` segments and bytes are not live any
        more."""
        for child in children:
            if child.last_offset < self._manifest.start_offset:
                masked = masked[0] - child.segments, masked[1] - child.size_bytes
            elif isinstance(child, SegmentEntry):
                yield self._next(child)
            else:
                yield from self._page(child, masked)
                masked = (0, 0)

    def _page(self, ref: PageRef, masked: tuple[int, int]) -> Iterator[SegmentEntry]:
        try:
            page = self._load(ref)
        except (ObjectNotFound, CorruptionError) as e:
            self._error(ref.key, f"a page of the manifest cannot be read: {e}")
        else:
            yield from self.children(page.children, masked)
            return
        found = self._recover(ref, masked)
        if found is not None:
            yield from map(self._next, found)
            return
        if (wrong := _discontinuity(self._manifest, ref, self.expected)) is not None:
            self._error(ref.key, wrong)
        self.expected = ref.last_offset + 1
        self.is_whole = False

    def _next(self, entry: SegmentEntry) -> SegmentEntry:
        if (wrong := _discontinuity(self._manifest, entry, self.expected)) is not None:
            self._error(entry.key, wrong)
        self.expected = entry.last_offset + 1
        self.segments, self.size_bytes = self.segments + 1, self.size_bytes + entry.size
        return entry


def _discontinuity(manifest: Manifest, entry: Child, expected: int | None) -> str | None:
    """Return why `entry` does not continue at `expected`, None where it does; the first must hold the log's
    start."""
    if expected is not None:
        return None if entry.base_offset == expected else f"does not follow offset {expected - 1}"
    if entry.base_offset <= manifest.start_offset <= entry.last_offset:
        return None
    return f"the chain begins with it, not at {manifest.start_offset}"


def proved_footer(
    store: ObjectStore, entry: SegmentEntry, size: int | None, *, owners: Collection[str], topic: str
) -> Footer:
    """Return the footer of a segment, checked against its object's `size` (None: no object) and its manifest
    entry.

    `topic` is the manifest's, `owners` are its cluster and that one's ancestors. A rewritten segment has no
    records but those of the run that it took the place of, and all of them after a merge. Raises
    `CorruptionError`, which says what differs.
    """
    if size is None:
        raise CorruptionError("the object does not exist")
    if size != entry.size:
        raise CorruptionError(f"the object has {size} bytes, the manifest says {entry.size}")
    footer = open_footer_of(store, entry)
    check_entry(entry, footer)
    identity = footer.identity
    # A segment that belongs to another partition has its owner's topic.
    named = identity.topic if entry.owner is None else topic
    if identity.cluster_id not in owners or named != topic:
        raise CorruptionError(f"of cluster {identity.cluster_id}, topic {identity.topic!r}")
    _check_origin(footer)
    return footer


def _check_origin(footer: Footer) -> None:
    origin = footer.rewrite
    if footer.generation and origin is None:
        raise CorruptionError(f"of generation {footer.generation}, and says of no rewrite")
    if origin is not None and not origin.may_have(footer.record_count):
        raise CorruptionError(
            f"{footer.record_count} records, made by a rewrite of kind {origin.kind} of {origin.segments} "
            f"segments with {origin.record_count}"
        )
