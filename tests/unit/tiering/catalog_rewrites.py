"""Rewrites and erasures of the catalogs of tests, decided by the controller's own rules on an image that is
made of their dictionaries."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from service.base.steps import at_once
from service.base.types import TopicIdPartition
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.erase_control import (
    ErasedNotes,
    finish_erasure,
    note_erased,
    remove_erasure,
    start_erasure,
)
from service.metadata.controller.requests import CatalogSender, ResourceType
from service.metadata.controller.rewrite_control import RewriteChange, change_rewrites
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.image_frames import erased_records, erasure_record, rewrite_record
from service.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    ErasedPlace,
    Erasure,
    LoadedTail,
    RewriteAnswer,
    RewriteIntent,
    decide_commit,
)

Place = tuple[UUID, int]


class Rewrites:
    """What a catalog in dictionaries needs to have rewrites and erasures.

    `leaders` are the brokers that lead other partitions than broker 1 does; `replicas` those that have others
    than broker 1 alone.
    """

    entries: dict[Place, CatalogEntry]
    leader_epochs: dict[Place, int]
    off: set[UUID]

    def __init__(self) -> None:
        self.intents: dict[Place, RewriteIntent] = {}
        self.orders: dict[UUID, Erasure] = {}
        self.notes: dict[UUID, dict[Place, frozenset[int]]] = {}
        self.leaders: dict[Place, int] = {}
        self.replicas: dict[Place, tuple[int, ...]] = {}
        self.brokers = {1: 10, 2: 20}

    def intent(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        """Return the live rewrite of a partition."""
        found = self.intents.get((topic_id, partition))
        is_live = found is not None and found.leader_epoch == self.leader_epochs.get((topic_id, partition))
        return found if is_live else None

    # -- decisions

    def decided(self, one: CatalogCommit) -> CatalogResult:
        """Decide a commit, as the partition's dictionaries are."""
        key = (one.tip.topic_id, one.tip.partition)
        return decide_commit(
            self.entries.get(key),
            previous_version=one.previous_version,
            entry=one.entry,
            leader_epoch=self.leader_epochs[key],
            rewrite_id=one.rewrite_id,
            intent=self.intents.get(key),
        )

    def fulfilled(self, one: CatalogCommit) -> None:
        """End the rewrite that a commit has fulfilled, if any."""
        if one.rewrite_id is not None:
            del self.intents[one.tip.topic_id, one.tip.partition]

    def decide_rewrites(
        self, changes: Sequence[RewriteChange], sender: CatalogSender | None = None
    ) -> list[RewriteAnswer]:
        decision = at_once(change_rewrites(self.image_now(), changes, sender=sender))
        self._read(decision)
        return decision.response

    def decide_notes(self, notes: Sequence[ErasedNotes], sender: CatalogSender | None = None) -> None:
        self._read(at_once(note_erased(self.image_now(), notes, sender=sender)))

    def decide_start(self, erasure: Erasure, sender: CatalogSender | None = None) -> None:
        self._read(at_once(start_erasure(self.image_now(), erasure, sender=sender)))

    def decide_finish(self, erasure_id: UUID, done_ms: int, sender: CatalogSender | None = None) -> None:
        self._read(at_once(finish_erasure(self.image_now(), erasure_id, done_ms, sender=sender)))

    def decide_remove(self, erasure_id: UUID, sender: CatalogSender | None = None) -> None:
        self._read(remove_erasure(self.image_now(), erasure_id, sender=sender))

    def _read(self, decision: ControllerResult[Any]) -> None:
        self.read(*(frame.record for frame in decision.frames))

    def read(self, *records: Any) -> None:
        """Take over what records of rewrites and erasures change."""
        image = MetadataDelta(self.image_now()).replay_all(records).build(10_000, 1, 0)
        self.intents = dict(image.rewrites)
        self.orders = dict(image.erasures)
        self.notes = {erasure_id: dict(notes) for erasure_id, notes in image.erased.items()}

    def image_now(self) -> MetadataImage:
        """Return the metadata that the dictionaries stand for."""
        records: list[MetadataRecord] = [
            RegisterBrokerRecord(
                broker_id=number,
                incarnation_id=UUID(int=number),
                broker_epoch=epoch,
                end_points=(),
                rack=None,
            )
            for number, epoch in self.brokers.items()
        ]
        for number, topic_id in enumerate(sorted({topic_id for topic_id, _ in self.leader_epochs})):
            name = f"topic-{number}"
            records.append(TopicRecord(name=name, topic_id=topic_id))
            off = topic_id in self.off
            for key, value in (("remote.storage.enable", not off), ("remote.log.delete.on.disable", off)):
                records.append(
                    ConfigRecord(
                        resource_type=ResourceType.TOPIC,
                        resource_name=name,
                        name=key,
                        value=str(value).lower(),
                    )
                )
        for place in sorted(self.leader_epochs):
            replicas = self.replicas.get(place, (1,))
            records.append(
                PartitionRecord(
                    partition_id=place[1],
                    topic_id=place[0],
                    replicas=replicas,
                    isr=replicas,
                    removing_replicas=(),
                    adding_replicas=(),
                    leader=self.leaders.get(place, 1),
                    leader_epoch=self.leader_epochs[place],
                    partition_epoch=self.leader_epochs[place],
                    directories=(None,) * len(replicas),
                )
            )
        records += [remote_log_record(*key, entry) for key, entry in self.entries.items()]
        records += [
            rewrite_record(place, intent)
            for place, intent in self.intents.items()
            if self.intent(*place) is not None
        ]
        for erasure in self.orders.values():
            notes = sorted(self.notes.get(erasure.id, {}).items())
            records += [erasure_record(erasure), *erased_records(erasure.id, notes)]
        return MetadataDelta(MetadataImage()).replay_all(records).build(len(records), 1, 0)


class RewritesView:
    """Rewrites and erasures as one node sees them."""

    catalog: Any

    async def tails_loaded(self, loaded: Collection[LoadedTail]) -> None:
        """Ignore what is loaded: nothing was restored here."""

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        found: RewriteIntent | None = self.catalog.intent(topic_id, partition)
        return found

    async def begin_rewrite(self, tip: TopicIdPartition, intent: RewriteIntent) -> RewriteAnswer:
        await asyncio.sleep(0)
        answer: RewriteAnswer
        [answer] = self.catalog.decide_rewrites([RewriteChange(tip, intent.rewrite_id, intent)])
        return answer

    async def give_up_rewrite(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        await asyncio.sleep(0)
        self.catalog.decide_rewrites([RewriteChange(tip, rewrite_id)])

    def erasures(self) -> dict[UUID, Erasure]:
        orders: dict[UUID, Erasure] = self.catalog.orders
        return orders

    def erased(self, erasure_id: UUID) -> dict[Place, frozenset[int]]:
        notes: dict[Place, frozenset[int]] = self.catalog.notes.get(erasure_id, {})
        return notes

    async def note_erased(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        await asyncio.sleep(0)
        self.catalog.decide_notes([ErasedNotes(erasure_id, broker_id, places)])

    async def start_erasure(self, erasure: Erasure) -> None:
        await asyncio.sleep(0)
        self.catalog.decide_start(erasure)

    async def finish_erasure(self, erasure_id: UUID, done_ms: int) -> None:
        await asyncio.sleep(0)
        self.catalog.decide_finish(erasure_id, done_ms)

    async def remove_erasure(self, erasure_id: UUID) -> None:
        await asyncio.sleep(0)
        self.catalog.decide_remove(erasure_id)
