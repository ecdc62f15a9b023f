"""Write and read `topics.json`, shared by the whole cluster: for readers without a broker, and for recovery.

It is derived from the metadata, whose copy beside it takes precedence. The keeper overwrites it unless it is
of later metadata, by life and offset. Topics in it that have objects and that this node's metadata lacks stay
listed, apart from the others (`TopicsFile.foreign`), and hold up nothing. A damaged one is rewritten: the
HEADs in the bucket tell what it alone knew. Functions here block; they run on an offload thread or before the
loop starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.ancestors import Ancestor
from service.remote.format.keys import TOPICS_KEY, topic_prefix
from service.remote.format.manifest_codec import (
    MAX_TOPICS_BYTES,
    TopicsFile,
    TopicsFileRow,
    decode_topics,
    encode_topics,
)
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_topics
from service.remote.stores import conditional
from service.remote.stores.errors import (
    ObjectNotFound,
    StoreRefused,
    StoreUnavailable,
    naming,
    raise_of_the_store,
)
from service.remote.stores.store import ObjectStore, Tagged

log = logging.getLogger(__name__)


class TopicsSnapshot(NamedTuple):
    """Topics of the committed metadata image up to `metadata_offset`, in one life of the cluster.

    `rows` makes one row of each; it is called on an offload thread, because it takes long where there are
    many.
    """

    metadata_offset: int
    ids: Collection[UUID]
    rows: Callable[[], Sequence[TopicsFileRow]]
    life: int = 0


class TopicsComparison(NamedTuple):
    """Result of comparing `topics.json` with a snapshot.

    `refusal`: why it must not be overwritten, None where it may be; `damage`: why it cannot be read;
    `foreign`: its topics that have objects and that the snapshot lacks.
    """

    refusal: str | None = None
    damage: str | None = None
    foreign: tuple[TopicsFileRow, ...] = ()


class TopicsWrite(NamedTuple):
    """Result of writing `topics.json`: `etag` is the new object's, empty where the write was refused."""

    compared: TopicsComparison
    etag: str = ""


def write_topics(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    stamp: Stamp | None = None,
    deleted: Collection[UUID] = (),
    *,
    behind: str | None = None,
    is_conditional: bool = True,
    ancestors: Sequence[Ancestor] = (),
) -> TopicsWrite:
    """Replace `topics.json`, or return why not.

    `deleted` are topics that we know to be deleted, `ancestors` the clusters that this one was restored from.
    `behind`: why our metadata is older than the bucket's,
    which a damaged `topics.json` does not tell. Raises `StoreUnavailable` when another process wrote it at
    the same moment, or its bytes changed on the way: try again.
    """
    seen = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    compared = _compare(store, cluster_id, snapshot, deleted, seen, ancestors)
    if compared.damage is not None:
        compared = compared._replace(refusal=behind)
    if compared.refusal is not None:
        return TopicsWrite(compared)
    if compared.damage is not None:
        if conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES) != seen:
            raise StoreUnavailable(f"{TOPICS_KEY} has other bytes at each read: {compared.damage}")
        log.warning("topics.json is damaged (%s), rewriting it from the metadata", compared.damage)
    data = encode_topics(
        cluster_id,
        snapshot.metadata_offset,
        snapshot.rows(),
        stamp,
        life=snapshot.life,
        foreign=compared.foreign,
        ancestors=ancestors,
    )
    if not is_conditional:
        store.put(TOPICS_KEY, data)
    elif not conditional.write(store, TOPICS_KEY, data, seen):
        raise StoreUnavailable(f"{TOPICS_KEY} was written by another process at the same moment")
    return TopicsWrite(compared, etag_of_topics(store))


def etag_of_topics(store: ObjectStore) -> str:
    """Return a tag that identifies this `topics.json`; empty where there is none."""
    try:
        info = store.head(TOPICS_KEY)
    except ObjectNotFound:
        return ""
    return info.etag or f"{info.size} bytes of {info.last_modified_ms}"


