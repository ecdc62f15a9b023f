"""Opens the archives of a lost cluster's partitions: the chain that the heir begins with, for each of them.

Of each HEAD and one or two manifests are read, whatever the chain's length; 64 partitions at a time. Blocks;
safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from service.base.errors import CorruptionError
from service.inspect.manifest_glance import last_epoch, rows_of
from service.inspect.restore_chain import HeirChain, heir_chain, is_of_the_cut
from service.inspect.restore_plan import FoundChain
from service.metadata.image import MetadataImage
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import NO_LEADER, Cut, PartitionCut, Place
from service.remote.format.keys import (
    MAX_EPOCH,
    HeadKey,
    ManifestKey,
    SegmentKey,
    head_key,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.manifest_codec import MAX_SMALL_BYTES, Head, decode_head
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import (
    Chain,
    entry_of,
    open_chain,
    open_footer,
    open_named,
    open_page,
    open_published,
)
from service.remote.stores import conditional
from service.remote.stores.errors import UNREADABLE, naming, raise_of_the_store
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.archive_attempt import catalog_entry

AT_ONCE: Final = 64
NO_HEAD: Final = Tagged(b"", "")
"""Stands for a HEAD that is not there."""
_LATER_VERSIONS: Final = 64
"""A cut waits for few commits."""
T = TypeVar("T")


def places_of(image: MetadataImage) -> Iterator[Place]:
    """Yield all partitions."""
    for topic in image.topics_by_id.values():
        for number in topic.partitions:
            yield topic.id, number


def each(pool: Executor, work: Callable[[Place], T], places: Iterable[Place]) -> Iterator[T]:
    """Yield the results of `work` for all places, `AT_ONCE` at a time."""
    waiting = iter(places)
    while some := list(islice(waiting, AT_ONCE)):
        yield from pool.map(work, some)


class OpenedChain(NamedTuple):
    """The chain that the heir begins with, the published one, and the highest leader epoch of both.

    `note`: why HEAD, or the cut's own manifest, cannot be read, where the other one stands for it.
    """

    heir: HeirChain
    published: Chain | None
    highest_epoch: int
    note: str | None = None


def open_heir_chain(
    store: ObjectStore,
    owners: frozenset[str],
    image: MetadataImage,
    cut: Cut,
    place: Place,
    seen: Tagged | None = None,
    *,
    writer: Writer | None = None,
) -> OpenedChain:
    """Return the chain of one partition for a restore from this cut; HEAD is `seen` where that is given,
    which may be `NO_HEAD`. What HEAD names is the chain if `writer` has written it: this restore.

    Raises what reading HEAD, manifests and pages raises.
    """
    topic = image.topics_by_id[place[0]]
    rows = cut.topics.get(topic.id, ())
    row = rows[place[1]] if place[1] < len(rows) else None
    entry = image.remote.get(place)
    published, problem = _published(store, owners, place, seen)
    newest = published.manifest if published is not None else None
    of_cut, why = _manifest_of(store, owners, place, entry, newest, row.version if row is not None else 0)
    known = newest if newest is not None else of_cut
    if problem is not None and of_cut is None:
        raise CorruptionError(problem)

    def load(ref: PageRef) -> ManifestPage:
        assert known is not None
        return open_page(store, ref, known)

    empty = Manifest(cut.cluster_id, topic.id, topic.name, place[1])
    # Of a partition that nobody led at a loose cut, the row is that of the cut before, if there is one; the
    # archive may have grown since.
    ends = [0] if row is None else [row.end]
    if entry is not None and (row is None or row.leader_epoch == NO_LEADER):
        ends.append(entry.end_offset)
    start = 0 if row is None else row.start
    epoch = MAX_EPOCH if row is None or row.leader_epoch == NO_LEADER else row.leader_epoch
    heir = heir_chain(of_cut, newest, empty, start, max(ends), load, epoch=epoch)
    # Where HEAD is still of the cut's cluster, a tail that is gone was let go for a segment of this chain.
    is_written = published is not None and writer is not None and is_by(published.head, writer)
    is_rewritten = problem is not None or (newest is not None and newest.cluster_id != cut.cluster_id)
    may_lack = row is not None and (row.waits or is_rewritten)
    if row is not None and may_lack and not is_written and heir.overlap is None and heir.end_offset < row.end:
        # The chain of now may have lost what stands for tails; the manifest that had it is kept.
        for between in _later_manifests(store, owners, place, row):
            found = heir_chain(of_cut, between, empty, start, max(ends), load, epoch=epoch)
            if found.end_offset >= row.end or found.overlap is not None:
                heir = found._replace(is_published=False)
                break
    if row is not None and may_lack and heir.overlap is None and heir.end_offset < row.end:
        # Once a restore has written HEAD again, no chain has the segment that stands for tails.
        overlap = _listed_overlap(store, place, heir.end_offset, row)
        heir = heir._replace(overlap=overlap)
    epochs = [one.leader_epoch for one in (newest, of_cut) if one is not None]
    epochs += [child.last_epoch for one in (newest, of_cut) if one is not None for child in one.children[-1:]]
    return OpenedChain(heir, published, max(epochs, default=0), problem or why)


def is_by(head: Head, writer: Writer) -> bool:
    """Return whether this process, or this restore in another one, has written HEAD."""
    return head.stamp is not None and head.stamp.writer.incarnation == writer.incarnation


def _later_manifests(
    store: ObjectStore, owners: frozenset[str], place: Place, row: PartitionCut
) -> Iterator[Manifest]:
    """Yield the manifests of the first versions after the cut's that reach its end, and that can only be
    those which were committed: no other lies there with the same version."""
    keys: dict[int, list[str]] = {}
    for info in store.list(manifest_prefix(*place)):
        parsed = parse_key(info.key)
        if isinstance(parsed, ManifestKey) and parsed.version > row.version:
            keys.setdefault(parsed.version, []).append(info.key)
    for version in sorted(keys)[:_LATER_VERSIONS]:
        if len(keys[version]) > 1:
            return
        try:
            manifest = open_chain(store, keys[version][0]).manifest
        except UNREADABLE as e:
            raise_of_the_store(e)
            continue
        if manifest.end_offset >= row.end and manifest.cluster_id in owners:
            yield manifest


def _listed_overlap(store: ObjectStore, place: Place, end: int, row: PartitionCut) -> SegmentEntry | None:
    """Return a segment that has all offsets of the partition from its chain's end to the cut's: one that was
    uploaded behind the chain, or a rewritten one that may begin before."""
    found = [
        (parsed.leader_epoch, info.key)
        for info in store.list(partition_prefix(*place))
        if isinstance(parsed := parse_key(info.key), SegmentKey)
        and parsed.base_offset <= max(end, row.start)
        and parsed.last_offset + 1 >= row.end
    ]
    entries = (entry_of(open_footer(store, key)) for _, key in sorted(found, reverse=True))
    possible = (one for one in entries if one.base_offset >= end or one.generation)
    return next((one for one in possible if is_of_the_cut(one, row.end, row.leader_epoch)), None)


class SeenChain(NamedTuple):
    """Chain of one partition as it was read for a plan. Where it is exactly what HEAD names: that HEAD, its
    tag, and the catalog's entry of the chain."""

    found: FoundChain
    head: Head | None = None
    tag: str = ""
    entry: CatalogEntry | None = None


