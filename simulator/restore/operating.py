"""An operator of three nodes: has one of them take the bucket over, and the others join it.

As docs/operations.md says: one node is formatted as a quorum of its own under the cluster's id and started
with `firn.remote.recover=true`; the others are formatted without voters, join it and vote, and partitions get
their three replicas back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.config.cluster import ClusterConfig
from service.metadata.bootstrap import InitialController
from service.metadata.features import cluster_features
from service.metadata.formatting import Order, effective_levels, format_directories
from simulator.client import Client, NoAnswer
from simulator.cluster.client import leader_of
from simulator.cluster.world import START_S, ClusterWorld
from simulator.machine import PORT, Machine, NodeLogs, Run
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.power_loss import Platter
from simulator.store import Deletion, Object

_NODE: Final = "node.id"
_QUORUM: Final = "controller.quorum.bootstrap.servers"
_RECOVER: Final = "firn.remote.recover"
_LOOK_S: Final = 0.5
_JOINED_S: Final = 90.0


class SeveralWorld(ClusterWorld):
    """A cluster with a bucket whose clock is set with those of the machines. The oracle checks it until all
    disks are lost; after that only deletions from the bucket are checked."""

    ahead_ms = 0
    resources: Sequence[str] = ("",)
    """brokers whose dynamic settings hold the retention; empty: all of them"""
    cluster_id = ""
    members: Sequence[str] = ("n1", "n2", "n3")
    """machines of the cluster whose records clients read"""
    is_new_life = False
    may_damage = False
    """whether the bucket was damaged, so that objects that replace others need not follow from them"""

    def __init__(self, seed: int, *, apart: bool) -> None:
        self.apart = apart
        super().__init__(seed, tiered=True)
        self.wrong: list[str] = []
        self.lines: list[tuple[str, str]] = []
        """log lines of the nodes"""
        self.old_disks: dict[str, Platter] = {}
        """disks of the last life, before they were lost"""
        self.old_bucket: dict[str, Object] = {}
        """objects of the bucket at that time"""
        self.first_settings = {name: dict(one) for name, one in self.settings.items()}
        for handler in logging.getLogger("service").handlers:
            assert isinstance(handler, NodeLogs)
            handler.on_line = lambda actor, text: self.lines.append((actor, text))

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        """Draw settings by which all records of a node would expire at once."""
        return {**super()._drawn_settings(random), "log.retention.ms": "3000"}

    def real_ms(self) -> int:
        return super().real_ms() + self.ahead_ms

    def jump(self, seconds: float) -> None:
        """Move all clocks, and the bucket's."""
        self.ahead_ms += int(seconds * 1000)
        for machine in self.machines:
            machine.clock.ahead_ms += int(seconds * 1000)

    def begin_anew(self) -> None:
        """End the oracle of the first life; check only deletions from now on."""
        self.is_new_life = True
        self.loop.after_turn = lambda: None
        self.bucket.on_write = lambda *_: None
        self.bucket.on_delete = self._is_deleted

    def _is_deleted(self, deletion: Deletion) -> None:
        """T8."""
        owner = self.archive.owner(deletion.key)
        is_gone = any(topic.topic_id == owner and topic.deleted for topic in self.topics)
        if not is_gone and self.archive.is_live(deletion.key):
            self.wrong.append(f"T8: {deletion.by} deletes {deletion.key}, which is live")

    def check(self) -> None:
        """Raise a `Violation` that was noted in the middle of a node's call."""
        if self.wrong:
            raise Violation(self.wrong[0])

    def start(self, machine: Machine) -> Run:
        if not self.is_new_life:
            return super().start(machine)
        self.clients[machine.name].close()
        return machine.start(self.settings[machine.name])

    async def is_ready(self, machine: Machine) -> None:
        """Wait for it. Raises `Violation` where it ends instead."""
        if not await self.until_ready(machine, START_S):
            run = machine.run
            assert run is not None
            raise Violation(f"{run.name} {run.state.value}: {run.reason}")

    @property
    def serving(self) -> list[Machine]:
        """Members that are ready."""
        return [one for one in self.alive if one.name in self.members]

    def client(self) -> Client:
        """Return a client of a serving node."""
        return Client(self.serving[0].address)

    async def leader_of(self, topic: TopicModel, partition: PartitionModel) -> Client | None:
        """Find the leader; a `LeaderOf`."""
        for name in self.members:
            client = Client(self.machine(name).address)
            try:
                host = await leader_of(self, client, topic.topic_id, partition.index)
            except NoAnswer:
                continue
            finally:
                client.close()
            if host is not None and host in self.members:
                return Client(self.machine(host).address)
        return None


async def alter_broker(world: SeveralWorld, key: str, value: str) -> None:
    """Set a dynamic setting for all brokers, or for each one."""
    for resource in world.resources:
        client = Client((f"n{resource}", PORT)) if resource else world.client()
        error = await client.alter_config(4, resource, {key: value})
        client.close()
        if error is not ErrorCode.none:
            raise Violation(f"{key}={value} of broker {resource!r}: {error.name}")


def lose_all(world: SeveralWorld, *, keeps_logs: bool = False) -> None:
    """Lose all disks with their metadata; the first machine may keep its logs."""
    world.old_disks = {machine.name: machine.platter.copy() for machine in world.machines}
    world.old_bucket = dict(world.bucket.objects)
    world.members = ("n1",)
    for machine in world.machines:
        machine.kill()
        empty(machine, keeps_logs=keeps_logs and machine is world.machines[0])
    world.begin_anew()


