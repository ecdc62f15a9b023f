"""`topics.json`, which the whole cluster shares: for readers without a broker, and for who restores it.

It names topics that nobody can find again otherwise, so a node writes over it only what it knows to be of its
own past: of later metadata, or with topics that this node knows nothing of, it stays as it is. So it does
where it is damaged, unless this process has found before that it names nothing else, and has been the writer
since.
Functions here block; they run on an offload thread or before the loop starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.keys import TOPICS_KEY, topic_prefix
from service.remote.format.manifest_codec import (
    MAX_TOPICS_BYTES,
    TopicRow,
    Topics,
    decode_topics,
    encode_topics,
)
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_topics
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable, naming
from service.remote.stores.store import ObjectStore, Tagged

log = logging.getLogger(__name__)


class TopicsSnapshot(NamedTuple):
    """The topics of the committed metadata image up to `metadata_offset`.

    `rows` makes one of each; it is called on an offload thread, for it takes a while where there are many.
    """

    metadata_offset: int
    ids: Collection[UUID]
    rows: Callable[[], Sequence[TopicRow]]


class Refusal(NamedTuple):
    """Why `topics.json` is left as it is; `is_behind` when our metadata is older than the bucket's."""

    why: str
    is_behind: bool
    is_damage: bool = False


def write_topics(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    stamp: Stamp | None = None,
    deleted: Collection[UUID] = (),
    *,
    is_conditional: bool = True,
    is_recovered: bool = False,
    is_ours: bool = False,
) -> Refusal | None:
    """Replace `topics.json`, or say why not; `deleted` are topics that we know to be deleted.

    `is_recovered`: our metadata took over what the bucket has, so its offsets are not those of ours.
    `is_ours`: nobody else has written it since this process last compared it: damage may be written over.

    `StoreUnavailable` when somebody else wrote it at the same moment: look again.
    """
    seen = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    refusal = _compare(store, cluster_id, snapshot, deleted, seen, is_recovered)
    if refusal is not None and refusal.is_damage and is_ours:
        log.warning("topics.json: %s; this process wrote it, and writes it again", refusal.why)
    elif refusal is not None:
        return refusal
    data = encode_topics(cluster_id, snapshot.metadata_offset, snapshot.rows(), stamp)
    if not is_conditional:
        store.put(TOPICS_KEY, data)
    elif not conditional.write(store, TOPICS_KEY, data, seen):
        raise StoreUnavailable(f"{TOPICS_KEY} was written by somebody else at the same moment")
    return None


def compare_topics(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    deleted: Collection[UUID],
    is_recovered: bool,
) -> Refusal | None:
    """Whether `topics.json` may be replaced by `snapshot`, as `write_topics` has it: None when it may."""
    seen = conditional.tagged_or_none(store, TOPICS_KEY, max_size=MAX_TOPICS_BYTES)
    return _compare(store, cluster_id, snapshot, deleted, seen, is_recovered)


class StoredTopics:
    """What `topics.json` says of the metadata that it was made of. Called on an offload thread."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._etag = ""
        self._offset = -1

    def why_ahead(self, offset: int) -> str | None:
        """Why our metadata, which ends at `offset`, is not that of whoever wrote it; None where it may be.

        One that is damaged says nothing. It is read again only where it is another.
        """
        try:
            etag = self._store.head(TOPICS_KEY).etag
            if not etag or etag != self._etag:
                stored = read_topics(self._store)
                if stored is None:
                    return None
                if stored.cluster_id != self._cluster_id:
                    return f"topics.json is of cluster {stored.cluster_id}"
                self._etag, self._offset = etag, stored.metadata_offset
        except ObjectNotFound:
            return None
        except UnknownVersion as e:
            return f"topics.json: {e}"
        except CorruptionError:
            return None
        if self._offset <= offset:
            return None
        return f"topics.json is of metadata offset {self._offset}, this node's metadata ends at {offset}"


def _compare(
    store: ObjectStore,
    cluster_id: str,
    snapshot: TopicsSnapshot,
    deleted: Collection[UUID],
    seen: Tagged | None,
    is_recovered: bool,
) -> Refusal | None:
    if seen is None:
        return None
    try:
        with naming(TOPICS_KEY):
            stored = decode_topics(seen.data)
    except UnknownVersion as e:
        return Refusal(str(e), is_behind=True)
    except CorruptionError as e:
        return Refusal(f"it is damaged: {e} (firn repair)", is_behind=False, is_damage=True)
    if stored.cluster_id != cluster_id:
        return Refusal(f"it is of cluster {stored.cluster_id}", is_behind=True)
    is_later = stored.metadata_offset > snapshot.metadata_offset and not is_recovered
    known = {*snapshot.ids, *deleted}
    lacking = [
        row for row in stored.topics if row.topic_id not in known and (is_later or _has_objects(store, row))
    ]
    if not lacking and not is_later:
        return None
    named = ", ".join(f"{row.name} ({row.topic_id})" for row in lacking[:5])
    if is_later:
        return Refusal(
            f"it is of metadata offset {stored.metadata_offset}, this node's metadata ends at "
            f"{snapshot.metadata_offset}" + (f" and lacks {len(lacking)} topics: {named}" if lacking else ""),
            is_behind=True,
        )
    return Refusal(
        f"it names {len(lacking)} topics that this node's metadata lacks: {named}", is_behind=False
    )


def _has_objects(store: ObjectStore, row: TopicRow) -> bool:
    """A topic that never was tiered leaves no tombstone when it is deleted, and nothing in the bucket."""
    return next(iter(store.list(topic_prefix(row.topic_id))), None) is not None


def read_topics(store: ObjectStore) -> Topics | None:
    """`topics.json` as it lies there, None where there is none. `CorruptionError` when it is damaged."""
    try:
        return open_topics(store)
    except ObjectNotFound:
        return None
