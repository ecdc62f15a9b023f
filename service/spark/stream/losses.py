"""What is no longer as a stream has left it, in words. [P]

Topics are called by their names here, whatever the user called them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from service.spark.stream.offsets import Offsets, Position, Spot, Topic

if TYPE_CHECKING:
    from service.spark.plan.snapshots import PartitionSnapshot

_NAMED: Final = 5
"""So many partitions are named, the others counted."""


class Loss(NamedTuple):
    """What is lost, and what becomes of it where that is allowed."""

    what: str
    then: str = "reads on with what there is"

    def __str__(self) -> str:
        return f"{self.what} (failOnDataLoss=false {self.then})"


def other_topics(before: Mapping[str, Topic], now: Mapping[str, Topic]) -> set[str]:
    """Those that are other ones now, by what the user calls them."""
    return {asked for asked, topic in before.items() if now.get(asked, topic) != topic}


def other_things(before: Position, now: Position) -> Iterator[Loss]:
    """The cluster, and the topics, that are other ones now."""
    if None not in (before.cluster_id, now.cluster_id) and before.cluster_id != now.cluster_id:
        yield Loss(
            f"the archive is one of cluster {now.cluster_id} now, what the stream has read was of cluster "
            f"{before.cluster_id}: {_some(sorted(topic.name for topic in before.topics.values()))}",
            "goes on in topics that have the same ids",
        )
    for asked in sorted(other_topics(before.topics, now.topics)):
        old, new = before.topics[asked], now.topics[asked]
        yield Loss(
            f"topic {new.name} is another one now: it was deleted and made again, with id {new.topic_id}, "
            f"and what the stream has read had id {old.topic_id}",
            "reads the new one from offset 0",
        )


def is_absent(snapshot: PartitionSnapshot | None, offset: int) -> bool:
    """Whether a partition of which `offset` has been reached is not there at all."""
    return snapshot is None or (snapshot.manifest is None and snapshot.live is None and offset > 0)


def gone(start: Position, offsets: Offsets) -> Loss:
    """These partitions are not there."""
    names = [f"{start.name_of(asked)}-{number} (read up to {at})" for (asked, number), at in offsets.items()]
    return Loss(
        f"no longer there, or no longer asked for: {_some(sorted(names))}", "goes on there if they come back"
    )


def lost_offsets(begins: Offsets, snapshots: Mapping[Spot, PartitionSnapshot]) -> Iterator[Loss]:
    """Logs that end before what has been read of them, or start behind it."""
    for spot, snapshot in snapshots.items():
        name, offset = f"{snapshot.chosen.topic}-{spot[1]}", begins.get(spot, 0)
        if offset > snapshot.end_offset:
            yield Loss(f"{name} ends at {snapshot.end_offset}, the stream has read up to {offset}")
        elif offset < min(snapshot.start_offset, snapshot.end_offset):
            yield Loss(
                f"{name}: offsets {offset} to {snapshot.start_offset - 1} are gone, "
                f"retention has overtaken the stream: the log starts at {snapshot.start_offset}"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
