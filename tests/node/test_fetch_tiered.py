"""Fetch and ListOffsets of a log that is partly in the bucket."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset, values
from tests.support.processes import wait_until


class Tiered:
    """A topic of 40 batches, ten records each, of which the older ones lie in the bucket only."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        created = talk.create(
            "t",
            remote_storage_enable="true",
            retention_ms="-1",
            local_retention_bytes="30000",
            internal_segment_bytes="20000",
            file_delete_delay_ms="0",
        )
        assert created.error_code == 0, created.error_message
        self.topic_id = created.topic_id
        self.written: list[bytes] = []
        for n in range(40):
            batch = [b"%d-%d" % (n, m) + b"." * 200 for m in range(10)]
            assert talk.produce(self.topic_id, batch, DAY + 1000 * n).error_code == 0
            self.written += batch
        wait_until("segments to be offloaded", lambda: self.local_start > 0, 80)

    @property
    def local_start(self) -> int:
        return int(list_offset(self.talk, -4).offset)


@pytest.fixture
def tiered(start: Callable[..., NodeThread], tmp_path: Path) -> Iterator[Tiered]:
    (tmp_path / "bucket").mkdir()
    with start(firn_remote_url=f"file://{tmp_path}/bucket").client() as client:
        yield Tiered(Talk(client))


def test_a_reader_does_not_notice_the_border(tiered: Tiered) -> None:
    found: list[bytes | None] = []
    while len(found) < len(tiered.written):
        answer = tiered.talk.fetch(tiered.topic_id, len(found), partition_max_bytes=5000, max_wait=5000)
        assert answer.error_code == 0
        more = values(answer.records)
        assert more, f"nothing at {len(found)}, the border is at {tiered.local_start}"
        found += more
    assert found == tiered.written


def test_a_fetch_may_begin_within_a_cold_batch(tiered: Tiered) -> None:
    answer = tiered.talk.fetch(tiered.topic_id, 14, max_wait=5000, partition_max_bytes=100)
    assert values(answer.records) == tiered.written[10:20]


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_unused_cold_bytes_are_released_at_once(
    start: Callable[..., NodeThread], tmp_path: Path, isolation_level: int
) -> None:
    """Responses may hold so much and no more: what is kept for one that has gone is missing for others."""
    (tmp_path / "bucket").mkdir()
    node = start(firn_remote_url=f"file://{tmp_path}/bucket")
    with node.client() as client:
        talk = Talk(client)
        config = {"retention_ms": "-1", "local_retention_bytes": "1", "internal_segment_bytes": "200000"}
        topic_id = talk.create(
            "t", 3, remote_storage_enable="true", file_delete_delay_ms="0", **config
        ).topic_id
        for n in range(9):
            assert talk.produce_in_the_end(topic_id, [b"." * 150_000], DAY, n % 3).error_code == 0
        for n in range(3):
            is_cold = lambda n=n: list_offset(talk, -4, partition=n).offset == 2  # noqa: E731
            wait_until("files to be gone", is_cold, 80)
        module = request_module(ApiKey.FETCH)
        asked = [
            module.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(3)
        ]
        gc.disable()
        try:
            answer = talk(
                ApiKey.FETCH, "FetchRequest",
                topics=(module.FetchTopic(topic_id=topic_id, partitions=tuple(asked)),),
                max_wait=5000, min_bytes=1, max_bytes=200_000, isolation_level=isolation_level,
                session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
            )  # fmt: skip
            found = [values(one.records) for one in answer.responses[0].partitions]
            assert sum(map(len, found)) == 1
            wait_until("downloads to end", lambda: node.node.parts.memory()["cold_downloads"] == 0)
            wait_until("memory to be free", lambda: node.node.parts.memory()["cold_answers"] == 0)
        finally:
            gc.enable()


def test_places_of_both_tiers(tiered: Tiered) -> None:
    talk, local_start = tiered.talk, tiered.local_start
    assert list_offset(talk, -2).offset == 0
    assert list_offset(talk, -1).offset == 400
    assert 0 < local_start < 400
    while True:
        last_tiered = list_offset(talk, -5).offset
        first_pending = list_offset(talk, -6).offset
        if list_offset(talk, -5).offset == last_tiered:
            break  # nothing was offloaded between the two
    assert local_start - 1 <= last_tiered < 400
    assert first_pending == last_tiered + 1


