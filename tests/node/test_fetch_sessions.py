"""Incremental fetch sessions on a whole node."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base import turn_queues
from service.base.slices import Slice
from service.serving.fetch_read import FetchRead
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, values


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


def test_a_fetch_session_gets_the_first_batch_whatever_its_byte_limit(talk: Talk) -> None:
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
