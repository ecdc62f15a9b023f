"""Reader of ranges of a partition's records within limits that several partitions share. Blocking."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError
from service.client.admin import Cluster
from service.client.admin_models import PartitionInfo
from service.console.web.pages.records import FetchTiming
from service.console.web.rows import RecordFilter
from service.records.batch import BatchHeader, complete_headers, verify_crc
from service.records.compression import InflatedTooLarge
from service.records.decode import Record, records_of

FETCH_BYTES: Final = 1 << 20
SCAN_BYTES: Final = 32 << 20
"""Most bytes of batches that one page reads."""
HELD_BYTES: Final = 32 << 20
"""Most bytes of records that a page holds, except that it always holds one record."""
DEADLINE_MS: Final = 8_000
WAIT_MS: Final = 2_000
MOST_INFLATED: Final = 64 << 20
"""A batch that inflates to more is skipped, and named."""
MOST_PROBLEMS: Final = 10


class ReadLimits:
    """Time, bytes read and bytes held of one page."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._deadline = clock.monotonic_ms() + DEADLINE_MS
        self.turns: list[FetchTiming] = []
        self.problems: list[str] = []
        self.scanned = 0
        self.bytes = 0
        self.held = 0

    @property
    def is_used_up(self) -> bool:
        return (
            self.bytes > SCAN_BYTES
            or self.held >= HELD_BYTES
            or len(self.problems) >= MOST_PROBLEMS
            or self.clock.monotonic_ms() > self._deadline
        )


class PartitionReader:
    """Reader of one partition; `is_damaged`: its leader sends what is none of its batches."""

    def __init__(
        self,
        cluster: Cluster,
        limits: ReadLimits,
        wanted: RecordFilter,
        topic_id: UUID,
        partition: PartitionInfo,
        local_start: int,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._wanted = wanted
        self._topic_id = topic_id
        self._partition = partition
        self.local_start = local_start
        self.is_damaged = False

    def read(
        self, at: int, end: int, most: int, *, stops_at_problems: bool = True
    ) -> tuple[list[Record], int]:
        """Return wanted records of these offsets, at most `most`, and the offset to go on from."""
        found: list[Record] = []
        problems = len(self._limits.problems)

        def is_enough() -> bool:
            is_stopped = stops_at_problems and len(self._limits.problems) > problems
            return len(found) >= most or is_stopped or self.is_damaged or self._limits.is_used_up

        while at < end and not is_enough():
            fetched = self._fetch(at)
            try:
                for header in complete_headers(fetched):
                    if at >= end or is_enough():
                        break
                    at = self._batch(fetched, header, at, end, found, most)
            except CorruptionError as e:
                self.is_damaged = True
                self._problem(f"The records sent by the node from offset {at} on are corrupt: {e}")
        return found, at

    def _problem(self, words: str) -> None:
        self._limits.problems.append(words)

    def _fetch(self, at: int) -> bytes:
        limits = self._limits
        began = limits.clock.monotonic_ms()
        one = self._partition
        fetched = self._cluster.fetch(
            one.leader, self._topic_id, one.partition, at, max_bytes=FETCH_BYTES, max_wait_ms=WAIT_MS
        )
        data = fetched.records
        tier = "bucket" if at < self.local_start else "disk"
        limits.turns.append(FetchTiming(tier, at, len(data), limits.clock.monotonic_ms() - began))
        limits.bytes += len(data)
        return data

    def _batch(
        self, data: bytes, header: BatchHeader, at: int, end: int, found: list[Record], most: int
    ) -> int:
        """Read one batch from offset `at` on, or skip it if unreadable; return the next position."""
        limits = self._limits
        after = max(at, header.next_offset)  # a gap may follow a batch
        if header.is_control:
            return after
        try:
            if not verify_crc(data, header):
                raise CorruptionError("its checksum is wrong")
            for record in records_of(data, header, max_inflated_bytes=MOST_INFLATED):
                if record.offset < at:
                    continue
                if record.offset >= end or len(found) >= most or limits.held >= HELD_BYTES:
                    return record.offset
                limits.scanned += 1
                if self._wanted.wants(record):
                    found.append(record)
                    limits.held += size_of(record)
                at = record.offset + 1
        except InflatedTooLarge as e:
            self._problem(f"The batch at offset {header.base_offset} is too large to be shown: {e}")
        except CorruptionError as e:
            self._problem(f"The batch at offset {header.base_offset} is corrupt: {e}")
        return after


def size_of(record: Record) -> int:
    """Return the bytes of a record."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)
