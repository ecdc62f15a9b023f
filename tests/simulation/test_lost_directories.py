"""Lost directories of each kind of node: the error at start, and how the node returns.

Each case is a row of docs/operations.md, "A directory is lost", played with whole nodes under virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.cli.dev_nodes import Plan
from service.config.cluster import ClusterConfig
from service.hot.log_dir import encode_uuid
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.bootstrap import parse_initial_controllers
from service.metadata.features import cluster_features
from service.metadata.formatting import Order, effective_levels, format_directories
from service.metadata.image import PartitionImage
from service.metadata.raft.keys import ReplicaKey
from service.node.metadata_check import check_metadata, note_metadata
from simulator.apart import apart
from simulator.client import Client
from simulator.cluster.world import START_S, ClusterWorld
from simulator.machine import Machine, State
from tests.support.world import make_world

TOPIC = "kept"
APART = next(
    seed
    for seed in range(1, 50)
    if ClusterWorld(seed, nodes=5).machines[0].metadata_dir.name.endswith("metadata")
)
"""a world whose first controller has its metadata log on a disk of its own"""
TOGETHER = next(
    seed
    for seed in range(1, 50)
    if (machine := ClusterWorld(seed, nodes=5).machines[0]).metadata_dir in machine.log_dirs
)
"""and one where it lies beside partitions"""


class Cluster:
    """Five nodes, three of which are controller and broker, with a topic of one replica on the first."""

    def __init__(self, seed: int) -> None:
        self.world = ClusterWorld(seed, nodes=5)
        self.both, self.other, self.broker = (self.world.machines[number] for number in (0, 1, 4))

    async def start(self) -> None:
        for machine in self.world.machines:
            self.world.start(machine)
        for machine in self.world.machines:
            assert await self.world.until_ready(machine, START_S), machine.run and machine.run.reason
        client = Client(self.other.address)
        error, _ = await client.create_topic(TOPIC, 9, {}, 1)
        client.close()
        assert error is ErrorCode.none
        await asyncio.sleep(3)

    def lose(
        self, machine: Machine, *, metadata: bool = False, logs: bool = False, within: bool = False
    ) -> None:
        """The process is gone, and directories with it; `within`: of the metadata's only the log itself."""
        machine.kill()
        paths = {machine.metadata_dir} if metadata else set()
        paths |= set(machine.log_dirs) if logs else set()
        for path in paths:
            machine.platter.forget(path)
            machine.platter.make_root(path)
        if within:
            del machine.platter.directory(machine.metadata_dir).names[CLUSTER_METADATA_DIR]

    def move_metadata(self, machine: Machine, path: Path) -> None:
        """The operator sets `metadata.log.dir`."""
        (node,) = self.world._plans[machine.name].nodes
        node.settings["metadata.log.dir"] = str(path)
        machine.platter.make_root(path)

    async def refused(self, machine: Machine) -> str:
        self.world.start(machine)
        assert not await self.world.until_ready(machine, START_S)
        assert machine.run is not None
        assert machine.run.state is State.REFUSED, machine.run.state
        return machine.run.reason

    async def serves(self, machine: Machine) -> None:
        self.world.start(machine)
        assert await self.world.until_ready(machine, START_S), machine.run and machine.run.reason

    def format(self, machine: Machine, *, as_first_voter: bool = False) -> None:
        """`firn format --no-initial-controllers --ignore-formatted`, or `--initial-controllers` once more."""
        plan: Plan = self.world._plans[machine.name]
        (node,) = plan.nodes
        cluster = ClusterConfig.from_properties(node.settings)
        levels = effective_levels({}, cluster_features(), is_dynamic=True)
        order = Order(
            plan.cluster_id,
            node.node_id,
            cluster.directories,
            cluster.metadata_log_dir,
            cluster.controller_listener_names[0],
            levels,
            parse_initial_controllers(plan.initial_controllers) if as_first_voter else (),
            ignore_formatted=True,
        )
        with self.world.formatter(machine, Random(9)) as (world, process):
            process.run(format_directories, world, order, lambda _: None)

    def replicas(self, machine: Machine) -> set[str]:
        """What the machine has of the topic, and has not set aside."""
        return {
            name
            for path in machine.log_dirs
            for name in machine.platter.directory(path).names
            if name.startswith(f"{TOPIC}-")
        }

    def is_voter(self, machine: Machine) -> bool:
        """Whether the node votes under the directory id that it has now."""
        assert machine.run is not None
        assert machine.run.node is not None
        assert machine.run.node.parts.metadata is not None
        core = machine.run.node.parts.metadata.quorum.machine.core
        assert core.voters.ids == (1, 2, 3), "it knows the quorum"
        assert isinstance(core.key, ReplicaKey)
        return core.is_voter


