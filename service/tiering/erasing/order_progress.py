"""Progress of an order to erase keys (T26): replicas and chains in which it is still to be carried out. [P]

>>> from service.base.steps import at_once
>>> topic = UUID(int=7)
>>> found = at_once(places_left([topic], {(topic, 0): frozenset({1, 2, -1})}, lambda _: ((1, 2), (2, 1))))
>>> found.replicas, found.chains, found.all_replicas, found.all_chains, found.named[0]
(2, 1, 4, 2, PlaceLeft(topic_id=UUID('00000000-0000-0000-0000-000000000007'), partition=1, broker_id=2))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.base.steps import Steps
from service.remote.catalog import IN_BUCKET, ErasedPlaces

MOST_NAMED: Final = 100
"""Most places that are told one by one."""


class PlaceLeft(NamedTuple):
    """A place where an order is not carried out yet; `broker_id` is `IN_BUCKET` for its chain."""

    topic_id: UUID
    partition: int
    broker_id: int


class PlacesLeft(NamedTuple):
    """Number of replicas and of chains in which an order is not carried out yet, some of them by name, and of
    all that there are."""

    replicas: int = 0
    chains: int = 0
    named: tuple[PlaceLeft, ...] = ()
    all_replicas: int = 0
    all_chains: int = 0

    @property
    def is_any(self) -> bool:
        return bool(self.replicas or self.chains)


def places_left(
    topics: Iterable[UUID],
    told: ErasedPlaces,
    replicas_of: Callable[[UUID], Sequence[Sequence[int]]],
) -> Steps[PlacesLeft]:
    """Return, in steps, what an order of these topics lacks, in all partitions that there are now. A topic
    that does not exist any more lacks nothing: its objects go by its tombstone."""
    replicas = chains = all_replicas = all_chains = 0
    named: list[PlaceLeft] = []
    nobody: frozenset[int] = frozenset()
    for topic_id in topics:
        assigned = replicas_of(topic_id)
        for partition in range(len(assigned)):
            yield
            all_replicas, all_chains = all_replicas + len(assigned[partition]), all_chains + 1
            by = told.get((topic_id, partition), nobody)
            missing: Iterable[int] = [one for one in assigned[partition] if one not in by]
            for broker_id in missing:
                replicas += 1
                _name(named, topic_id, partition, broker_id)
            if IN_BUCKET not in by:
                chains += 1
                if not missing:  # else it waits for the replicas
                    _name(named, topic_id, partition, IN_BUCKET)
    return PlacesLeft(replicas, chains, tuple(named), all_replicas, all_chains)


def _name(named: list[PlaceLeft], topic_id: UUID, partition: int, broker_id: int) -> None:
    if len(named) < MOST_NAMED:
        named.append(PlaceLeft(topic_id, partition, broker_id))
