"""Survey of a bucket from its listing: sums by topic, day and storage class, and orphans. [P]

`Survey` gets the listing in the order of its keys. At the end of a partition's keys it yields them
(`PartitionObjects`) to be compared with the published manifest, which names the live ones; `judged` gets the
result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from service.console.web.costs import DAY_MS, USUAL_CLASS, write_requests
from service.console.web.cuts import CutsShown
from service.console.web.object_sizes import ObjectSizes
from service.remote.format.keys import (
    PageKey,
    PartitionKey,
    SegmentKey,
    parse_key,
)

MOST_KEYS: Final = 200_000
"""Most keys of one partition; a partition with more is counted, but not checked for orphans."""
MOST_ORPHANS: Final = 100
DAYS: Final = 14
STANDARD: Final = USUAL_CLASS


class ListedObject(NamedTuple):
    """One object of the listing. `kind` is its storage class."""

    key: str
    size: int
    modified_ms: int
    kind: str = STANDARD


class ExpiredOrphan(NamedTuple):
    """An object that no published manifest names and that is too old to belong to an upload under way."""

    key: str
    size: int
    modified_ms: int


@dataclass(slots=True)
class PartitionObjects:
    """Segments and pages of one partition, to compare with its manifest."""

    topic_id: UUID
    partition: int
    objects: dict[str, ListedObject] = field(default_factory=dict)
    overflow: bool = False


@dataclass(slots=True)
class TopicSum:
    """Sums of one topic. `by_class`: bytes by storage class; days count from the epoch."""

    topic_id: str
    name: str | None
    partitions: int = 0
    segments: int = 0
    segment_bytes: int = 0
    other_objects: int = 0
    other_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    writes_by_day: Counter[int] = field(default_factory=Counter)
    bytes_by_day: Counter[int] = field(default_factory=Counter)
    oldest_ms: int | None = None
    newest_ms: int | None = None

    @property
    def objects(self) -> int:
        return self.segments + self.other_objects

    @property
    def size(self) -> int:
        return self.segment_bytes + self.other_bytes


@dataclass(slots=True)
class Findings:
    """Sums of the whole bucket. `requests`: requests of the survey itself."""

    at_ms: int
    topics: dict[str, TopicSum] = field(default_factory=dict)
    foreign_objects: int = 0
    foreign_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    orphans: list[ExpiredOrphan] = field(default_factory=list)
    orphan_count: int = 0
    orphan_bytes: int = 0
    young_count: int = 0
    problems: list[str] = field(default_factory=list)
    listed: int = 0
    requests: int = 0
    took_ms: int = 0
    is_whole: bool = True
    sizes: ObjectSizes = field(default_factory=ObjectSizes)
    cuts: CutsShown | None = None
    """None where no cut was ever taken"""

    @property
    def objects(self) -> int:
        return self.listed

    @property
    def size(self) -> int:
        return sum(self.by_class.values())


class Survey:
    """One pass over a listing. `names`: those of live topics by id; `grace_ms`: least age of an orphan."""

    def __init__(self, names: dict[UUID, str], now_ms: int, grace_ms: int) -> None:
        self.findings = Findings(now_ms)
        self._names = names
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._group: PartitionObjects | None = None

    def add(self, objects: Iterable[ListedObject]) -> Iterator[PartitionObjects]:
        """Add the next objects of a listing by key; yield the objects of each partition once another one
        begins."""
        for one in objects:
            done = self._add(one)
            if done is not None:
                yield done

    def end(self) -> PartitionObjects | None:
        """End the listing: return the objects of its last partition, None where it had none since the last
        group that `add` yielded."""
        group, self._group = self._group, None
        return group

    def _add(self, one: ListedObject) -> PartitionObjects | None:
        found = self.findings
        found.listed += 1
        found.by_class[one.kind] += one.size
        parsed = parse_key(one.key)
        if isinstance(parsed, PartitionKey):
            return self._of_partition(parsed, one)
        if parsed is None:
            found.foreign_objects += 1
            found.foreign_bytes += one.size
        return None

    def _of_partition(self, parsed: PartitionKey, one: ListedObject) -> PartitionObjects | None:
        done, group = None, self._group
        topic = self._topic(parsed.topic_id)
        if group is None or (group.topic_id, group.partition) != (parsed.topic_id, parsed.partition):
            done, group = group, PartitionObjects(parsed.topic_id, parsed.partition)
            self._group = group
            topic.partitions += 1
        _count(topic, parsed, one)
        if isinstance(parsed, SegmentKey | PageKey):
            if len(group.objects) < MOST_KEYS:
                group.objects[one.key] = one
            else:
                group.overflow = True
        return done

    def _topic(self, topic_id: UUID) -> TopicSum:
        found = self.findings.topics.get(str(topic_id))
        if found is None:
            found = TopicSum(str(topic_id), self._names.get(topic_id))
            self.findings.topics[str(topic_id)] = found
        return found

    def judged(self, group: PartitionObjects, live: set[str]) -> None:
        """Count the objects of `group` that are not in `live` as orphans, unless they are young."""
        found = self.findings
        # Keys of segments rise with their offsets.
        found.sizes.add_chain(
            one.size
            for key, one in group.objects.items()
            if key in live and isinstance(parse_key(key), SegmentKey)
        )
        for key, one in group.objects.items():
            if key in live:
                continue
            if self._now_ms - one.modified_ms < self._grace_ms:
                found.young_count += 1
                continue
            found.orphan_count += 1
            found.orphan_bytes += one.size
            if len(found.orphans) < MOST_ORPHANS:
                found.orphans.append(ExpiredOrphan(key, one.size, one.modified_ms))


def _count(topic: TopicSum, parsed: PartitionKey, one: ListedObject) -> None:
    if isinstance(parsed, SegmentKey):
        topic.segments += 1
        topic.segment_bytes += one.size
    else:
        topic.other_objects += 1
        topic.other_bytes += one.size
    topic.by_class[one.kind] += one.size
    day = one.modified_ms // DAY_MS
    topic.writes_by_day[day] += write_requests(one.size)
    topic.bytes_by_day[day] += one.size
    topic.oldest_ms = one.modified_ms if topic.oldest_ms is None else min(topic.oldest_ms, one.modified_ms)
    topic.newest_ms = one.modified_ms if topic.newest_ms is None else max(topic.newest_ms, one.modified_ms)


class Day(NamedTuple):
    """One day of the present objects: those written on it, and bytes held at its end."""

    day: int
    writes: int
    added: int
    held: int


def by_day(topics: Iterable[TopicSum], now_ms: int, days: int = DAYS) -> list[Day]:
    """Return the last `days` days, the newest first. Objects deleted since are not in the sums."""
    writes: Counter[int] = Counter()
    added: Counter[int] = Counter()
    for topic in topics:
        writes.update(topic.writes_by_day)
        added.update(topic.bytes_by_day)
    today = now_ms // DAY_MS
    held = sum(bytes_ for day, bytes_ in added.items() if day <= today)
    found = []
    for day in range(today, today - days, -1):
        found.append(Day(day, writes[day], added[day], held))
        held -= added[day]
    return found
