"""Reader of records for pages and downloads: of one partition from a position, or of all by their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import ConfigError, StorageError
from service.client.admin import EARLIEST, EARLIEST_LOCAL, LATEST, Cluster
from service.client.admin_models import PartitionInfo, PartitionPage
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages.records import FoundRecords, MergedRecords
from service.console.web.record_merge import PartitionCursor, merged
from service.console.web.record_query import (
    ALL,
    FROM_END,
    FROM_OFFSET,
    FROM_START,
    FROM_TIME,
    MOST_OFFSET,
    MOST_PARTITIONS,
    RecordQuery,
)
from service.console.web.record_reader import PartitionReader, ReadLimits
from service.console.web.rows import as_json_line


class RecordDesk:
    """Reader of records. Blocking; thread-safe. Raises `FirnError` and `OSError`."""

    def __init__(self, kafka: KafkaDesk, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock

    def read(self, query: RecordQuery) -> FoundRecords | MergedRecords:
        """Return the records that `query` asks for: in their order by offset, or merged by time where it is
        about all partitions or about the newest records."""
        if query.partition == ALL or query.where == FROM_END:
            return self._kafka.ask(lambda cluster: _merged(cluster, self._clock, query))
        return self.read_on(query)

    def read_on(self, query: RecordQuery) -> FoundRecords:
        """Return records of one partition from an offset or a time on."""
        return self._kafka.ask(lambda cluster: _from_position(cluster, self._clock, query))

    def download(self, query: RecordQuery, part: str) -> tuple[bytes, str] | None:
        """Return a key, a value or lines of JSON (`part`), with a file name; None if there is no such record.

        Lines cover the same records as a page: their name has the first and last offset.
        """
        found = self.read_on(query)
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


def _partition(cluster: Cluster, query: RecordQuery) -> tuple[PartitionPage, PartitionInfo]:
    page = cluster.partitions(query.topic, query.partition, 1)
    here = [one for one in page.topic.partitions if one.partition == query.partition]
    if not here:
        raise ConfigError(f"{query.topic} has no partition {query.partition}")
    return page, here[0]


def _from_position(cluster: Cluster, clock: Clock, query: RecordQuery) -> FoundRecords:
    page, here = _partition(cluster, query)
    leaders = {query.partition: here.leader}
    start, local_start, end = (
        cluster.offsets(query.topic, leaders, which)[query.partition]
        for which in (EARLIEST, EARLIEST_LOCAL, LATEST)
    )
    begin = min(max(_begin(cluster, query, leaders, start, end), start), end)
    limits = ReadLimits(clock)
    reader = PartitionReader(cluster, limits, query.filter, page.topic.topic_id, here, local_start)
    found, at = reader.read(begin, end, query.most)
    is_cut = at < end and len(found) < query.most
    return FoundRecords(
        tuple(found), tuple(limits.turns), start, local_start, end, begin, at, limits.scanned, is_cut,
        limits.problems[0] if limits.problems else None, query.partition,
    )  # fmt: skip


def _begin(cluster: Cluster, query: RecordQuery, leaders: dict[int, int], start: int, end: int) -> int:
    if query.where == FROM_START:
        return start
    if query.where == FROM_OFFSET:
        return query.value
    found = cluster.offsets(query.topic, leaders, max(query.value, 0))[query.partition]
    return end if found < 0 else found


def _merged(cluster: Cluster, clock: Clock, query: RecordQuery) -> MergedRecords:
    if query.partition == ALL:
        page = cluster.partitions(query.topic, 0, MOST_PARTITIONS)
        here, left_out = page.topic.partitions, page.more
    else:
        page, one = _partition(cluster, query)
        here, left_out = (one,), False
    if query.positions is not None and len(query.positions) != len(here):
        raise ConfigError(f"{query.topic} has {len(here)} partitions, the address is about another number")
    limits = ReadLimits(clock)
    leaders = {one.partition: one.leader for one in here if one.leader >= 0}
    limits.problems += [f"Partition {one.partition} has no leader." for one in here if one.leader < 0][:3]
    start, local_start, end, wanted = _positions(cluster, query, leaders, limits)
    is_down = query.where == FROM_END
    cursors = [
        PartitionCursor(
            p,
            PartitionReader(
                cluster, limits, query.filter, page.topic.topic_id, one, local_start.get(p, start[p])
            ),
            start[p],
            end[p],
            wanted[p] if query.positions is None else query.positions[at],
            is_down=is_down,
        )
        for at, one in enumerate(here)
        if (p := one.partition) in start and p in end
    ]
    found = merged(cursors, query.most, limits)
    # A partition that failed is tried again where it was.
    begin = query.positions or (MOST_OFFSET if is_down else 0,) * len(here)
    places = {one.partition: found.positions.get(one.partition, begin[at]) for at, one in enumerate(here)}
    return found._replace(
        positions=places,
        is_down=is_down,
        left_out=left_out,
        start=sum(start.values()),
        end=sum(end[p] for p in start if p in end),
    )


def _positions(
    cluster: Cluster, query: RecordQuery, leaders: Mapping[int, int], limits: ReadLimits
) -> tuple[dict[int, int], dict[int, int], dict[int, int], dict[int, int]]:
    """Return start, local start, end, and where to begin, by partition; without those that fail."""

    def looked_up(which: int) -> dict[int, int]:
        answers: dict[int, Any] = cluster.look_up(query.topic, leaders, which)
        for p, one in answers.items():
            if one.error_code != ErrorCode.none and len(limits.problems) < 3:
                limits.problems.append(f"Partition {p}: {ErrorCode(one.error_code).name.upper()}")
        return {p: one.offset for p, one in answers.items() if one.error_code == ErrorCode.none}

    start, local_start, end = (looked_up(which) for which in (EARLIEST, EARLIEST_LOCAL, LATEST))
    if query.where == FROM_END:
        return start, local_start, end, end
    if query.where == FROM_TIME and query.positions is None:
        found = looked_up(max(query.value, 0))
        return start, local_start, end, {p: found[p] if found.get(p, -1) >= 0 else end[p] for p in end}
    return start, local_start, end, start
