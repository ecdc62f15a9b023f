"""Re-points HEAD, `topics.json` and `cluster.json` to what is there, where damaged or gone: `firn repair`.

HEAD that cannot be read, or names a manifest that cannot: the newest manifest whose pages and objects are
all there becomes the chain again, under a version above all that were ever written, so that no catalog
takes it for its own past. The node does not follow that by itself: it is started once with
``firn.remote.recover=true``. `topics.json` that cannot be read, or is gone: names, ids and numbers of
partitions come from the manifests, settings are lost. `cluster.json` that cannot be read, or is gone: the
cluster's id comes from the manifests and `topics.json`, which must agree, and the newest snapshot of the
metadata that is whole is named again; it names no writer, as the next node that starts takes the prefix over.
What is of a later version of the format is sound, and left alone. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.metadata.snapshot_codec import decode_snapshot
from service.remote.format.keys import (
    CLUSTER_KEY,
    DATA_PREFIX,
    METADATA_PREFIX,
    TOPICS_KEY,
    HeadKey,
    ManifestKey,
    MetadataKey,
    PageKey,
    SegmentKey,
    head_key,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import Manifest, Page, PageRef
from service.remote.format.manifest_codec import (
    MAX_METADATA_BYTES,
    MAX_SMALL_BYTES,
    MAX_TOPICS_BYTES,
    ClusterFile,
    MetadataRef,
    TopicRow,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_topics,
    head_of,
)
from service.remote.reading.chain_proof import proved_footer, proved_segments
from service.remote.reading.object_reader import Chain, open_chain, open_cluster, open_page, open_published
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.shared_objects import read_topics

NewUuid = Callable[[], UUID]
_ABSENT: Final = "it is not there"


class HeadRepair(NamedTuple):
    """HEAD of one partition as it can be made again; `chain` is the one that is to be published anew."""

    key: HeadKey
    wrong: str
    chain: Chain
    version: int
    seen: Tagged | None

    def __str__(self) -> str:
        manifest = self.chain.manifest
        return (
            f"{partition_prefix(*self.key)}: {self.wrong}; to be published anew as version {self.version}: "
            f"{self.chain.key}, offsets {manifest.start_offset} to {manifest.end_offset - 1}"
        )


class TopicsRepair(NamedTuple):
    """`topics.json` as it can be made again."""

    wrong: str
    cluster_id: str
    rows: tuple[TopicRow, ...]
    seen: Tagged | None

    def __str__(self) -> str:
        named = (
            ", ".join(f"{row.name} ({row.partitions})" for row in self.rows) or "none, nothing is archived"
        )
        return f"{TOPICS_KEY}: {self.wrong}; to be made from the manifests, without settings: {named}"


class Hopeless(NamedTuple):
    """What is wrong and cannot be repaired from what is there."""

    where: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.where}: cannot be repaired: {self.wrong}"


class ClusterRepair(NamedTuple):
    """`cluster.json` as it can be made again."""

    wrong: str
    cluster: ClusterFile
    seen: Tagged | None

    def __str__(self) -> str:
        metadata = self.cluster.metadata
        named = f"naming {metadata.key}" if metadata is not None else "naming no snapshot of the metadata"
        return (
            f"{CLUSTER_KEY}: {self.wrong}; to be made from the archive: cluster {self.cluster.cluster_id}, "
            f"{named}"
        )


Repair = HeadRepair | TopicsRepair | ClusterRepair | Hopeless


def find_repairs(store: ObjectStore) -> Iterator[Repair]:
    """What is wrong with HEADs, `topics.json` and `cluster.json`, and how each can be made again.

    Changes nothing. To be carried out in this order.
    """
    partitions: dict[UUID, list[Manifest]] = {}
    is_empty = True
    for key in _partitions(store):
        is_empty = False
        found = _head_repair(store, key)
        if isinstance(found, Manifest):
            partitions.setdefault(key.topic_id, []).append(found)
        elif found is not None:
            yield found
            if isinstance(found, HeadRepair):
                partitions.setdefault(key.topic_id, []).append(found.chain.manifest)
    topics = _topics_repair(store, partitions, is_empty)
    if topics is not None:
        yield topics
    cluster = _cluster_repair(store, partitions)
    if cluster is not None:
        yield cluster


def _partitions(store: ObjectStore) -> Iterator[HeadKey]:
    def owner(key: str) -> HeadKey | None:
        parsed = parse_key(key)
        if isinstance(parsed, (SegmentKey, ManifestKey, PageKey, HeadKey)):
            return HeadKey(parsed.topic_id, parsed.partition)
        return None

    for key, _ in groupby(store.list(DATA_PREFIX), lambda info: owner(info.key)):
        if key is not None:
            yield key


def _head_repair(store: ObjectStore, key: HeadKey) -> HeadRepair | Hopeless | Manifest | None:
    """The manifest where nothing is wrong; None where nothing was ever published."""
    where = partition_prefix(*key)
    wrong = "there is no HEAD"
    try:
        chain = open_published(store, key)
        if chain is not None:
            return chain.manifest
    except UnknownVersion as e:
        return Hopeless(where, str(e))
    except (CorruptionError, ObjectNotFound) as e:
        wrong = str(e)
    manifests = sorted(
        (
            (parsed.version, info.key)
            for info in store.list(manifest_prefix(*key))
            if isinstance(parsed := parse_key(info.key), ManifestKey)
        ),
        reverse=True,
    )
    if not manifests:
        return None if wrong == "there is no HEAD" else Hopeless(where, f"{wrong}; there is no manifest")
    try:
        seen = conditional.tagged_or_none(store, head_key(*key), max_size=MAX_SMALL_BYTES)
    except CorruptionError as e:
        return Hopeless(where, f"{e}; delete it first")
    for version, group in groupby(manifests, lambda one: one[0]):
        whole = [chain for _, name in group if (chain := _whole(store, key, name)) is not None]
        if len(whole) > 1:
            return Hopeless(
                where, f"{wrong}; two manifests of version {version} are whole, one was committed"
            )
        if whole:
            return HeadRepair(key, wrong, whole[0], manifests[0][0] + 1, seen)
    return Hopeless(where, f"{wrong}; none of {len(manifests)} manifests is whole")


def _whole(store: ObjectStore, key: HeadKey, name: str) -> Chain | None:
    """The chain under `name`, when every page and every object of it is there and agrees."""
    wrong: list[str] = []

    def load(ref: PageRef) -> Page:
        return open_page(store, ref, chain.manifest)

    try:
        chain = open_chain(store, name)
        if (chain.manifest.topic_id, chain.manifest.partition) != key:
            return None
        for entry in proved_segments(chain, load, lambda where, what: wrong.append(what)):
            size = store.head(entry.key).size
            proved_footer(
                store, entry, size, cluster_id=chain.manifest.cluster_id, topic=chain.manifest.topic
            )
    except (CorruptionError, ObjectNotFound):
        return None
    return None if wrong else chain


def _topics_repair(
    store: ObjectStore, partitions: dict[UUID, list[Manifest]], is_empty: bool
) -> TopicsRepair | Hopeless | None:
    wrong = _ABSENT
    try:
        if read_topics(store) is not None:
            return None
    except UnknownVersion as e:
        return Hopeless(TOPICS_KEY, str(e))
    except CorruptionError as e:
        wrong = str(e)
    rows = tuple(
        TopicRow(found[-1].topic, topic_id, max(one.partition for one in found) + 1, {})
        for topic_id, found in partitions.items()
    )
    if not rows and wrong == _ABSENT:
        return None
    ids = {one.cluster_id for found in partitions.values() for one in found}
    if is_empty:
        with suppress(CorruptionError, ObjectNotFound):
            ids.add(open_cluster(store))  # it names whatever is made next
    if not ids:
        return Hopeless(TOPICS_KEY, f"{wrong}; nothing that can be read says which topics there are")
    [cluster_id, *others] = ids
    if others:
        return Hopeless(TOPICS_KEY, f"{wrong}; the manifests are of {len(others) + 1} clusters")
    seen = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    return TopicsRepair(wrong, cluster_id, rows, seen)


def _cluster_repair(
    store: ObjectStore, partitions: dict[UUID, list[Manifest]]
) -> ClusterRepair | Hopeless | None:
    wrong = _ABSENT
    try:
        open_cluster(store)
        return None
    except UnknownVersion as e:
        return Hopeless(CLUSTER_KEY, str(e))
    except ObjectNotFound:
        pass
    except CorruptionError as e:
        wrong = str(e)
    ids = {manifest.cluster_id for found in partitions.values() for manifest in found}
    with suppress(CorruptionError):
        topics = read_topics(store)
        ids.update([topics.cluster_id] if topics is not None else ())
    if len(ids) != 1:
        if wrong == _ABSENT and not ids:
            return None  # nothing is archived: the next start makes the prefix its cluster's
        what = f"what is archived is of {len(ids)} clusters" if ids else "nothing archived says whose it is"
        return Hopeless(CLUSTER_KEY, f"{wrong}; {what}")
    try:
        seen = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
    except CorruptionError as e:
        return Hopeless(CLUSTER_KEY, f"{e}; delete it first")
    return ClusterRepair(wrong, ClusterFile(ids.pop(), None, _newest_metadata(store)), seen)


def _newest_metadata(store: ObjectStore) -> MetadataRef | None:
    """The newest snapshot of the metadata that is whole."""
    found = (
        (parsed, info)
        for info in store.list(METADATA_PREFIX)
        if isinstance(parsed := parse_key(info.key), MetadataKey)
    )
    for parsed, info in sorted(found, key=lambda one: one[0].offset, reverse=True):
        with suppress(CorruptionError, ObjectNotFound):
            data = store.get(info.key, max_size=MAX_METADATA_BYTES)
            decode_snapshot([data], end_offset=parsed.offset, epoch=parsed.epoch)
            return MetadataRef(info.key, parsed.offset, parsed.epoch, len(data), crc32c(data))
    return None


def carry_out(
    store: ObjectStore, repair: HeadRepair | TopicsRepair | ClusterRepair, new_uuid: NewUuid
) -> bool:
    """Write it; False when somebody else has written there since it was looked at."""
    if isinstance(repair, TopicsRepair):
        data = encode_topics(repair.cluster_id, 0, repair.rows)
        return conditional.write(store, TOPICS_KEY, data, repair.seen)
    if isinstance(repair, ClusterRepair):
        return conditional.write(store, CLUSTER_KEY, encode_cluster(repair.cluster), repair.seen)
    old = repair.chain.manifest
    manifest = replace(
        old,
        version=repair.version,
        parent_version=old.version,
        parent_key=repair.chain.key,
        stored_key=None,
    )
    key, data = manifest.key(new_uuid()), encode_manifest(manifest)
    if not conditional.create(store, key, data):
        return False
    head = encode_head(head_of(manifest, key, data))
    return conditional.write(store, head_key(*repair.key), head, repair.seen)