def seen_chain(
    store: ObjectStore, owners: frozenset[str], image: MetadataImage, cut: Cut, place: Place
) -> SeenChain:
    """Return what a restore needs of one partition's chain; what cannot be read is its `problem`."""
    try:
        seen = _head_or_none(store, place)
        if seen is not None and (glanced := _glanced(store, image, cut, place, seen)) is not None:
            return glanced
        opened = open_heir_chain(store, owners, image, cut, place, seen)
        if seen is not None and opened.note is not None:  # its manifest may have been replaced meanwhile
            opened = open_heir_chain(store, owners, image, cut, place)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return SeenChain(unreadable_chain(image, place, e))
    found, chain = summary_of(opened), opened.published
    if seen is None or opened.note is not None or chain is None or not found.is_published:
        return SeenChain(found)
    return SeenChain(found, chain.head, seen.tag, catalog_entry(chain))


def _glanced(
    store: ObjectStore, image: MetadataImage, cut: Cut, place: Place, seen: Tagged
) -> SeenChain | None:
    """Return the chain without parsing its rows, where HEAD names what the catalog had at the cut, and
    nothing of it lies beyond the cut or is cut off; None elsewhere, and where anything is wrong.

    Its sums are the catalog's, and its bytes those that HEAD names (`manifest_glance`).
    """
    entry, rows = image.remote.get(place), cut.topics.get(place[0], ())
    row = rows[place[1]] if place[1] < len(rows) else None
    if entry is None or row is None or seen is NO_HEAD or not entry.segments:
        return None
    try:
        head = decode_head(seen.data)
        is_same = head[:4] == (*place, entry.manifest_key, entry.version) and row.version <= entry.version
        if not is_same or row.start > entry.start_offset or entry.end_offset > row.end:
            return None
        if row.waits and entry.end_offset < row.end:
            return None
        found = rows_of(store.get(entry.manifest_key, max_size=head.stored_size), head)
        epoch = None if found is None else last_epoch(found, entry.end_offset)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return None
    if epoch is None:
        return None
    chain = FoundChain(
        entry.start_offset,
        entry.end_offset,
        entry.segments,
        entry.size_bytes,
        epoch,
        max(head.leader_epoch, epoch),
        entry.end_offset,
        stamped_ms(head.stamp),
        is_published=True,
    )
    return SeenChain(chain, head, seen.tag, entry._replace(leader_epoch=head.leader_epoch))


