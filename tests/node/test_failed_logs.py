"""Logs that fail under a node: how many are told by its health, whatever the number of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from service.replicas.partition_registry import Replicas
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until


def words_of(running: NodeThread) -> list[str]:
    async def ask() -> list[str]:
        return [one.words for one in running.node.parts.health(0).findings]

    return asyncio.run_coroutine_threadsafe(ask(), running._loop).result(20)


def test_failed_logs_are_counted_without_a_look_at_all_partitions(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    with running.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", 3).topic_id
        assert words_of(running) == []
        broker = running.node.parts.broker
        assert broker is not None
        for number in (0, 2):
            partition = broker.replicas.get(topic_id, number)
            assert partition is not None
            partition.log.state.fail("a test says so")

        def look(registry: Any) -> Any:
            raise AssertionError("ten thousand of them take twelve milliseconds")

        monkeypatch.setattr(Replicas, "__iter__", look)
        wait_until("the failures", lambda: words_of(running) == ["node 1: 2 partitions are offline on it"])
