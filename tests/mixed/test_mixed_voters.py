"""Voters that come and go, levels that rise and logs that begin with a snapshot, in a quorum of both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.kafka_tools import tool
from tests.support.mixed import CONTROLLERS, FIRN, FIRST_BROKER, Member, Mixed, mixed
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(300)]

FORMATTED = "00000000000000000000-0000000000.checkpoint"
KAFKAS = tuple(one for one in CONTROLLERS if one != FIRN)


async def same_logs(cluster: Mixed) -> None:
    """Whoever has led; and nobody's log complains."""
    mark = await cluster.caught_up()
    await cluster.stop()
    assert len(set(cluster.logs(mark.high_watermark).values())) == 1
    complaints = {member.node_id: member.complaints() for member in cluster.members.values()}
    assert not any(complaints.values()), complaints


def test_either_leader_lets_the_other_software_go_and_come(tmp_path: Path) -> None:
    """Firn leaves and joins under Kafka, Kafka under Firn, and Firn as the leader itself."""

    async def scenario() -> None:
        async with mixed(tmp_path) as cluster:
            for number, (leaders, leaver) in enumerate((((2, 3), FIRN), ((FIRN,), 3), ((FIRN,), FIRN))):
                await cluster.led_by(*leaders)
                await cluster.remove_voter(leaver)
                await cluster.create(f"t{number}-without-{leaver}")
                assert set((await cluster.leader()).ends) == set(CONTROLLERS) - {leaver}
                await cluster.add_voter(leaver)
                await cluster.create(f"t{number}-with-{leaver}")
                assert set((await cluster.caught_up()).ends) == set(CONTROLLERS)
            await cluster.led_by(FIRN)
            await same_logs(cluster)

    asyncio.run(scenario())


@pytest.mark.parametrize("leaders", [(FIRN,), KAFKAS], ids=["firn", "kafka"])
def test_a_static_quorum_is_upgraded_under_either_leader(tmp_path: Path, leaders: tuple[int, ...]) -> None:
    """By Kafka's own tool, which each of the voters has to tell its directory before."""

    async def scenario() -> None:
        async with mixed(tmp_path, is_dynamic=False) as cluster:
            await cluster.led_by(*leaders)
            host, port = cluster.brokers[FIRST_BROKER].address
            bootstrap = f"{host}:{port}"
            upgrade = ("features", "--bootstrap-server", bootstrap, "upgrade", "--feature", "kraft.version=1")
            for left in reversed(range(20)):
                try:
                    assert "kraft.version was upgraded to 1" in await asyncio.to_thread(tool, *upgrade)
                    break
                except AssertionError:
                    assert left, "it was refused again and again"
                    await asyncio.sleep(0.5)
            for way in ("term", "pause", "kill"):
                await cluster.move(way)
                await cluster.create(f"after-{way}")
            await cluster.remove_voter(3)
            await cluster.add_voter(3)
            await same_logs(cluster)

    asyncio.run(scenario())


def wipe(member: Member) -> None:
    """Its log is gone; what it promised, and whom it was formatted with, is not."""
    kept = ("quorum-state", "partition.metadata", FORMATTED)
    for path in member.metadata_log.iterdir():
        if path.name not in kept:
            path.unlink()


def snapshots(member: Member) -> set[str]:
    return {path.name for path in member.metadata_log.glob("*.checkpoint")} - {FORMATTED}


def test_an_empty_controller_fetches_the_other_softwares_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        often = {"metadata.log.max.record.bytes.between.snapshots": "20000"}
        async with mixed(tmp_path, settings=often) as cluster:
            for number, leaders in enumerate(((FIRN,), KAFKAS)):
                leader = cluster.controllers[(await cluster.led_by(*leaders)).node_id]
                before = snapshots(leader)
                for batch in range(5):
                    names = [f"t{number}-{batch}-{one}" for one in range(20)]
                    await cluster.create(*names, partitions=3)
                await until(lambda leader=leader, before=before: snapshots(leader) - before)  # type: ignore[misc]
                wiped = cluster.controllers[FIRN if not leader.is_firn else 3]
                assert await wiped.terminate() in (0, 143)
                wipe(wiped)
                wiped.launch()
                await wiped.serves()
                await cluster.caught_up()
                fetched = snapshots(wiped) & snapshots(leader)
                assert fetched
                for name in fetched:
                    here, there = (one.metadata_log / name for one in (wiped, leader))
                    assert here.read_bytes() == there.read_bytes()
                await cluster.move("term")
                await cluster.create(f"t{number}-last")
            names = [f"t{one}-{batch}-{i}" for one in range(2) for batch in range(5) for i in range(20)]
            last = {f"t{one}-last": [FIRST_BROKER] for one in range(2)}
            await cluster.has_topics({**{name: [FIRST_BROKER] * 3 for name in names}, **last})
            for member in cluster.controllers.values():
                assert not member.complaints()

    asyncio.run(scenario())
