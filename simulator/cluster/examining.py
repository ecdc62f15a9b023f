"""Whether all is there that clients were told of: records at their leaders, changes in every image."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from service.metadata.image import MetadataImage
from simulator.client import EARLIEST, LATEST, Client, NoAnswer, Record
from simulator.cluster.client import NOT_NOW, leader_of
from simulator.cluster.replicas import batches_of
from simulator.cluster.world import ALIVE_S, START_S, ClusterWorld
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel, Violation

_AGAIN_S: Final = 0.5


async def examine_all(world: ClusterWorld, random: Random) -> str:
    """Read every partition whose leader is there and judge it; why some could not be read."""
    await world.settle()
    world.ended_for_reasons()
    missing = ""
    for topic, partition in list(world.partitions()):
        machine = random.choice(world.machines)
        try:
            why = await _examine(world, machine.name, topic, partition)
        except NoAnswer as e:
            why = f"asked by {machine.name}: {e}"
        if why:
            world.trace.note("oracle", f"{partition}: {why}")
            missing = missing or f"{partition}: {why}"
    world.ended_for_reasons()
    return missing


async def _examine(world: ClusterWorld, asked: str, topic: TopicModel, partition: PartitionModel) -> str:
    teller = Client(world.machine(asked).address)
    try:
        host = await leader_of(world, teller, topic.topic_id, partition.index)
    finally:
        teller.close()
    if host is None:
        return f"nobody leads, says {asked}"
    client = Client(world.machine(host).address)
    try:
        return await _read(world, host, client, topic, partition)
    finally:
        client.close()


async def _read(
    world: ClusterWorld, host: str, client: Client, topic: TopicModel, partition: PartitionModel
) -> str:
    bounds: list[int] = []
    epoch = -1
    for which in (EARLIEST, LATEST):
        error, offset, epoch = await client.offset(topic.name, partition.index, which)
        if error is not ErrorCode.none:
            return _refused(partition, host, error)
        bounds.append(offset)
    placed = world.oracle.replicas.placed.get((topic.topic_id, partition.index))
    newest = max(partition.leader_epoch, -1 if placed is None else placed.leader_epoch)
    if epoch < newest:
        # Whoever is cut off may believe for a while that it leads, and does not know what its successor has
        # acknowledged: once all is alive there is none such left.
        return f"{host} leads in epoch {epoch}, after somebody did in {newest}"
    partition.leader_epoch = epoch
    start, end = bounds
    records: list[Record] = []
    at = start
    while at < end:
        found = await client.fetch(topic.topic_id, partition.index, at, max_wait_ms=500)
        if found.error is not ErrorCode.none:
            return _refused(partition, host, found.error)
        records += found.records
        if found.next_offset == at:
            return f"nothing comes from {at}"
        at = found.next_offset
    partition.judge(start, end, [one for one in records if one.offset < end], None)
    return ""


def _refused(partition: PartitionModel, host: str, error: ErrorCode) -> str:
    if error not in NOT_NOW:
        raise Violation(f"{partition} at {host} answers {error.name}")
    return f"{error.name} at {host}"


# The end


async def revive(world: ClusterWorld, random: Random) -> None:
    """All faults end; within 30 s everything must be there, known to all nodes alike."""
    world.tell("all faults end")
    for faults in world.faults.values():
        faults.on.clear()
    links = world.network.links
    links.slow_s.clear()
    world.darkness.clear()
    world.network.heal(set(links.cut))
    for machine in world.machines:
        if machine.run is not None:
            machine.run.process.resume()
    world.ended_for_reasons()
    # What a broken disk has ended, or taken offline, comes back with a new process.
    for machine in world.machines:
        if machine.name in world.troubled:
            await world.stop(machine)
    for machine in world.machines:
        if machine.run is None or machine.run.ended:
            world.tell(f"start {machine.name}")
            world.start(machine)
    world.troubled.clear()
    deadline = world.loop.time() + ALIVE_S
    why = "never looked"
    while world.loop.time() < deadline:
        why = _not_up(world) or _differs(world) or await examine_all(world, random) or _not_in_sync(world)
        if not why:
            break
        await asyncio.sleep(_AGAIN_S)
    if why:
        raise Violation(f"not everything is alive {ALIVE_S:.0f} s after the faults ended: {why}")
    await _changes_work(world, random)


def _not_up(world: ClusterWorld) -> str:
    for machine in world.machines:
        run = machine.run
        assert run is not None
        if run.state is not State.READY or run.ended:
            if run.ended:
                world.ended_for_reasons()
            return f"{run.name} {run.state.value} {run.reason}"
    return ""


def _differs(world: ClusterWorld) -> str:
    """Every answered change is in every image, and the images say the same."""
    image = world.image()
    for machine in world.machines:
        run = machine.run
        assert run is not None
        assert run.node is not None
        assert run.node.metadata is not None
        own = run.node.metadata.image
        if own.offset < world.oracle.end - 2:
            return f"{run.name} is at {own.offset}, committed is {world.oracle.end}"
        if own.offset == image.offset and _said(own) != _said(image):
            raise Violation(f"{run.name} has another image of {own.offset} than others")
        broker = own.brokers.get(int(machine.name[1:]))
        if broker is None or broker.fenced:
            return f"{run.name} is fenced"
    for topic in world.topics:
        there = image.topic(topic.topic_id)
        if not topic.deleted and there is None:
            raise Violation(f"A1: the creation of {topic.name} was answered, and it is not there")
        if topic.topic_id in world.gone and there is not None:
            raise Violation(f"A1: the deletion of {topic.name} was answered, and it is there")
    for (name, key), values in sorted(world.configs.items()):
        topic_there = image.topic(name)
        if topic_there is not None and image.config(2, name).get(key) not in values:
            found = image.config(2, name).get(key)
            raise Violation(f"A1: {key} of {name} is {found}, answered was {values}")
    return ""


def _not_in_sync(world: ClusterWorld) -> str:
    """P3: every replica is in sync, and ends alike, and their files are the same."""
    image, replicas = world.image(), world.oracle.replicas
    for topic in image.topics_by_id.values():
        for index, placed in topic.partitions.items():
            key, name = (topic.id, index), f"{topic.name}-{index}"
            if {*placed.isr} != {*placed.replicas} or placed.adding_replicas or placed.removing_replicas:
                return f"{name}: in sync are {placed.isr} of {placed.replicas}"
            those = [replicas.seen.get((number, key)) for number in placed.replicas]
            bounds = [None if one is None else (one.end, one.mark) for one in those]
            if len(set(bounds)) != 1 or bounds[0] is None or bounds[0][0] != bounds[0][1]:
                said = [
                    one and (one.run, one.partition.high_watermark, one.partition.is_leader) for one in those
                ]
                return f"{name}: its replicas end at, and have committed, {bounds}: {said}"
            found = [
                batches_of(world.machines[number - 1], one.partition, 0)
                for number, one in zip(placed.replicas, those, strict=True)
                if one is not None
            ]
            if any(one != found[0] for one in found):
                raise Violation(f"P3: the replicas of {name} on {placed.replicas} differ in the end")
    return ""


def _said(image: MetadataImage) -> tuple[object, ...]:
    """What an image says, to be compared."""
    return (
        sorted((one.name, one.id, sorted(one.partitions.items())) for one in image.topics_by_id.values()),
        sorted((key, sorted(configs.items())) for key, configs in image.configs.items()),
        sorted(image.brokers.items()),
        sorted((number, one.incarnation_id) for number, one in image.controllers.items()),
        sorted(image.features.items()),
        (image.next_producer_id, image.kraft_version),
    )


async def _changes_work(world: ClusterWorld, random: Random) -> None:
    """Once all is alive every node takes a change."""
    for machine in world.machines:
        client = Client(machine.address)
        name = f"last-{machine.name}"
        try:
            error, _ = await client.create_topic(name, 1, {})
        except NoAnswer as e:
            raise Violation(f"{machine.name} does not answer once all is alive: {e}") from e
        finally:
            client.close()
        if error is not ErrorCode.none:
            raise Violation(f"{machine.name} refuses a topic once all is alive: {error.name}")


__all__ = ["START_S", "examine_all", "revive"]
