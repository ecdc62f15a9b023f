"""Fetch and ListOffsets on a whole node: waiting, epochs, budgets, and a log that lies in two tiers."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base import turn_queues
from service.base.disk import SystemDisk
from service.base.slices import Slice
from service.records.decode import iter_records
from service.serving.fetch_read import FetchRead
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, decode_response, encode_request, schema

DAY = 1_700_000_000_000


def values(records: bytes | None) -> list[bytes | None]:
    """Values of the whole batches in a fetched chunk; the end may be cut."""
    data, found = memoryview(records or b""), []
    while len(data) > 12 and (size := int.from_bytes(data[8:12], "big") + 12) <= len(data):
        found += [record.value for record in iter_records(data[:size])]
        data = data[size:]
    return found


def test_a_fetch_with_nothing_to_say_waits_and_is_woken(talk: Talk, start: Callable[..., NodeThread]) -> None:
    topic_id = talk.create("t").topic_id
    began = time.monotonic()
    assert values(talk.fetch(topic_id, 0, max_wait=200).records) == []
    assert time.monotonic() - began >= 0.15

    host, port = talk.client.address.split(":")
    other = Talk(type(talk.client)(host, int(port)))
    later = threading.Timer(0.2, lambda: other.produce(topic_id, [b"woken"], DAY))
    later.start()
    assert values(talk.fetch(topic_id, 0, max_wait=20_000).records) == [b"woken"]
    later.join()
    other.client.close()


def test_a_fetch_that_waits_holds_up_nobody_behind_it(talk: Talk) -> None:
    """Requests of one connection are answered in order: what waits for news alone gives way to the next."""
    talk.create("t")
    fetch, versions = schema(1, 12), schema(18, 3)
    part = fetch.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    waits = fetch.FetchRequest(
        replica_id=-1, max_wait=timedelta(hours=1), min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=(fetch.FetchTopic(topic="t", partitions=(part,)),),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    behind = versions.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    with RawConnection(talk.client.address) as connection:
        for pause_s in (0.0, 0.1):  # it comes with the fetch, or finds it asleep
            connection.send_frame(encode_request(waits, 7))
            time.sleep(pause_s)
            connection.send_frame(encode_request(behind, 8))
            first, second = connection.receive_frame(), connection.receive_frame()
            told = decode_response(waits, first).responses[0].partitions[0]
            assert (told.error_code, bytes(told.records or b"")) == (ErrorCode.none, b"")
            assert decode_response(behind, second).error_code == ErrorCode.none
        assert connection.call(behind).error_code == ErrorCode.none


def test_min_bytes_gathers_several_appends(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    host, port = talk.client.address.split(":")
    other = Talk(type(talk.client)(host, int(port)))

    def drip() -> None:
        for n in range(5):
            time.sleep(0.05)
            other.produce(topic_id, [b"%d" % n + b"." * 300], DAY)

    thread = threading.Thread(target=drip)
    thread.start()
    found = values(talk.fetch(topic_id, 0, max_wait=20_000, min_bytes=1500).records)
    thread.join()
    other.client.close()
    assert len(found) >= 4


def test_what_the_page_cache_has_given_up_is_read_by_threads(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    node, source = start(), random.Random(7)
    client = node.client()
    talk = Talk(client)
    topic_id = talk.create("t").topic_id
    produced = [source.randbytes(size) for size in (900_000, 50, 5_000, 900_000, 30_000, 900_000, 700)]
    for value in produced:
        talk.produce(topic_id, [value], DAY)
    (log,) = tmp_path.rglob("t-0/*0.log")
    with log.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if SystemDisk().is_resident(file.fileno(), log.stat().st_size, 0):
            pytest.skip("this file system keeps its pages, or cannot tell")
    answer = talk.fetch(topic_id, 0, partition_max_bytes=4 << 20, max_bytes=4 << 20)
    assert values(answer.records) == produced
    serving = node.node.parts.serving
    assert serving is not None
    # Which pages the system gave up is its own: those that tell where the offset is, or those behind.
    assert serving.seek_wait.snapshot().observed + node.node.parts.network.device_reads > 0
    client.close()


def test_a_fetch_does_not_wait_at_the_end_of_a_segment(talk: Talk) -> None:
    """What is asked for lies ready, in segments behind the first one."""
    topic_id = talk.create("t", internal_segment_bytes="500").topic_id
    for n in range(12):
        talk.produce(topic_id, [b"%02d" % n + b"." * 300], DAY)
    began = time.monotonic()
    found = values(talk.fetch(topic_id, 1, max_wait=20_000, min_bytes=3500).records)
    assert time.monotonic() - began < 10
    assert [value[:2] for value in found if value] == [b"%02d" % n for n in range(1, 12)]
    assert len(values(talk.fetch(topic_id, 0, partition_max_bytes=1000).records)) == 2


def test_epochs_and_offsets_that_cannot_be_are_refused(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    talk.produce(topic_id, [b"a", b"b"], DAY)
    assert talk.fetch(topic_id, 3).error_code == ErrorCode.offset_out_of_range
    assert talk.fetch(topic_id, -1).error_code == ErrorCode.offset_out_of_range
    assert talk.fetch(topic_id, 0, current_leader_epoch=7).error_code == ErrorCode.unknown_leader_epoch
    assert talk.fetch(topic_id, 0, partition=9).error_code == ErrorCode.unknown_topic_or_partition
    assert talk.fetch(topic_id, 0, last_fetched_epoch=5).error_code == ErrorCode.offset_out_of_range


def test_a_restart_fences_the_old_epoch(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        topic_id = Talk(client).create("t").topic_id
        Talk(client).produce(topic_id, [b"a"], DAY)
    node.stop()
    with start().client() as client:
        talk = Talk(client)
        assert talk.fetch(topic_id, 0, current_leader_epoch=0).error_code == ErrorCode.fenced_leader_epoch
        talk.produce(topic_id, [b"b"], DAY)
        module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        asked = module.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        answer = talk(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            "OffsetForLeaderEpochRequest",
            topics=(module.OffsetForLeaderTopic(topic="t", partitions=(asked,)),),
        )
        (end,) = answer.topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, 1)
        diverging = talk.fetch(topic_id, 2, last_fetched_epoch=0).diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 1)


class Session:
    """A consumer's fetch session by hand: sends what changed, keeps what it was told."""

    def __init__(self, talk: Talk, asked: dict[tuple[Any, int], int]) -> None:
        self.talk = talk
        self.at = dict(asked)
        self.session_id = self.epoch = 0
        self.changed: dict[tuple[Any, int], int] = dict(asked)

    def fetch(self, **fields: Any) -> dict[tuple[Any, int], Any]:
        """One fetch of what was asked for, or has changed since; answers by topic id and partition."""
        module = request_module(ApiKey.FETCH)
        topics = tuple(
            module.FetchTopic(
                topic_id=topic_id,
                partitions=(
                    module.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20),
                ),
            )
            for (topic_id, index), offset in self.changed.items()
        )
        message = {"max_wait": 0, "min_bytes": 1, "isolation_level": 0, "rack_id": "", **fields}
        answer = self.talk(
            ApiKey.FETCH,
            "FetchRequest",
            topics=topics,
            forgotten_topics_data=(),
            session_id=self.session_id,
            session_epoch=self.epoch,
            **message,
        )
        assert answer.error_code == 0, answer.error_code
        assert self.session_id in (0, answer.session_id)
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        told = {
            (topic.topic_id, one.partition_index): one
            for topic in answer.responses
            for one in topic.partitions
        }
        self.changed = {}
        for place, one in told.items():
            if found := values(one.records):
                self.changed[place] = self.at[place] = self.at[place] + len(found)
        return told