def _head_or_none(store: ObjectStore, place: Place) -> Tagged | None:
    """Return HEAD, `NO_HEAD` where there is none; None where it cannot be read."""
    try:
        seen = conditional.tagged_or_none(store, head_key(*place), max_size=MAX_SMALL_BYTES)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return None
    return NO_HEAD if seen is None else seen


def unreadable_chain(image: MetadataImage, place: Place, error: Exception) -> FoundChain:
    """Return what a plan needs of a partition of whose archive nothing can be read."""
    entry = image.remote.get(place)
    problem = f"its archive cannot be read: {error}"
    if entry is None:
        return FoundChain(problem=problem)
    return FoundChain(
        entry.start_offset,
        entry.end_offset,
        entry.segments,
        entry.size_bytes,
        highest_epoch=entry.leader_epoch,
        newest_end=entry.end_offset,
        problem=problem,
    )


def summary_of(opened: OpenedChain) -> FoundChain:
    """Return what a plan needs of a chain."""
    heir, published, highest, note = opened
    newest = published.manifest if published is not None else None
    last = heir.following[-1] if heir.following else next(iter(heir.base.children[-1:]), None)
    return FoundChain(
        heir.start_offset,
        heir.end_offset,
        heir.segments,
        heir.size_bytes,
        -1 if last is None else last.last_epoch,
        highest,
        0 if newest is None else newest.end_offset,
        0 if newest is None else stamped_ms(newest.stamp),
        None if heir.overlap is None else heir.overlap.key,
        heir.is_published,
        note=note,
    )


def _published(
    store: ObjectStore, owners: frozenset[str], place: Place, seen: Tagged | None
) -> tuple[Chain | None, str | None]:
    try:
        if seen is None:
            chain = open_published(store, HeadKey(*place))
        elif seen is NO_HEAD:
            chain = None
        else:
            with naming(head_key(*place)):
                head = decode_head(seen.data)
                if (head.topic_id, head.partition) != place:
                    raise CorruptionError(f"the HEAD of {head.topic_id}/{head.partition}")
            chain = Chain(open_named(store, head), head)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return None, str(e)
    if chain is not None:
        _check_owner(chain.key, chain.manifest, owners)
    return chain, None


def _manifest_of(
    store: ObjectStore,
    owners: frozenset[str],
    place: Place,
    entry: CatalogEntry | None,
    newest: Manifest | None,
    version: int,
) -> tuple[Manifest | None, str | None]:
    """Return the manifest of the cut, and why it cannot be had; the newest one stands for it then.

    The catalog's entry at the cut names it, unless its leader knew of a later `version`.
    """
    if entry is None and version == 0:
        return None, None
    if (
        newest is not None
        and newest.version >= version
        and (entry is None or newest.version == entry.version)
    ):
        return newest, None
    key = entry.manifest_key if entry is not None else ""
    if version > max(0 if entry is None else entry.version, 0 if newest is None else newest.version):
        key = _only_manifest(store, place, version) or key
    if not key:
        return newest, None
    try:
        manifest = open_chain(store, key).manifest
    except UNREADABLE as e:
        raise_of_the_store(e)
        if newest is None:
            raise
        return newest, f"the manifest of the cut cannot be read, that of HEAD stands for it: {e}"
    _check_owner(key, manifest, owners)
    return manifest, None


def _only_manifest(store: ObjectStore, place: Place, version: int) -> str | None:
    """Return the key of the only manifest of that version: the commit was made, HEAD was not written yet."""
    keys = [
        info.key
        for info in store.list(manifest_prefix(*place))
        if isinstance(parsed := parse_key(info.key), ManifestKey) and parsed.version == version
    ]
    return keys[0] if len(keys) == 1 else None


def _check_owner(key: str, manifest: Manifest, owners: frozenset[str]) -> None:
    if manifest.cluster_id not in owners:
        raise CorruptionError(f"{key}: of cluster {manifest.cluster_id}, which is not this prefix's")


def stamped_ms(stamp: Stamp | None) -> int:
    """Return when an object was written, 0 where it does not say."""
    return 0 if stamp is None else stamp.written_ms
