"""The committed state read from the bucket alone, topics and catalog entries: for offline tools.

The newest copy of the metadata tells live and deleted topics, and the manifest of each partition. It lags by
up to an hour, so the bucket may have newer objects: for a partition the newer of HEAD and copy counts, for a
topic `topics.json` where it is of later metadata, and the store's own clock for topics that neither names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.metadata.bucket_copy import MetadataCopy, newest_copy
from service.metadata.controller.requests import ResourceType
from service.metadata.image import TopicImage
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import TOPICS_KEY, HeadKey
from service.remote.format.manifest_codec import TopicsFile, TopicsFileRow
from service.remote.reading.object_reader import open_topics
from service.remote.stores.errors import ObjectNotFound, StoreRefused, raise_of_the_store
from service.remote.stores.store import ObjectStore

_NEVER: Final = -1


class TopicState(Enum):
    """State of a topic id."""

    LIVE = "live"
    DELETED = "deleted"
    """by the committed metadata"""
    MADE_SINCE = "made since"
    """it is not in the newest copy, and has newer objects"""
    UNKNOWN = "unknown"
    """the newest copy has it neither as live nor as deleted, and its last record is newer than its objects"""


class Committed(NamedTuple):
    """The newest copy of the metadata and `topics.json`, each None where it cannot be read.

    `topics_wrong` says why `topics.json` cannot be read, None where it can; `topics_ms` is when the store got
    it. `copy_problems` are those of unreadable copies; `later` says why the readable state may be out of
    date, or another cluster's: a later version of Firn, or two recoveries of one bucket, have written copies.
    """

    copy: MetadataCopy | None
    copy_problems: tuple[str, ...]
    later: str | None
    topics: TopicsFile | None
    topics_wrong: str | None
    topics_ms: int

    @property
    def are_topics_newer(self) -> bool:
        """True if `topics.json` is of later metadata than the copy.

        Offsets of different lives are not comparable; times of the store are.
        """
        copy, topics = self.copy, self.topics
        if copy is None or topics is None:
            return topics is not None
        theirs = (topics.life, topics.metadata_offset + 1)
        return self.topics_ms >= copy.stored_ms and theirs >= (copy.ref.life, copy.ref.end_offset)

    @property
    def are_topics_behind(self) -> bool:
        """True if the copy was stored after `topics.json`, which a prefix owner rewrites a moment later.

        The times of some stores are whole seconds. A `topics.json` that was put back is stored after the
        copy.
        """
        return self.copy is not None and self.topics_ms <= self.copy.stored_ms

    def live(self) -> dict[UUID, str]:
        """Return the names of live topics by id: those of the copy not deleted since, and newer ones."""
        found: dict[UUID, str] = {}
        if self.copy is not None and not self.are_topics_newer:
            found = {topic_id: topic.name for topic_id, topic in self.copy.image.topics_by_id.items()}
        for row in self.topics.topics if self.topics is not None else ():
            if self.copy is None or row.topic_id not in self.copy.image.tombstones:
                found.setdefault(row.topic_id, row.name)
        return found

    def ever_live(self) -> dict[UUID, str]:
        """Return `live`, and the copy's topics that `topics.json` lacks: nothing of these may be deleted."""
        found = self.live()
        if self.copy is not None:
            for topic_id, topic in self.copy.image.topics_by_id.items():
                found.setdefault(topic_id, topic.name)
        return found

    def state(self, topic_id: UUID, newest_ms: int) -> TopicState:
        """Return the topic's state; `newest_ms` is when the store got the newest of its objects."""
        if self.copy is not None and topic_id in self.copy.image.tombstones:
            return TopicState.DELETED
        if topic_id in self.ever_live():
            return TopicState.LIVE
        if self.copy is None or newest_ms >= self.copy.as_of_ms:
            return TopicState.MADE_SINCE
        return TopicState.UNKNOWN

    def entry(self, key: HeadKey) -> CatalogEntry | None:
        """Return the copy's catalog entry of a partition."""
        return self.copy.image.remote.get(key) if self.copy is not None else None

    def archived(self) -> Iterator[tuple[HeadKey, CatalogEntry]]:
        """Yield the partitions, of live topics, that have an archive by the copy."""
        if self.copy is None:
            return
        live = self.live()
        for key, entry in sorted(self.copy.image.remote.items()):
            if key[0] in live and not entry.is_given_up:
                yield HeadKey(*key), entry

    def rows(self) -> tuple[TopicsFileRow, ...]:
        """Return all topics of the copy as rows of `topics.json`."""
        if self.copy is None:
            return ()
        topics = self.copy.image.topics_by_id.values()
        return tuple(_row(self.copy, topic) for topic in topics)

    def topics_problems(self) -> list[str]:
        """Return where `topics.json` contradicts newer metadata, about topics that have an archive."""
        if self.copy is None or self.topics is None or self.are_topics_newer:
            return []
        listed: Mapping[UUID, TopicsFileRow] = {row.topic_id: row for row in self.topics.topics}
        archived = {key.topic_id for key, _ in self.archived()}
        problems = []
        for row in sorted(self.rows()):
            if row.topic_id not in archived:
                continue
            found = listed.get(row.topic_id)
            named = f"{row.name} ({row.topic_id})"
            if found is None:
                problems.append(f"does not name {named}")
            elif found.name != row.name:
                problems.append(f"calls {named} {found.name}")
            elif found.partitions < row.partitions:
                problems.append(f"has {found.partitions} of {row.partitions} partitions of {named}")
            elif found.configs != row.configs:
                problems.append(f"has other settings of {named}")
        problems += [
            f"names {row.name} ({row.topic_id}), which was deleted"
            for row in self.topics.topics
            if row.topic_id in self.copy.image.tombstones
        ]
        return problems


def describe_entry(entry: CatalogEntry) -> str:
    """Describe the entry of a partition in the copy of the metadata."""
    span = f"offsets {entry.start_offset} to {entry.end_offset - 1}" if entry.segments else "no segments"
    return f"the copy of the metadata has version {entry.version} ({entry.manifest_key}), {span}"


def _row(copy: MetadataCopy, topic: TopicImage) -> TopicsFileRow:
    configs = dict(copy.image.config(int(ResourceType.TOPIC), topic.name))
    recovered = copy.image.recovered.get(topic.id)
    is_unknown = recovered is not None and recovered.settings_unknown
    return TopicsFileRow(topic.name, topic.id, len(topic.partitions), configs, is_unknown)


def read_committed(store: ObjectStore) -> Committed:
    """Read the copy, then `topics.json`: the bucket is then not older than the copy, except by one commit.

    Raises the store's error when it does not answer, or refuses a copy that may be the newest.
    """
    copy: MetadataCopy | None = None
    problems: tuple[str, ...] = ()
    later: str | None = None
    try:
        found = newest_copy(store)
        copy, problems = found.copy, found.problems
        if found.rival is not None:
            later, copy, problems = found.rival, None, (*problems, found.rival)
    except UnknownVersion as e:
        later, problems = str(e), (str(e),)
    topics: TopicsFile | None = None
    wrong: str | None = None
    stored_ms = _NEVER
    try:
        stored_ms = store.head(TOPICS_KEY).last_modified_ms
        topics = open_topics(store)
    except ObjectNotFound:
        wrong = "it is not there"
    except CorruptionError as e:
        wrong = str(e)
    except StoreRefused as e:
        raise_of_the_store(e)
        wrong = f"it cannot be read: {e}"
    return Committed(copy, problems, later, topics, wrong, stored_ms)
