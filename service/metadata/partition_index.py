"""In which partitions brokers and directories are found: what is done about one costs what it has. [P]

A *shelf* names a question: who is in sync with, or may lead, which partitions (`member`); who leads which
(`led`); which have no leader, which another than the preferred one, which are being reassigned; what lies in
a directory. Under it stands one integer per topic, whose bit n is partition n: a change of ten thousand
partitions of a topic is one integer that is made anew, and an image shares all others with the one before it.
`MetadataDelta.build` keeps it, nothing else does.

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
"""What is asked, and of whom: a broker's id, or a directory's as a number"""

NO_LEADER_SHELF: Final[Shelf] = ("no leader", -1)
NOT_PREFERRED_SHELF: Final[Shelf] = ("not preferred", -1)
MOVING_SHELF: Final[Shelf] = ("moving", -1)
_RESERVED_DIRECTORY_IDS: Final = 100
_TOGGLE_US: Final = 1
_TOPIC_US: Final = 3


def has_member(broker_id: int) -> Shelf:
    """Partitions in whose ISR, or among whose eligible leaders, the broker is."""
    return ("member", broker_id)


def leads(broker_id: int) -> Shelf:
    """Partitions that the broker leads."""
    return ("led", broker_id)


def lies_in(directory: UUID) -> Shelf:
    """Partitions with a replica in that directory."""
    return ("directory", directory.int)


Toggles = Mapping[Shelf, Mapping[UUID, list[int]]]
"""Per shelf and topic the partitions that come or go; one that is named twice stays what it was"""


class PartitionIndex:
    """Shelves of partitions; never changes."""

    __slots__ = ("_shelves",)

    def __init__(self) -> None:
        self._shelves: PersistentMap[Shelf, PersistentMap[UUID, int]] = PersistentMap()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionIndex) and self._shelves == other._shelves

    __hash__ = None  # type: ignore[assignment]

    def has_any(self, shelf: Shelf) -> bool:
        """Whether there is any partition on that shelf."""
        return shelf in self._shelves

    def count(self, shelf: Shelf) -> int:
        """How many partitions are on a shelf."""
        topics = self._shelves.get(shelf)
        return 0 if topics is None else sum(topics[topic_id].bit_count() for topic_id in topics)

    def partitions(self, shelf: Shelf) -> Iterator[tuple[UUID, int]]:
        """The partitions on a shelf; those of a topic follow each other, in their order."""
        topics = self._shelves.get(shelf)
        if topics is not None:
            for topic_id in topics:
                for partition in _bits(topics[topic_id]):
                    yield topic_id, partition

    def toggled(self, toggles: Toggles) -> PartitionIndex:
        """This index with partitions put onto shelves where they were not, and taken where they were."""
        return at_once(self.toggled_in_steps(toggles))

    def toggled_in_steps(self, toggles: Toggles) -> Steps[PartitionIndex]:
        """As `toggled`."""
        if not toggles:
            return self
        changed: dict[Shelf, PersistentMap[UUID, int] | Removed] = {}
        for shelf, topics in toggles.items():
            before: PersistentMap[UUID, int] = self._shelves.get(shelf) or PersistentMap()
            masks: dict[UUID, int | Removed] = {}
            for topic_id, partitions in topics.items():
                yield _TOPIC_US + _TOGGLE_US * len(partitions) // 4
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
    is_moving: bool = False,
) -> set[Shelf]:
    """All the shelves that a partition is on."""
    found = {("member", broker) for broker in isr}
    found.update(("member", broker) for broker in eligible)
    if leader < 0:
        found.add(NO_LEADER_SHELF)
    else:
        found.add(("led", leader))
    if replicas and leader != replicas[0]:
        found.add(NOT_PREFERRED_SHELF)
    if is_moving:
        found.add(MOVING_SHELF)
    for directory in directories:
        if (number := directory.int) >= _RESERVED_DIRECTORY_IDS:
            found.add(("directory", number))
    return found


def _mask(partitions: list[int]) -> int:
    """Bits of `partitions`, of which some may be named twice."""
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
