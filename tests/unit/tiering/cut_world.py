"""A keeper of cuts with everything around it real but the brokers that it asks, and their metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import Cut, Cuts, TailRef, decode_cuts
from service.remote.format.keys import CutKey, TailKey, parse_key, tail_key
from service.remote.format.tail_object import TRAILER, TailSection, encode_footer
from service.remote.reading.tails import index_tails, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.tiering.cuts.ports import CutSettings, MetadataGone, MetadataTail
from service.tiering.cuts.round import CutStep, Led
from service.tiering.metadata_copy import MetadataSnapshot
from service.wire.cuts import (
    CutEnd,
    CutEnds,
    CutTail,
    OfflinePartition,
    OfflinePartitions,
    TakeCutRequest,
    TakeCutResponse,
)
from tests.unit.tiering.world import GRACE_MS, World

TOPIC, OTHER = UUID(int=70), UUID(int=71)
Place = tuple[UUID, int]


class Harm(Enum):
    """What happens to one answer."""

    LOST = "it never comes"
    REFUSED = "the broker says no"
    UNREACHABLE = "no connection"
    LATE = "it comes after everything else"


class Log:
    """One partition: where it ends, what tails and chain have, who leads it."""

    def __init__(self, leader: int, end: int = 0) -> None:
        self.leader = leader
        self.epoch = 3
        self.start = 0
        self.end = end
        self.waits = False
        self.is_tailed = True
        self.is_offline = False
        self.saved = self.named = 0


class FakeBroker:
    """Broker that is asked for its part of a cut, as `wire/cuts.py` says."""

    def __init__(self, world: CutWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.asked: list[tuple[CutStep, int, int]] = []
        self.pending: list[tuple[UUID, int, CutTail]] = []
        self.wrong_cut: int | None = None
        self.heeds = True
        """it saves again what it is told is lost; software of before does not"""
        self.told: list[tuple[UUID, int, int, int]] = []

    async def answer(self, request: TakeCutRequest) -> TakeCutResponse:
        step = CutStep(request.step)
        self.asked.append((step, request.cut, request.hold_ms))
        if step in (CutStep.BEGIN, CutStep.TAKE):
            self._begun(request)
        end = self.world.cluster.metadata_end
        if step is CutStep.TAKE:
            return TakeCutResponse(
                error_code=ErrorCode.none,
                image_offset=end,
                ends=self._ends(at_take=True),
                offline=self._offline(),
            )
        if step is CutStep.SAVE:
            self._save(request)
            tails = tuple(tail for _, _, tail in self.pending)
            return TakeCutResponse(error_code=ErrorCode.none, ends=self._ends(at_take=False), tails=tails)
        offline = self._offline() if step is CutStep.BEGIN else ()
        return TakeCutResponse(error_code=ErrorCode.none, image_offset=end, offline=offline)

    def _offline(self) -> tuple[OfflinePartitions, ...]:
        return tuple(
            OfflinePartitions(
                topic_id=topic_id,
                partitions=(OfflinePartition(partition=partition, leader_epoch=one.epoch),),
            )
            for (topic_id, partition), one in self._led()
            if one.is_offline
        )

    def _led(self) -> list[tuple[Place, Log]]:
        return [(place, one) for place, one in self.world.logs.items() if one.leader == self.node_id]

    def _begun(self, request: TakeCutRequest) -> None:
        if any(attempt == request.newest_id for attempt, _, _ in self.pending):
            self.pending.clear()
            for _, one in self._led():
                one.named = one.saved
        if any(cut < request.cut - 1 for _, cut, _ in self.pending):
            self.pending.clear()
            for _, one in self._led():
                one.saved = one.named

    def _ends(self, *, at_take: bool) -> tuple[CutEnds, ...]:
        topics: dict[UUID, list[CutEnd]] = {}
        for (topic_id, partition), one in self._led():
            if one.is_offline:
                continue
            entry = self.world.catalog.entries.get((topic_id, partition))
            saved = max(one.saved, entry.end_offset if entry is not None else 0)
            row = CutEnd(
                partition=partition,
                leader_epoch=one.epoch,
                start=one.start,
                end=one.end,
                stable=one.end,
                saved=saved,
                saved_high=0,
                last_epoch=one.epoch,
                version=entry.version if entry is not None else 0,
                waits=not at_take and one.waits and saved < one.end,
                is_tailed=at_take or one.is_tailed,
            )
            topics.setdefault(topic_id, []).append(row)
        return tuple(CutEnds(topic_id=topic_id, partitions=tuple(rows)) for topic_id, rows in topics.items())

    def _save(self, request: TakeCutRequest) -> None:
        assert request.attempt_id is not None
        for topic in request.lost:
            for loss in topic.partitions:
                assert topic.topic_id is not None
                lost = self.world.logs[topic.topic_id, loss.partition]
                self.told.append((topic.topic_id, loss.partition, loss.leader_epoch, loss.reaches))
                if lost.leader == self.node_id and self.heeds:
                    lost.saved = lost.named = 0
        sections: list[TailSection] = []
        data = b""
        for (topic_id, partition), one in sorted(self._led()):
            if one.waits or not one.is_tailed or one.saved >= one.end or one.is_offline:
                continue
            body = b"records of %d" % one.end
            section = TailSection(
                topic_id, partition, one.epoch, one.saved, one.end, len(data), len(body), crc32c(body),
                one.end - one.saved, -1, one.epoch,
            )  # fmt: skip
            sections.append(section)
            data += body
            one.saved = one.end
        if sections:
            number = self.wrong_cut or request.cut
            uuid = self.world.new_uuid()
            footer = encode_footer(self.world.cluster_id, number, 0, sections, None)
            key = tail_key(TailKey(number, 0, self.node_id, uuid))
            self.world.bucket.put(key, data + footer)
            _, crc, _ = TRAILER.unpack_from(footer, len(footer) - TRAILER.size)
            tail = CutTail(key=key, size=len(data) + len(footer), footer_position=len(data), footer_crc=crc)
            self.pending.append((request.attempt_id, request.cut, tail))


class FakeCluster:
    """A `CutCluster`: brokers, and metadata of which each record is one byte."""

    node_id = 1
    broker_epoch = 11
    life = 0

    def __init__(self, world: CutWorld, *brokers: int) -> None:
        self.world = world
        self.fakes = {one: FakeBroker(world, one) for one in brokers}
        self.alive = set(brokers)
        self.fenced: set[int] = set()
        self.now = CutSettings()
        self.is_on, self.is_loading = True, False
        self.metadata_end = 10
        self.records_of_nothing: set[int] = set()
        self.log_start = 0
        self.harm: Callable[[int, CutStep], Harm | None] = lambda broker_id, step: None
        self.reached: list[int] = []

    def settings(self) -> CutSettings:
        return self.now

    def is_enabled(self) -> bool:
        return self.is_on

    @property
    def needs_chains(self) -> bool:
        return self.is_loading or self.now.interval_ms >= 0

    def brokers(self) -> Collection[int]:
        return self.alive

    def partitions(self) -> Iterator[Led]:
        for (topic_id, partition), one in sorted(self.world.logs.items()):
            yield Led(topic_id, partition, one.leader, one.epoch)

    def name_of(self, topic_id: UUID, /) -> str:
        return {TOPIC: "events", OTHER: "other"}.get(topic_id, str(topic_id))

    def replicas(self, topic_id: UUID, /) -> list[tuple[int, ...]]:
        known = self.world.catalog.replicas
        return [known.get(place, (1,)) for place in sorted(self.world.logs) if place[0] == topic_id]

    def why_no_cuts(self) -> str:
        return "" if self.now.interval_ms >= 0 else "no cut is taken: set firn.cut.interval.ms"

    def cuts_are_off(self) -> bool:
        return self.now.interval_ms < 0

    def fenced_brokers(self) -> Collection[int]:
        return self.fenced

    async def reach(self, metadata_end: int, /) -> None:
        self.reached.append(metadata_end)

    async def metadata_tail(self, start: int, end: int, most_bytes: int, /) -> MetadataTail:
        assert start < end
        if start < self.log_start:
            raise MetadataGone(f"the log begins at {self.log_start}")
        has_news = any(offset not in self.records_of_nothing for offset in range(start, end))
        return MetadataTail(b"m" * (end - start), end - start, 2, -1, has_news)

    async def ask(self, broker_id: int, request: TakeCutRequest, timeout_ms: int, /) -> TakeCutResponse:
        await asyncio.sleep(0)
        harm = self.harm(broker_id, CutStep(request.step))
        if harm is Harm.UNREACHABLE:
            raise ConnectionRefusedError(f"broker {broker_id}: nobody listens")
        if harm is Harm.REFUSED:
            return TakeCutResponse(
                error_code=ErrorCode.request_timed_out, error_message="its gate has opened"
            )
        answer = await self.fakes[broker_id].answer(request)
        if harm in (Harm.LOST, Harm.LATE):
            self.world.clock.advance(120_000)
            if harm is Harm.LOST:
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
        return answer


class CutWorld(World):
    """A node that keeps the prefix; `round` takes one cut, if there is anything to say."""

    def __init__(self, tmp: Path, *, brokers: tuple[int, ...] = (1, 2, 3), **more: Any) -> None:
        self.logs: dict[Place, Log] = {}
        self.cluster = FakeCluster(self, *brokers)
        self.options = {"cuts": self.cluster, "metadata": self._copied}
        super().__init__(tmp, partitions=0, **more)

    def _copied(self) -> MetadataSnapshot:
        end = self.cluster.metadata_end
        return MetadataSnapshot(end, 2, lambda: [b"metadata up to %d" % end])

    def begin(self) -> None:
        """Become the keeper, and copy the metadata."""
        self.run()
        self.run()

    def round(self) -> None:
        """One attempt, ten seconds after the last."""
        self.clock.advance(10_000)
        keeper = self.manager.cuts
        assert keeper is not None
        self.do(keeper.round())

    def new_uuid(self) -> UUID:
        return self._ids.new_uuid()

    def voids(self) -> int:
        return self.manager.metrics.cut_keeper.void

    def cuts_there(self) -> Cuts | None:
        """`CUT` as it lies in the bucket."""
        try:
            return decode_cuts(self.bucket.get("CUT", max_size=1 << 20))
        except ObjectNotFound:
            return None

    def newest(self) -> Cut:
        """The newest cut."""
        cuts = self.cuts_there()
        assert cuts is not None
        return open_named_cut(self.bucket, cuts.newest)

    def numbers(self) -> list[int]:
        """Numbers of the kept cuts."""
        cuts = self.cuts_there()
        return [] if cuts is None else [ref.cut for ref in cuts.kept]

    def complete(self) -> list[int]:
        """Numbers of the complete cuts."""
        cuts = self.cuts_there()
        return [] if cuts is None else [ref.cut for ref in cuts.kept if ref.is_complete]

    def commit_chain(self, place: Place, end: int, *, epoch: int = 3) -> None:
        """Let a chain reach `end`, in the catalog alone."""
        before = self.catalog.entries.get(place)
        version = 1 if before is None else before.version + 1
        self.catalog.entries[place] = CatalogEntry(version, f"m{version}", epoch, 0, end, 1, 10)

    def keys(self, prefix: str) -> list[str]:
        return [info.key for info in self.bucket.list(prefix)]

    def check_kept(self) -> None:
        """No kept cut lacks what it names, and complete ones have all below each end."""
        self.check_kept_but()

    def check_kept_but(self, *harmed: int) -> None:
        """The same, without the cuts of these numbers."""
        cuts = self.cuts_there()
        for ref in () if cuts is None else cuts.kept:
            if ref.cut in harmed:
                continue
            cut = open_named_cut(self.bucket, ref)
            self.bucket.head(cut.metadata.key)
            index = index_tails(self.bucket, cut.tails)
            metadata = index.pieces((UUID(int=1), 0), cut.metadata.end_offset, cut.metadata_end)
            assert metadata.reaches == cut.metadata_end, "metadata is lacking"
            for topic_id, rows in cut.topics.items():
                for partition, row in enumerate(rows):
                    if not ref.is_complete or not (row.waits or row.saved >= row.end):
                        continue
                    entry = self.catalog.entries.get((topic_id, partition))
                    start = max(row.start, entry.end_offset if entry is not None else 0)
                    found = index.pieces((topic_id, partition), start, row.end)
                    assert start >= row.end or found.reaches == row.end, (
                        f"{topic_id}-{partition} lacks records"
                    )


def number_of(ref: TailRef) -> int:
    """Return the number of the cut that a tail was made for."""
    parsed = parse_key(ref.key)
    assert isinstance(parsed, TailKey | CutKey)
    return parsed.cut


__all__ = ["GRACE_MS", "OTHER", "TOPIC", "CutWorld", "FakeBroker", "FakeCluster", "Harm", "Log", "number_of"]
