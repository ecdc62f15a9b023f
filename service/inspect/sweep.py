"""`firn sweep`: find and delete orphans, objects that nothing committed names, from the bucket alone.

A node sweeps by itself what it can judge; this is for buckets without running nodes. The newest copy of the
metadata and HEAD tell what is live, never `topics.json` alone; without a copy nothing is swept. The copy may
be older than the bucket and HEAD may lag behind a commit: so a partition is skipped as soon as it has a
manifest newer than HEAD or the copy is ahead of HEAD. Partitions with errors or with refused objects, young
objects, and topics that are not known to live are skipped, too. Such a topic is swept on request, by its id,
where its deletion was committed, or where the copy does not have it and its last record is newer than all of
its objects. HEAD is read again before anything of its partition is deleted. What a kept cut needs stays, also
of a chain that was replaced; cuts and tails that no kept cut names are swept once `CUT` is as old, and
left-over probes of the store, too. Below the end of a chain the copy decides: what may be of a rewrite that
is in it, or that began after it, stays, unless a take-over has ended it (`unnamed_objects`). Orders to erase
keys are swept where neither `CUT` nor the copy has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain, groupby, islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.inspect.committed import Committed, TopicState, read_committed
from service.inspect.cut_needs import CutNeeds
from service.inspect.partition_check import Subject, check_partition
from service.inspect.readable_store import ReadableStore
from service.inspect.unnamed_objects import CopyFacts, facts_of, take_over_of
from service.metadata.bucket_copy import MetadataCopy
from service.remote.format.keys import (
    CUT_NAME,
    DATA_PREFIX,
    ERASE_PREFIX,
    ErasureKey,
    HeadKey,
    ManifestKey,
    PageKey,
    ParsedKey,
    PartitionKey,
    SegmentKey,
    manifest_prefix,
    parse_key,
    partition_prefix,
    topic_prefix,
)
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, live_segments
from service.remote.format.manifest_codec import Head
from service.remote.reading.object_reader import (
    Chain,
    open_cluster_file,
    open_footer_of,
    open_head,
    open_named,
    open_page,
)
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore

DELETE_BATCH: Final = 1000
PIECE: Final = 10_000
"""Most orphans of one `PartitionOrphans`, which are in memory together."""


class PartitionOrphans(NamedTuple):
    """Orphans that may be deleted; `head` is the HEAD that decided it, None where no HEAD can name them."""

    where: str
    key: HeadKey | None
    head: Head | None
    orphans: tuple[ObjectInfo, ...]


class Skipped(NamedTuple):
    """A partition, or topic, that is not swept, and the reason."""

    where: str
    why: str


class Age(NamedTuple):
    """The least age of an object to delete, by the store's clock."""

    older_than_ms: int
    now_ms: int

    def has(self, info: ObjectInfo) -> bool:
        """Return whether the object is that old."""
        return self.now_ms - info.last_modified_ms >= self.older_than_ms


def find_orphans(
    store: ObjectStore, *, older_than_ms: int, now_ms: int, whole_topic: UUID | None = None
) -> Iterator[PartitionOrphans | Skipped]:
    """Walk the bucket at `now_ms` by the store's clock; `whole_topic` is a topic to sweep whole.

    A partition's orphans come in pieces of bounded size. Raises `CorruptionError` when no copy of the
    metadata can be read, since then nothing tells what is live.
    """
    committed = read_committed(store)
    if committed.copy is None:
        why = "; ".join(committed.copy_problems) or "there is none"
        raise CorruptionError(f"no copy of the metadata can be read, so live objects are unknown: {why}")
    age = Age(older_than_ms, now_ms)
    if whole_topic is not None:
        yield from _whole_topic(store, committed, whole_topic, age)
        return
    names = committed.ever_live()
    skipped: set[UUID] = set()
    readable = ReadableStore(store)
    needs = CutNeeds(readable)
    take_over = _take_over(readable)
    for owner, _ in groupby(store.list(DATA_PREFIX), lambda info: _owner(parse_key(info.key))):
        if owner is None:
            continue
        if owner.topic_id in names:
            copied = facts_of(readable, committed, owner, take_over)
            subject = Subject(owner, names[owner.topic_id], entry=committed.entry(owner), copied=copied)
            yield from _partition(readable, subject, age, needs)
        elif owner.topic_id not in skipped:
            skipped.add(owner.topic_id)
            is_deleted = owner.topic_id in committed.copy.image.tombstones
            what = "it was deleted" if is_deleted else "it is not known to live"
            yield Skipped(str(owner.topic_id), f"{what} (--topic ID deletes it whole)")
    dead = filter(age.has, needs.dead())
    if (first := next(dead, None)) is not None and now_ms - needs.changed_ms() >= older_than_ms:
        yield from _pieces(CUT_NAME, None, None, chain((first,), dead))
    yield from (Skipped(CUT_NAME, why) for why in needs.problems)
    yield from _pieces(ERASE_PREFIX, None, None, _dead_erasures(store, committed.copy, needs, age))
    yield from _pieces(PROBE_PREFIX, None, None, filter(age.has, store.list(PROBE_PREFIX)))


