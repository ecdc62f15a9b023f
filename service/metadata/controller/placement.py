"""Placement of a new topic's partitions on brokers. [P]

Leaders rotate over the brokers, and followers come from other racks first (Apache Kafka
``StripedReplicaPlacer``). The topic's id determines the first leader, so that topics of one partition spread
over the brokers and a decision is repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from service.metadata.image import BrokerImage


class CannotPlace(Exception):
    """Too few brokers. The message is for the client."""


def place_replicas(
    brokers: Iterable[BrokerImage], partitions: range, replication_factor: int, topic_id: UUID
) -> Iterator[tuple[int, ...]]:
    """Return the replicas of each of `partitions`, the preferred leader first; it is never a fenced broker.

    Raises `CannotPlace` where there are fewer brokers than replicas, or all are fenced.
    """
    # A stopped broker stays registered as in controlled shutdown until it returns.
    usable = sorted((b for b in brokers if b.fenced or not b.in_controlled_shutdown), key=lambda b: b.id)
    if all(broker.fenced for broker in usable):
        raise CannotPlace("All brokers are currently fenced.")
    if replication_factor > len(usable):
        raise CannotPlace(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
    leaders = _interleave_racks([b for b in usable if not b.fenced])
    fenced = _interleave_racks([b for b in usable if b.fenced])
    start = topic_id.int % len(leaders)
    return (_replicas_of(leaders, fenced, start + partition, replication_factor) for partition in partitions)


def _replicas_of(
    leaders: Sequence[BrokerImage], fenced: Sequence[BrokerImage], turn: int, replication_factor: int
) -> tuple[int, ...]:
    """Choose the leader by `turn`, and after every full rotation another first follower, so that broker pairs
    vary."""
    first = turn % len(leaders)
    others = [*leaders[first + 1 :], *leaders[:first]]
    if others:
        shift = turn // len(leaders) % len(others)
        others = [*others[shift:], *others[:shift]]
    chosen = [leaders[first]]
    racks = {leaders[first].rack}
    candidates = [*others, *fenced]
    while len(chosen) < replication_factor:
        best = next((b for b in candidates if b.rack not in racks), None)
        if best is None:
            racks.clear()
            best = candidates[0]
        candidates.remove(best)
        racks.add(best.rack)
        chosen.append(best)
    return tuple(broker.id for broker in chosen)


def _interleave_racks(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Order brokers so that neighbours are of different racks as far as possible."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in brokers:
        racks.setdefault(broker.rack or "", []).append(broker)
    ordered: list[BrokerImage] = []
    for depth in range(max(map(len, racks.values()), default=0)):
        ordered.extend(racks[name][depth] for name in sorted(racks) if depth < len(racks[name]))
    return ordered
