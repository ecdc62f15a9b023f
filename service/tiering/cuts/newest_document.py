"""Read what the newest cut says of each partition, as a broker does that begins to lead some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from service.remote.format.cut_codec import PartitionCut
from service.remote.format.keys import CutKey, parse_key
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore


class NewestDocument(NamedTuple):
    """Rows of the newest cut by topic, and the id of its document; None and no rows where there is none."""

    id: UUID | None
    topics: Mapping[UUID, tuple[PartitionCut, ...]]

    def row(self, topic_id: UUID, partition: int) -> PartitionCut | None:
        """Return the row of a partition; None where the cut has none."""
        rows = self.topics.get(topic_id, ())
        return rows[partition] if partition < len(rows) else None


NO_DOCUMENT = NewestDocument(None, {})


def read_newest(store: ObjectStore, cluster_id: str) -> NewestDocument:
    """Return the newest cut's document, by two GETs. Blocks.

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
    return NewestDocument(parsed.uuid, cut.topics)