def another(talk: Talk) -> Talk:
    """The same node over another connection."""
    host, port = talk.client.address.split(":")
    return Talk(type(talk.client)(host, int(port), timeout_s=20))


def test_an_incremental_fetch_waits_for_any_of_its_partitions(talk: Talk) -> None:
    topic_id = talk.create("t", 40).topic_id
    session = Session(talk, {(topic_id, index): 0 for index in range(40)})
    assert len(session.fetch()) == 40
    assert session.session_id != 0
    assert session.fetch() == {}
    other = another(talk)
    for index in (7, 39, 7):
        later = threading.Timer(0.1, lambda index=index: other.produce(topic_id, [b"woken"], DAY, index))
        later.start()
        told = session.fetch(max_wait=20_000)
        later.join()
        assert list(told) == [(topic_id, index)]
        assert values(told[topic_id, index].records) == [b"woken"]
    began = time.monotonic()
    assert session.fetch(max_wait=200) == {}
    assert time.monotonic() - began >= 0.15
    other.client.close()


def test_a_session_gathers_the_least_bytes_over_its_partitions(talk: Talk) -> None:
    topic_id = talk.create("t", 3).topic_id
    session = Session(talk, {(topic_id, index): 0 for index in range(3)})
    session.fetch()
    other = another(talk)

    def drip() -> None:
        for n in range(5):
            time.sleep(0.05)
            other.produce(topic_id, [b"." * 300], DAY, n % 3)

    thread = threading.Thread(target=drip)
    thread.start()
    told = session.fetch(max_wait=20_000, min_bytes=1500)
    thread.join()
    other.client.close()
    assert sum(len(values(one.records)) for one in told.values()) >= 4


