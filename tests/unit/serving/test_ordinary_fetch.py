"""Fetches that are answered at once: which are, and that their bytes are those of the plain path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from service.network.request import Response
from service.network.sender import SMALL_SLICE_BYTES
from service.serving.handlers.fetch import FullFetch
from service.serving.ordinary_fetch import respond
from service.wire.api import parse_request_header
from service.wire.fetch import FetchRequestView, parse_fetch
from tests.support.fetch_frames import Named, Topics, fetch_frame
from tests.support.one_of_three import ME, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch
from tests.unit.serving.test_implicit_fetch import context_of

IDS = {"t": TOPIC}
LARGE = 2 * SMALL_SLICE_BYTES


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        records = (topic(), *(partition(n, ME) for n in range(3)))
        async with asyncio.timeout(30), one_of_three(folder, *records) as node:
            await scenario(node)

    asyncio.run(whole())


def parsed(frame: bytes) -> FetchRequestView:
    header = parse_request_header(frame)
    return parse_fetch(header.api_version, frame, header.body)


def sent(answer: Any) -> list[bytes | tuple[int, int]]:
    """The parts: bytes, or position and size in a file."""
    assert isinstance(answer, Response)
    return [
        bytes(part) if isinstance(part, bytes | bytearray | memoryview) else (part.position, part.size)
        for part in answer.parts
    ]


def both(node: OneOfThree, frame: bytes) -> tuple[Response | None, Any]:
    """The answer of the short path, and that of the plain one."""
    context, fetch = context_of(frame, 1), parsed(frame)
    return (
        respond(node.broker, context, fetch),
        FullFetch(node.broker, context, fetch, wants_session=False).begin(),
    )


def append(node: OneOfThree, index: int, value_bytes: int, times: int = 1) -> None:
    found = node.broker.replicas.get_by("t", index)
    assert found is not None
    for _ in range(times):
        found.append(batch(2, value=bytes(value_bytes)), START_MS)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", range(12, 19))
def test_records_that_are_there_go_out_at_once_with_the_same_bytes(
    tmp_path: Path, version: int, isolation: int
) -> None:
    async def scenario(node: OneOfThree) -> None:
        append(node, 0, 100, 3)
        append(node, 1, LARGE, 3)
        cases: list[Topics] = [
            [("t", [Named(0, 0)])],
            [("t", [Named(0, 2, max_bytes=1)])],
            [("t", [Named(1, 3, max_bytes=5 * LARGE)])],
            [("t", [Named(1, 2), Named(0, 6), Named(2, 0), Named(0, 4)])],
            [("t", [Named(1, 0, max_bytes=1), Named(0, 0, max_bytes=1)])],
        ]
        for topics in cases:
            quick, plain = both(node, fetch_frame(version, topics, IDS, isolation=isolation))
            assert quick is not None
            assert sent(quick) == sent(plain)

    run(tmp_path, scenario)


def test_the_plain_path_gets_fetches_that_wait_or_are_refused(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        append(node, 0, 100, 3)
        for topics, how in (
            ([("t", [Named(0, 6)])], {}),
            ([("t", [Named(0, 7)])], {}),
            ([("t", [Named(9, 0)])], {}),
            ([("t", [Named(0, 0, epoch=77)])], {}),
            ([("t", [Named(0, 0, last_epoch=0)])], {}),
            ([("t", [Named(0, 0)])], {"min_bytes": 1 << 20}),
            ([("t", [Named(0, 0)]), ("t", [Named(1, 0)])], {}),
            ([("t", [Named(0, 0)] * 17)], {}),
        ):
            frame = fetch_frame(16, cast("Topics", topics), IDS, **cast("Any", how))
            assert respond(node.broker, context_of(frame, 1), parsed(frame)) is None
        frame = fetch_frame(11, [("t", [Named(0, 0)])], IDS)
        assert respond(node.broker, context_of(frame, 1), parsed(frame)) is None
        node.broker.authorizer = cast("Any", object())
        frame = fetch_frame(16, [("t", [Named(0, 0)])], IDS)
        assert respond(node.broker, context_of(frame, 1), parsed(frame)) is None

    run(tmp_path, scenario)


def test_each_path_counts_the_same(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        append(node, 0, LARGE, 3)
        found, metrics = node.broker.replicas.get_by("t", 0), node.broker.metrics
        assert found is not None

        def counted() -> tuple[int, ...]:
            traffic = found.traffic
            return metrics.hot_reads, metrics.hot_bytes, traffic.fetched_bytes, traffic.fetched_records

        append(node, 0, LARGE)
        frame = fetch_frame(16, [("t", [Named(0, 2, max_bytes=5 * LARGE)])], IDS)
        counts = [counted()]
        context, fetch = context_of(frame, 1), parsed(frame)
        for answer in (
            lambda: respond(node.broker, context, fetch),
            lambda: FullFetch(node.broker, context, fetch, wants_session=False).begin(),
        ):
            answer()
            counts.append(counted())
        first, second = (
            [after - before for before, after in zip(*pair, strict=True)] for pair in pairwise(counts)
        )
        assert first == second
        assert first == [1, 5 * LARGE, 5 * LARGE, 4]

    run(tmp_path, scenario)
