"""Polls of the bucket by a stream, at most one per ``refreshInterval``.

One view of the bucket serves all of Spark's calls during a trigger, and during the following ones until
``refreshInterval`` is over. Brokers are asked for the ends of their logs each time: new records are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from service.base.clock import Clock
from service.base.errors import ConfigError
from service.spark.options import Assign, Choice, Subscribe
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.snapshots import ChosenPartition, PartitionSnapshot
from service.spark.stream.offsets import Offsets, Spot, TopicIdentity
from service.spark.stream.options import MAX_INTERVAL_MS

Snapshots = Mapping[Spot, PartitionSnapshot]


@dataclass(frozen=True, slots=True)
class BucketView:
    """The chosen partitions in the bucket at `at_ms`.

    `missing` has an error for each chosen topic that was absent, by the user's name of it.
    """

    at_ms: int
    cluster_id: str
    topics: Mapping[str, TopicIdentity]
    snapshots: Snapshots
    missing: Mapping[str, ConfigError]

    def reaches(self, ends: Offsets, topics: Mapping[str, TopicIdentity]) -> bool:
        """Return whether the view has these offsets: all partitions, of these topics, up to these ends."""
        return all(
            (snapshot := self.snapshots.get(spot)) is not None
            and snapshot.end_offset >= end
            and topics.get(spot[0]) in (None, self.topics[spot[0]])
            for spot, end in ends.items()
        )


class BucketPoller:
    """The newest view of one stream. Owned by the thread on which Spark calls the stream."""

    def __init__(self, choice: Choice, interval_ms: int, clock: Clock) -> None:
        self._choice = choice
        self._interval_ms = interval_ms
        self._clock = clock
        self.newest: BucketView | None = None

    def poll(self, archive: ArchiveReader) -> BucketView:
        """Read the bucket and return the new view."""
        # The old view is dropped first: the manifests of both might not fit into memory.
        self.newest = None
        at_ms = self._clock.monotonic_ms()
        cluster_id = archive.cluster_id()
        chosen, missing = _chosen(archive, self._choice)
        archive.forget_others(chosen)
        snapshots = {_spot(one.chosen): one for one in archive.snapshots(chosen)}
        topics = {one.asked: TopicIdentity(one.topic_id, one.topic) for one in chosen}
        self.newest = BucketView(at_ms, cluster_id, topics, snapshots, missing)
        return self.newest

    def latest(self, archive: ArchiveReader) -> BucketView:
        """Return a view of the bucket not older than the interval, with the current ends of brokers' logs."""
        view = self.newest
        if view is None or self._age_ms(view) >= self._interval_ms:
            return self.poll(archive)
        renewed = archive.renewed(list(view.snapshots.values()))
        self.newest = replace(view, snapshots={_spot(one.chosen): one for one in renewed})
        return self.newest

    def reaching(
        self, archive: ArchiveReader, ends: Offsets, topics: Mapping[str, TopicIdentity]
    ) -> BucketView:
        """Return a view to plan a batch that ends there: the newest one, if it reaches that far."""
        view = self.newest
        if view is not None and self._age_ms(view) <= MAX_INTERVAL_MS and view.reaches(ends, topics):
            return view
        return self.poll(archive)

    def _age_ms(self, view: BucketView) -> int:
        return self._clock.monotonic_ms() - view.at_ms


def _chosen(archive: ArchiveReader, choice: Choice) -> tuple[list[ChosenPartition], dict[str, ConfigError]]:
    """Return the existing partitions of the choice, each once, and an error for each topic that is absent."""
    found: dict[tuple[object, int], ChosenPartition] = {}
    missing: dict[str, ConfigError] = {}
    for name, part in _parts(choice):
        try:
            for one in archive.choose(part):
                found[one.topic_id, one.partition] = one
        except ConfigError as e:
            missing.setdefault(name, e)
    return list(found.values()), missing


def _parts(choice: Choice) -> Iterator[tuple[str, Choice]]:
    """Split the choice into parts that can be absent one by one."""
    if isinstance(choice, Subscribe):
        yield from ((topic, Subscribe((topic,))) for topic in choice.topics)
    elif isinstance(choice, Assign):
        for topic, partitions in choice.partitions.items():
            yield from ((topic, Assign({topic: (partition,)})) for partition in partitions)
    else:
        yield choice.pattern, choice


def _spot(chosen: ChosenPartition) -> Spot:
    return chosen.asked, chosen.partition
