"""Objects that no published manifest names, found and deleted from the bucket alone: `firn sweep`.

A node sweeps by itself what it can judge; this is for what is left where no node runs any more. Without the
metadata HEAD is all there is, and HEAD may lag behind a commit: so a partition is passed over as soon as it
has a manifest newer than HEAD, as are partitions with errors, young objects, and topics that `topics.json`
does not name, unless one is asked for by its id. HEAD is looked at again before anything of its partition
is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.inspect.fsck import check_partition
from service.remote.format.keys import (
    DATA_PREFIX,
    HeadKey,
    ManifestKey,
    PageKey,
    ParsedKey,
    SegmentKey,
    parse_key,
    partition_prefix,
    topic_prefix,
)
from service.remote.format.manifest_codec import Head
from service.remote.reading.object_reader import open_head
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.shared_objects import read_topics

DELETE_BATCH = 1000


class PartitionOrphans(NamedTuple):
    """What may go of one partition; `head` is what was judged by, None for a topic that is given up whole."""

    key: HeadKey
    head: Head | None
    orphans: tuple[ObjectInfo, ...]


class Skipped(NamedTuple):
    """A partition, or topic, that is passed over, and why."""

    where: str
    why: str


def find_orphans(
    store: ObjectStore, *, older_than_ms: int, now_ms: int, forsaken: UUID | None = None
) -> Iterator[PartitionOrphans | Skipped]:
    """Walk the bucket at `now_ms` by the store's clock; `forsaken` is a topic that is given up whole.

    Raises `CorruptionError` when `topics.json` is damaged or gone, for then nobody knows what is live.
    """
    topics = read_topics(store)
    if topics is None:
        raise CorruptionError("topics.json is not there: nobody knows what is live (firn repair)")
    names = {row.topic_id: row.name for row in topics.topics}
    listing = store.list(DATA_PREFIX if forsaken is None else topic_prefix(forsaken))
    told: set[UUID] = set()
    for owner, infos in groupby(listing, lambda info: _owner(parse_key(info.key))):
        if owner is None:
            continue
        old = (info for info in infos if now_ms - info.last_modified_ms >= older_than_ms)
        if owner.topic_id in names:
            if forsaken is None:
                yield _partition(store, owner, names[owner.topic_id], older_than_ms, now_ms)
            else:
                yield Skipped(str(owner.topic_id), f"topics.json names it: {names[owner.topic_id]}")
        elif forsaken is not None:
            yield PartitionOrphans(owner, None, tuple(old))
        elif owner.topic_id not in told:
            told.add(owner.topic_id)
            yield Skipped(str(owner.topic_id), "topics.json does not name it (--topic ID deletes it whole)")


def _partition(
    store: ObjectStore, key: HeadKey, name: str, older_than_ms: int, now_ms: int
) -> PartitionOrphans | Skipped:
    where = partition_prefix(*key)
    report = check_partition(store, key, name, cluster_id=None, deep=False)
    if not report.is_clean:
        return Skipped(where, f"it has errors (firn fsck, firn repair): {report.errors[0].what}")
    try:
        head = open_head(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        return Skipped(where, f"there is no HEAD to judge by: {e}")
    if report.orphan_count > len(report.orphans):
        return Skipped(where, "it has more orphans than can be judged at once")
    dead: list[ObjectInfo] = []
    for orphan in report.orphans:
        parsed = parse_key(orphan.key)
        if isinstance(parsed, ManifestKey) and parsed.version > head.version:
            return Skipped(where, f"it has a manifest newer than HEAD, which may be committed: {orphan.key}")
        try:
            info = store.head(orphan.key)
        except ObjectNotFound:
            continue
        if now_ms - info.last_modified_ms >= older_than_ms:
            dead.append(info)
    return PartitionOrphans(key, head, tuple(dead))


def delete_orphans(store: ObjectStore, found: PartitionOrphans) -> int:
    """Delete what was found, if HEAD is still the one it was judged by; how many."""
    for start in range(0, len(found.orphans), DELETE_BATCH):
        if found.head is not None and open_head(store, found.key) != found.head:
            return start  # somebody writes there: what was an orphan may be live now
        store.delete([info.key for info in found.orphans[start : start + DELETE_BATCH]])
    return len(found.orphans)


def _owner(parsed: ParsedKey | None) -> HeadKey | None:
    if isinstance(parsed, (SegmentKey, ManifestKey, PageKey, HeadKey)):
        return HeadKey(parsed.topic_id, parsed.partition)
    return None
