"""Reads records of one partition as a client does, and notes which tier answered and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import ConfigError, CorruptionError
from service.console.web.asking import FROM_END, FROM_OFFSET, FROM_START, Ask
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages.records import Found, Turn
from service.network.cluster import EARLIEST, EARLIEST_LOCAL, LATEST, Cluster
from service.network.told import PartitionInfo
from service.records.batch import complete_headers, verify_crc
from service.records.decode import Record, records_of

FETCH_BYTES: Final = 1 << 20
SCAN_BYTES: Final = 32 << 20
"""So many bytes of batches does one page look through."""
DEADLINE_MS: Final = 8_000
WAIT_MS: Final = 2_000
MOST_INFLATED: Final = 64 << 20


class RecordDesk:
    """Blocking; thread-safe. Raises `FirnError` and `OSError`."""

    def __init__(self, kafka: KafkaDesk, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock

    def read(self, ask: Ask) -> Found:
        """The records from where `ask` says on."""
        return self._kafka.ask(lambda cluster: _Reading(cluster, self._clock, ask).run())

    def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """The record at `offset`; None where there is none (any more, or it was compacted away)."""
        found = self.read(Ask(topic, partition, FROM_OFFSET, offset, 1))
        return found.records[0] if found.records and found.records[0].offset == offset else None


class _Reading:
    def __init__(self, cluster: Cluster, clock: Clock, ask: Ask) -> None:
        self._cluster = cluster
        self._clock = clock
        self._ask = ask
        self._turns: list[Turn] = []
        self._found: list[Record] = []
        self._scanned = 0
        self._bytes = 0
        self._problem: str | None = None

    def run(self) -> Found:
        ask = self._ask
        page = self._cluster.partitions(ask.topic, ask.partition, 1)
        here = [one for one in page.topic.partitions if one.partition == ask.partition]
        if not here:
            raise ConfigError(f"{ask.topic} has no partition {ask.partition}")
        leaders = {ask.partition: here[0].leader}
        start, local_start, end = (
            self._cluster.offsets(ask.topic, leaders, which)[ask.partition]
            for which in (EARLIEST, EARLIEST_LOCAL, LATEST)
        )
        begin = at = min(max(self._begin(leaders, start, end), start), end)
        deadline = self._clock.monotonic_ms() + DEADLINE_MS
        while at < end and len(self._found) < ask.most and self._problem is None:
            if self._clock.monotonic_ms() > deadline or self._bytes > SCAN_BYTES:
                break
            at = self._fetch(here[0], page.topic.topic_id, at, end, local_start)
        is_cut = at < end and len(self._found) < ask.most
        return Found(
            tuple(self._found), tuple(self._turns), start, local_start, end, begin, at, self._scanned, is_cut,
            self._problem,
        )  # fmt: skip

    def _begin(self, leaders: dict[int, int], start: int, end: int) -> int:
        ask = self._ask
        if ask.where == FROM_START:
            return start
        if ask.where == FROM_END:
            return end - ask.most
        if ask.where == FROM_OFFSET:
            return ask.value
        found = self._cluster.offsets(ask.topic, leaders, max(ask.value, 0))[ask.partition]
        return end if found < 0 else found

    def _fetch(self, partition: PartitionInfo, topic_id: UUID, at: int, end: int, local_start: int) -> int:
        """One fetch at `at`; where to go on."""
        began = self._clock.monotonic_ms()
        fetched = self._cluster.fetch(
            partition.leader, topic_id, partition.partition, at, max_bytes=FETCH_BYTES, max_wait_ms=WAIT_MS
        )
        took = self._clock.monotonic_ms() - began
        self._turns.append(Turn("bucket" if at < local_start else "disk", at, len(fetched.records), took))
        self._bytes += len(fetched.records)
        try:
            for record, next_offset in _records(fetched.records):
                if record is None:
                    at = max(at, next_offset)
                    continue
                if record.offset < at:
                    continue
                if len(self._found) >= self._ask.most or record.offset >= end:
                    return record.offset
                self._scanned += 1
                if self._ask.filter.wants(record):
                    self._found.append(record)
                at = record.offset + 1
        except CorruptionError as e:
            self._problem = f"the batch at offset {at} is damaged: {e}"
        return at


def _records(data: bytes) -> Iterator[tuple[Record | None, int]]:
    """Each record, and after each batch None with the offset that follows it (it may end in a gap)."""
    for header in complete_headers(data):
        if not verify_crc(data, header):
            raise CorruptionError(f"the checksum of the batch at offset {header.base_offset} is wrong")
        if not header.is_control:
            for record in records_of(data, header, max_inflated_bytes=MOST_INFLATED):
                yield record, 0
        yield None, header.next_offset
