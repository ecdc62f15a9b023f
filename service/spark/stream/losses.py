"""Differences between what a stream has read and what there is now, as messages. [P]

Messages use the topics' names, whatever the user called them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from service.spark.stream.offsets import Offsets, Spot, StreamPosition, TopicIdentity

if TYPE_CHECKING:
    from service.spark.plan.snapshots import PartitionSnapshot

_NAMED: Final = 5
"""Number of partitions that a message names; it counts the others."""


class Loss(NamedTuple):
    """A loss, and how the stream continues where losses are allowed."""

    what: str
    then: str = "reads on with what there is"

    def __str__(self) -> str:
        return f"{self.what} (failOnDataLoss=false {self.then})"


def other_topics(before: Mapping[str, TopicIdentity], now: Mapping[str, TopicIdentity]) -> set[str]:
    """Return the topics that have another identity now, by the user's names of them."""
    return {asked for asked, topic in before.items() if now.get(asked, topic) != topic}


def is_another_cluster(before: StreamPosition, now: StreamPosition) -> bool:
    """Return whether the archive is known to be of another cluster now."""
    return None not in (before.cluster_id, now.cluster_id) and before.cluster_id != now.cluster_id


def replacements(
    before: StreamPosition, now: StreamPosition, ancestors: Collection[str] = ()
) -> Iterator[Loss]:
    """Yield a loss for the cluster, and for each topic, that has another identity now.

    `ancestors`: the clusters that the one of now was restored from: what was read of them is its own.
    """
    if is_another_cluster(before, now) and before.cluster_id not in ancestors:
        yield Loss(
            f"the archive is one of cluster {now.cluster_id} now, and the stream has read that of cluster "
            f"{before.cluster_id}: {_some(sorted(topic.name for topic in before.topics.values()))}",
            "continues in topics that have the same ids",
        )
    for asked in sorted(other_topics(before.topics, now.topics)):
        old, new = before.topics[asked], now.topics[asked]
        yield Loss(
            f"topic {new.name} is another one now: it was deleted and created again, with id {new.topic_id}, "
            f"and the stream has read the one with id {old.topic_id}",
            "reads the new one from offset 0",
        )


def is_absent(snapshot: PartitionSnapshot | None, offset: int) -> bool:
    """Return whether a partition, read up to `offset`, does not exist at all."""
    return snapshot is None or (snapshot.manifest is None and snapshot.live is None and offset > 0)


def absence(start: StreamPosition, offsets: Offsets) -> Loss:
    """Return the loss of these partitions, which are absent."""
    names = [f"{start.name_of(asked)}-{number} (read up to {at})" for (asked, number), at in offsets.items()]
    return Loss(
        f"no longer there, or no longer selected: {_some(sorted(names))}", "continues there if they come back"
    )


def lost_offsets(
    begins: Offsets, snapshots: Mapping[Spot, PartitionSnapshot], *, is_restored: bool = False
) -> Iterator[Loss]:
    """Yield a loss for each log that ends before the stream's offset, or starts after it.

    `is_restored`: the cluster was restored from the one that was read. Then what the stream has read beyond a
    log's end is in no log any more, and the log goes on at offsets that the stream has not read.
    """
    for spot, snapshot in snapshots.items():
        name, offset = f"{snapshot.chosen.topic}-{spot[1]}", begins.get(spot, 0)
        if offset > snapshot.end_offset:
            if not is_restored:
                yield Loss(f"{name} ends at {snapshot.end_offset}, the stream has read up to {offset}")
        elif offset < min(snapshot.start_offset, snapshot.end_offset):
            yield Loss(
                f"{name}: offsets {offset} to {snapshot.start_offset - 1} are gone, "
                f"retention has overtaken the stream: the log starts at {snapshot.start_offset}"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
