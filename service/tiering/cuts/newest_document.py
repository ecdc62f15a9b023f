"""Read what the newest cut says of each partition, as a broker does that begins to lead some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from service.remote.format.cut_codec import PartitionCut
from service.remote.format.keys import CutKey, TailKey, parse_key
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore


class NewestDocument(NamedTuple):
    """Rows of the newest cut by topic, and the id of its document; None and no rows where there is none.

    `high_tails`: the most tails of level 1 or higher that one node has in it.
    """

    id: UUID | None
    topics: Mapping[UUID, tuple[PartitionCut, ...]]
    high_tails: int = 0

    def row(self, topic_id: UUID, partition: int) -> PartitionCut | None:
        """Return the row of a partition; None where the cut has none."""
        rows = self.topics.get(topic_id, ())
        return rows[partition] if partition < len(rows) else None


NO_DOCUMENT = NewestDocument(None, {})


def read_newest(store: ObjectStore, cluster_id: str) -> NewestDocument:
    """Return the newest cut's document, by two GETs. Blocks. That of an ancestor has no rows: the log of a
    restored partition is another, with the same leader epochs (`replicas/tail_loading.py`).

    Raises `CorruptionError` where `CUT` or the document is damaged, or `CUT` is another cluster's;
    `StorageError` where the store does not answer.
    """
    try:
        ref = open_cuts(store, (cluster_id,)).newest
    except ObjectNotFound:
        return NO_DOCUMENT
    cut = open_named_cut(store, ref)
    parsed = parse_key(ref.key)
    assert isinstance(parsed, CutKey)  # as `decode_cuts` has checked
    keys = (parse_key(tail.key) for tail in cut.tails)
    nodes = Counter(key.node_id for key in keys if isinstance(key, TailKey) and key.level)
    topics = cut.topics if cut.cluster_id == cluster_id else {}
    return NewestDocument(parsed.uuid, topics, max(nodes.values(), default=0))