def _take_over(store: ObjectStore) -> UUID | None:
    try:
        return take_over_of(open_cluster_file(store))
    except (ObjectNotFound, CorruptionError):
        return None


def _dead_erasures(store: ObjectStore, copy: MetadataCopy, needs: CutNeeds, age: Age) -> Iterator[ObjectInfo]:
    """Yield documents of orders that neither `CUT` nor the copy has, and that are older than the copy."""
    known = {*needs.erasures, *copy.image.erasures}
    for info in store.list(ERASE_PREFIX):
        parsed = parse_key(info.key)
        is_dead = isinstance(parsed, ErasureKey) and parsed.id not in known
        if is_dead and age.has(info) and info.last_modified_ms < copy.as_of_ms:
            yield info


def _whole_topic(
    store: ObjectStore, committed: Committed, topic_id: UUID, age: Age
) -> Iterator[PartitionOrphans | Skipped]:
    """Yield all objects of a topic that is known to be dead, or why it is skipped."""
    prefix = topic_prefix(topic_id)
    newest_ms = max((info.last_modified_ms for info in store.list(prefix)), default=-1)
    state = committed.state(topic_id, newest_ms)
    if state is TopicState.LIVE:
        yield Skipped(str(topic_id), f"it is live: {committed.ever_live()[topic_id]}")
    elif state is TopicState.MADE_SINCE:
        yield Skipped(
            str(topic_id),
            "it has objects that are newer than the newest copy of the metadata, so it may have been created "
            "since: try again once there is a newer copy",
        )
    else:
        old = (info for info in store.list(prefix) if _owner(parse_key(info.key)) and age.has(info))
        yield from _pieces(prefix, None, None, old)


def _partition(
    store: ObjectStore, subject: Subject, age: Age, needs: CutNeeds
) -> Iterator[PartitionOrphans | Skipped]:
    where = subject.where
    report = check_partition(store, subject, deep=False)
    if not report.is_clean:
        yield Skipped(where, f"it has errors (firn fsck, firn repair): {report.errors[0].what}")
        return
    if report.orphan_count == 0:
        return
    try:
        head = open_head(store, subject.key)
        named = Chain(open_named(store, head), head)
    except (ObjectNotFound, CorruptionError) as e:
        yield Skipped(where, f"there is no readable HEAD: {e}")
        return
    if subject.entry is not None and subject.entry.version > head.version:
        yield Skipped(where, f"HEAD names version {head.version}, and {subject.entry.version} was committed")
        return
    newer = _newer_manifest(store, subject.key, head)
    if newer is not None:
        yield Skipped(where, f"it has a manifest newer than HEAD, which may be committed: {newer}")
        return
    try:
        needed = needs.chain_keys(subject.key, head.version)
        copied = _without_fulfilled(store, named, subject.copied)
        judge = _Judge(copied, named, age, needed)
        yield from _pieces(where, subject.key, head, judge.orphans(_unnamed(store, subject.key, named)))
        if judge.left:
            why = _why_left(copied)
            yield Skipped(where, f"{judge.left} objects below its end stay: {why}")
    except (ObjectNotFound, CorruptionError) as e:
        yield Skipped(where, f"it changed while it was checked: {e}")


