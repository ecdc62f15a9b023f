"""Changes to rewrites of chains and to erasures, collected from records. [P]

A partition's rewrite ends with its leader epoch. A broker's note that its log is clean ends with its replica;
while the order is open with its process, too, and with an unclean election. All follow from records of
partitions and brokers, so that no decision can forget them.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.steps import Steps
from service.metadata.image import Erased, MetadataImage, PartitionImage, Place
from service.metadata.persistent import REMOVED, PersistentMap, Removed
from service.metadata.records import (
    ZERO_UUID,
    ErasedRecord,
    ErasureRecord,
    RemoveErasureRecord,
    RemoveRewriteRecord,
    RewriteRecord,
    filled_ids,
)
from service.metadata.topics_delta import RECOVERING, RemovedTopic, TopicsDelta
from service.remote.catalog import IN_BUCKET, Erasure, RewriteIntent, RewriteKind

_NONE: Final[frozenset[int]] = frozenset()
_NO_NOTES: Final[Erased] = PersistentMap()
_BUCKET_ONLY: Final = frozenset((IN_BUCKET,))


class RewriteMaps(NamedTuple):
    """The next image's maps of rewrites and erasures."""

    rewrites: PersistentMap[Place, RewriteIntent]
    erasures: PersistentMap[UUID, Erasure]
    erased: PersistentMap[UUID, Erased]


class _Notes:
    """Changes to the clean places of one order."""

    __slots__ = ("base", "changes")

    def __init__(self, base: Erased) -> None:
        self.base = base
        self.changes: dict[Place, frozenset[int] | Removed] = {}

    def of(self, place: Place) -> frozenset[int]:
        """Return who is clean of the order at a place."""
        brokers = self.changes.get(place)
        if brokers is None:
            return self.base.get(place, _NONE)
        return _NONE if isinstance(brokers, Removed) else brokers


