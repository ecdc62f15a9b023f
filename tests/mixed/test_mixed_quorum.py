"""One Firn voter with two of Apache Kafka's: under any leader, the three logs are equal, byte for byte.

Kafka 4.3.1 is the judge of our Raft and of our controller: its voters follow ours and lead it, its broker
lives under our controller, and its tool reads what all of them wrote.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import pytest

from tests.support.mixed import CONTROLLERS, FIRN, FIRST_BROKER, Mixed, mixed

pytestmark = pytest.mark.java

WAYS = ("term", "pause", "kill")


class Changes:
    """Topics that come, are altered and go, by Kafka's broker."""

    def __init__(self, cluster: Mixed) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self.topics: dict[str, int] = {}

    async def some(self) -> None:
        number = next(self._numbers)
        name, partitions = f"t{number}", 1 + number % 3
        await self._cluster.create(name, partitions=partitions)
        self.topics[name] = partitions
        await self._cluster.configure(name, retention_ms=str(number * 100_000))
        old = f"t{number - 2}"
        if self.topics.pop(old, None) is not None:
            await self._cluster.delete(old)


async def wander(cluster: Mixed, moves: int, changes: Changes) -> None:
    """Leadership moves so often, and until each of the voters has had it; changes come in between. Each
    leader is stopped, stands still and is killed in turn."""
    ways = {
        node_id: itertools.cycle(WAYS[first:] + WAYS[:first]) for first, node_id in enumerate(CONTROLLERS)
    }
    await changes.some()
    for number in itertools.count(1):
        mark = await cluster.move(next(ways[(await cluster.leader()).node_id]))
        await changes.some()
        if number % 5 == 0:
            print(f"move {number}: node {mark.node_id} leads in epoch {mark.epoch}")
        if number >= moves and set(cluster.led) == set(CONTROLLERS):
            return
        assert number < 3 * moves + 10, f"only these led: {cluster.led}"


async def judge(cluster: Mixed, changes: Changes) -> None:
    """What was done is there, the three logs are equal, and Kafka's tool reads every record."""
    leaders = {name: [FIRST_BROKER] * count for name, count in changes.topics.items()}
    await cluster.has_topics(leaders)
    mark = await cluster.caught_up()
    await cluster.stop()
    logs = cluster.logs(mark.high_watermark)
    assert len(set(logs.values())) == 1, {node_id: len(data) for node_id, data in logs.items()}
    text = await asyncio.to_thread(cluster.dumped, FIRN)
    offsets = [int(one) for one in re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE)]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= mark.high_watermark
    assert "isvalid: false" not in text
    assert "rror" not in text
    complaints = {member.node_id: member.complaints() for member in cluster.members.values()}
    assert not any(complaints.values()), complaints
    print(f"{len(cluster.led)} moves: {cluster.led}; {mark.high_watermark} offsets, the same on all three")


@pytest.mark.timeout(240)
def test_leadership_wanders_through_firn_and_kafka(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mixed(tmp_path) as cluster:
            changes = Changes(cluster)
            await wander(cluster, 3, changes)
            await judge(cluster, changes)

    asyncio.run(scenario())


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_dynamic", [True, False], ids=["dynamic", "static"])
def test_leadership_wanders_twenty_times(tmp_path: Path, is_dynamic: bool) -> None:
    """Kafka's tool has formatted Kafka's directories; Kafka's broker restarts under either's controller."""

    async def scenario() -> None:
        async with mixed(tmp_path, is_dynamic=is_dynamic, by_kafka=True) as cluster:
            changes = Changes(cluster)
            await wander(cluster, 20, changes)
            for is_ours in (True, False):
                while ((await cluster.leader()).node_id == FIRN) is not is_ours:
                    await cluster.move("term")
                broker = cluster.brokers[FIRST_BROKER]
                assert await broker.terminate() in (0, 143)
                broker.launch()
                await broker.serves()
                await changes.some()
            await judge(cluster, changes)

    asyncio.run(scenario())