def test_a_session_that_takes_no_bytes_gets_the_first_batch_all_the_same(talk: Talk) -> None:
    """KIP-74: who wants less than there is in one batch goes on, whatever `fetch.max.bytes` says."""
    topic_id = talk.create("t", 2).topic_id
    for n in range(2):
        talk.produce(topic_id, [b"%d" % n], DAY)
    session = Session(talk, {(topic_id, index): 0 for index in range(2)})
    for n in range(2):
        assert values(session.fetch(max_bytes=0)[topic_id, 0].records) == [b"%d" % n]


def test_a_deleted_topic_ends_the_wait_of_a_session_that_has_it(talk: Talk) -> None:
    kept, gone = talk.create("kept").topic_id, talk.create("gone").topic_id
    session = Session(talk, {(kept, 0): 0, (gone, 0): 0})
    session.fetch()
    other = another(talk)
    module = request_module(ApiKey.DELETE_TOPICS)
    state = module.DeleteTopicState(name=None, topic_id=gone)
    later = threading.Timer(
        0.1, lambda: other(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=(state,), timeout=5000)
    )
    later.start()
    began = time.monotonic()
    told = session.fetch(max_wait=60_000)
    assert time.monotonic() - began < 30
    later.join()
    other.client.close()
    errors = {place: one.error_code for place, one in told.items()}
    assert errors == {(gone, 0): ErrorCode.unknown_topic_or_partition}, "the session knows its name"


