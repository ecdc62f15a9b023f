"""Records of several partitions by their times: newest first, oldest first, page by page, within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import ConfigError
from service.client.admin import EARLIEST, EARLIEST_LOCAL, LATEST
from service.client.admin_models import FetchResult, PartitionInfo, PartitionPage, TopicInfo
from service.console.web.record_desk import RecordDesk
from service.console.web.record_query import (
    ALL,
    FROM_END,
    FROM_START,
    FROM_TIME,
    RecordQuery,
    parse_positions,
    written_positions,
)
from service.console.web.rows import RecordFilter
from tests.support.batches import batch

NONE = ErrorCode.none
CONTROL = 0x20


class Topic:
    """Partitions of (time, value); each record is a batch. `leaderless` ones have no leader."""

    def __init__(self, *partitions: list[tuple[int, bytes | None]], leaderless: tuple[int, ...] = ()) -> None:
        self.logs = [
            [
                batch([value], base_offset=n, base_timestamp=time)
                if value is not None
                else batch([b"\0\0\0\1\0\0"], base_offset=n, base_timestamp=time, attributes=CONTROL)
                for n, (time, value) in enumerate(rows)
            ]
            for rows in partitions
        ]
        self.times = [[time for time, _ in rows] for rows in partitions]
        self.leaderless = leaderless
        self.fetches = 0

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def partitions(self, topic: str, first: int, most: int) -> PartitionPage:
        found = tuple(
            PartitionInfo(p, -1 if p in self.leaderless else 1, (1,), (1,)) for p in range(len(self.logs))
        )
        return PartitionPage(TopicInfo(topic, UUID(int=1), found[first : first + most]), False)

    def look_up(self, topic: str, leaders: Mapping[int, int], which: int) -> dict[int, Any]:
        def offset(p: int) -> int:
            if which >= 0:
                return next((n for n, time in enumerate(self.times[p]) if time >= which), -1)
            return {EARLIEST: 0, EARLIEST_LOCAL: 1, LATEST: len(self.logs[p])}[which]

        return {p: SimpleNamespace(error_code=NONE, offset=offset(p)) for p in leaders}

    def fetch(
        self, leader: int, topic_id: UUID, partition: int, offset: int, *, max_bytes: int, max_wait_ms: int
    ) -> FetchResult:
        self.fetches += 1
        return FetchResult(b"".join(self.logs[partition][offset : offset + 7]), 0, 0)


def read(topic: Topic, **asked: Any) -> Any:
    desk = RecordDesk(topic, ManualClock())  # type: ignore[arg-type]  # what it asks of a cluster
    return desk.read(RecordQuery("t", **{"partition": ALL, "where": FROM_END, "most": 4, **asked}))


def times(found: Any) -> list[int]:
    return [one.record.timestamp for one in found.records]


def spread(count: int) -> Topic:
    """Three partitions; every third record of all is in each."""
    rows: list[list[tuple[int, bytes | None]]] = [
        [(n, b"v%d" % n) for n in range(count) if n % 3 == p] for p in range(3)
    ]
    return Topic(*rows)


def test_the_newest_of_all_partitions_come_first_and_earlier_ones_page_by_page() -> None:
    topic = spread(100)
    seen: list[int] = []
    positions = None
    for _ in range(100):
        found = read(topic, positions=positions)
        seen += times(found)
        # As an address has it.
        positions = parse_positions(written_positions([found.positions[p] for p in range(3)]))
        if found.is_whole:
            break
    assert seen == list(range(99, -1, -1))
    assert not found.problems


def test_the_oldest_come_first_from_the_start_and_from_a_time() -> None:
    topic = spread(100)
    assert times(read(topic, where=FROM_START)) == [0, 1, 2, 3]
    found = read(topic, where=FROM_TIME, value=50)
    assert times(found) == [50, 51, 52, 53]
    onward = tuple(found.positions[p] for p in range(3))
    assert times(read(topic, where=FROM_TIME, value=50, positions=onward)) == [54, 55, 56, 57]


def test_order_within_a_partition_is_kept_and_cold_records_are_marked() -> None:
    topic = Topic([(50, b"a"), (10, b"b"), (40, b"c")], [(45, b"d")])
    found = read(topic)
    assert [one.record.value for one in found.records] == [b"d", b"c", b"b", b"a"]
    assert [one.is_cold for one in found.records] == [True, False, False, True]


def test_a_filter_goes_back_until_it_finds_enough() -> None:
    rows: list[tuple[int, bytes | None]] = [(n, b"needle" if n % 500 == 0 else None) for n in range(3_000)]
    found = read(Topic(rows, [(1, b"other")]), filter=RecordFilter(b"NEEDLE"), most=3)
    assert times(found) == [2_500, 2_000, 1_500]


def test_one_partition_alone_is_read_from_its_end() -> None:
    found = read(spread(100), partition=1, most=2)
    assert [(one.partition, one.record.offset) for one in found.records] == [(1, 32), (1, 31)]
    assert found.positions == {1: 31}


def test_a_partition_without_a_leader_is_named_and_the_others_are_shown() -> None:
    topic = spread(30)
    topic.leaderless = (1,)
    found = read(topic)
    assert {one.partition for one in found.records} == {0, 2}
    assert found.problems == ("Partition 1 has no leader.",)


def test_a_damaged_batch_is_named_and_passed_over() -> None:
    topic = spread(30)
    topic.logs[0][-1] = batch([b"x"], base_offset=9, crc=7)
    found = read(topic)
    assert times(found) == [29, 28, 26, 25]
    assert found.problems == ("The batch at offset 9 is corrupt: its checksum is wrong",)


def test_positions_of_another_number_of_partitions_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 3 partitions"):
        read(spread(9), positions=(1, 2))


@pytest.mark.parametrize(
    "written", ["", "-", "1--2", "é", "z" * 14, "zzzzzzzzzzzzz", "1-" * 600 + "1", "1 2"]
)
def test_positions_that_are_none_are_refused(written: str) -> None:
    assert parse_positions(written) is None


def test_positions_survive_an_address() -> None:
    for found in ((0,), (1, 35, 36, 2**63 - 1)):
        assert parse_positions(written_positions(found)) == found
