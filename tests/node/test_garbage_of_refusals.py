"""Refused requests of a coordinator leave no reference cycles: a node collects its whole heap so seldom.

Those that an active shard refuses are in `test_garbage_of_requests.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.hot.markers import Marker
from service.serving.internal_topics import OFFSETS
from service.serving.topic_coordinator import _await_answer
from service.wire.api import ApiKey
from tests.support.garbage import without_collector
from tests.support.one_of_three import OTHER, OneOfThree, partition, topic
from tests.support.runtime_world import World, lived
from tests.unit.serving.leadership import run

TIMES = 12
MARKER = Marker(7, 1, 3, True, 1)


async def check(repeat: Callable[[], Awaitable[None]]) -> None:
    for _ in range(3):
        await repeat()
    await asyncio.sleep(0.05)  # what is under way after an answer ends
    with without_collector() as left:
        for _ in range(TIMES):
            await repeat()
        await asyncio.sleep(0.05)
    most = {name: count for name, count in left.items() if count >= TIMES / 2}
    assert not most, f"of {TIMES} requests: {left}"


def code_of(error: BaseException | None) -> ErrorCode:
    assert isinstance(error, RequestError)
    return error.code


def test_heartbeats_to_a_node_that_is_not_the_coordinator(tmp_path: Path) -> None:
    """From the request's bytes to its response."""
    offsets = UUID(int=200)

    async def scenario(node: OneOfThree) -> None:
        async def repeat() -> None:
            answer = await node.call(
                ApiKey.HEARTBEAT, "HeartbeatRequest", 4, group_id="group", generation_id=1, member_id="m"
            )
            assert answer.error_code == ErrorCode.not_coordinator

        await check(repeat)

    run(tmp_path, scenario, topic(OFFSETS, offsets), partition(0, OTHER, topic_id=offsets))


@pytest.mark.parametrize("is_marker", [False, True])
def test_writes_to_a_partition_that_is_not_led(is_marker: bool) -> None:
    async def scenario(world: World) -> None:
        async def repeat() -> None:
            # Without a name for the future: only the node's own frames may keep it.
            code = code_of(
                (world.runtime.write_marker(0, MARKER) if is_marker else world.put(b"k")).exception()
            )
            assert code is ErrorCode.not_coordinator

        await check(repeat)

    lived(scenario)


def test_writes_while_the_log_refuses_appends() -> None:
    """A full disk, or too few replicas in sync, while all clients try again."""

    async def scenario(world: World) -> None:
        await world.lead()

        def refuse(*_: Any) -> int:
            raise StorageError("disk full")

        world.log.append = refuse  # type: ignore[method-assign, assignment]

        async def repeat() -> None:
            codes: list[ErrorCode] = []
            world.put(b"k").add_done_callback(lambda done: codes.append(code_of(done.exception())))
            await asyncio.sleep(0.05)
            assert codes == [ErrorCode.not_coordinator]

        await check(repeat)

    lived(scenario)


def test_markers_that_the_log_refuses() -> None:
    async def scenario(world: World) -> None:
        await world.lead()

        def refuse(*_: Any) -> int:
            raise RequestError(ErrorCode.invalid_producer_epoch)

        world.log.append_marker = refuse  # type: ignore[method-assign, assignment]

        async def repeat() -> None:
            code = code_of(world.runtime.write_marker(0, MARKER).exception())
            assert code is ErrorCode.invalid_producer_epoch

        await check(repeat)

    lived(scenario)


def test_answers_that_wait_and_are_refused_then() -> None:
    """A group's requests that wait for the high watermark while the partition gets another leader."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def repeat() -> None:
            codes: list[ErrorCode] = []
            futures = [loop.create_future()]
            task = asyncio.create_task(_await_answer(futures[0], lambda e: codes.append(e.code)))
            await asyncio.sleep(0)
            futures.pop().set_exception(RequestError(ErrorCode.not_coordinator))
            await task
            assert codes == [ErrorCode.not_coordinator]

        await check(repeat)

    asyncio.run(scenario())
