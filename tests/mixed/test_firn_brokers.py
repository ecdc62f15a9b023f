"""Firn brokers under controllers of Apache Kafka 4.3.1: they register, are unfenced, serve and leave.

What clients ask of them goes to Kafka's controller in an Envelope, and what Kafka's quorum decides lies in
their own logs, byte for byte.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.kafka_tools import run_tool, tool
from tests.support.mixed import FIRST_BROKER, Member, Mixed, mixed
from tests.support.waiting import until

pytestmark = pytest.mark.java

OURS, THEIRS = FIRST_BROKER, FIRST_BROKER + 1
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER_TOOL = "org.apache.kafka.tools.ClusterTool"


async def kafka_tool(name: str, *arguments: str, stdin: bytes = b"") -> str:
    return await asyncio.to_thread(lambda: tool(name, *arguments, stdin=stdin))


def bootstrap(member: Member) -> tuple[str, str]:
    return "--bootstrap-server", f"{member.address.host}:{member.address.port}"


async def leads(cluster: Mixed, topic: str, broker: int, seen_by: Member) -> None:
    """Once all of the topic's partitions are led by that one, as a broker sees it."""
    for left in reversed(range(200)):
        if set((await cluster.topics(seen_by)).get(topic, ())) == {broker}:
            return
        assert left, await cluster.topics(seen_by)
        await asyncio.sleep(0.05)


async def agree_on(cluster: Mixed, names: set[str], ours: Member, theirs: Member) -> None:
    """Once both brokers know these topics and no others, and tell the same of them."""
    for left in reversed(range(400)):
        found, other = await cluster.topics(ours), await cluster.topics(theirs)
        if found == other and found.keys() == names:
            return
        assert left, (found, other)
        await asyncio.sleep(0.05)


async def same_everywhere(cluster: Mixed) -> None:
    """Brokers, as observers, have what voters have; nobody complains."""
    mark = await cluster.caught_up()
    goal = max(len(one.committed(mark.high_watermark)) for one in cluster.controllers.values())
    for member in cluster.brokers.values():
        await until(lambda one=member: len(one.committed(mark.high_watermark)) == goal)  # type: ignore[misc]
    await cluster.stop()
    assert len({one.committed(mark.high_watermark) for one in cluster.members.values()}) == 1
    complaints = {member.node_id: member.complaints() for member in cluster.members.values()}
    assert not any(complaints.values()), complaints


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_firn_broker_lives_under_kafkas_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mixed(tmp_path, controllers=1, firn=(OURS,)) as cluster:
            ours = cluster.brokers[OURS]
            await cluster.create("t", partitions=3)
            await cluster.configure("t", retention_ms="100000")
            await cluster.has_topics({"t": [OURS] * 3})
            await kafka_tool("console-producer", *bootstrap(ours), "--topic", "t", stdin=b"a\nb\n")
            assert await ours.terminate() == 0, ours.log(60)
            assert "the controller has moved all leaderships away" in ours.log(60)
            ours.launch()
            await ours.serves()
            await leads(cluster, "t", OURS, ours)
            assert "after a clean stop" in ours.log(60)
            read = ("--topic", "t", "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000")
            assert sorted((await kafka_tool("console-consumer", *bootstrap(ours), *read)).split()) == [
                "a",
                "b",
            ]
            await cluster.delete("t")
            await cluster.has_topics({"__consumer_offsets": [OURS] * 50})
            await same_everywhere(cluster)

    asyncio.run(scenario())


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_kafkas_controller_moves_no_leader_of_a_full_disk_and_the_broker_says_so(tmp_path: Path) -> None:
    """It skips the fields of the heartbeat that it does not know."""

    async def scenario() -> None:
        async with mixed(tmp_path, controllers=1, brokers=2, firn=(OURS,)) as cluster:
            ours, theirs = cluster.brokers[OURS], cluster.brokers[THEIRS]
            create = ("--create", "--topic", "t", "--replica-assignment", f"{OURS}:{THEIRS}")
            await kafka_tool("topics", *bootstrap(theirs), *create)
            await cluster.has_topics({"t": [OURS]})
            whole_disk = f"firn.disk.reserve.bytes={1 << 60}"
            entity = (
                "--entity-type",
                "brokers",
                "--entity-name",
                str(OURS),
                "--alter",
                "--add-config",
                whole_disk,
            )
            await kafka_tool("configs", *bootstrap(ours), *entity)
            said = "are led here all the same: the active controller (Apache Kafka's, or an older one)"
            await until(lambda: said in ours.log(200), seconds=60)
            assert (await cluster.topics(theirs))["t"] == [OURS]
            await cluster.reached(OURS, is_fenced=False)

    asyncio.run(scenario())


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_firn_and_kafka_share_partitions_while_kafkas_controllers_die(tmp_path: Path) -> None:
    """Kafka's own tools ask the Firn broker throughout, which has its answers from Kafka's controllers."""

    async def scenario() -> None:
        async with mixed(tmp_path, brokers=2, firn=(OURS,), by_kafka=True) as cluster:
            ours, theirs = cluster.brokers[OURS], cluster.brokers[THEIRS]
            cluster.asked = ours
            create = ("--create", "--topic", "t", "--partitions", "4", "--replication-factor", "1")
            assert "Created topic t." in await kafka_tool("topics", *bootstrap(ours), *create)
            found = await cluster.topics(ours)
            assert sorted(found["t"]) == [OURS, OURS, THEIRS, THEIRS]
            await cluster.has_topics(found, theirs)
            status = await kafka_tool(QUORUM_TOOL, *bootstrap(ours), "describe", "--status")
            assert re.search(rf'CurrentObservers: .*"id": {OURS},', status)
            told = await kafka_tool("features", *bootstrap(ours), "describe")
            levels = dict(re.findall(r"Feature: (\S+) .*FinalizedVersionLevel: (\S+)", told))
            assert (levels["kraft.version"], levels["metadata.version"]) == ("1", "4.3-IV0")
            endpoints = await kafka_tool(CLUSTER_TOOL, "list-endpoints", *bootstrap(ours))
            assert {line.split()[0] for line in endpoints.splitlines()[1:]} == {str(OURS), str(THEIRS)}
            lines = b"".join(b"%d\n" % one for one in range(100))
            spread = ("--topic", "t", "--producer-property", "batch.size=16")
            await kafka_tool("console-producer", *bootstrap(ours), *spread, stdin=lines)

            for number, way in enumerate(("kill", "pause", "term", "kill")):
                await cluster.move(way)
                await cluster.create(f"new-{number}", partitions=2)
                await cluster.configure(f"new-{number}", retention_ms="100000")
                if number:
                    await cluster.delete(f"new-{number - 1}")
                await agree_on(cluster, {"t", f"new-{number}"}, ours, theirs)

            ours.kill()
            for left in reversed(range(400)):  # fenced once its session is over
                if -1 in (await cluster.topics(theirs))["t"]:
                    break
                assert left
                await asyncio.sleep(0.05)
            ours.launch()
            await ours.serves()
            read = ("--topic", "t", "--from-beginning", "--max-messages", "100", "--timeout-ms", "20000")
            got = (await kafka_tool("console-consumer", *bootstrap(ours), *read)).split()
            assert sorted(map(int, got)) == list(range(100))
            gone = await asyncio.to_thread(
                run_tool, CLUSTER_TOOL, "unregister", *bootstrap(ours), "--id", str(THEIRS + 1)
            )
            assert b"BrokerIdNotRegistered" in gone.stdout + gone.stderr
            await same_everywhere(cluster)

    asyncio.run(scenario())
