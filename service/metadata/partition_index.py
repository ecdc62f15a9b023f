"""Index of partitions by broker and directory: work for one broker depends on its own partitions only. [P]

A *shelf* is a set of partitions: those in whose ISR or ELR a broker is (`member`); those that it leads
(`led`); those without a leader, with another than the preferred leader, with too few in-sync replicas, or
being reassigned; those in a directory. A shelf has one integer per topic, whose bit n is partition n: a
change of ten thousand partitions of a topic replaces one integer, and an image shares all others with its
predecessor. Only `TopicsDelta` updates it.

>>> index = PartitionIndex().toggled({leads(1): {UUID(int=5): [0, 9]}})
>>> list(index.partitions(leads(1)))
[(UUID('00000000-0000-0000-0000-000000000005'), 0), (UUID('00000000-0000-0000-0000-000000000005'), 9)]
>>> index.toggled({leads(1): {UUID(int=5): [0, 9]}}) == PartitionIndex()
True
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from service.base.steps import Steps, at_once
from service.metadata.persistent import REMOVED, PersistentMap, Removed

Shelf = tuple[str, int]
"""Kind of the set, and a broker id, or a directory id as a number."""

NO_LEADER_SHELF: Final[Shelf] = ("no leader", -1)
NOT_PREFERRED_SHELF: Final[Shelf] = ("not preferred", -1)
MOVING_SHELF: Final[Shelf] = ("moving", -1)
UNDER_REPLICATED_SHELF: Final[Shelf] = ("under-replicated", -1)
_RESERVED_DIRECTORY_IDS: Final = 100


def has_member(broker_id: int) -> Shelf:
    """Return the shelf of partitions in whose ISR or ELR the broker is."""
    return ("member", broker_id)


def leads(broker_id: int) -> Shelf:
    """Return the shelf of partitions that the broker leads."""
    return ("led", broker_id)


def lies_in(directory: UUID) -> Shelf:
    """Return the shelf of partitions with a replica in that directory."""
    return ("directory", directory.int)


Toggles = Mapping[Shelf, Mapping[UUID, list[int]]]
"""Partitions to add or remove, per shelf and topic; a partition that is named twice stays unchanged."""


class PartitionIndex:
    """Immutable sets of partitions."""

    __slots__ = ("_shelves",)

    def __init__(self) -> None:
        self._shelves: PersistentMap[Shelf, PersistentMap[UUID, int]] = PersistentMap()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionIndex) and self._shelves == other._shelves

    __hash__ = None  # type: ignore[assignment]

    def has_any(self, shelf: Shelf) -> bool:
        """Return whether there is any partition on the shelf."""
        return shelf in self._shelves

    def count(self, shelf: Shelf) -> int:
        """Count the partitions on a shelf."""
        topics = self._shelves.get(shelf)
        return 0 if topics is None else sum(topics[topic_id].bit_count() for topic_id in topics)

    def partitions(self, shelf: Shelf) -> Iterator[tuple[UUID, int]]:
        """Yield the partitions on a shelf, grouped by topic, in order."""
        topics = self._shelves.get(shelf)
        if topics is not None:
            for topic_id in topics:
                for partition in _bits(topics[topic_id]):
                    yield topic_id, partition

    def toggled(self, toggles: Toggles) -> PartitionIndex:
        """Return this index with each partition added to a shelf where it was not, and removed where
        it was."""
        return at_once(self.toggled_in_steps(toggles))

    def toggled_in_steps(self, toggles: Toggles) -> Steps[PartitionIndex]:
        """Toggle partitions as `toggled` does, in steps."""
        if not toggles:
            return self
        changed: dict[Shelf, PersistentMap[UUID, int] | Removed] = {}
        for shelf, topics in toggles.items():
            before: PersistentMap[UUID, int] = self._shelves.get(shelf) or PersistentMap()
            masks: dict[UUID, int | Removed] = {}
            for topic_id, partitions in topics.items():
                yield
                mask = before.get(topic_id, 0) ^ _mask(partitions)
                masks[topic_id] = mask or REMOVED
            after = yield from before.with_changes_in_steps(masks)
            changed[shelf] = after if len(after) else REMOVED
        result = PartitionIndex()
        result._shelves = yield from self._shelves.with_changes_in_steps(changed)
        return result


def shelves(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    eligible: tuple[int, ...],
    leader: int,
    directories: Iterable[UUID],
    *,
    adding: tuple[int, ...] = (),
    is_moving: bool = False,
) -> set[Shelf]:
    """Return all shelves that a partition is on."""
    found = {("member", broker) for broker in isr}
    found.update(("member", broker) for broker in eligible)
    if leader < 0:
        found.add(NO_LEADER_SHELF)
    else:
        found.add(("led", leader))
    if replicas and leader != replicas[0]:
        found.add(NOT_PREFERRED_SHELF)
    if len(isr) < sum(broker not in adding for broker in replicas):
        found.add(UNDER_REPLICATED_SHELF)
    if is_moving:
        found.add(MOVING_SHELF)
    for directory in directories:
        if (number := directory.int) >= _RESERVED_DIRECTORY_IDS:
            found.add(("directory", number))
    return found


def _mask(partitions: list[int]) -> int:
    """Return the bits of `partitions`; a partition that is named twice has no bit."""
    if len(partitions) == 1:
        return 1 << partitions[0]
    octets = bytearray((max(partitions) >> 3) + 1)
    for partition in partitions:
        octets[partition >> 3] ^= 1 << (partition & 7)
    return int.from_bytes(octets, "little")


def _bits(mask: int) -> Iterator[int]:
    for at, octet in enumerate(mask.to_bytes((mask.bit_length() + 7) >> 3, "little")):
        bit = 0
        while octet >> bit:
            if octet >> bit & 1:
                yield (at << 3) + bit
            bit += 1
