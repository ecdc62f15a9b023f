"""A log in memory with a settable high watermark, and a shard that is a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.timeline import Journal, Timeline
from service.coordinator.ports import MarkListener, PartitionLog
from service.coordinator.records import StoredBatch, decode_batches
from service.coordinator.shard import NOTHING, Effect, Outcome
from service.hot.markers import Marker
from service.hot.verification import VerificationGuard
from service.records.batch import iter_headers, stamp
from service.records.builder import BatchBuilder
from service.records.decode import iter_records


class ModelLog:
    """`PartitionLog` of a leader whose followers are the test's to play."""

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.leader_epoch = 0
        self.high_watermark = 0
        self.end_offset = 0
        self.moves_at_once = True
        self.fails_with: Exception | None = None
        self.max_batch_bytes = 4000
        self.listener: MarkListener | None = None
        self.appended = 0
        self.guards: list[VerificationGuard | None] = []

    @property
    def start_offset(self) -> int:
        return 0

    def append(self, batch: bytearray, leader_epoch: int, guard: VerificationGuard | None = None) -> int:
        self.guards.append(guard)
        if leader_epoch != self.leader_epoch:
            raise RequestError(ErrorCode.not_leader_or_follower, f"{leader_epoch} is not {self.leader_epoch}")
        if self.fails_with is not None:
            raise self.fails_with
        assert len(batch) <= self.max_batch_bytes
        base = self.end_offset
        stamp(batch, 0, base, leader_epoch)
        [header] = iter_headers(batch)
        self.batches.append(batch)
        self.end_offset = header.next_offset
        self.appended += 1
        if self.moves_at_once:
            self.commit(self.end_offset)
        return base

    def commits_at_once(self, records: int, size: int) -> bool:
        return self.moves_at_once and size <= self.max_batch_bytes

    def append_built(self, batch: bytearray, records: int, now_ms: int, leader_epoch: int) -> int:
        [header] = iter_headers(batch)
        assert (header.record_count, header.max_timestamp) == (records, now_ms)
        return self.append(bytearray(batch), leader_epoch)

    def append_marker(self, marker: Marker, leader_epoch: int) -> int:
        batch = BatchBuilder(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        value = b"\0\0" + marker.coordinator_epoch.to_bytes(4, "big")
        batch.add(1, b"\0\0\0\1" if marker.is_commit else bytes(4), value)
        return self.append(batch.build(), leader_epoch)

    def commit(self, offset: int) -> None:
        """The mark moves; everybody who listens is told, as in an append."""
        assert self.high_watermark <= offset <= self.end_offset
        self.high_watermark = offset
        if self.listener is not None:
            self.listener(offset)

    def truncate(self, offset: int) -> None:
        """Another leader did not have what lies there; whole batches go, none that the mark has reached."""
        assert offset >= self.high_watermark
        while self.batches:
            [last] = iter_headers(self.batches[-1])
            if last.next_offset <= offset or last.base_offset < self.high_watermark:
                break
            self.batches.pop()
            self.end_offset = last.base_offset

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        found = bytearray()
        for batch in self.batches:
            if next(iter_headers(batch)).next_offset > offset and (
                not found or len(found) + len(batch) <= max_bytes
            ):
                found += batch
        await asyncio.sleep(0.01)
        return decode_batches(found)

    def listen(self, listener: MarkListener | None) -> None:
        self.listener = listener

    def records(self, end: int | None = None) -> list[tuple[int, bytes, bytes | None]]:
        """Return the records below `end`, as (offset, key, value)."""
        records = (one for one in self.batches if not next(iter_headers(one)).is_control)
        found = (record for batch in records for record in iter_records(bytes(batch)))
        return [(one.offset, one.key or b"", one.value) for one in found if end is None or one.offset < end]

    def state(self, end: int | None = None) -> dict[bytes, bytes]:
        """The dictionary that a replay from zero gives."""
        values: dict[bytes, bytes] = {}
        for _, key, value in self.records(end):
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        return values


class ModelLogs:
    """`PartitionLogs`; what is `missing` cannot be used."""

    def __init__(self, *logs: ModelLog) -> None:
        self.logs = dict(enumerate(logs))
        self.missing: set[int] = set()

    def find(self, partition: int) -> PartitionLog:
        if partition in self.missing:
            raise RequestError(ErrorCode.kafka_storage_error, "offline")
        return self.logs[partition]


class DictShard:
    """Keys and values; remembers what it was told."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.values: Timeline[bytes, bytes] = Timeline(self.journal)
        self.changed_at: Timeline[bytes, int] = Timeline(self.journal)
        self.told: list[tuple[Hashable, ErrorCode | None]] = []
        self.markers: list[tuple[int, int, bool]] = []
        self.seen_by_markers: list[list[bytes]] = []
        self.fired: list[Hashable] = []
        self.topics: list[tuple[tuple[str, ...], tuple[UUID, ...]]] = []
        self.worked_on: list[tuple[Hashable, object]] = []
        self.first_effects: tuple[Effect, ...] = ()
        self.on_expired: Any = None
        self.is_unloaded = False
        self.leader_epoch = -1

    def replay(
        self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if key == b"damaged":
            raise CorruptionError("a damaged record")
        if key == b"bug":
            raise KeyError("a bug")
        self.changed_at[key] = offset
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self.markers.append((producer_id, producer_epoch, commit))
        self.seen_by_markers.append(list(self.values))

    def loaded(self, now_ms: int) -> tuple[Effect, ...]:
        return self.first_effects

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        self.fired.append(name)
        return NOTHING if self.on_expired is None else self.on_expired(name, now_ms)

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        self.worked_on.append((name, result))
        return NOTHING

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        self.told.append((event, error))
        return NOTHING

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        self.topics.append((names, deleted))
        return NOTHING

    def unloaded(self) -> None:
        self.is_unloaded = True
