"""Records read for a page: what is passed over and named, and how much is held at most."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError, StorageError
from service.client.admin import EARLIEST, LATEST
from service.client.admin_models import FetchResult, PartitionInfo, PartitionPage, TopicInfo
from service.console.web import record_reader
from service.console.web.record_desk import RecordDesk
from service.console.web.record_query import FROM_OFFSET, FROM_START, RecordQuery
from service.console.web.record_reader import HELD_BYTES
from service.console.web.rows import RecordFilter
from tests.support.batches import GZIP, batch, record

CONTROL = 0x20
AT_ONCE = 1 << 20


class Log:
    """A partition's batches, as a cluster hands them out; the local start is at `local_start`."""

    def __init__(self, *batches: bytes, end: int, local_start: int = 0) -> None:
        self._batches = batches
        self._end = end
        self._local_start = local_start
        self.fetches = 0

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def partitions(self, topic: str, first: int, most: int) -> PartitionPage:
        return PartitionPage(TopicInfo(topic, UUID(int=1), (PartitionInfo(0, 1, (1,), (1,)),)), False)

    def offsets(self, topic: str, leaders: Mapping[int, int], timestamp: int) -> dict[int, int]:
        return {0: {EARLIEST: 0, LATEST: self._end}.get(timestamp, self._local_start)}

    def fetch(
        self, leader: int, topic_id: UUID, partition: int, offset: int, *, max_bytes: int, max_wait_ms: int
    ) -> FetchResult:
        self.fetches += 1
        data = b""
        for one in self._batches:
            last = int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big")
            if last >= offset and (not data or len(data) + len(one) <= max_bytes):
                data += one
        return FetchResult(data, self._end, 0)


def read(log: Log, **asked: Any) -> Any:
    desk = RecordDesk(log, ManualClock())  # type: ignore[arg-type]  # what it asks of a cluster
    return desk.read(RecordQuery("t", **{"partition": 0, "where": FROM_START, "most": 500, **asked}))


def test_records_come_in_order_from_the_offset_asked_for() -> None:
    log = Log(batch([b"a", b"b"]), batch([b"c", None], base_offset=2), end=4, local_start=2)
    assert [(one.offset, one.value) for one in read(log).records] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
        (3, None),
    ]
    found = read(log, where=FROM_OFFSET, value=1, most=2)
    assert ([one.offset for one in found.records], found.next_offset, found.is_cut) == ([1, 2], 3, False)


def test_control_batches_and_gaps_are_passed_over() -> None:
    marker = batch([b"\0\0\0\1\0\0"], base_offset=2, attributes=CONTROL)
    gap = batch([b"x"], base_offset=3, last_offset_delta=6)  # compacted: 4 to 9 are gone
    log = Log(batch([b"a", b"b"]), marker, gap, batch([b"y"], base_offset=10), end=11)
    found = read(log)
    assert [(one.offset, one.value) for one in found.records] == [(0, b"a"), (1, b"b"), (3, b"x"), (10, b"y")]
    assert (found.problem, found.next_offset, log.fetches) == (None, 11, 1)


@pytest.mark.parametrize("broken", [{"crc": 7}, {"payload": b"\xff\xff", "count": 1}])
def test_a_batch_that_is_damaged_is_named_and_one_can_go_on_behind_it(broken: dict[str, Any]) -> None:
    damaged = batch([b"b"], base_offset=1, **broken)
    log = Log(batch([b"a"]), damaged, batch([b"c"], base_offset=2), end=3)
    found = read(log)
    assert [one.value for one in found.records] == [b"a"]
    assert "offset 1 is corrupt" in found.problem
    assert [one.value for one in read(log, where=FROM_OFFSET, value=found.next_offset).records] == [b"c"]


def test_a_batch_that_inflates_to_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "MOST_INFLATED", 10_000)
    log = Log(batch([b"\0" * 20_000], codec=GZIP), batch([b"c"], base_offset=1), end=2)
    found = read(log)
    assert "too large to be shown" in found.problem
    assert found.next_offset == 1


def test_decompressed_records_on_a_page_are_bounded() -> None:
    """A hundred batches of some kilobytes are a hundred times eight megabytes of records."""
    inflated = record(0, b"\0" * (8 << 20))
    payload = gzip.compress(inflated, 9)
    batches = [batch(payload=payload, count=1, attributes=GZIP, base_offset=n) for n in range(100)]
    found = read(Log(*batches, end=100))
    held = sum(len(one.value) for one in found.records)
    assert HELD_BYTES <= held <= HELD_BYTES + (8 << 20)
    assert found.is_cut
    assert found.next_offset == len(found.records)


def test_a_search_of_records_ends_at_its_deadline() -> None:
    class Slow(Log):
        def fetch(self, *args: Any, **options: Any) -> FetchResult:
            clock.advance(3_000)
            return super().fetch(*args, **options)

    clock = ManualClock()
    log = Slow(*[batch([bytes(AT_ONCE)], base_offset=n) for n in range(20)], end=20)
    desk = RecordDesk(log, clock)  # type: ignore[arg-type]  # what it asks of a cluster
    found = desk.read(RecordQuery("t", 0, FROM_START, most=500, filter=RecordFilter(b"nothing")))
    assert found.is_cut
    assert 0 < log.fetches <= 4
    assert [turn.took_ms for turn in found.turns] == [3_000] * log.fetches


def test_each_fetch_is_told_of_the_tier_that_its_offset_lies_in() -> None:
    log = Log(*[batch([bytes(AT_ONCE)], base_offset=n) for n in range(4)], end=4, local_start=2)
    assert [(turn.tier, turn.offset) for turn in read(log).turns] == [
        ("bucket", 0), ("bucket", 1), ("disk", 2), ("disk", 3),
    ]  # fmt: skip


def test_downloads_are_of_the_record_asked_for_or_of_none() -> None:
    log = Log(batch([b"a", None]), batch([b"\xff"], base_offset=5), end=6)
    desk = RecordDesk(log, ManualClock())  # type: ignore[arg-type]  # what it asks of a cluster

    def download(offset: int, part: str, most: int = 1) -> Any:
        return desk.download(RecordQuery("t", 0, FROM_OFFSET, offset, most), part)

    assert download(0, "value") == (b"a", "value-0-0.bin")
    assert download(1, "value") is None  # null is no file
    assert download(0, "key") is None
    assert download(3, "value") is None  # compacted away: not the next one
    assert download(99, "value") is None
    data, name = download(0, "lines", 500)
    assert name == "records-0-0-to-6.jsonl"
    assert [json.loads(line)["value"] for line in data.splitlines()] == ["a", None, {"base64": "/w=="}]


def test_a_failed_download_names_its_reason() -> None:
    desk = RecordDesk(Log(batch([b"a"], crc=1), end=1), ManualClock())  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="is corrupt"):
        desk.download(RecordQuery("t", 0, FROM_START), "lines")
    with pytest.raises(ConfigError, match="no partition 3"):
        desk.read(RecordQuery("t", 3, FROM_START))
