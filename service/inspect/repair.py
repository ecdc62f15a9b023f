"""Repair of documents that can be made again from the bucket's other objects: `firn repair`.

Unreadable pages come from the keys and footers of their segments (`lost_page`): where the result has the
exact bytes they are put back, and nothing else changes. HEAD is repaired where it is unreadable, gone, behind
the newest copy of the metadata, or names an unreadable manifest: it names the committed manifest again where
the copy tells which that is. Otherwise the newest manifest whose pages and objects all exist becomes the
chain, with the segments after its end, as uploaded data was acknowledged; without any manifest the segments
alone make one. That is published under a version above all earlier ones, so that no catalog mistakes it for
its own past; a node does not follow it by itself and is started once with ``firn.remote.recover=true``.

`topics.json` is repaired where it is unreadable, or contradicts newer metadata: topics, numbers of partitions
and settings come from the newest copy of the metadata, and newer topics from manifests. Without a copy
everything comes from the manifests, and settings are lost. `cluster.json` is repaired where it is unreadable,
gone, or names an unreadable copy: the cluster's id comes from the manifests and `topics.json`, which must
agree, and the newest copy is named again. A lost one names no writer, as the next node that starts takes the
prefix over. Documents of a later format version are sound, and left alone. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.inspect.committed import Committed, TopicState, read_committed
from service.inspect.cuts_repair import CutsRepair, damaged_orders, find_cuts_repair
from service.inspect.head_repair import HeadRepair, PageRepair, Unrepairable, repairs_of_partition
from service.remote.format.cut_codec import encode_cuts
from service.remote.format.keys import (
    CLUSTER_KEY,
    CUT_NAME,
    DATA_PREFIX,
    TOPICS_KEY,
    HeadKey,
    PartitionKey,
    head_key,
    parse_key,
    topic_prefix,
)
from service.remote.format.manifest import Manifest
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    MAX_TOPICS_BYTES,
    ClusterFile,
    TopicsFileRow,
    encode_cluster,
    encode_head,
    encode_topics,
)
from service.remote.reading.object_reader import open_cluster, open_cluster_file, open_metadata, open_topics
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound, StoreRefused, raise_of_the_store
from service.remote.stores.store import ObjectStore, Tagged

NewUuid = Callable[[], UUID]
_ABSENT: Final = "it is not there"


class TopicsRepair(NamedTuple):
    """The repair of `topics.json`; `source` says what it is made from."""

    wrong: str
    cluster_id: str
    rows: tuple[TopicsFileRow, ...]
    source: str
    expected: Tagged | None
    """the object to replace"""

    def __str__(self) -> str:
        named = (
            ", ".join(f"{row.name} ({row.partitions})" for row in self.rows) or "none, nothing is archived"
        )
        return f"{TOPICS_KEY}: {self.wrong}; to be made from {self.source}: {named}"


class ClusterRepair(NamedTuple):
    """The repair of `cluster.json`."""

    wrong: str
    cluster: ClusterFile
    expected: Tagged | None
    """the object to replace"""

    def __str__(self) -> str:
        metadata = self.cluster.metadata
        named = f"naming {metadata.key}" if metadata is not None else "naming no snapshot of the metadata"
        return (
            f"{CLUSTER_KEY}: {self.wrong}; to be made from the archive: cluster {self.cluster.cluster_id}, "
            f"{named}"
        )


Made = PageRepair | HeadRepair | TopicsRepair | ClusterRepair | CutsRepair
Repair = Made | Unrepairable


class _Found(NamedTuple):
    """A partition whose chain is whole, or can be made so; `head_ms` is when the store got its HEAD."""

    manifest: Manifest
    head_ms: int


def find_repairs(store: ObjectStore) -> Iterator[Repair]:
    """Yield the repairs of pages, HEADs, `topics.json`, `cluster.json` and `CUT`. Changes nothing.

    They have to be carried out in this order.
    """
    committed = read_committed(store)
    partitions: dict[UUID, list[_Found]] = {}
    found: set[HeadKey] = set()
    is_refused = False
    for key in _partitions(store):
        found.add(key)
        if _is_deleted(committed, key):
            continue
        try:
            manifest, repairs = repairs_of_partition(store, key, committed.entry(key))
        except StoreRefused as e:
            raise_of_the_store(e)
            is_refused = True
            where = f"{topic_prefix(key.topic_id)}/{key.partition}"
            yield Unrepairable(where, f"it is not repaired while the store refuses it: {e}")
            continue
        yield from repairs
        if manifest is not None:
            partitions.setdefault(key.topic_id, []).append(_Found(manifest, _head_ms(store, key)))
    for key, entry in committed.archived():
        if key not in found and entry.segments:
            yield Unrepairable(f"{topic_prefix(key.topic_id)}/{key.partition}", "it has no objects")
    try:
        topics = _topics_repair(store, committed, partitions, is_empty=not found)
    except StoreRefused as e:
        raise_of_the_store(e)
        topics = Unrepairable(TOPICS_KEY, f"it is not repaired while the store refuses it: {e}")
    if isinstance(topics, TopicsRepair) and committed.copy is None and is_refused:
        topics = Unrepairable(TOPICS_KEY, "not all manifests can be read, from which it is made")
    if topics is not None:
        yield topics
    cluster = _cluster_repair(store, committed, partitions)
    if cluster is not None:
        yield cluster
    cuts = find_cuts_repair(store)
    if cuts is not None:
        yield cuts
    yield from damaged_orders(store)


def _partitions(store: ObjectStore) -> Iterator[HeadKey]:
    def owner(key: str) -> HeadKey | None:
        parsed = parse_key(key)
        if isinstance(parsed, PartitionKey):
            return HeadKey(parsed.topic_id, parsed.partition)
        return None

    for key, _ in groupby(store.list(DATA_PREFIX), lambda info: owner(info.key)):
        if key is not None:
            yield key


def _is_deleted(committed: Committed, key: HeadKey) -> bool:
    """Return whether the partition's topic was deleted: its objects are being deleted, and not repaired."""
    return committed.copy is not None and key.topic_id in committed.copy.image.tombstones


