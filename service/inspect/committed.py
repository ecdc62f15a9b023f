"""The committed state as the bucket alone tells it, topics and catalog entries: for offline tools.

The newest copy of the metadata says which topics live, which were deleted, and which manifest each partition
had. It lags by up to an hour, so what the bucket has besides may have been made since: of a partition the
newer of HEAD and copy decides, of a topic `topics.json` where that is of later metadata, and the store's own
clock for what neither names.
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


class Standing(Enum):
    """Whether a topic lives, by its id."""

    LIVE = "live"
    DELETED = "deleted"
    """committed metadata says so"""
    MADE_SINCE = "made since"
    """not in the newest copy, and it has objects that are newer"""
    UNKNOWN = "unknown"
    """the newest copy knows it neither as live nor as deleted, and its last record is newer than all of it"""


class Committed(NamedTuple):
    """The newest copy of the metadata and `topics.json`, each None where it cannot be read.

    `topics_wrong` says why `topics.json` cannot be read, None where it is whole; `topics_ms` is when the
    store got it. `copy_problems` are of copies that cannot be read; `later` says why what
    can be read may be out of date, or another cluster's: a later version of Firn has written one, or two
    recoveries of one bucket have.
    """

    copy: MetadataCopy | None
    copy_problems: tuple[str, ...]
    later: str | None
    topics: TopicsFile | None
    topics_wrong: str | None
    topics_ms: int

    @property
    def are_topics_newer(self) -> bool:
        """Whether `topics.json` is of later metadata than the copy.

        Offsets of different lives are not comparable, and times of the store are.
        """
        copy, topics = self.copy, self.topics
        if copy is None or topics is None:
            return topics is not None
        theirs = (topics.life, topics.metadata_offset + 1)
        return self.topics_ms >= copy.stored_ms and theirs >= (copy.ref.life, copy.ref.end_offset)

    @property
    def are_topics_behind(self) -> bool:
        """Whether the copy was stored after `topics.json`, which a keeper writes again a moment later; the
        times of some stores are whole seconds. One that was put back is stored after the copy."""
        return self.copy is not None and self.topics_ms <= self.copy.stored_ms

    def live(self) -> dict[UUID, str]:
        """Names of topics that live, by id: those of the copy that were not deleted since, and newer ones."""
        found: dict[UUID, str] = {}
        if self.copy is not None and not self.are_topics_newer:
            found = {topic_id: topic.name for topic_id, topic in self.copy.image.topics_by_id.items()}
        for row in self.topics.topics if self.topics is not None else ():
            if self.copy is None or row.topic_id not in self.copy.image.tombstones:
                found.setdefault(row.topic_id, row.name)
        return found

    def ever_live(self) -> dict[UUID, str]:
        """As `live`, with topics of the copy that `topics.json` has no more: for who deletes."""
        found = self.live()
        if self.copy is not None:
            for topic_id, topic in self.copy.image.topics_by_id.items():
                found.setdefault(topic_id, topic.name)
        return found

    def standing(self, topic_id: UUID, newest_ms: int) -> Standing:
        """Whether the topic lives; `newest_ms` is when the store got the newest of its objects."""
        if self.copy is not None and topic_id in self.copy.image.tombstones:
            return Standing.DELETED
        if topic_id in self.ever_live():
            return Standing.LIVE
        if self.copy is None or newest_ms >= self.copy.as_of_ms:
            return Standing.MADE_SINCE
        return Standing.UNKNOWN

    def entry(self, key: HeadKey) -> CatalogEntry | None:
        """What the copy has of a partition."""
        return self.copy.image.remote.get(key) if self.copy is not None else None

    def archived(self) -> Iterator[tuple[HeadKey, CatalogEntry]]:
        """Partitions that the copy has in the bucket, of topics that live."""
        if self.copy is None:
            return
        live = self.live()
        for key, entry in sorted(self.copy.image.remote.items()):
            if key[0] in live and not entry.is_given_up:
                yield HeadKey(*key), entry

    def rows(self) -> tuple[TopicsFileRow, ...]:
        """All topics of the copy as `topics.json` lists them."""
        if self.copy is None:
            return ()
        topics = self.copy.image.topics_by_id.values()
        return tuple(_row(self.copy, topic) for topic in topics)

    def topics_problems(self) -> list[str]:
        """What `topics.json` says otherwise than newer metadata does, of topics that have an archive."""
        if self.copy is None or self.topics is None or self.are_topics_newer:
            return []
        told: Mapping[UUID, TopicsFileRow] = {row.topic_id: row for row in self.topics.topics}
        archived = {key.topic_id for key, _ in self.archived()}
        problems = []
        for row in sorted(self.rows()):
            if row.topic_id not in archived:
                continue
            found = told.get(row.topic_id)
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


def has_words(entry: CatalogEntry) -> str:
    """What the copy of the metadata has of a partition."""
    span = f"offsets {entry.start_offset} to {entry.end_offset - 1}" if entry.segments else "no segments"
    return f"the copy of the metadata has version {entry.version} ({entry.manifest_key}), {span}"


def _row(copy: MetadataCopy, topic: TopicImage) -> TopicsFileRow:
    configs = dict(copy.image.config(int(ResourceType.TOPIC), topic.name))
    recovered = copy.image.recovered.get(topic.id)
    is_unknown = recovered is not None and recovered.settings_unknown
    return TopicsFileRow(topic.name, topic.id, len(topic.partitions), configs, is_unknown)


def read_committed(store: ObjectStore) -> Committed:
    """Read both, the copy first: what is in the bucket then is not older than it, but for one commit.

    Raises what the store raises when it does not answer, or refuses a copy that may be the newest.
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
