"""Full fetches without a session: which are served by an implicit one, how they wait, and what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from service.base.steps import at_once
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.network.request import RequestContext, Response
from service.partition.fetch_sessions import EVICTION_MS
from service.partition.implicit_sessions import ImplicitPartition, RowOrder
from service.security.session import anonymous
from service.serving.fetch_read import FetchRead
from service.serving.handlers.fetch import handle
from service.serving.implicit_fetch import RecalledFetch, recall
from service.wire.api import parse_request_header
from service.wire.fetch import parse_fetch
from tests.support.fetch_frames import Named, Topics, fetch_frame
from tests.support.one_of_three import INSIDE, ME, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch

IDS = {"t": TOPIC}
PARTITIONS = 4
ALL: Topics = [("t", [Named(n, 0) for n in range(PARTITIONS)])]


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        records = (topic(), *(partition(n, ME) for n in range(PARTITIONS)))
        async with asyncio.timeout(30), one_of_three(folder, *records) as node:
            await scenario(node)

    asyncio.run(whole())


def context_of(frame: bytes, connection: int) -> RequestContext:
    context = RequestContext(connection, "127.0.0.1", 50_000, INSIDE, anonymous("127.0.0.1", INSIDE))
    header = parse_request_header(frame)
    context.api_key, context.api_version = header.api_key, header.api_version
    context.correlation_id = header.correlation_id
    return context


def recalled(node: OneOfThree, frame: bytes, connection: int = 1) -> RecalledFetch | None:
    context = context_of(frame, connection)
    return at_once(recall(node.broker, context, parse_request_header(frame), memoryview(frame)))


def fetch(node: OneOfThree, frame: bytes, connection: int = 1) -> Any:
    """The answer by the implicit session of the connection, or a future of it."""
    request = recalled(node, frame, connection)
    assert request is not None
    return handle(node.broker, context_of(frame, connection), request)


def sent(answer: Response) -> bytes:
    parts = [one if isinstance(one, bytes | bytearray) else cast("Any", one).read() for one in answer.parts]
    return b"".join(parts)


def plain(node: OneOfThree, frame: bytes) -> bytes:
    header = parse_request_header(frame)
    request = parse_fetch(header.api_version, frame, header.body)
    return sent(cast("Response", handle(node.broker, context_of(frame, 99), request)))


async def freed(node: OneOfThree, partitions: int) -> None:
    """Wait until so many partitions are remembered: closed sessions are freed in later turns."""
    while node.broker.implicit_sessions.partition_count != partitions:
        await asyncio.sleep(0)


def append(node: OneOfThree, number: int) -> None:
    found = node.broker.replicas.get(TOPIC, number)
    assert found is not None
    found.append(batch(1), START_MS)


def test_a_fetch_like_the_last_one_reads_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    reads = FetchRead.read_partition

    def counted(self: FetchRead, topic: Any, asked: Any, **how: Any) -> Any:
        read.append(asked.partition)
        return reads(self, topic, asked, **how)

    async def scenario(node: OneOfThree) -> None:
        monkeypatch.setattr(FetchRead, "read_partition", counted)
        offsets = dict.fromkeys(range(PARTITIONS), 0)

        def asks(*order: int) -> bytes:
            return fetch_frame(11, [("t", [Named(n, offsets[n]) for n in order])], IDS)

        fetch(node, asks(0, 1, 2, 3))
        assert read == [0, 1, 2, 3]
        del read[:]
        fetch(node, asks(1, 2, 3, 0))
        assert read == [], "only the order is another"
        append(node, 2)
        fetch(node, asks(2, 3, 0, 1))
        assert read == [2]
        fetch(node, asks(3, 0, 1, 2))
        assert read == [2, 2], "it was not acknowledged"
        offsets[2] = 1
        fetch(node, asks(0, 1, 2, 3))
        fetch(node, asks(1, 2, 3, 0))
        assert read == [2, 2, 2]
        del read[:]
        fetch(node, asks(3, 1))
        assert read == []
        assert node.broker.implicit_sessions.partition_count == 2
        fetch(node, asks(0, 1, 2, 3))
        assert read == [0, 2], "they had been left out"

    run(tmp_path, scenario)


def test_a_fetch_that_waits_is_answered_at_the_append_with_all_partitions(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        frame = fetch_frame(11, ALL, IDS, wait_ms=20_000)
        for number in (2, 0):
            later = fetch(node, frame)
            assert not later.done()
            await asyncio.sleep(0.01)
            assert not later.done()
            append(node, number)
            answer = await asyncio.wait_for(later, 5)
            assert sent(answer) == plain(node, frame)
            behind = [Named(n, int(n == 2)) for n in range(PARTITIONS)]
            frame = fetch_frame(11, [("t", behind)], IDS, wait_ms=20_000)

    run(tmp_path, scenario)


def test_a_fetch_gathers_the_least_bytes_over_its_partitions(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        size = len(batch(1).data)
        frame = fetch_frame(11, ALL, IDS, wait_ms=20_000, min_bytes=2 * size)
        later = fetch(node, frame)
        append(node, 1)
        await asyncio.sleep(0.02)
        assert not later.done()
        append(node, 3)
        assert sent(await asyncio.wait_for(later, 5)) == plain(node, frame)

    run(tmp_path, scenario)


def test_a_higher_mark_alone_does_not_wake_who_reads_committed(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        found = node.broker.replicas.get(TOPIC, 0)
        assert found is not None

        def send(sequence: int) -> None:
            made = batch(1, producer_id=7, epoch=0, sequence=sequence, is_transactional=True)
            found.append(made, START_MS, VERIFICATION_OFF)

        send(0)
        frame = fetch_frame(11, ALL, IDS, wait_ms=20_000, isolation=1)
        later = fetch(node, frame)
        send(1)
        await asyncio.sleep(0.02)
        assert not later.done()
        found.append_markers([Marker(7, 0, 1, True, 1)], START_MS)
        assert sent(await asyncio.wait_for(later, 5)) == plain(node, frame)
        # The mark is in the response of whoever does not wait.
        at_end = [("t", [Named(n, 3 if n == 0 else 0) for n in range(PARTITIONS)])]
        frame = fetch_frame(11, at_end, IDS, isolation=1)
        fetch(node, frame)
        send(2)
        assert sent(fetch(node, frame)) == plain(node, frame)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "version", "how"),
    [
        ("wants a session", 11, {"session": (0, 0)}),
        ("ends a session", 11, {"session": (5, -1)}),
        ("names topics to forget", 11, {"end": b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0"}),
        ("is cut short", 11, {"end": b"\0\0"}),
        ("has no partition", 11, {"topics": [("t", [])]}),
        ("names one twice", 11, {"topics": [("t", [Named(0, 0), Named(1, 0), Named(0, 5)])]}),
        ("names one twice, in two topics", 17, {"topics": [("t", [Named(0, 0)]), ("t", [Named(0, 0)])]}),
        ("has a longer name than a topic can have", 11, {"topics": [("t" * 250, [Named(0, 0)])]}),
        ("comes from a replica", 17, {"end": b"\1\1\1\1\x0d" + b"\0" * 12 + b"\0"}),
    ],
)  # fmt: skip
def test_a_request_that_is_not_like_that_is_parsed_as_a_whole(
    tmp_path: Path, name: str, version: int, how: dict[str, Any]
) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert recalled(node, fetch_frame(version, ALL, IDS)) is not None
        fields = {"topics": ALL, **how}
        assert recalled(node, fetch_frame(version, fields.pop("topics"), IDS, **fields)) is None, name
        sessions = node.broker.implicit_sessions
        await freed(node, 0)
        assert len(sessions) == 0

    run(tmp_path, scenario)


def test_a_partition_with_tagged_fields_is_parsed_as_a_whole(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        frame = fetch_frame(17, ALL, IDS)
        assert recalled(node, frame) is not None
        last = frame.index(TOPIC.bytes) + 16 + 1 + PARTITIONS * 33 - 1
        assert frame[last] == 0
        tagged = frame[:last] + b"\1\0\x10" + UUID(int=5).bytes + frame[last + 1 :]
        header = parse_request_header(tagged)
        assert parse_fetch(17, tagged, header.body).topics[0][1][-1].replica_directory_id == UUID(int=5)
        assert recalled(node, tagged) is None

    run(tmp_path, scenario)


def test_a_session_that_is_dropped_while_its_fetch_waits_answers_it(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        frame = fetch_frame(11, ALL, IDS, wait_ms=20_000)
        later = fetch(node, frame)
        append(node, 3)
        node.broker.implicit_sessions.close(1)
        assert sent(await asyncio.wait_for(later, 5)) == plain(node, frame)
        await freed(node, 0)
        for number in range(PARTITIONS):
            found = node.broker.replicas.get(TOPIC, number)
            assert found is not None
            assert not node.broker.timers.purgatory.is_watched(found)

    run(tmp_path, scenario)


def test_there_is_room_for_so_many_partitions_and_the_idle_go_first(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        sessions = node.broker.implicit_sessions
        sessions._most_partitions = 2 * PARTITIONS + 1  # whose request also has bytes of its own
        clock: Any = node.broker.clock
        frame = fetch_frame(11, ALL, IDS)
        assert recalled(node, frame, 1) is not None
        clock.advance(1000)
        assert recalled(node, frame, 2) is not None
        assert recalled(node, frame, 3) is None, "nobody has to go for another"
        await freed(node, 2 * PARTITIONS)
        assert len(sessions) == 2
        clock.advance(EVICTION_MS - 500)
        assert recalled(node, frame, 3) is None, "the first one is idle, and goes"
        await freed(node, PARTITIONS)
        assert recalled(node, frame, 3) is not None
        assert recalled(node, frame, 2) is not None
        assert recalled(node, frame, 1) is None
        await freed(node, 2 * PARTITIONS)
        assert len(sessions) == 2

    run(tmp_path, scenario)


def test_a_request_is_compared_by_spans_once_two_have_had_the_same_partitions(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        def names(*numbers: int) -> bytes:
            return fetch_frame(11, [("t", [Named(number, 0) for number in numbers])], IDS)

        def found(frame: bytes) -> tuple[list[int], list[tuple[int, int]] | None]:
            request = recalled(node, frame)
            assert request is not None
            answer = cast("Response", handle(node.broker, context_of(frame, 1), request))
            assert sent(answer) == plain(node, frame)
            (of,) = request.topics
            numbers = [one.asked.partition for one in of.partitions]
            return numbers, of.spans if of.order is not None else None

        for numbers, spans in (
            ((0, 1, 2, 3), None),
            ((0, 1, 2, 3), None),
            ((0, 1, 2, 3), [(0, 4)]),
            ((1, 2, 3, 0), [(1, 4), (0, 1)]),
            ((3, 2, 1, 0), [(3, 4), (2, 3), (1, 2), (0, 1)]),
            ((0, 1, 2), [(0, 3)]),  # one is not named any more
            ((2, 0, 1), None),
            ((2, 0, 1), [(0, 3)]),
            ((0, 1, 2), [(1, 3), (0, 1)]),
            ((0, 1, 2, 3), None),  # it is named again
        ):
            assert found(names(*numbers)) == (list(numbers), spans)
        for _ in range(3):
            assert recalled(node, names(0, 1, 2, 3)) is not None
        assert recalled(node, names(0, 1, 2, 3, 1)) is None
        assert len(node.broker.implicit_sessions) == 0

    run(tmp_path, scenario)


def test_a_step_makes_the_order_of_one_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes some milliseconds for 20,000 partitions, and a request may name many such topics."""
    made: list[int] = []

    class Counted(RowOrder):
        def __init__(self, partitions: Sequence[ImplicitPartition]) -> None:
            super().__init__(partitions)
            made.append(len(partitions))

    monkeypatch.setattr("service.partition.implicit_sessions.RowOrder", Counted)

    async def scenario(node: OneOfThree) -> None:
        ids = {name: UUID(int=1 + n) for n, name in enumerate("abc")}
        topics: Topics = [(name, [Named(n, 0) for n in range(PARTITIONS)]) for name in ids]
        frame = fetch_frame(16, topics, ids)
        assert recalled(node, frame) is not None
        header, context = parse_request_header(frame), context_of(frame, 1)
        counts = [len(made) for _ in recall(node.broker, context, header, memoryview(frame))]
        assert made == [PARTITIONS] * 3
        assert all(after - before <= 1 for before, after in pairwise([*counts, len(made)]))

    run(tmp_path, scenario)
