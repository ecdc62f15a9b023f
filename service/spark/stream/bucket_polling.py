"""What a stream sees of the bucket, and how often it looks there.

One look serves whatever Spark asks during a trigger, and during those that follow until ``refreshInterval``
is over. What brokers tell of the ends of their logs is asked each time: they are there for what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from service.base.clock import Clock
from service.base.errors import ConfigError
from service.spark.options import Assign, Choice, Subscribe
from service.spark.plan.archive import Archive
from service.spark.plan.snapshots import ChosenPartition, PartitionSnapshot
from service.spark.stream.offsets import Offsets, Spot, Topic
from service.spark.stream.options import MAX_INTERVAL_MS

Snapshots = Mapping[Spot, PartitionSnapshot]


@dataclass(frozen=True, slots=True)
class Look:
    """What was there at `at_ms`. `missing` says what of the choice was not, by what the user called it."""

    at_ms: int
    cluster_id: str
    topics: Mapping[str, Topic]
    snapshots: Snapshots
    missing: Mapping[str, ConfigError]

    def reaches(self, ends: Offsets, topics: Mapping[str, Topic]) -> bool:
        """Whether all partitions of these topics go that far."""
        return all(
            (snapshot := self.snapshots.get(spot)) is not None
            and snapshot.end_offset >= end
            and topics.get(spot[0]) in (None, self.topics[spot[0]])
            for spot, end in ends.items()
        )


class Looks:
    """The newest look of one stream. Owned by the thread that Spark calls the stream on."""

    def __init__(self, choice: Choice, interval_ms: int, clock: Clock) -> None:
        self._choice = choice
        self._interval_ms = interval_ms
        self._clock = clock
        self.newest: Look | None = None

    def fresh(self, archive: Archive) -> Look:
        """As it is now."""
        # Not while the next one is made: the manifests of both might not fit.
        self.newest = None
        at_ms = self._clock.monotonic_ms()
        cluster_id = archive.cluster_id()
        chosen, missing = _chosen(archive, self._choice)
        archive.forget_others(chosen)
        snapshots = {_spot(one.chosen): one for one in archive.snapshots(chosen)}
        topics = {one.asked: Topic(one.topic_id, one.topic) for one in chosen}
        self.newest = Look(at_ms, cluster_id, topics, snapshots, missing)
        return self.newest

    def latest(self, archive: Archive) -> Look:
        """Of the bucket not older than the interval, of brokers as it is now."""
        look = self.newest
        if look is None or self._age_ms(look) >= self._interval_ms:
            return self.fresh(archive)
        renewed = archive.renewed(list(look.snapshots.values()))
        self.newest = replace(look, snapshots={_spot(one.chosen): one for one in renewed})
        return self.newest

    def reaching(self, archive: Archive, ends: Offsets, topics: Mapping[str, Topic]) -> Look:
        """One to plan a batch with that ends there: what `latest` gave, if there was any and it will do."""
        look = self.newest
        if look is not None and self._age_ms(look) <= MAX_INTERVAL_MS and look.reaches(ends, topics):
            return look
        return self.fresh(archive)

    def _age_ms(self, look: Look) -> int:
        return self._clock.monotonic_ms() - look.at_ms


def _chosen(archive: Archive, choice: Choice) -> tuple[list[ChosenPartition], dict[str, ConfigError]]:
    """What there is of the choice, each partition once, and why the rest is not there."""
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
    """The same choice, by what can be missing of it."""
    if isinstance(choice, Subscribe):
        yield from ((topic, Subscribe((topic,))) for topic in choice.topics)
    elif isinstance(choice, Assign):
        for topic, partitions in choice.partitions.items():
            yield from ((topic, Assign({topic: (partition,)})) for partition in partitions)
    else:
        yield choice.pattern, choice


def _spot(chosen: ChosenPartition) -> Spot:
    return chosen.asked, chosen.partition