def empty(machine: Machine, *, keeps_logs: bool = False) -> None:
    """Give the machine a new disk, or with `keeps_logs` a new metadata directory."""
    if keeps_logs:
        machine.platter.forget(machine.metadata_dir)
        machine.platter.make_root(machine.metadata_dir)
        return
    machine.platter = Platter()
    machine.memory.clear()
    for path in dict.fromkeys((*machine.log_dirs, machine.metadata_dir)):
        machine.platter.make_root(path)


def settings_alone(world: SeveralWorld, machine: Machine, node_id: int) -> dict[str, str]:
    """Return the settings of a node that is its whole cluster, and that others can join."""
    settings = dict(world.first_settings[machine.name])
    settings.pop(_QUORUM)
    return {**settings, "node.id": str(node_id), "firn.cluster.id": world.cluster_id}


def settings_joining(world: SeveralWorld, machine: Machine) -> dict[str, str]:
    return {
        **world.first_settings[machine.name],
        "controller.quorum.auto.join.enable": "true",
        "firn.cluster.id": world.cluster_id,
    }


def format_machine(
    world: SeveralWorld, machine: Machine, settings: dict[str, str], *, standalone: bool
) -> None:
    """Format as `firn format --standalone` does, or with `--no-initial-controllers`."""
    cluster = ClusterConfig.from_properties(settings)
    levels = effective_levels({}, cluster_features(), is_dynamic=True)
    voter = InitialController(cluster.node_id, machine.name, 9093, world.new_uuid())
    order = Order(
        world.cluster_id,
        cluster.node_id,
        cluster.directories,
        cluster.metadata_log_dir,
        cluster.controller_listener_names[0],
        levels,
        (voter,) if standalone else (),
        ignore_formatted=True,
    )
    with world.formatter(machine, Random(world.new_uuid().int)) as (own, process):
        process.run(format_directories, own, order, lambda _: None)


async def take_over(
    world: SeveralWorld, node_id: int = 1, crash_s: float | None = None, *, by: Machine | None = None
) -> None:
    """Have the first machine, or `by`, take its bucket over alone; a start that is cut short is repeated as
    in the docs."""
    machine = by or world.machines[0]
    alone = settings_alone(world, machine, node_id)
    format_machine(world, machine, alone, standalone=True)
    world.settings[machine.name] = {**alone, _RECOVER: "true"}
    world.tell(f"{machine.name} takes the bucket over as node {node_id}")
    world.start(machine)
    if crash_s is not None:
        await asyncio.sleep(crash_s)
        machine.kill()
        world.settings[machine.name] = alone
        world.start(machine)
        await world.is_ready(machine)
        if await _topics_of(world, machine):
            return  # it had taken the bucket over, and goes on without the setting
        await world.stop(machine)
        world.settings[machine.name] = {**alone, _RECOVER: "true"}
        world.start(machine)
    await world.is_ready(machine)
    world.settings[machine.name] = alone


async def _topics_of(world: SeveralWorld, machine: Machine) -> dict[str, UUID]:
    client = Client(machine.address)
    try:
        return await client.topics()
    finally:
        client.close()


async def grow(world: SeveralWorld, joining: Sequence[str] = ("n2", "n3")) -> None:
    """Add nodes to the first one as voters, and put each partition on all of them."""
    for name in joining:
        machine = world.machine(name)
        world.settings[name] = settings_joining(world, machine)
        empty(machine)
        format_machine(world, machine, world.settings[name], standalone=False)
        world.tell(f"{name} joins")
        world.start(machine)
        await world.is_ready(machine)
    first = world.machines[0]
    world.members = (first.name, *joining)
    await _until(world, "votes", lambda: None if len(_voters(first)) > len(joining) else str(_voters(first)))
    await world.stop(first)
    servers = {_QUORUM: world.first_settings[first.name][_QUORUM]}
    world.settings[first.name] = {**world.settings[first.name], **servers}
    world.start(first)
    await world.is_ready(first)
    ids = [int(world.settings[one][_NODE]) for one in (first.name, *joining)]
    client = world.client()
    for topic, partition in world.partitions():
        for _ in range(20):
            error = await client.reassign(topic.name, partition.index, ids)
            if error is ErrorCode.none:
                break
            await asyncio.sleep(_LOOK_S)
        else:
            raise Violation(f"{partition} cannot be put on {ids}: {error.name}")
    client.close()
    await _until(world, "replicas", lambda: _not_on(world, ids))


def _voters(machine: Machine) -> set[int]:
    run = machine.run
    if run is None or run.node is None or run.node.parts.metadata is None:
        return set()
    return {int(one.node_id) for one in run.node.parts.metadata.quorum.machine.voters}


def _not_on(world: SeveralWorld, ids: Sequence[int]) -> str | None:
    image = world.image()
    for topic, partition in world.partitions():
        placed = image.partition(topic.topic_id, partition.index)
        if placed is None or set(placed.isr) != set(ids) or placed.leader not in ids:
            return f"{partition}: {placed}"
    return None


async def _until(world: SeveralWorld, what: str, why_not: Any) -> None:
    deadline = world.loop.time() + _JOINED_S
    while (why := why_not()) is not None:
        if world.loop.time() > deadline:
            raise Violation(f"the cluster does not get its {what} in {_JOINED_S:.0f} s: {why}")
        await asyncio.sleep(_LOOK_S)


async def go_on(world: SeveralWorld, lost: Sequence[str], random: Random) -> None:
    """Restart the cluster; nodes in `lost` come back with their metadata and empty log directories."""
    for name in lost:
        world.wipe(world.machine(name), random)
    for machine in world.machines:
        world.start(machine)
    for machine in world.machines:
        await world.is_ready(machine)