def test_an_unknown_partition_does_not_keep_others_from_waiting(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    session = Session(talk, {(topic_id, 0): 0, (topic_id, 8): 0})
    for _ in range(3):
        began = time.monotonic()
        told = session.fetch(max_wait=200)
        assert time.monotonic() - began >= 0.15
        assert told[topic_id, 8].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("count", [60, 600])
def test_a_fetch_of_a_session_looks_at_what_changed_however_many_partitions_it_has(
    talk: Talk, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = talk.create("t", count).topic_id
    session = Session(talk, {(topic_id, index): 0 for index in range(count)})
    assert len(session.fetch()) == count
    looks: list[int] = []
    look = FetchRead.read_partition

    def counted(self: FetchRead, topic: Any, asked: Any, **how: Any) -> Any:
        looks.append(asked.partition)
        return look(self, topic, asked, **how)

    monkeypatch.setattr(FetchRead, "read_partition", counted)
    for index in range(0, count, count // 6):
        talk.produce(topic_id, [b"one"], DAY, index)
        assert list(session.fetch()) == [(topic_id, index)]
        assert session.fetch() == {}
    assert len(looks) <= 3 * 7


def running_fetch() -> asyncio.Task[Any] | None:
    """The task that runs just now, where it is a fetch of many partitions."""
    task = asyncio.current_task()
    return task if task is not None and task.get_name().startswith("fetch of ") else None


def test_a_peer_that_leaves_in_the_last_turn_of_a_long_fetch_is_no_error(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic_id = talk.create("t", 600).topic_id
    next_turn = Slice.next_turn
    turns = 0
    last: int | None = None

    async def leaving(self: Slice) -> None:
        nonlocal turns
        await next_turn(self)
        task = running_fetch()
        if task is not None:
            turns += 1
            if turns == last:
                # As when the connection is lost: callbacks come in the turn after this one.
                assert task.get_coro().cr_frame.f_locals["self"]._future.cancel()

    monkeypatch.setattr(Slice, "next_turn", leaving)
    monkeypatch.setattr(turn_queues, "SLICE_S", 0)  # each step is a turn: both fetches take as many
    asked = {(topic_id, index): 0 for index in range(600)}
    Session(talk, asked).fetch()
    last, turns = turns, 0
    gone = another(talk)
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        Session(gone, asked).fetch()
    gone.client.close()
    assert turns == last
    talk.produce(topic_id, [b"after"], DAY)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_many_partitions_are_gone_through_in_turns(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's work is done in the middle of a fetch of many partitions."""
    count = 600
    topic_id = talk.create("t", count).topic_id
    turns: list[int] = []
    next_turn = Slice.next_turn

    async def counted(self: Slice) -> None:
        # The node's chores have slices of their own.
        if running_fetch() is not None:
            turns.append(1)
        await next_turn(self)

    monkeypatch.setattr(Slice, "next_turn", counted)
    monkeypatch.setattr(turn_queues, "SLICE_S", 0)  # each step is a turn
    session = Session(talk, {(topic_id, index): 0 for index in range(count)})
    assert len(session.fetch()) == count
    assert len(turns) >= 3
    del turns[:]
    assert session.fetch() == {}
    assert not turns
    session.changed = dict(session.at)
    other = another(talk)
    later = threading.Timer(0.3, lambda: other.produce(topic_id, [b"woken"], DAY, 599))
    later.start()
    assert list(session.fetch(max_wait=20_000)) == [(topic_id, 599)]
    later.join()
    other.client.close()


def test_a_session_of_more_partitions_than_all_may_have_is_declined(start: Callable[..., NodeThread]) -> None:
    with start(firn_fetch_session_cache_partitions="5").client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", 6).topic_id
        large = Session(talk, {(topic_id, index): 0 for index in range(6)})
        large.fetch()
        assert large.session_id == 0
        small = Session(talk, {(topic_id, index): 0 for index in range(4)})
        small.fetch()
        assert small.session_id != 0
        small.changed = {(topic_id, 4): 0}
        small.at[topic_id, 4] = 0
        small.fetch()
        refused = talk.fetch(
            topic_id, 0, partition=5, session_id=small.session_id, session_epoch=small.epoch, whole=True
        )
        assert refused.error_code == ErrorCode.fetch_session_id_not_found


def test_what_lies_in_the_next_segment_is_not_waited_for(talk: Talk) -> None:
    """More than the least that is wanted is there, but no segment holds it alone."""
    topic_id = talk.create("t", internal_segment_bytes="20000").topic_id
    for n in range(20):
        talk.produce(topic_id, [b"%d" % n + b"." * 4000], DAY + n)
    began = time.monotonic()
    found = values(talk.fetch(topic_id, 0, max_wait=60_000, min_bytes=60_000).records)
    assert time.monotonic() - began < 30
    assert len(found) == 20


def test_the_first_batch_comes_whole_whatever_the_budget(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    talk.produce(topic_id, [b"x" * 5000], DAY)
    assert values(talk.fetch(topic_id, 0, partition_max_bytes=10, max_bytes=10).records) == [b"x" * 5000]


def list_offset(talk: Talk, timestamp: int, topic: str = "t", partition: int = 0) -> Any:
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    answer = talk(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name=topic, partitions=(asked,)),),
        timeout=20_000,
    )
    return answer.topics[0].partitions[0]


def test_a_partition_asked_for_twice_is_refused_twice(talk: Talk) -> None:
    talk.create("t")
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=-1)
    answer = talk(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name="t", partitions=(asked, asked)),),
        timeout=1000,
    )
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.invalid_request] * 2


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


def test_cold_bytes_that_a_fetch_did_not_take_are_nobodys_at_once(
    start: Callable[..., NodeThread], tmp_path: Path
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
                max_wait=5000, min_bytes=1, max_bytes=200_000, isolation_level=0,
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