def compare_topics(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    deleted: Collection[UUID],
    ancestors: Sequence[Ancestor] = (),
) -> TopicsComparison:
    """Return whether `snapshot` may replace `topics.json`, as `write_topics` decides it.

    A `topics.json` that the store refuses to read counts as damaged, and does not stop tiering.
    """
    try:
        seen = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    except StoreRefused as e:
        raise_of_the_store(e)
        return TopicsComparison(damage=str(e))
    return _compare(store, cluster_id, snapshot, deleted, seen, ancestors)


class StoredTopics:
    """Metadata position of `topics.json`, cached by etag. Called on an offload thread."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._etag = ""
        self._position = (-1, -1)

    def why_ahead(self, life: int, offset: int, ancestors: Sequence[Ancestor] = ()) -> str | None:
        """Return why `topics.json` is of other or later metadata than ours, which ends at `offset`; None
        where it is not. That of one of our `ancestors` is of another log, which ended before ours began.

        A damaged one gives None. It is read again only where its etag has changed.
        """
        try:
            etag = self._store.head(TOPICS_KEY).etag
            if not etag or etag != self._etag:
                stored = read_topics(self._store)
                if stored is None:
                    return None
                if _is_of(stored.cluster_id, ancestors):
                    return None
                if stored.cluster_id != self._cluster_id:
                    return f"topics.json is of cluster {stored.cluster_id}"
                self._etag, self._position = etag, (stored.life, stored.metadata_offset)
        except ObjectNotFound:
            return None
        except UnknownVersion as e:
            return f"topics.json: {e}"
        except CorruptionError:
            return None
        return _why_later(self._position, (life, offset))


def _is_of(cluster_id: str, ancestors: Sequence[Ancestor]) -> bool:
    return any(one.cluster_id == cluster_id for one in ancestors)


def _why_later(stored: tuple[int, int], ours: tuple[int, int]) -> str | None:
    """Return why `topics.json` is of later metadata than ours, each as (life, offset); None where it is
    not."""
    if stored <= ours:
        return None
    lives = "" if stored[0] == ours[0] else f" (lives {stored[0]} and {ours[0]} of the cluster)"
    return f"it is of metadata offset {stored[1]}, this node's metadata ends at {ours[1]}{lives}"


def _compare(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    deleted: Collection[UUID],
    seen: Tagged | None,
    ancestors: Sequence[Ancestor],
) -> TopicsComparison:
    if seen is None:
        return TopicsComparison()
    try:
        with naming(TOPICS_KEY):
            stored = decode_topics(seen.data)
    except UnknownVersion as e:
        return TopicsComparison(refusal=str(e))
    except CorruptionError as e:
        return TopicsComparison(damage=str(e))
    is_inherited = _is_of(stored.cluster_id, ancestors)
    if stored.cluster_id != cluster_id and not is_inherited:
        return TopicsComparison(refusal=f"it is of cluster {stored.cluster_id}")
    why = (
        None
        if is_inherited
        else _why_later((stored.life, stored.metadata_offset), (snapshot.life, snapshot.metadata_offset))
    )
    known = {*snapshot.ids, *deleted}
    lacking = [row for row in (*stored.topics, *stored.foreign) if row.topic_id not in known]
    if why is not None:
        named = ", ".join(f"{row.name} ({row.topic_id})" for row in lacking[:5])
        lacks = f" and lacks {len(lacking)} topics: {named}" if lacking else ""
        return TopicsComparison(refusal=f"{why}{lacks} (firn.remote.recover)")
    return TopicsComparison(foreign=tuple(row for row in lacking if _has_objects(store, row)))


def _has_objects(store: ObjectStore, row: TopicsFileRow) -> bool:
    """Return whether the topic has objects: one that was never tiered leaves neither a tombstone nor
    objects."""
    return next(iter(store.list(topic_prefix(row.topic_id))), None) is not None


def read_topics(store: ObjectStore) -> TopicsFile | None:
    """Return the stored `topics.json`, None where there is none. Raises `CorruptionError` when it is
    damaged."""
    try:
        return open_topics(store)
    except ObjectNotFound:
        return None