def play(scenario: Callable[[Cluster], object], seed: int = APART) -> None:
    def played() -> None:
        cluster = Cluster(seed)

        async def main() -> None:
            await cluster.start()
            await scenario(cluster)  # type: ignore[misc]

        cluster.world.run(main())

    apart(played)


def test_a_broker_and_controller_that_lost_its_metadata_directory_keeps_its_partitions() -> None:
    async def scenario(it: Cluster) -> None:
        before = it.replicas(it.both)
        assert before
        it.lose(it.both, metadata=True)
        assert "No `meta.properties` found" in await it.refused(it.both)
        it.format(it.both)
        await it.serves(it.both)
        assert it.replicas(it.both) == before, "nothing is set aside"
        assert not it.is_voter(it.both), "until it is added under its new id"
        it.world.kill(it.both)
        await it.serves(it.both)
        assert it.replicas(it.both) == before, "and the start after that is as any other"
        assert not it.is_voter(it.both)

    play(scenario)


def test_a_metadata_log_lost_under_its_id_is_never_restarted() -> None:
    """It would vote again where it has voted."""

    async def scenario(it: Cluster) -> None:
        it.lose(it.both, within=True)
        said = await it.refused(it.both)
        assert "this node has voted under its directory id" in said
        assert f"empty {it.both.metadata_dir} and format it under a new id" in said
        it.lose(it.both, metadata=True)
        it.format(it.both)
        await it.serves(it.both)
        assert not it.is_voter(it.both)

    play(scenario)


def test_a_metadata_log_lost_from_beside_partitions_is_begun_elsewhere_and_they_stay() -> None:
    async def scenario(it: Cluster) -> None:
        before = it.replicas(it.both)
        it.lose(it.both, within=True)
        said = await it.refused(it.both)
        assert f"leave {it.both.metadata_dir} as it is, which holds " in said
        assert "set metadata.log.dir to a new directory and format that one" in said
        it.move_metadata(it.both, Path("/sim/elsewhere"))
        assert "No `meta.properties` found" in await it.refused(it.both)
        it.format(it.both)
        await it.serves(it.both)
        assert it.replicas(it.both) == before, "nothing is set aside"
        assert not it.is_voter(it.both)

    play(scenario, TOGETHER)


def test_a_broker_and_controller_that_lost_its_log_directories_fetches_its_replicas_and_votes_on() -> None:
    async def scenario(it: Cluster) -> None:
        it.lose(it.both, logs=True)
        await it.serves(it.both)
        assert it.is_voter(it.both)

    play(scenario)


def test_a_broker_and_controller_that_lost_everything_comes_back_without_a_vote() -> None:
    async def scenario(it: Cluster) -> None:
        it.lose(it.both, metadata=True, logs=True)
        assert "No `meta.properties` found" in await it.refused(it.both)
        it.format(it.both)
        await it.serves(it.both)
        assert not it.is_voter(it.both)

    play(scenario)


@pytest.mark.parametrize("within", [True, False])
def test_a_pure_broker_fetches_whatever_it_has_lost(within: bool) -> None:
    async def scenario(it: Cluster) -> None:
        before = it.replicas(it.broker)
        it.lose(it.broker, logs=not within, within=within)
        await it.serves(it.broker)
        if within:
            assert it.replicas(it.broker) == before, "its partitions are known before its logs are opened"

    play(scenario)


def test_partitions_without_any_note_of_the_metadata_that_knew_them_are_not_set_aside() -> None:
    async def scenario(it: Cluster) -> None:
        it.lose(it.both, metadata=True)
        for path in it.both.log_dirs:
            it.both.platter.directory(path).names.pop(".metadata-directory", None)
        it.format(it.both)
        assert "is lost or empty, and /sim/node-1 holds" in await it.refused(it.both)

    play(scenario)


def test_a_node_that_lost_its_metadata_directory_is_not_made_a_first_voter_again() -> None:
    """`firn format --initial-controllers` once more would be another cluster's beginning."""

    async def scenario(it: Cluster) -> None:
        it.lose(it.both, metadata=True)
        it.format(it.both, as_first_voter=True)
        assert "this node has voted under its directory id" in await it.refused(it.both)

    play(scenario)


