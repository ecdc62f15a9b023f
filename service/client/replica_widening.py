"""Choice of further replicas for topics that have too few. [P]

A partition keeps its replicas in their order, so its leader stays; new ones are appended. Brokers in racks
without a replica of the partition come first, then those on machines (hosts) without one, then those with the
fewest replicas of the given partitions. Fenced brokers get none: they would not catch up. Partitions that
are being reassigned are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from service.client.admin_models import NodeInfo, Place
from service.client.cluster_health import PartitionState


class Widening(NamedTuple):
    """One partition that gets more replicas."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def place(self) -> Place:
        return (self.topic, self.partition)


class WideningPlan(NamedTuple):
    """Reassignments that raise `partitions` partitions to `factor` replicas. `problems` name those that stay
    short of it, and why."""

    partitions: int
    factor: int
    steps: tuple[Widening, ...]
    problems: tuple[str, ...]


def plan(
    partitions: Iterable[tuple[str, PartitionState]],
    brokers: Sequence[NodeInfo],
    moving: Collection[Place],
    factor: int,
) -> WideningPlan:
    """Plan `factor` replicas for each partition, or one on each broker where there are fewer brokers."""
    factor = min(factor, len(brokers))
    alive = sorted(one for one in brokers if not one.is_fenced)
    fenced = [one.node_id for one in brokers if one.is_fenced]
    racks = {one.node_id: one.rack for one in brokers}
    machines = {one.node_id: one.host for one in brokers}
    every = list(partitions)
    load = Counter(node for _, one in every for node in one.replicas)
    steps: list[Widening] = []
    problems: list[str] = []
    for topic, one in every:
        if len(one.replicas) >= factor or (topic, one.partition) in moving:
            continue
        if one.leader < 0:
            problems.append(f"{topic}-{one.partition} has no leader to copy from")
            continue
        after = _widened(one.replicas, alive, racks, machines, load, factor)
        if len(after) < factor:
            away = ", ".join(map(str, fenced))
            problems.append(
                f"{topic}-{one.partition} gets {len(after)} of {factor} replicas: fenced is {away}"
            )
        if len(after) > len(one.replicas):
            steps.append(Widening(topic, one.partition, one.replicas, after))
    return WideningPlan(len(every), factor, tuple(steps), tuple(problems))


def _widened(
    replicas: tuple[int, ...],
    alive: Sequence[NodeInfo],
    racks: dict[int, str | None],
    machines: dict[int, str],
    load: Counter[int],
    factor: int,
) -> tuple[int, ...]:
    """Return the partition's new replicas, and count those added in `load`."""
    after = list(replicas)
    while len(after) < factor:
        held, on = Counter(map(racks.get, after)), Counter(map(machines.get, after))
        left = [one for one in alive if one.node_id not in after]
        if not left:
            break
        best = min(left, key=lambda one: (held[one.rack], on[one.host], load[one.node_id], one.node_id))
        load[best.node_id] += 1
        after.append(best.node_id)
    return tuple(after)


def batches(steps: Sequence[Widening], at_once: int) -> Iterator[tuple[Widening, ...]]:
    """Split the steps into batches, so that the data being copied at a time stays bounded."""
    return (tuple(steps[at : at + at_once]) for at in range(0, len(steps), at_once))
