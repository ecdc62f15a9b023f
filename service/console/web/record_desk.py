"""Reader of a partition's records, through a client, that notes the tier and the time of each fetch."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.client.admin import EARLIEST, EARLIEST_LOCAL, LATEST, Cluster
from service.client.admin_models import PartitionInfo
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages.records import FetchTiming, FoundRecords
from service.console.web.record_query import FROM_END, FROM_OFFSET, FROM_START, RecordQuery
from service.console.web.rows import as_json_line
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


class RecordDesk:
    """Reader of records. Blocking; thread-safe. Raises `FirnError` and `OSError`."""

    def __init__(self, kafka: KafkaDesk, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock

    def read(self, query: RecordQuery) -> FoundRecords:
        """Return the records that `query` asks for."""
        return self._kafka.ask(lambda cluster: _Reading(cluster, self._clock, query).run())

    def download(self, query: RecordQuery, part: str) -> tuple[bytes, str] | None:
        """Return a key, a value or lines of JSON (`part`), with a file name; None if there is no such record.

        Lines cover the same records as a page: their name has the first and last offset.
        """
        found = self.read(query)
        if not found.records and found.problem is not None:
            raise StorageError(found.problem)
        if part == "lines":
            lines = [as_json_line(query.partition, record) for record in found.records]
            text = "".join(f"{line}\n" for line in lines)
            return text.encode(), f"records-{query.partition}-{found.begin}-to-{found.next_offset}.jsonl"
        record = found.records[0] if found.records else None
        if record is None or record.offset != query.value:
            return None
        data = record.key if part == "key" else record.value
        return None if data is None else (data, f"{part}-{query.partition}-{record.offset}.bin")


class _Reading:
    def __init__(self, cluster: Cluster, clock: Clock, query: RecordQuery) -> None:
        self._cluster = cluster
        self._clock = clock
        self._query = query
        self._turns: list[FetchTiming] = []
        self._found: list[Record] = []
        self._scanned = 0
        self._bytes = 0
        self._held = 0
        self._problem: str | None = None
        self._deadline = 0

    def run(self) -> FoundRecords:
        query = self._query
        page = self._cluster.partitions(query.topic, query.partition, 1)
        here = [one for one in page.topic.partitions if one.partition == query.partition]
        if not here:
            raise ConfigError(f"{query.topic} has no partition {query.partition}")
        leaders = {query.partition: here[0].leader}
        start, local_start, end = (
            self._cluster.offsets(query.topic, leaders, which)[query.partition]
            for which in (EARLIEST, EARLIEST_LOCAL, LATEST)
        )
        begin = at = min(max(self._begin(leaders, start, end), start), end)
        self._deadline = self._clock.monotonic_ms() + DEADLINE_MS
        while at < end and not self._is_enough() and self._bytes <= SCAN_BYTES:
            at = self._fetch(here[0], page.topic.topic_id, at, end, local_start)
        is_cut = at < end and len(self._found) < query.most
        return FoundRecords(
            tuple(self._found), tuple(self._turns), start, local_start, end, begin, at, self._scanned, is_cut,
            self._problem,
        )  # fmt: skip

    def _is_enough(self) -> bool:
        return (
            len(self._found) >= self._query.most
            or self._held >= HELD_BYTES
            or self._problem is not None
            or self._clock.monotonic_ms() > self._deadline
        )

    def _begin(self, leaders: dict[int, int], start: int, end: int) -> int:
        query = self._query
        if query.where == FROM_START:
            return start
        if query.where == FROM_END:
            return end - query.most
        if query.where == FROM_OFFSET:
            return query.value
        found = self._cluster.offsets(query.topic, leaders, max(query.value, 0))[query.partition]
        return end if found < 0 else found

    def _fetch(self, partition: PartitionInfo, topic_id: UUID, at: int, end: int, local_start: int) -> int:
        """Fetch once at `at`; return the next position."""
        began = self._clock.monotonic_ms()
        fetched = self._cluster.fetch(
            partition.leader, topic_id, partition.partition, at, max_bytes=FETCH_BYTES, max_wait_ms=WAIT_MS
        )
        took = self._clock.monotonic_ms() - began
        self._turns.append(
            FetchTiming("bucket" if at < local_start else "disk", at, len(fetched.records), took)
        )
        self._bytes += len(fetched.records)
        data = fetched.records
        try:
            for header in complete_headers(data):
                if at >= end or self._is_enough():
                    break
                at = self._batch(data, header, at, end)
        except CorruptionError as e:
            self._problem = f"The records sent by the node from offset {at} on are corrupt: {e}"
        return at

    def _batch(self, data: bytes, header: BatchHeader, at: int, end: int) -> int:
        """Read one batch from offset `at` on, or skip it if unreadable; return the next position."""
        after = max(at, header.next_offset)  # a gap may follow a batch
        if header.is_control:
            return after
        try:
            if not verify_crc(data, header):
                raise CorruptionError("its checksum is wrong")
            for record in records_of(data, header, max_inflated_bytes=MOST_INFLATED):
                if record.offset < at:
                    continue
                if record.offset >= end or len(self._found) >= self._query.most or self._held >= HELD_BYTES:
                    return record.offset
                self._scanned += 1
                if self._query.filter.wants(record):
                    self._found.append(record)
                    self._held += _size(record)
                at = record.offset + 1
        except InflatedTooLarge as e:
            self._problem = f"The batch at offset {header.base_offset} is too large to be shown: {e}"
        except CorruptionError as e:
            self._problem = f"The batch at offset {header.base_offset} is corrupt: {e}"
        return after


def _size(record: Record) -> int:
    """Return the bytes of a record."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)
