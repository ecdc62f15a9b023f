"""Expiry of offsets, of the groups that it empties, and of offsets of deleted topics. [P]

An offset expires at the time that its commit named; if it named none, ``offsets.retention.minutes`` after its
group became empty, or after the commit if the group never had members, or if a stable group is no longer
subscribed to the topic. It does not expire while a transaction commits there or the group is subscribed. An
empty group is deleted with its last offset (Kafka `cleanupExpiredOffsets`). All of it is invariant G5.

There may be many groups: a scan goes through them in steps and returns pieces of bounded size, each of which
is checked again when it is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from service.base.steps import Steps
from service.base.types import NO_TIMESTAMP
from service.coordinator.ports import TopicsView
from service.coordinator.shard import CoordinatorRecord
from service.groups import records
from service.groups.group import Group
from service.groups.offsets import CommittedOffsets, OffsetAndMetadata, Place
from service.groups.records import OffsetKey

PIECE_PLACES: Final = 250
"""Most offsets that one decision removes."""
_STEP_OFFSETS: Final = 100


class GroupPlaces(NamedTuple):
    """Some partitions of a group; none if only the group itself may be deleted."""

    group_id: str
    places: tuple[Place, ...]


def is_expired(position: OffsetAndMetadata, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if position.expire_ms != NO_TIMESTAMP:
        return now_ms >= position.expire_ms
    return now_ms - base_ms >= retention_ms


class Expiry:
    """Offsets and groups that have expired at `now_ms`."""

    def __init__(
        self, offsets: CommittedOffsets, view: Callable[[str], Group | None], now_ms: int, retention_ms: int
    ) -> None:
        self._offsets = offsets
        self._view = view
        self._now_ms = now_ms
        self._retention_ms = retention_ms

    def scan(self, group_ids: Iterable[str]) -> Steps[tuple[GroupPlaces, ...]]:
        """Return pieces to decide about."""
        found: list[GroupPlaces] = []
        for group_id in tuple(group_ids):
            yield
            group = self._view(group_id)
            if group is None:
                continue
            if not self._offsets.has_any(group_id):
                if group.is_empty and not self._offsets.is_any_unstable(group_id):
                    found.append(GroupPlaces(group_id, ()))
                continue
            if group.expiry_base_ms(0) is None:
                continue
            places: list[Place] = []
            for count, (place, position) in enumerate(self._offsets.of_group(group_id)):
                if count % _STEP_OFFSETS == 0:
                    yield
                if self._goes(group_id, group, place, position):
                    places.append(place)
            found += _pieces(group_id, places)
        return tuple(found)

    def decide(self, piece: GroupPlaces) -> list[CoordinatorRecord]:
        """Return the tombstones of the offsets that are still expired, and the group's if it is empty
        then."""
        group = self._view(piece.group_id)
        if group is None:
            return []
        tombstones = []
        for place in piece.places:
            position = self._offsets.get(piece.group_id, *place)
            if position is not None and self._goes(piece.group_id, group, place, position):
                tombstones.append(records.offset_tombstone(OffsetKey(piece.group_id, *place)))
        last = len(tombstones) == self._offsets.count_of(piece.group_id)
        if last and group.is_empty and not self._offsets.is_any_unstable(piece.group_id):
            tombstones += group.tombstones()
        return tombstones

    def _goes(self, group_id: str, group: Group, place: Place, position: OffsetAndMetadata) -> bool:
        base_ms = group.expiry_base_ms(position.commit_ms)
        return (
            base_ms is not None
            and not group.is_subscribed_to(place[0])
            and is_expired(position, base_ms, self._now_ms, self._retention_ms)
            and not self._offsets.is_unstable(group_id, *place)
        )


class Deletion:
    """Offsets of deleted topics: their topic id is not in the metadata.

    An offset without a topic id is deleted if its topic's name is in `names`. A coordinator's committed
    metadata is never older than a topic of its offsets: commits are accepted only for topics of the metadata,
    and a coordinator elected later has read the metadata that far.
    """

    def __init__(self, offsets: CommittedOffsets, topics: TopicsView, names: frozenset[str]) -> None:
        self._offsets = offsets
        self._topics = topics
        self._names = names

    def scan(self) -> Steps[tuple[GroupPlaces, ...]]:
        """Return pieces to decide about, with offsets of open transactions among them."""
        found: list[GroupPlaces] = []
        yield from self._offsets.forget_topics(self._names)
        for group_id in tuple(self._offsets.groups()):
            yield
            places: list[Place] = []
            for count, (place, position) in enumerate(self._offsets.of_group(group_id)):
                if count and count % _STEP_OFFSETS == 0:
                    yield
                if self._goes(place, position):
                    places.append(place)
            found += _pieces(group_id, places)
        for producer_id in tuple(self._offsets.producers()):
            yield
            for group_id, place, position in tuple(self._offsets.pending_of(producer_id)):
                if self._goes(place, position):
                    found.append(GroupPlaces(group_id, (place,)))
        return tuple(found)

    def decide(self, piece: GroupPlaces) -> list[CoordinatorRecord]:
        """Return the tombstones of the offsets that are still to be deleted."""
        gone = []
        for place in piece.places:
            position = self._offsets.get(piece.group_id, *place)
            if position is None:
                goes = self._offsets.is_unstable(piece.group_id, *place)
            else:
                goes = self._goes(place, position)
            if goes:
                gone.append(records.offset_tombstone(OffsetKey(piece.group_id, *place)))
        return gone

    def _goes(self, place: Place, position: OffsetAndMetadata) -> bool:
        if position.topic_id is None:
            return place[0] in self._names
        return self._topics.by_id(position.topic_id) is None


def _pieces(group_id: str, places: list[Place]) -> list[GroupPlaces]:
    return [
        GroupPlaces(group_id, tuple(places[at : at + PIECE_PLACES]))
        for at in range(0, len(places), PIECE_PLACES)
    ]


def first_pieces(pieces: tuple[GroupPlaces, ...]) -> tuple[tuple[GroupPlaces, ...], tuple[GroupPlaces, ...]]:
    """Split into the pieces of one decision and the rest."""
    places = 0
    for count, piece in enumerate(pieces):
        places += len(piece.places) + 1
        if count and places > PIECE_PLACES:
            return pieces[:count], pieces[count:]
    return pieces, ()
