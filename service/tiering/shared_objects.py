"""The two objects that a whole cluster shares: `cluster.json`, which claims the prefix, and `topics.json`.

Functions here block; they run on an offload thread or before the loop starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from service.base.errors import ConfigError
from service.remote.format.keys import CLUSTER_KEY, TOPICS_KEY
from service.remote.format.manifest_codec import ClusterFile, TopicRow, Topics, encode_cluster, encode_topics
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_cluster, open_topics
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore


class TopicsSnapshot(NamedTuple):
    """The topics of the committed metadata image up to `metadata_offset`."""

    metadata_offset: int
    topics: Sequence[TopicRow]

    @property
    def ids(self) -> frozenset[UUID]:
        return frozenset(topic.topic_id for topic in self.topics)


def claim_prefix(store: ObjectStore, cluster_id: str, stamp: Stamp | None = None) -> None:
    """Make the prefix this cluster's, or find that it is.

    `ConfigError` when it belongs to another cluster; `CorruptionError` when its layout is one that we do
    not know; `StorageError` when the store does not answer. Two clusters that claim an empty prefix at
    once cannot both win.
    """
    if store.put_if_absent(CLUSTER_KEY, encode_cluster(ClusterFile(cluster_id, stamp))):
        return
    owner = open_cluster(store)
    if owner != cluster_id:
        raise ConfigError(
            f"firn.remote.url: the prefix belongs to cluster {owner}, this node's is {cluster_id}; "
            f"give each cluster a prefix of its own"
        )


def write_topics(
    store: ObjectStore, cluster_id: str, snapshot: TopicsSnapshot, stamp: Stamp | None = None
) -> None:
    """Replace `topics.json`."""
    store.put(TOPICS_KEY, encode_topics(cluster_id, snapshot.metadata_offset, snapshot.topics, stamp))


def read_topics(store: ObjectStore) -> Topics | None:
    """`topics.json` as it lies there, None where there is none."""
    try:
        return open_topics(store)
    except ObjectNotFound:
        return None