def test_offsets_by_time_in_both_tiers(tiered: Tiered) -> None:
    for batch in (0, 1, 17, 38, 39):
        at = DAY + 1000 * batch
        found = list_offset(tiered.talk, at + 3)
        assert (found.error_code, found.offset, found.timestamp) == (0, 10 * batch + 3, at + 3)
        between = list_offset(tiered.talk, at - 500)
        assert (between.offset, between.timestamp) == (10 * batch, at)


def test_no_record_is_that_late(tiered: Tiered) -> None:
    assert list_offset(tiered.talk, DAY + 10**9).offset == -1
    latest = list_offset(tiered.talk, -3)
    assert (latest.offset, latest.timestamp) == (399, DAY + 39_009)


def test_a_lost_disk_takes_no_offset_twice(start: Callable[..., NodeThread], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    node = start(firn_remote_url=url)
    with node.client() as client:
        tiered = Tiered(Talk(client))
        least = int(list_offset(tiered.talk, -5).offset) + 1
    node.stop()
    shutil.rmtree(tmp_path / "data" / "t-0")
    with start(firn_remote_url=url).client() as client:
        talk = Talk(client)
        wait_until("the archive's end to be read", lambda: list_offset(talk, -1).error_code == 0)
        # Until it was stopped the node may have archived more.
        archived = int(list_offset(talk, -1).offset)
        assert (list_offset(talk, -2).offset, list_offset(talk, -5).offset) == (0, archived - 1)
        assert archived >= least
        answer = talk.produce_in_the_end(tiered.topic_id, [b"after"], DAY)
        assert answer.base_offset == archived
        found: list[bytes | None] = []
        while len(found) <= archived:
            answer = talk.fetch(tiered.topic_id, len(found), max_wait=5000)
            assert answer.error_code == 0
            found += values(answer.records)
        assert found == [*tiered.written[:archived], b"after"]


def test_without_copying_the_log_begins_where_its_files_do(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    with start(firn_remote_url=f"file://{tmp_path}/bucket").client() as client:
        talk = Talk(client)
        created = talk.create(
            "t",
            remote_storage_enable="true",
            remote_log_copy_disable="true",
            retention_bytes="30000",
            internal_segment_bytes="20000",
        )
        for n in range(40):
            talk.produce(created.topic_id, [b"%d" % n + b"." * 2000], DAY + n)
        # Nine batches a segment; two segments go, a third would take more than is too much.
        wait_until("retention to be done", lambda: list_offset(talk, -2).offset == 18, 80)
        assert list_offset(talk, -4).offset == 18
        assert values(talk.fetch(created.topic_id, 18).records)[0] == b"18" + b"." * 2000


def test_a_throttled_fetch_downloads_nothing(start: Callable[..., NodeThread], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    node = start(firn_remote_url=f"file://{tmp_path}/bucket")
    with node.client() as client:
        tiered = Tiered(Talk(client))
        broker, cold = node.node.parts.broker, node.node.parts.cold
        assert broker is not None
        assert cold is not None
        limits = {("", "test", ""): {"consumer_byte_rate": 3_000.0}}
        node._loop.call_soon_threadsafe(broker.quotas.apply, limits)
        wait_until("the quota to be there", lambda: broker.quotas.active)

        def fetch(offset: int) -> Any:
            return tiered.talk.fetch(
                tiered.topic_id, offset, whole=True, max_wait=5000, partition_max_bytes=20_000
            )

        found = values(fetch(0).responses[0].partitions[0].records)
        assert found == tiered.written[: len(found)]
        assert len(found) > 50
        before = cold.reader.stats().downloads.downloaded_bytes
        throttled = fetch(tiered.local_start - 60)
        assert throttled.responses == ()
        assert throttled.throttle_time.total_seconds() > 1, "there is room for a third of it"
        assert cold.reader.stats().downloads.downloaded_bytes == before
        node._loop.call_soon_threadsafe(broker.quotas.apply, {})
