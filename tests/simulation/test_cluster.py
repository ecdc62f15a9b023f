"""The cluster world: histories of three and five nodes are clean, each the same whenever it is played."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from simulator.apart import apart
from simulator.cluster.plants import PLANTS, find
from simulator.cluster.playing import draw, play_apart, play_many
from simulator.cluster.tier_plants import OF_TIERS
from simulator.cluster.world import START_S, ClusterWorld
from simulator.loop import Loop
from simulator.network import Network
from simulator.power_loss import Platter
from simulator.process import Process
from simulator.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
HISTORIES = 12
PER_TEST = 4
FOUND_SOON = {
    "told_before_it_is_applied": ("B2",),
    "head_before_the_commit": ("T7",),
    "followers_let_go_before_the_commit": ("T5",),
}
# The archive's own check and a reader that asks by epoch both see it; the history decides which is first.
LATER = {"epoch_of_the_copier": ("T9", "T10")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "first",
    [
        1,
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in range(1 + PER_TEST, HISTORIES + 1, PER_TEST)
        ),
    ],
)
def test_histories_of_several_nodes_are_clean(first: int) -> None:
    seeds = []
    for outcome in play_many(range(first, first + PER_TEST), os.cpu_count() or 1):
        again = f"make sim WORLD=cluster SEED={outcome.seed} HISTORIES=1"
        assert outcome.problem is None, f"{outcome.problem}\nagain: {again}"
        seeds.append(outcome.seed)
    assert sorted(seeds) == list(range(first, first + PER_TEST))


def _trace(seed: int, hash_seed: str) -> str:
    program = (
        "from simulator.cluster.playing import draw, play_apart\n"
        f"outcome = play_apart(draw({seed}))\n"
        "print(outcome.digest, outcome.events, outcome.problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_same_seed_is_the_same_trace_under_any_hash_seed() -> None:
    assert _trace(3, "1") == _trace(3, "4242")


@pytest.mark.parametrize("name", PLANTS)
def test_a_bug_can_be_planted(name: str) -> None:
    apart(PLANTS[name])


@pytest.mark.parametrize(
    "name", [*FOUND_SOON, *(pytest.param(one, marks=pytest.mark.thorough) for one in LATER)]
)
def test_a_planted_bug_is_found(name: str) -> None:
    found = find(PLANTS[name], within=10, tiered=name in OF_TIERS)
    assert found is not None
    assert found[1].startswith({**FOUND_SOON, **LATER}[name])


def test_a_broker_alone_and_a_controller_that_keeps_its_metadata_come_back_from_an_empty_disk() -> None:
    def play() -> None:
        world = ClusterWorld(1, nodes=5)
        broker, controller = world.machines[4], world.machines[0]
        assert world.can_lose_disk(controller), "its metadata log is elsewhere"

        async def main() -> None:
            for machine in world.machines:
                world.start(machine)
            for machine in world.machines:
                assert await world.until_ready(machine, START_S), machine.run and machine.run.reason
            for machine in (broker, controller):
                world.wipe(machine, Random(1))
                world.start(machine)
            for machine in (broker, controller):
                assert await world.until_ready(machine, START_S), machine.run and machine.run.reason

        world.run(main())

    apart(play)


def _fail_over_beside_brokers_that_refuse(*, from_start: bool) -> None:
    """The active controller dies three times; two brokers refuse every controller, live, and are heard."""
    world = ClusterWorld(1, nodes=5)
    refused = {
        (host, broker.address)
        for host in ("n1", "n2", "n3")
        for broker in (world.machines[3], world.machines[4])
    }

    async def main() -> None:
        if from_start:
            world.network.links.refused |= refused
        for machine in world.machines:
            world.start(machine)
        for machine in world.machines:
            assert await world.until_ready(machine, START_S), machine.run and machine.run.reason
        for _ in range(3):
            await asyncio.sleep(3)
            world.network.links.refused |= refused
            (leader,) = (
                one
                for one in world.alive
                if one.run
                and one.run.node
                and one.run.node.parts.metadata
                and one.run.node.parts.metadata.quorum.is_leader
            )
            world.kill(leader)
            await asyncio.sleep(4)
            fenced = {one.id for one in world.image().brokers.values() if one.fenced}
            assert fenced == {int(leader.name[1:])}, (
                "the dead one is known to be, long before its session ends"
            )
            if not from_start:
                world.network.links.refused.clear()
            world.start(leader)
            assert await world.until_ready(leader, START_S)

    world.run(main())


@pytest.mark.parametrize("from_start", [True, False])
def test_a_broker_that_lives_and_refuses_is_not_fenced_when_controllers_fail_over(from_start: bool) -> None:
    apart(lambda: _fail_over_beside_brokers_that_refuse(from_start=from_start))


def _connections_break_beside_brokers_that_refuse() -> None:
    """Two brokers that are heard refuse every controller, and their connections break again and again."""
    world = ClusterWorld(1, nodes=5)
    brokers = world.machines[3:]
    controllers = [one.name for one in world.machines[:3]]

    async def main() -> None:
        for machine in world.machines:
            world.start(machine)
        for machine in world.machines:
            assert await world.until_ready(machine, START_S), machine.run and machine.run.reason
        await asyncio.sleep(3)
        for between_s in (0.01, 0.05, 0.1, 0.3, 0.7, 2.1) * 3:
            world.network.links.refused |= {
                (one, broker.address) for one in controllers for broker in brokers
            }
            for _ in range(4):
                for one in controllers:
                    for broker in brokers:
                        world.network.reset(one, broker.name)
                await asyncio.sleep(between_s)
            world.network.links.refused.clear()
            await asyncio.sleep(4)
        assert not any(one.fenced for one in world.image().brokers.values())

    world.run(main())


def test_a_broker_that_lives_and_refuses_is_not_fenced_when_its_connections_break() -> None:
    apart(_connections_break_beside_brokers_that_refuse)


def test_a_refusal_that_is_taken_for_a_death_is_found() -> None:
    def play() -> None:
        PLANTS["refusal_is_death"]()
        _fail_over_beside_brokers_that_refuse(from_start=True)

    with pytest.raises(RuntimeError, match=r"B5: broker [45] of epoch \d+ is fenced: n[45]\.1 lives"):
        apart(play)


def test_a_pure_broker_with_an_empty_disk_learns_from_the_quorum_which_cluster_is_its_own() -> None:
    def play() -> None:
        world = ClusterWorld(1, nodes=5)
        empty = world.machines[4]
        empty.platter = Platter()
        empty.platter.make_root(empty.log_dirs[0])

        async def main() -> None:
            for machine in world.machines:
                world.start(machine)
            for machine in world.machines:
                assert await world.until_ready(machine, START_S), machine.run and machine.run.reason

        world.run(main())

    apart(play)


# What lies between hosts


class _Hosts:
    """Two hosts, a connection from one to the other, and what the listening side hears."""

    def __init__(self, seed: int) -> None:
        self.loop = Loop(Random(seed))
        self.network = Network(self.loop, Random(seed), Trace(lambda: self.loop.now_s))
        self.heard: list[bytes] = []
        self.ended: list[str] = []

    def run(self, main: Any) -> None:
        self.loop.run_until_complete(Process("n1.1").run(lambda: self.loop.create_task(main(self))))

    async def listen(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(100):
                    self.heard.append(data)
                self.ended.append("eof")
            except ConnectionResetError:
                self.ended.append("reset")
            writer.close()

        await Process("n2.1").run(lambda: self.loop.create_task(asyncio.start_server(serve, "n2", 9)))


def test_bytes_on_a_cut_link_wait_in_order_or_the_connection_is_reset() -> None:
    ways = set()
    for seed in range(20):
        hosts = _Hosts(seed)

        async def main(it: _Hosts) -> None:
            await it.listen()
            _, writer = await asyncio.open_connection("n2", 9)
            writer.write(b"one ")
            await asyncio.sleep(1)
            it.network.links.cut.add(("n1", "n2"))
            writer.write(b"two ")
            writer.write(b"three")
            await asyncio.sleep(60)
            assert b"".join(it.heard) == b"one "
            it.network.heal({("n1", "n2")})
            await asyncio.sleep(1)
            writer.close()
            await asyncio.sleep(1)

        hosts.run(main)
        ways.add((b"".join(hosts.heard), *hosts.ended))
    assert ways == {(b"one two three", "eof"), (b"one ", "reset")}


def test_a_host_behind_a_cut_link_does_not_refuse() -> None:
    async def main(it: _Hosts) -> None:
        it.network.links.cut.add(("n2", "n1"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.open_connection("n2", 9)
        with pytest.raises(TimeoutError):  # as the system says after some time
            await asyncio.open_connection("n2", 9)
        assert it.loop.now_s > 130
        it.network.heal({("n2", "n1")})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("n2", 9)

    _Hosts(1).run(main)


def test_connections_of_two_hosts_are_reset() -> None:
    async def main(it: _Hosts) -> None:
        await it.listen()
        reader, writer = await asyncio.open_connection("n2", 9)
        writer.write(b"one")
        await asyncio.sleep(1)
        assert it.network.reset("n1", "n2") == 1
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await asyncio.sleep(1)
        assert it.ended == ["reset"]

    _Hosts(1).run(main)


def test_a_slow_link_delays_and_changes_no_order() -> None:
    async def main(it: _Hosts) -> None:
        await it.listen()
        _, writer = await asyncio.open_connection("n2", 9)
        it.network.links.slow_s["n1", "n2"] = 2.0
        for number in range(20):
            writer.write(b"%d " % number)
        await asyncio.sleep(0.1)
        assert len(it.heard) < 20
        await asyncio.sleep(60)
        assert b"".join(it.heard).split() == [b"%d" % number for number in range(20)]

    _Hosts(1).run(main)


@pytest.mark.parametrize("rate", [0.95, 1.05])
def test_a_clock_that_drifts_wakes_its_process_when_its_own_time_has_come(rate: float) -> None:
    loop = Loop(Random(1))
    process = Process("n1.1")
    process.rate = rate

    async def main() -> None:
        for _ in range(100):
            due = loop.time() + 0.7
            await asyncio.sleep(0.7)
            assert due <= loop.time() < due + 0.001

    loop.run_until_complete(process.run(lambda: loop.create_task(main())))
    assert loop.now_s == pytest.approx(70 / rate)


def test_other_numbers_of_nodes_are_other_histories() -> None:
    assert draw(5, 3).log_dirs == 3
    assert draw(5, 5).log_dirs == 5
    assert play_apart(draw(5, 3)).digest != play_apart(draw(5, 5)).digest
