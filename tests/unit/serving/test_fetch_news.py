"""Records that come while a fetch reads its partitions, in several turns of the loop, count for its wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest

from service.base.steps import at_once
from service.network.request import RequestContext, Response
from service.security.session import anonymous
from service.serving import fetch_operation
from service.serving.fetch_read import FetchRead
from service.serving.handlers.fetch import handle
from service.serving.implicit_fetch import recall
from service.wire.api import parse_request_header
from service.wire.fetch import parse_fetch
from tests.support.fetch_frames import Named, Topics, fetch_frame
from tests.support.one_of_three import INSIDE, ME, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch

IDS = {"t": TOPIC}
PARTITIONS = 4
ALL: Topics = [("t", [Named(n, 0) for n in range(PARTITIONS)])]
BATCH: Final = batch(1, value=b"v" * 50)
SIZE: Final = len(BATCH.data)
LONG_MS = 20_000


def fetch(
    node: OneOfThree, topics: Topics, *, is_implicit: bool = True, **fields: Any
) -> Response | Awaitable[Response]:
    frame = fetch_frame(11, topics, IDS, **fields)
    header = parse_request_header(frame)
    context = RequestContext(1, "127.0.0.1", 50_000, INSIDE, anonymous("127.0.0.1", INSIDE))
    context.api_key, context.api_version = header.api_key, header.api_version
    implicit = None
    if is_implicit:  # as dispatch has it, unless there is no room
        implicit = at_once(recall(node.broker, context, header, memoryview(frame)))
    return handle(node.broker, context, implicit or parse_fetch(11, frame, header.body))


async def answer(of: Response | Awaitable[Response]) -> bytes:
    """The bytes of the response, which has to come long before the end of a long wait."""
    response = of if isinstance(of, Response) else await asyncio.wait_for(of, LONG_MS / 4000)
    parts = [one if isinstance(one, bytes | bytearray) else cast("Any", one).read() for one in response.parts]
    return b"".join(parts)


def append(node: OneOfThree, number: int) -> None:
    found = node.broker.replicas.get(TOPIC, number)
    assert found is not None
    found.append(batch(1, value=b"v" * 50), START_MS)


async def session_of(node: OneOfThree) -> int:
    """A session of all partitions, of which each was read to its end."""
    await answer(fetch(node, ALL, session=(0, 0)))
    await answer(fetch(node, [], session=(only_session(node), 1)))
    return only_session(node)


def only_session(node: OneOfThree) -> int:
    (number,) = node.broker.fetch_sessions._sessions
    return number


class Appending:
    """Appends records while partitions are read: to those of `before[n]` right before partition n is."""

    def __init__(self, node: OneOfThree, patch: pytest.MonkeyPatch) -> None:
        self.before: dict[int, Sequence[int]] = {}
        self.read: list[int] = []
        reads, own = FetchRead.read_partition, self

        def appending(self: FetchRead, topic: Any, asked: Any, **how: Any) -> Any:
            for number in own.before.pop(asked.partition, ()):
                append(node, number)
            own.read.append(asked.partition)
            return reads(self, topic, asked, **how)

        patch.setattr(FetchRead, "read_partition", appending)


def play(
    folder: Path, patch: pytest.MonkeyPatch, scenario: Callable[[OneOfThree, Appending], Awaitable[None]]
) -> None:
    # Of more partitions than this, a fetch reads in a task, which gives the loop its turns.
    patch.setattr(fetch_operation, "MOST_AT_ONCE", 0)

    async def whole() -> None:
        records = (topic(), *(partition(n, ME) for n in range(PARTITIONS)))
        async with asyncio.timeout(30), one_of_three(folder, *records) as node:
            await scenario(node, Appending(node, patch))
            # The event loop ends the last task, which drops what the fetch has watched.
            sessions = len(node.broker.fetch_sessions) + len(node.broker.implicit_sessions)
            while len(node.broker.timers.purgatory) > sessions * PARTITIONS:
                await asyncio.sleep(0)

    asyncio.run(whole())


@pytest.mark.parametrize(
    "how",
    [{"is_implicit": False}, {"is_implicit": True}, {"session": (0, 0)}],
    ids=["plain", "of an implicit session", "that opens a session"],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_record_behind_the_pass_of_a_full_fetch_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], number: int
) -> None:
    async def scenario(node: OneOfThree, appending: Appending) -> None:
        appending.before[3] = (number,)
        found = await answer(fetch(node, ALL, wait_ms=LONG_MS, **how))
        assert found.count(b"v" * 50) == 1

    play(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_record_behind_the_pass_of_an_incremental_fetch_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Partition 2 has a record already, which is not enough: it may be another one or the same that grows."""

    async def scenario(node: OneOfThree, appending: Appending) -> None:
        session = await session_of(node)
        append(node, 1)
        append(node, 2)
        appending.before[2] = (number,)
        later = fetch(node, [], session=(session, 2), wait_ms=LONG_MS, min_bytes=3 * SIZE)
        found = await answer(later)
        assert found.count(b"v" * 50) == 3

    play(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize("is_implicit", [False, True])
def test_bytes_behind_the_pass_count_with_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_implicit: bool
) -> None:
    async def scenario(node: OneOfThree, appending: Appending) -> None:
        appending.before[3] = (0,)
        later = cast(
            "asyncio.Future[Response]",
            fetch(node, ALL, is_implicit=is_implicit, wait_ms=LONG_MS, min_bytes=2 * SIZE),
        )
        while len(appending.read) < PARTITIONS:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not later.done()
        assert appending.read == [0, 1, 2, 3], "one record is not enough: it need not read again"
        append(node, 1)
        assert (await answer(later)).count(b"v" * 50) == 2

    play(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize("is_implicit", [False, True])
def test_a_record_ahead_of_the_pass_is_read_by_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_implicit: bool
) -> None:
    async def scenario(node: OneOfThree, appending: Appending) -> None:
        appending.before[1] = (2,)
        assert (await answer(fetch(node, ALL, is_implicit=is_implicit, wait_ms=LONG_MS))).count(
            b"v" * 50
        ) == 1
        assert appending.read == [0, 1, 2, 3]

    play(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize(("is_implicit", "again"), [(False, [0, 1, 2, 3]), (True, [0])])
def test_a_change_of_a_partition_behind_the_pass_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_implicit: bool, again: list[int]
) -> None:
    async def scenario(node: OneOfThree, appending: Appending) -> None:
        reads = FetchRead.read_partition

        def moving(self: FetchRead, topic: Any, asked: Any, **how: Any) -> Any:
            if asked.partition == 3 and len(appending.read) == 3:
                found = node.broker.replicas.get(TOPIC, 0)
                assert found is not None
                node.broker.timers.purgatory.happened(found)  # as a change of leaders has it
            return reads(self, topic, asked, **how)

        monkeypatch.setattr(FetchRead, "read_partition", moving)
        assert b"v" * 50 not in await answer(fetch(node, ALL, is_implicit=is_implicit, wait_ms=LONG_MS))
        assert appending.read == [0, 1, 2, 3, *again]

    play(tmp_path, monkeypatch, scenario)


def test_a_peer_that_leaves_in_the_middle_of_a_pass_leaves_nothing_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: OneOfThree, appending: Appending) -> None:
        later = cast("asyncio.Future[Response]", fetch(node, ALL, wait_ms=LONG_MS))
        await asyncio.sleep(0)
        later.cancel()

    play(tmp_path, monkeypatch, scenario)