def _head_ms(store: ObjectStore, key: HeadKey) -> int:
    try:
        return store.head(head_key(*key)).last_modified_ms
    except ObjectNotFound:
        return -1


def _topics_repair(
    store: ObjectStore, committed: Committed, partitions: dict[UUID, list[_Found]], is_empty: bool
) -> TopicsRepair | Unrepairable | None:
    wrong = committed.topics_wrong or "; ".join(committed.topics_problems())
    if not wrong:
        return None
    if committed.topics is None and _is_of_later_version(store):
        return Unrepairable(TOPICS_KEY, wrong)
    if committed.later is not None:
        return Unrepairable(TOPICS_KEY, f"{wrong}; {committed.later}")
    rows = _rows(store, committed, partitions)
    if not rows and wrong == _ABSENT:
        return None
    ids = {one.manifest.cluster_id for found in partitions.values() for one in found}
    if not ids:
        with suppress(CorruptionError, ObjectNotFound):
            if is_empty or committed.copy is not None:
                ids.add(open_cluster(store))  # an empty bucket belongs to the cluster that it names
    if not ids:
        return Unrepairable(TOPICS_KEY, f"{wrong}; no readable object tells which topics exist")
    [cluster_id, *others] = ids
    if others:
        return Unrepairable(TOPICS_KEY, f"{wrong}; the manifests are of {len(others) + 1} clusters")
    try:
        current = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    except CorruptionError as e:
        return Unrepairable(TOPICS_KEY, f"{e}; delete it first")
    source = (
        f"{committed.copy.ref.key} and newer manifests"
        if committed.copy is not None
        else "the manifests, without settings"
    )
    return TopicsRepair(wrong, cluster_id, rows, source, current)


def _is_of_later_version(store: ObjectStore) -> bool:
    try:
        open_topics(store)
    except UnknownVersion:
        return True
    except (CorruptionError, ObjectNotFound):
        return False
    return False


