"""What the bucket alone says of a cluster: the topics, chains, epochs and producers that a new disk lacks.

For an operator's takeover (`firn.remote.recover`), never for a node that goes on by itself. Everything is
read and checked before anything is decided; what cannot be read is told and left alone. Blocks: for a
pool's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.base.errors import ConfigError, CorruptionError
from service.hot.producer_snapshot import decode_snapshot
from service.hot.producers import ProducerEntry
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import Manifest, Page, PageRef, live_segments
from service.remote.format.manifest_codec import MetadataRef, TopicRow
from service.remote.reading.object_reader import (
    open_footer_of,
    open_metadata,
    open_page,
    open_published,
    read_section,
)
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.fence import read_cluster
from service.tiering.shared_objects import read_topics
from service.tiering.units import catalog_entry


class ArchivedPartition(NamedTuple):
    """One partition as HEAD has it. `epochs` are (leader epoch, first offset) pairs over the whole chain.

    `leader_epoch` is the highest that anybody led it in, as far as the bucket knows. `producers` are those at
    the chain's end.
    """

    entry: CatalogEntry | None
    leader_epoch: int
    epochs: tuple[tuple[int, int], ...]
    producers: tuple[tuple[int, ProducerEntry], ...]


class ArchivedTopic(NamedTuple):
    """One row of `topics.json` with its partitions; those that cannot be read are missing from them."""

    row: TopicRow
    partitions: dict[int, ArchivedPartition]


class Archive(NamedTuple):
    """All topics; what could not be read, in words; and what tells which ids were given away.

    `last_producer_id` is the highest in the archive, -1 for none; `metadata` the newest snapshot of the
    cluster's metadata and its bytes, None where there is none that can be read.
    """

    topics: Sequence[ArchivedTopic]
    problems: Sequence[str]
    last_producer_id: int
    metadata: tuple[MetadataRef, bytes] | None


def read_archive(store: ObjectStore, cluster_id: str) -> Archive:
    """Everything below the prefix of this cluster.

    `ConfigError` when the prefix is another cluster's or says nothing of topics; `CorruptionError` when
    `topics.json` is damaged; `StorageError` when the store does not answer.
    """
    try:
        cluster = read_cluster(store)
    except ObjectNotFound as e:
        raise ConfigError("firn.remote.recover: there is nothing under firn.remote.url") from e
    if cluster.cluster_id != cluster_id:
        raise ConfigError(
            f"firn.remote.recover: the prefix belongs to cluster {cluster.cluster_id}, "
            f"this node's is {cluster_id} (firn.cluster.id)"
        )
    topics = read_topics(store)
    if topics is None:
        raise ConfigError("firn.remote.recover: there is no topics.json under firn.remote.url (firn repair)")
    found: list[ArchivedTopic] = []
    problems: list[str] = []
    last_producer_id = -1
    for row in topics.topics:
        partitions: dict[int, ArchivedPartition] = {}
        for number in range(row.partitions):
            try:
                partitions[number] = one = _partition(store, HeadKey(row.topic_id, number))
            except (CorruptionError, ObjectNotFound) as e:
                problems.append(f"{row.name}-{number}: {e}")
                continue
            last_producer_id = max([last_producer_id, *(producer_id for producer_id, _ in one.producers)])
        found.append(ArchivedTopic(row, partitions))
    metadata = None
    try:
        metadata = open_metadata(store)
    except (CorruptionError, ObjectNotFound) as e:
        problems.append(f"the metadata of the node that was lost: {e}")
    return Archive(found, problems, last_producer_id, metadata)


def _partition(store: ObjectStore, key: HeadKey) -> ArchivedPartition:
    chain = open_published(store, key)
    if chain is None:
        return ArchivedPartition(None, 0, (), ())
    manifest = chain.manifest
    epochs: dict[int, int] = {}
    last = None
    for last in live_segments(manifest, lambda ref: _page(store, ref, manifest)):
        for epoch, first_offset in last.leader_epochs:
            epochs.setdefault(epoch, first_offset)
    producers: tuple[tuple[int, ProducerEntry], ...] = ()
    if last is not None:
        footer = open_footer_of(store, last)
        snapshot = read_section(store, last.key, footer.sections["producer_snapshot"])
        producers = tuple(decode_snapshot(snapshot)) if snapshot else ()
    return ArchivedPartition(
        catalog_entry(chain),
        max([manifest.leader_epoch, *epochs]),
        tuple(sorted(epochs.items())),
        producers,
    )


def _page(store: ObjectStore, ref: PageRef, manifest: Manifest) -> Page:
    return open_page(store, ref, manifest)
