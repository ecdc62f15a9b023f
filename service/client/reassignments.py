"""Plans of reassignments: where replicas go, which brokers that concerns, what is throttled. [P]

Source: Kafka ``ReassignPartitionsCommand``: its throttles name the present replicas of what moves as leaders
and the new ones as followers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.client.admin_models import NodeInfo, Place
from service.client.cluster_health import ReassignmentInfo

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
TOPIC_THROTTLES: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
BROKER_THROTTLES: Final = (LEADER_RATE, FOLLOWER_RATE)
Assignment = Mapping[Place, Sequence[int]]


class PlannedThrottle(NamedTuple):
    """Settings that bound what moves: by topic the throttled replicas, and the brokers that keep to it."""

    topics: dict[str, dict[str, str]]
    brokers: tuple[int, ...]


def spread(
    present: Assignment,
    brokers: Sequence[NodeInfo],
    replication_factor: int | None = None,
    *,
    rack_aware: bool = True,
) -> dict[Place, tuple[int, ...]]:
    """Return replicas on these brokers alone, moving as few as can be.

    A replica stays where its broker is among them. New ones go to racks without one of the partition first,
    then to machines (hosts) without one, then to brokers with the fewest; the preferred leaders are
    spread last. Raises `ConfigError` for too few brokers.
    """
    if rack_aware and len({one.rack is None for one in brokers}) > 1:
        raise ConfigError("some of the brokers have a rack and some have none: --disable-rack-aware")
    racks = {one.node_id: one.rack if rack_aware else None for one in brokers}
    machines = {one.node_id: one.host for one in brokers}
    held, led = Counter(dict.fromkeys(racks, 0)), Counter(dict.fromkeys(racks, 0))
    kept = {place: [one for one in replicas if one in racks] for place, replicas in present.items()}
    for replicas in kept.values():
        held.update(replicas)
    found: dict[Place, tuple[int, ...]] = {}
    for place in sorted(present):
        count = replication_factor or len(present[place])
        if count > len(racks):
            raise ConfigError(
                f"{place[0]}-{place[1]} has {count} replicas, for which {len(racks)} brokers are too few"
            )
        chosen = _fitted(kept[place], count, racks, machines, held)
        first = min(chosen, key=lambda one: (led[one], chosen.index(one)))
        led[first] += 1
        found[place] = (first, *(one for one in chosen if one != first))
    return found


def _fitted(
    kept: list[int],
    count: int,
    racks: Mapping[int, str | None],
    machines: Mapping[int, str],
    held: Counter[int],
) -> list[int]:
    """Return `count` brokers: those that are kept, fewer or more of them; and count what changes."""
    chosen = list(kept)
    while len(chosen) > count:
        in_rack, on = Counter(racks[one] for one in chosen), Counter(machines[one] for one in chosen)
        worst = max(
            reversed(chosen), key=lambda one: (in_rack[racks[one]] > 1, on[machines[one]] > 1, held[one])
        )
        chosen.remove(worst)
        held[worst] -= 1
    while len(chosen) < count:
        in_rack, on = Counter(racks[one] for one in chosen), Counter(machines[one] for one in chosen)
        left = [one for one in racks if one not in chosen]
        best = min(left, key=lambda one: (in_rack[racks[one]], on[machines[one]], held[one], one))
        chosen.append(best)
        held[best] += 1
    return chosen


def changes_of(wanted: Assignment, present: Assignment) -> dict[Place, tuple[int, ...]]:
    """Return those of the `wanted` replicas that are others, or in another order, than the present ones."""
    return {place: tuple(to) for place, to in wanted.items() if tuple(to) != tuple(present[place])}


def throttle(wanted: Assignment, present: Assignment, moving: Iterable[ReassignmentInfo]) -> PlannedThrottle:
    """Return the throttle of what moves, and of what is moving already."""
    sources = {place: set(replicas) for place, replicas in present.items() if place in wanted}
    targets = {place: set(wanted[place]) - sources[place] for place in sources}
    for one in moving:
        place = (one.topic, one.partition)
        sources[place] = set(one.replicas) - set(one.adding)
        targets[place] = (set(wanted[place]) if place in wanted else set(one.adding)) - sources[place]
    topics: dict[str, dict[str, str]] = {}
    for topic in sorted({topic for topic, _ in sources}):
        topics[topic] = {
            LEADER_REPLICAS: _listed(sources, topic),
            FOLLOWER_REPLICAS: _listed(targets, topic),
        }
    brokers = {one for each in (sources, targets) for replicas in each.values() for one in replicas}
    return PlannedThrottle(topics, tuple(sorted(brokers)))


def _listed(replicas: Mapping[Place, set[int]], topic: str) -> str:
    return ",".join(
        f"{number}:{one}"
        for (of, number), brokers in sorted(replicas.items())
        if of == topic
        for one in sorted(brokers)
    )
