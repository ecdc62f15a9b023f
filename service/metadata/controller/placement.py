"""Placement of a new topic's partitions on brokers. [P]

Leaders rotate over the brokers, and followers come from other racks first (Apache Kafka
``StripedReplicaPlacer``), then from other machines: two brokers that advertise the same hosts are processes
of one machine. The topic's id determines the first leader, so that topics of one partition spread over the
brokers and a decision is repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from service.metadata.image import BrokerImage

Machine = frozenset[str]
"""The hosts that all brokers of one machine advertise."""


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
    leaders = _interleave([b for b in usable if not b.fenced])
    fenced = _interleave([b for b in usable if b.fenced])
    start = topic_id.int % len(leaders)
    machines = {broker.id: machine_of(broker) for broker in usable}
    return (
        _replicas_of(leaders, fenced, machines, start + partition, replication_factor)
        for partition in partitions
    )


def _replicas_of(
    leaders: Sequence[BrokerImage],
    fenced: Sequence[BrokerImage],
    machines: Mapping[int, Machine],
    turn: int,
    replication_factor: int,
) -> tuple[int, ...]:
    """Choose the leader by `turn`, and after every full rotation another first follower, so that broker pairs
    vary."""
    first = turn % len(leaders)
    others = [*leaders[first + 1 :], *leaders[:first]]
    if others:
        shift = turn // len(leaders) % len(others)
        others = [*others[shift:], *others[:shift]]
    chosen = [leaders[first]]
    racks, used = {leaders[first].rack}, {machines[leaders[first].id]}
    candidates = [*others, *fenced]
    while len(chosen) < replication_factor:
        best = _furthest(candidates, racks, used, machines)
        if best is None:
            racks.clear()
            best = _furthest(candidates, racks, used, machines) or candidates[0]
        candidates.remove(best)
        if machines[best.id] in used:
            used.clear()
        racks.add(best.rack)
        used.add(machines[best.id])
        chosen.append(best)
    return tuple(broker.id for broker in chosen)


def _furthest(
    candidates: Iterable[BrokerImage],
    racks: Collection[str | None],
    used: Collection[Machine],
    machines: Mapping[int, Machine],
) -> BrokerImage | None:
    """Return the first candidate in none of `racks`, of those the first on no machine of `used`."""
    best = None
    for broker in candidates:
        if broker.rack not in racks:
            if machines[broker.id] not in used:
                return broker
            best = best or broker
    return best


def machine_of(broker: BrokerImage) -> Machine:
    """Return what tells the machine of a broker from others: the hosts that it advertises.

    All of them, not one: behind a load balancer or a router every broker may advertise the same host to
    clients, and each its own to the others.
    """
    return frozenset(endpoint.host for endpoint in broker.endpoints)


def _interleave(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Order brokers so that neighbours are of different racks, and of different machines, as far as
    possible."""
    by_machine = _dealt(brokers, machine_of)
    return _dealt(sorted(by_machine, key=lambda broker: broker.rack or ""), lambda broker: broker.rack or "")


def _dealt(brokers: Iterable[BrokerImage], group_of: Callable[[BrokerImage], Hashable]) -> list[BrokerImage]:
    """Return the first of each group, then the second of each, the groups in the order of their firsts."""
    groups: dict[Hashable, list[BrokerImage]] = {}
    for broker in brokers:
        groups.setdefault(group_of(broker), []).append(broker)
    deepest = max(map(len, groups.values()), default=0)
    return [group[depth] for depth in range(deepest) for group in groups.values() if depth < len(group)]