class _Judge:
    """Judgement of a partition's unnamed objects; `left` counts those that are old enough, and that a rewrite
    may have published yet."""

    def __init__(self, copied: CopyFacts, named: Chain, age: Age, needed: Collection[str]) -> None:
        self._copied = copied
        self._manifest = named.manifest
        self._age = age
        self._needed = needed
        self.left = 0

    def orphans(self, unnamed: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Yield those that nothing will name and nothing needs."""
        for info in unnamed:
            if info.key in self._needed or not self._age.has(info):
                continue
            if self._copied.may_be_committed(info, self._manifest):
                self.left += 1
            else:
                yield info


def _without_fulfilled(store: ObjectStore, named: Chain, copied: CopyFacts) -> CopyFacts:
    """Return the facts without the rewrite that the copy has, if the chain has its result: it was committed
    after the copy was made, and nothing more can be."""
    if copied.intent is None:
        return copied
    entry = named.manifest.find(copied.intent.base_offset, partial(_load, store, named.manifest, set()))
    origin = None if entry is None or not entry.generation else open_footer_of(store, entry).rewrite
    is_fulfilled = origin is not None and origin.id == copied.intent.rewrite_id
    return copied._replace(intent=None) if is_fulfilled else copied


def _why_left(copied: CopyFacts) -> str:
    if (intent := copied.intent) is not None:
        return f"offsets {intent.base_offset} to {intent.last_offset} are being rewritten"
    return "they are newer than the newest copy of the metadata, and may be of a rewrite that began since"


def _newer_manifest(store: ObjectStore, key: HeadKey, head: Head) -> str | None:
    """Return the key of a manifest of a later version than HEAD's."""
    for info in store.list(manifest_prefix(*key)):
        parsed = parse_key(info.key)
        if isinstance(parsed, ManifestKey) and parsed.version > head.version:
            return info.key
    return None


def _unnamed(store: ObjectStore, key: HeadKey, named: Chain) -> Iterator[ObjectInfo]:
    """Yield objects of a partition that its chain does not name, in the listing's order."""
    pages: set[str] = set()
    load = partial(_load, store, named.manifest, pages)
    live = (entry for entry in live_segments(named.manifest, load) if entry.owner is None)
    entry = next(live, None)
    for info in store.list(partition_prefix(*key)):
        parsed = parse_key(info.key)
        if isinstance(parsed, SegmentKey):
            while entry is not None and entry.key < info.key:
                entry = next(live, None)
            if entry is None or entry.key != info.key:
                yield info
        elif isinstance(parsed, PageKey):
            for _ in live:  # reads the pages after the last listed segment
                pass
            if info.key not in pages:
                yield info
        elif isinstance(parsed, ManifestKey) and info.key != named.key:
            yield info


def _load(store: ObjectStore, manifest: Manifest, pages: set[str], ref: PageRef) -> ManifestPage:
    pages.add(ref.key)
    return open_page(store, ref, manifest)


def _pieces(
    where: str, key: HeadKey | None, head: Head | None, infos: Iterable[ObjectInfo]
) -> Iterator[PartitionOrphans]:
    found = iter(infos)
    while piece := tuple(islice(found, PIECE)):
        yield PartitionOrphans(where, key, head, piece)


def delete_orphans(store: ObjectStore, found: PartitionOrphans) -> int:
    """Delete the orphans while HEAD is still the one that decided it; return how many were deleted.

    Raises `StoreRefused` where the store keeps one of them; others of its batch may be gone.
    """
    for start in range(0, len(found.orphans), DELETE_BATCH):
        if found.key is not None and not _is_current(store, found.key, found.head):
            return start  # another process writes there: an orphan may have become live
        store.delete([info.key for info in found.orphans[start : start + DELETE_BATCH]])
    return len(found.orphans)


def _is_current(store: ObjectStore, key: HeadKey, head: Head | None) -> bool:
    try:
        return open_head(ReadableStore(store), key) == head
    except (ObjectNotFound, CorruptionError):
        return False


def _owner(parsed: ParsedKey | None) -> HeadKey | None:
    if isinstance(parsed, PartitionKey):
        return HeadKey(parsed.topic_id, parsed.partition)
    return None