def test_a_node_that_is_alone_and_lost_its_metadata_is_refused_until_it_recovers_from_the_archive(
    tmp_path: Path,
) -> None:
    """There are no others who would know its partitions."""
    logs, apart_from = tmp_path / "logs", tmp_path / "metadata"
    (logs / "kept-0").mkdir(parents=True)
    apart_from.mkdir()
    properties = {"node.id": "1", "log.dirs": str(logs), "metadata.log.dir": str(apart_from)}
    cluster = ClusterConfig.from_properties(properties)
    disk = make_world().disk
    for note in (None, UUID(int=8 << 100)):
        if note is not None:
            (logs / ".metadata-directory").write_text(encode_uuid(note))
        with pytest.raises(CorruptionError, match=r"is lost or empty, and .*logs holds 1 partitions, kept-0"):
            check_metadata(disk, cluster, [logs], UUID(int=7 << 100), recovers=False)
        check_metadata(disk, cluster, [logs], UUID(int=7 << 100), recovers=True)
    note_metadata(disk, cluster, [logs], UUID(int=9 << 100))
    assert not (apart_from / ".metadata-directory").exists(), "its vote is nobody else's business"
    (apart_from / CLUSTER_METADATA_DIR).mkdir()
    (apart_from / CLUSTER_METADATA_DIR / f"{0:020}.log").touch()
    check_metadata(disk, cluster, [logs], UUID(int=7 << 100), recovers=False)


def test_a_voter_of_a_static_quorum_comes_back_from_a_copy_alone(tmp_path: Path) -> None:
    """Its vote goes by its node id: a new directory id would not keep it from voting twice."""
    logs, apart_from = tmp_path / "logs", tmp_path / "metadata"
    (logs / "kept-0").mkdir(parents=True)
    apart_from.mkdir()
    cluster = ClusterConfig.from_properties(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@127.0.0.1:2,2@127.0.0.1:3,3@127.0.0.1:4",
            "log.dirs": str(logs),
            "metadata.log.dir": str(apart_from),
        }
    )
    disk = make_world().disk
    note_metadata(disk, cluster, [logs], UUID(int=7 << 100))
    for directory_id in (UUID(int=7 << 100), UUID(int=8 << 100)):
        with pytest.raises(CorruptionError, match="only a copy of the directory brings it back"):
            check_metadata(disk, cluster, [logs], directory_id, recovers=False)
    (apart_from / ".metadata-directory").unlink()
    (logs / ".metadata-directory").unlink()
    with pytest.raises(CorruptionError, match="holds 1 partitions"):
        check_metadata(disk, cluster, [logs], UUID(int=8 << 100), recovers=False)


def test_a_first_start_that_is_killed_before_the_log_is_made_is_repeated(tmp_path: Path) -> None:
    """Nothing is voted before there is a log: the note alone, beside the first voters, is no lost log."""
    home = tmp_path / "home"
    (home / CLUSTER_METADATA_DIR).mkdir(parents=True)
    (home / CLUSTER_METADATA_DIR / f"{0:020}-{0:010}.checkpoint").touch()
    cluster = ClusterConfig.from_properties(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:2,127.0.0.1:3",
            "log.dirs": str(home),
        }
    )
    disk, directory_id = make_world().disk, UUID(int=7 << 100)
    note_metadata(disk, cluster, [home], directory_id)
    check_metadata(disk, cluster, [home], directory_id, recovers=False)
    (home / CLUSTER_METADATA_DIR / "quorum-state").touch()
    with pytest.raises(CorruptionError, match="has voted under its directory id"):
        check_metadata(disk, cluster, [home], directory_id, recovers=False)


def test_a_leaderless_partition_waits_for_eligible_replicas_or_an_unclean_election() -> None:
    """docs/operations.md, "Partitions without a leader": what it shows, and both ways out."""

    async def scenario(it: Cluster) -> None:
        client = Client(it.world.machines[3].address)
        first, second = it.world.machines[4], it.other
        for name in ("back", "given-up"):
            assert (await client.create_topic(name, 1, {"min.insync.replicas": "1"}, 1))[0] is ErrorCode.none
            await asyncio.sleep(0.5)
            assert await client.reassign(name, 0, [5, 2]) is ErrorCode.none
        await asyncio.sleep(3)

        def state(name: str) -> PartitionImage:
            topic = it.world.image().topic(name)
            assert topic is not None
            return topic.partitions[0]

        assert {*state("back").isr} == {*state("given-up").isr} == {2, 5}
        it.world.kill(second)
        await asyncio.sleep(2)
        it.world.kill(first)
        await asyncio.sleep(2)
        await it.serves(second)
        for name in ("back", "given-up"):
            assert (state(name).leader, state(name).eligible_leader_replicas) == (-1, (5,))
        assert await client.elect("back", 0) is ErrorCode.preferred_leader_not_available
        it.world.oracle._was_unclean = lambda key: True  # it is ordered here
        assert await client.elect("given-up", 0, unclean=True) is ErrorCode.none
        await asyncio.sleep(1)
        assert (state("given-up").leader, state("back").leader) == (2, -1)
        client.close()
        await it.serves(first)
        await asyncio.sleep(3)
        assert state("back").leader == 2 or 5 in state("back").isr

    play(scenario)
