"""Topics that a recovery restores, from the metadata's copy, the archives and `topics.json`. [P]

The copy decides the topics, their ids, settings and partition counts, and which are deleted. Archives of
topics that it lacks belong to topics that were created later: they are restored with unknown settings.
`topics.json` is derived: it replaces a missing copy, but lacks settings of brokers and deletions, so no
topic's settings are certain then. Where it is newer than the copy, its rows override the copy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from service.metadata.controller.requests import ResourceType
from service.metadata.image import MetadataImage
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import TopicsFile, TopicsFileRow

if TYPE_CHECKING:  # a node without a bucket does not load the tiering code
    from service.tiering.recovery import ArchivedPartition, RecoveredArchive

_TIERED: Final = {"remote.storage.enable": "true"}
"""Known settings of a topic that only its archive has."""


class AdoptedPartition(NamedTuple):
    """Archive of a partition. `entry`: the bucket's, None without an archive; `leader_epoch`: the highest in
    it."""

    entry: CatalogEntry | None
    leader_epoch: int


class AdoptedTopic(NamedTuple):
    """Topic to restore; partitions that are missing from `partitions` have no archive.

    `settings_unknown`: it may have had other settings than these, so that nothing of it expires.
    """

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str]
    partitions: Mapping[int, AdoptedPartition]
    settings_unknown: bool = False


class TopicsFound(NamedTuple):
    """Topics with unique names and ids, and the refused ones, with their reasons."""

    topics: Sequence[AdoptedTopic]
    refused: Sequence[str]


def recovered_topics(
    copy: MetadataImage | None,
    listed: TopicsFile | None,
    archive: RecoveredArchive,
    deleted: Iterable[UUID] = (),
) -> TopicsFound:
    """Decide the topics to restore. `deleted`: topics that this node has deleted, beside those of the copy.

    Of two topics with one name, the one that the copy lacks was created later, after the other was deleted;
    of several of those, the one that `topics.json` lists, else the one that was written last.
    """
    dead = {*deleted, *(copy.tombstones if copy is not None else ())}
    partitions: dict[UUID, dict[int, ArchivedPartition]] = {}
    for (topic_id, number), one in archive.partitions.items():
        partitions.setdefault(topic_id, {})[number] = one
    rows = _rows(copy, listed)
    known = {} if copy is None else {topic_id: _of_copy(copy, topic_id) for topic_id in copy.topics_by_id}
    ids = dict.fromkeys((*known, *rows, *partitions))
    candidates: dict[str, list[tuple[tuple[bool, bool, int], AdoptedTopic]]] = {}
    refused: list[str] = []
    for topic_id in ids:
        if topic_id in dead:
            continue
        found, row = partitions.get(topic_id, {}), rows.get(topic_id)
        topic = _topic(topic_id, known.get(topic_id), row, found)
        if topic is None:
            refused.append(f"{topic_id}: no readable source has its name")
            continue
        written_ms = max((one.written_ms for one in found.values()), default=0)
        is_listed = row is not None and listed is not None and row in listed.topics
        rank = (copy is not None and topic_id not in known, is_listed, written_ms)
        candidates.setdefault(topic.name, []).append((rank, topic))
    topics: list[AdoptedTopic] = []
    for same_name in candidates.values():
        _, chosen = max(same_name, key=lambda one: (one[0], one[1].topic_id))
        topics.append(chosen)
        refused += [
            f"{topic.name} ({topic.topic_id}): its name now belongs to {chosen.topic_id}"
            for _, topic in same_name
            if topic is not chosen
        ]
    return TopicsFound(topics, refused)


def _rows(copy: MetadataImage | None, listed: TopicsFile | None) -> Mapping[UUID, TopicsFileRow]:
    """Return what `topics.json` adds to the copy: all where there is none, nothing where it is older."""
    if listed is None:
        return {}
    if copy is not None and (listed.life, listed.metadata_offset) <= (copy.life, copy.offset):
        return {}
    return {row.topic_id: row for row in listed.topics}


def _of_copy(copy: MetadataImage, topic_id: UUID) -> AdoptedTopic:
    topic = copy.topics_by_id[topic_id]
    state = copy.recovered.get(topic_id)
    return AdoptedTopic(
        topic.name,
        topic_id,
        max(topic.partitions, default=-1) + 1,
        copy.config(ResourceType.TOPIC, topic.name),
        {},
        state is not None and state.settings_unknown,
    )


def _topic(
    topic_id: UUID,
    known: AdoptedTopic | None,
    row: TopicsFileRow | None,
    found: Mapping[int, ArchivedPartition],
) -> AdoptedTopic | None:
    """Merge all sources of one topic; None where none has its name."""
    if known is None and row is None:
        names = [one.topic for one in found.values() if one.topic]
        if not names:
            return None
        known = AdoptedTopic(names[0], topic_id, 0, _TIERED, {}, settings_unknown=True)
    elif known is None and row is not None:
        known = AdoptedTopic(row.name, topic_id, row.partitions, row.configs, {}, settings_unknown=True)
    elif known is not None and row is not None and dict(row.configs) != dict(known.configs):
        known = known._replace(configs=row.configs, settings_unknown=True)
    assert known is not None
    count = max(known.partition_count, 0 if row is None else row.partitions, max(found, default=-1) + 1)
    partitions = {n: AdoptedPartition(one.entry, one.leader_epoch) for n, one in found.items()}
    return known._replace(partition_count=count, partitions=partitions)