def _rows(
    store: ObjectStore, committed: Committed, partitions: dict[UUID, list[_Found]]
) -> tuple[TopicsFileRow, ...]:
    """Return all live topics: those of the copy, and those created since.

    A name belongs to one topic. Of two, the one with the newest HEAD got it last, as a deleted topic takes no
    commits.
    """
    rows = {row.topic_id: row for row in committed.rows()}
    for topic_id, found in partitions.items():
        count = max(one.manifest.partition for one in found) + 1
        before = rows.get(topic_id)
        if before is not None:
            rows[topic_id] = before._replace(partitions=max(count, before.partitions))
        elif committed.copy is None or _is_made_since(store, committed, topic_id):
            rows[topic_id] = TopicsFileRow(found[-1].manifest.topic, topic_id, count, {})
    by_name: dict[str, TopicsFileRow] = {}
    for row in rows.values():
        other = by_name.get(row.name)
        if other is None or _newest_head(partitions, row) > _newest_head(partitions, other):
            by_name[row.name] = row
    return tuple(by_name[name] for name in sorted(by_name))


def _is_made_since(store: ObjectStore, committed: Committed, topic_id: UUID) -> bool:
    newest_ms = max((info.last_modified_ms for info in store.list(topic_prefix(topic_id))), default=-1)
    return committed.state(topic_id, newest_ms) in (TopicState.LIVE, TopicState.MADE_SINCE)


def _newest_head(partitions: dict[UUID, list[_Found]], row: TopicsFileRow) -> int:
    return max((one.head_ms for one in partitions.get(row.topic_id, ())), default=-1)


def _cluster_repair(
    store: ObjectStore, committed: Committed, partitions: dict[UUID, list[_Found]]
) -> ClusterRepair | Unrepairable | None:
    metadata = committed.copy.ref if committed.copy is not None else None
    wrong = _ABSENT
    cluster: ClusterFile | None = None
    try:
        cluster = open_cluster_file(store)
        open_metadata(store)
        return None
    except UnknownVersion as e:
        return Unrepairable(CLUSTER_KEY, str(e))
    except ObjectNotFound as e:
        wrong = _ABSENT if cluster is None else str(e)
    except CorruptionError as e:
        wrong = str(e)
    if cluster is not None:
        # It is whole and names an unreadable copy: the writer of the prefix stays named.
        current = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        return ClusterRepair(wrong, cluster._replace(metadata=metadata), current)
    ids = {one.manifest.cluster_id for found in partitions.values() for one in found}
    ids.update([committed.topics.cluster_id] if committed.topics is not None else ())
    if len(ids) != 1:
        if wrong == _ABSENT and not ids:
            return None  # nothing is archived: the next node to start takes the prefix for its cluster
        what = f"the archive is of {len(ids)} clusters" if ids else "no archived object names the cluster"
        return Unrepairable(CLUSTER_KEY, f"{wrong}; {what}")
    try:
        current = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
    except CorruptionError as e:
        return Unrepairable(CLUSTER_KEY, f"{e}; delete it first")
    return ClusterRepair(wrong, ClusterFile(ids.pop(), None, metadata), current)


def carry_out(store: ObjectStore, repair: Made, new_uuid: NewUuid) -> bool:
    """Write the repair; return False when another process has written there since the repair was found."""
    if isinstance(repair, TopicsRepair):
        data = encode_topics(repair.cluster_id, 0, repair.rows)
        return conditional.write(store, TOPICS_KEY, data, repair.expected)
    if isinstance(repair, ClusterRepair):
        return conditional.write(store, CLUSTER_KEY, encode_cluster(repair.cluster), repair.expected)
    if isinstance(repair, CutsRepair):
        return conditional.write(store, CUT_NAME, encode_cuts(repair.cuts), repair.expected)
    if isinstance(repair, PageRepair):
        return conditional.write(store, repair.ref.key, repair.data, repair.expected)
    objects, head = repair.publication(new_uuid)
    for key, data in objects:
        if not conditional.create(store, key, data):
            return False
    return conditional.write(store, head_key(*repair.key), encode_head(head), repair.expected)