class RewritesDelta:
    """Changes to the rewrites and erasures of an image. A record that contradicts them, or `topics`, is a
    `CorruptionError`.

    ``rewrites``: partitions whose rewrite was set or removed. ``erasures``: orders that were set or removed,
    or whose notes are others.
    """

    def __init__(self, image: MetadataImage, topics: TopicsDelta) -> None:
        self._image = image
        self._topics = topics
        self._intents: dict[Place, RewriteIntent | Removed] = {}
        self._orders: dict[UUID, Erasure | Removed] = {}
        self._notes: dict[UUID, _Notes] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        """Sets of brokers, so that equal ones of a delta are one object."""
        self.rewrites: set[Place] = set()
        self.erasures: set[UUID] = set()

    @property
    def has_any(self) -> bool:
        """True where a change of a partition may end a rewrite or a note."""
        return bool(self._image.rewrites or self._intents or self._image.erased or self._notes)

    # -- rewrites

    def set_rewrite(self, record: RewriteRecord) -> None:
        """Set the rewrite of a partition."""
        place = (record.topic_id or ZERO_UUID, record.partition_id)
        partition = self._topics.partition(*place)
        if partition is None:
            raise CorruptionError(f"rewrite of {place[0]}-{place[1]}, which is not there")
        try:
            kind = RewriteKind(record.kind)
        except ValueError as e:
            raise CorruptionError(f"rewrite of {place[0]}-{place[1]}: {e}") from e
        intent = RewriteIntent(
            record.rewrite_id or ZERO_UUID,
            record.base_offset,
            record.last_offset,
            kind,
            record.leader_epoch,
            record.started_ms,
        )
        reason = intent.malformed()
        if reason is None and intent.leader_epoch != partition.leader_epoch:
            reason = f"it is of leader epoch {intent.leader_epoch}, not of {partition.leader_epoch}"
        if reason is not None:
            raise CorruptionError(f"rewrite of {place[0]}-{place[1]}: {reason}")
        self._set_intent(place, intent)

    def remove_rewrite(self, record: RemoveRewriteRecord) -> None:
        """Remove a rewrite, which is committed or given up."""
        place = (record.topic_id or ZERO_UUID, record.partition_id)
        intent = self._intent(place)
        if intent is None or intent.rewrite_id != (record.rewrite_id or ZERO_UUID):
            raise CorruptionError(
                f"metadata record removes the rewrite {record.rewrite_id} of {place[0]}-{place[1]}, which is "
                f"not there"
            )
        self._set_intent(place, REMOVED)

    def _intent(self, place: Place) -> RewriteIntent | None:
        intent = self._intents.get(place, self._image.rewrites.get(place))
        return None if isinstance(intent, Removed) else intent

    def _set_intent(self, place: Place, intent: RewriteIntent | Removed) -> None:
        self._intents[place] = intent
        self.rewrites.add(place)

    # -- erasures

    def set_erasure(self, record: ErasureRecord) -> None:
        """Set an order. Its topics may be gone: others of them may not."""
        erasure = Erasure(
            id=record.id or ZERO_UUID,
            key=record.key,
            stored_size=record.stored_size,
            crc32c=record.crc32c,
            keys=record.keys,
            topics=filled_ids(record.topics),
            started_ms=record.started_ms,
            done_ms=record.done_ms,
            is_restored=record.is_restored,
        )
        reason = erasure.malformed()
        if reason is not None:
            raise CorruptionError(f"erasure {erasure.id}: {reason}")
        self._orders[erasure.id] = erasure
        self.erasures.add(erasure.id)

    def remove_erasure(self, record: RemoveErasureRecord) -> None:
        """Remove an order with its notes."""
        erasure_id = record.id or ZERO_UUID
        if self._order(erasure_id) is None:
            raise CorruptionError(f"metadata record removes erasure {erasure_id}, which is not there")
        self._orders[erasure_id] = REMOVED
        self._notes[erasure_id] = _Notes(_NO_NOTES)
        self.erasures.add(erasure_id)

    def note_erased(self, record: ErasedRecord) -> None:
        """Note that an order's records are gone from partitions of a topic, at a broker or in the bucket."""
        erasure_id, topic_id = record.erasure_id or ZERO_UUID, record.topic_id or ZERO_UUID
        if self._order(erasure_id) is None:
            raise CorruptionError(f"note of erasure {erasure_id}, which is not there")
        if record.broker_id < IN_BUCKET:
            raise CorruptionError(f"note of erasure {erasure_id} by broker {record.broker_id}")
        notes = self._notes_of(erasure_id)
        for number in record.partitions:
            place = (topic_id, number)
            if self._topics.partition(topic_id, number) is None:
                raise CorruptionError(
                    f"note of erasure {erasure_id} for {topic_id}-{number}, which is not there"
                )
            notes.changes[place] = self._with(notes.of(place), record.broker_id)
        self.erasures.add(erasure_id)

    def _order(self, erasure_id: UUID) -> Erasure | None:
        order = self._orders.get(erasure_id, self._image.erasures.get(erasure_id))
        return None if isinstance(order, Removed) else order

    def _notes_of(self, erasure_id: UUID) -> _Notes:
        notes = self._notes.get(erasure_id)
        if notes is None:
            notes = self._notes[erasure_id] = _Notes(self._image.erased.get(erasure_id, _NO_NOTES))
        return notes

    def _with(self, brokers: frozenset[int], one: int) -> frozenset[int]:
        return self._shared(brokers | {one})

    def _without(self, brokers: frozenset[int], one: int) -> frozenset[int]:
        return self._shared(brokers - {one})

    def _shared(self, brokers: frozenset[int]) -> frozenset[int]:
        return self._sets.setdefault(brokers, brokers)

    # -- what records of topics and partitions change

    def remove_topic(self, topic: RemovedTopic) -> None:
        """Remove the rewrites and notes of a topic that is removed; orders keep its id."""
        for number in range(topic.partitions):
            if self._intent((topic.id, number)) is not None:
                self._set_intent((topic.id, number), REMOVED)
        for erasure_id in self._noted():
            notes = self._notes_of(erasure_id)
            for number in range(topic.partitions):
                if notes.of((topic.id, number)):
                    notes.changes[topic.id, number] = REMOVED
                    self.erasures.add(erasure_id)

    def change_partition(self, place: Place, old: PartitionImage) -> None:
        """End what does not outlive the change of a partition from `old` to what it is now: a rewrite, its
        leader epoch; a broker's note, its replica or the replica's directory. Notes of open orders end with
        an unclean election: the new leader may bring records back."""
        new = self._topics.partition(*place)
        if new is None:
            return
        intent = self._intent(place)
        if intent is not None and intent.leader_epoch != new.leader_epoch:
            self._set_intent(place, REMOVED)
        if new.leader_epoch != old.leader_epoch and new.leader_recovery_state == RECOVERING:
            self._keep_notes(place, _BUCKET_ONLY, of_open_orders=True)
        if (new.replicas, new.directories) == (old.replicas, old.directories):
            return
        stay = set(zip(old.replicas, old.directories, strict=False)) & set(
            zip(new.replicas, new.directories, strict=False)
        )
        self._keep_notes(place, _BUCKET_ONLY | {broker_id for broker_id, _ in stay})

    def _keep_notes(self, place: Place, clean: frozenset[int], *, of_open_orders: bool = False) -> None:
        """Take away the notes of a partition that are not those of `clean`."""
        for erasure_id in self._noted():
            order = self._order(erasure_id)
            if of_open_orders and (order is None or not order.is_open):
                continue
            notes = self._notes_of(erasure_id)
            brokers = notes.of(place)
            if not brokers <= clean:
                notes.changes[place] = brokers & clean or REMOVED
                self.erasures.add(erasure_id)

    def broker_started(self, broker_id: int) -> Steps[None]:
        """Take away what a process before this one has told of open orders, in steps: a disk may be one from
        before the order, and a log may have lost its end. The new process tells of what it finds."""
        for erasure_id in self._noted():
            order = self._order(erasure_id)
            if order is None or not order.is_open:
                continue
            notes = self._notes_of(erasure_id)
            for place in (*notes.base, *(one for one in notes.changes if one not in notes.base)):
                yield
                brokers = notes.of(place)
                if broker_id in brokers:
                    notes.changes[place] = self._without(brokers, broker_id) or REMOVED
                    self.erasures.add(erasure_id)

    def _noted(self) -> list[UUID]:
        """Return the orders that may have notes."""
        return sorted({*self._image.erased, *self._notes})

    def build_in_steps(self) -> Steps[RewriteMaps]:
        """Build the next image's maps."""
        image, erased = self._image, dict[UUID, Erased | Removed]()
        for erasure_id, notes in self._notes.items():
            built = yield from notes.base.with_changes_in_steps(notes.changes)
            erased[erasure_id] = built or REMOVED
        return RewriteMaps(
            rewrites=(yield from image.rewrites.with_changes_in_steps(self._intents)),
            erasures=(yield from image.erasures.with_changes_in_steps(self._orders)),
            erased=(yield from image.erased.with_changes_in_steps(erased)),
        )
