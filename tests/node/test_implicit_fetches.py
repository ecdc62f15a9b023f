"""Consumers of many partitions without a fetch session, over connections to a whole node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from service.serving.fetch_read import FetchRead
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, values
from tests.node.test_fetch_sessions import another
from tests.support.processes import wait_until

COUNT = 600
"""Partitions: more than are read at once."""


def fetch(talk: Talk, topic_id: Any, asked: list[tuple[int, int]], wait_ms: int = 0) -> list[Any]:
    """The partitions of the answer to a full fetch of (partition, offset), in its order."""
    module = request_module(ApiKey.FETCH)
    partitions = tuple(
        module.FetchPartition(partition=one, fetch_offset=offset, partition_max_bytes=1 << 20)
        for one, offset in asked
    )
    answer = talk(
        ApiKey.FETCH, "FetchRequest", max_wait=wait_ms, min_bytes=1, isolation_level=0, rack_id="",
        topics=(module.FetchTopic(topic_id=topic_id, partitions=partitions),), forgotten_topics_data=(),
        session_id=0, session_epoch=-1,
    )  # fmt: skip
    assert (answer.error_code, answer.session_id) == (0, 0)
    return list(answer.responses[0].partitions)


def test_each_fetch_names_all_and_the_node_reads_what_changed(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    looks: list[int] = []
    look = FetchRead.read_partition

    def counted(self: FetchRead, topic: Any, asked: Any, **how: Any) -> Any:
        looks.append(asked.partition)
        return look(self, topic, asked, **how)

    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", COUNT).topic_id
        offsets = dict.fromkeys(range(COUNT), 0)
        fetch(talk, topic_id, list(offsets.items()))
        monkeypatch.setattr(FetchRead, "read_partition", counted)
        other = another(talk)
        for turn, index in enumerate((7, 599, 7)):
            asked = list(offsets.items())
            asked = asked[turn:] + asked[:turn]
            later = threading.Timer(0.1, other.produce, (topic_id, [b"woken"], DAY, index))
            later.start()
            found = fetch(talk, topic_id, asked, 20_000)
            later.join()
            assert [one.partition_index for one in found] == [one for one, _ in asked]
            records = {one.partition_index: values(one.records) for one in found if one.records}
            assert records == {index: [b"woken"]}
            offsets[index] += 1
            assert {one.partition_index: one.high_watermark for one in found} == offsets
        assert len(looks) <= 3 * 3
        other.client.close()
        sessions = node.node.parts.implicit_sessions
        assert sessions is not None
        assert (len(sessions), sessions.partition_count) == (1, COUNT)
    wait_until("the partitions to be forgotten", lambda: sessions.partition_count == 0, 20)
    assert len(sessions) == 0


def test_without_room_each_fetch_is_served_as_a_whole(start: Callable[..., NodeThread]) -> None:
    node = start(firn_fetch_session_cache_partitions=str(COUNT - 1))
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", COUNT).topic_id
        talk.produce(topic_id, [b"one"], DAY, 5)
        for _ in range(2):
            found = fetch(talk, topic_id, [(n, 0) for n in range(COUNT)])
            assert [one.partition_index for one in found if one.records] == [5]
        sessions = node.node.parts.implicit_sessions
        assert sessions is not None
        assert len(sessions) == 0
