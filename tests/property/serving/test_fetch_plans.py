"""A fetch that is like its connection's last one gets, from its bytes alone, what the plain path answers; no
other is taken for one that is like it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from service.network.request import RequestContext, Response
from service.network.sender import SMALL_SLICE_BYTES
from service.serving import fetch_plans
from service.serving.fetch_plans import FetchPlans
from service.serving.handlers.fetch import FullFetch
from service.serving.run_handlers import RunHandlers
from service.wire.errors import WireError
from service.wire.fetch import offset_position
from tests.support.fetch_frames import Named, fetch_frame
from tests.support.one_of_three import ME, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch
from tests.unit.serving.test_implicit_fetch import context_of
from tests.unit.serving.test_ordinary_fetch import parsed, sent

IDS = {"t": TOPIC}
REQUESTS = 300
CONNECTIONS = 3


def fill(node: OneOfThree, random: Random) -> list[int]:
    """Append batches, small and large; return where the partitions end."""
    ends = []
    for index in range(2):
        found = node.broker.replicas.get_by("t", index)
        assert found is not None
        for _ in range(random.randrange(4, 12)):
            found.append(batch(2, value=bytes(random.choice([10, 3000, 2 * SMALL_SLICE_BYTES]))), START_MS)
        ends.append(found.high_watermark)
    return ends


class Client:
    """A connection that mostly asks for the same."""

    def __init__(self, random: Random, number: int) -> None:
        self.random = random
        self.number = number
        self.version = random.randrange(12, 19)
        self.index = random.randrange(2)
        self.fields: dict[str, Any] = {"isolation": random.randrange(2)}

    def request(self, ends: list[int]) -> bytes:
        draw = self.random
        if not draw.randrange(15):
            self.version, self.index = draw.randrange(12, 19), draw.randrange(2)
        if not draw.randrange(15):
            self.fields = {
                "isolation": draw.randrange(2),
                "min_bytes": draw.choice([1, 1, 1 << 20]),
                "session": draw.choice([(0, -1), (0, -1), (0, 0), (7, -1)]),
            }
        most = 1 << 20 if draw.randrange(5) else draw.choice([1, 5000, 100_000])
        named = [Named(self.index, draw.randrange(ends[self.index] + 2), most)]
        if not draw.randrange(20):
            named.append(Named(1 - self.index, 0))
        topics = [("t", named)]
        frame = bytearray(
            fetch_frame(self.version, topics, IDS, number=draw.randrange(1 << 31), **self.fields)
        )
        if not draw.randrange(15):  # damaged
            frame[draw.randrange(2, len(frame))] ^= 1 << draw.randrange(8)
        if not draw.randrange(20):
            frame += bytes(draw.randrange(1, 40))
        return bytes(frame)


def plain(node: OneOfThree, frame: bytes, number: int) -> list[bytes | tuple[int, int]] | None:
    """What the plain path sends at once; None if it refuses the request or waits."""
    try:
        fetch, context = parsed(frame), context_of(frame, number)
    except WireError:
        return None
    answer = FullFetch(node.broker, context, fetch, wants_session=False).begin()
    if isinstance(answer, Response):
        return sent(answer)
    assert isinstance(answer, Awaitable)
    asyncio.ensure_future(answer).cancel()
    return None


@pytest.mark.parametrize("seed", range(6))
def test_fetches_from_their_bytes_are_answered_like_all_others(tmp_path: Path, seed: int) -> None:
    async def scenario(node: OneOfThree) -> int:
        random, taken = Random(seed), 0
        ends = fill(node, random)
        runs = RunHandlers(node.broker)
        clients = [Client(random, number) for number in range(CONNECTIONS)]
        contexts: dict[int, RequestContext] = {}
        for _ in range(REQUESTS):
            client = random.choice(clients)
            frame = client.request(ends)
            context = contexts.setdefault(client.number, context_of(fetch_frame(12, [], IDS), client.number))
            data = b"before" + len(frame).to_bytes(4) + frame + b"behind"
            run = runs(context, memoryview(bytearray(data)), 6, len(data))
            if run is None:
                continue
            taken += 1
            expected = plain(node, frame, client.number)
            assert sent(Response(run.answers)) == expected
            assert (run.requests, run.stop) == (1, len(data) - 6)
            assert run.size == sum(len(one) if isinstance(one, bytes) else one[1] for one in expected or ())
            assert context.correlation_id == int.from_bytes(frame[4:8])
            assert (context.api_key, context.api_version) == (1, int.from_bytes(frame[2:4]))
        for client in clients:
            node.broker.connection_ended(contexts[client.number])
        assert len(node.broker.fetch_plans) == 0
        return taken

    async def whole() -> int:
        records = (topic(), *(partition(n, ME) for n in range(2)))
        async with asyncio.timeout(60), one_of_three(tmp_path, *records) as node:
            return await scenario(node)

    print("seed", seed)
    assert asyncio.run(whole()) > 20


def test_connections_that_never_ask_for_the_same_are_looked_at_seldom() -> None:
    plans, looked_at = FetchPlans(), []
    context = context_of(fetch_frame(12, [], IDS), 1)
    for number in range(5000):
        frame = memoryview(fetch_frame(12, [("t", [Named(number, 0)])], IDS))
        if plans.learn(context, frame) is not None:
            looked_at.append(number)
    assert looked_at[:5] == [0, 1, 3, 7, 15]
    assert len(looked_at) < 18
    steady = plans.find(1)
    assert steady is not None
    frame = memoryview(fetch_frame(12, [("t", [Named(looked_at[-1], 7)])], IDS))
    assert [steady.offset_in(frame) for _ in range(4)] == [7] * 4
    other = memoryview(fetch_frame(12, [("t", [Named(5001, 0)])], IDS))
    assert plans.learn(context, other) is not None, "it was taken often"


def test_connections_of_several_partitions_are_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def position(version: int, frame: memoryview, at: int) -> int | None:
        looked_at.append(at)
        return offset_position(version, frame, at)

    monkeypatch.setattr(fetch_plans, "offset_position", position)
    plans, context = FetchPlans(), context_of(fetch_frame(12, [], IDS), 1)
    frame = memoryview(fetch_frame(12, [("t", [Named(0, 0), Named(1, 0)])], IDS))
    for _ in range(5000):
        assert plans.learn(context, frame) is None
    assert 5 < len(looked_at) < 18
