"""Final check: acknowledged records are at their leaders, acknowledged changes in every image."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from service.metadata.image import MetadataImage
from simulator.client import EARLIEST, LATEST, Client, NoAnswer, Record
from simulator.cluster.client import NOT_NOW, leader_of
from simulator.cluster.replicas import batches_of
from simulator.cluster.store_acts import others_are_archived
from simulator.cluster.world import ALIVE_S, START_S, ClusterWorld
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel, Violation

_AGAIN_S: Final = 0.5
_COLD_S: Final = 5.0
"""longest time of a cold read, while the loop goes on fetching"""
_WENT_BY: Final = "what is read first is gone by then"


_COPIED_S: Final = 90.0
"""A node retries an unavailable bucket after half a minute, by its own clock; then it copies one by one."""


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
    check_archive(world)
    return missing


def check_archive(world: ClusterWorld) -> None:
    """T10: at any moment `firn fsck` finds nothing wrong."""
    if world.tiered and not world.foreign:
        for problem in world.archive.problems():
            raise Violation(f"T10: fsck: {problem}")


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
    if epoch > partition.leader_epoch:
        partition.log_start = 0  # where what expired has moved it another replica need not have heard
    partition.leader_epoch = epoch
    start, end = bounds
    records = await _records(world, client, topic, partition, start, end)
    if isinstance(records, str):
        return records
    expired = None if topic.retention_ms < 0 else world.wall_ms() - topic.retention_ms
    partition.judge(start, end, records, expired)
    return await _epochs(client, topic, partition, epoch, end, records)


async def _epochs(
    client: Client,
    topic: TopicModel,
    partition: PartitionModel,
    current: int,
    end: int,
    records: list[Record],
) -> str:
    """L6: where the current epoch ends, and each of the records. `NoAnswer`."""
    for asked in sorted({current, *(one.leader_epoch for one in records)}):
        error, epoch, offset = await client.end_of_epoch(topic.name, partition.index, asked)
        if error is not ErrorCode.none:
            return _refused(partition, client.address[0], error)
        error, begins, _ = await client.offset(topic.name, partition.index, EARLIEST)
        if error is not ErrorCode.none:
            return _refused(partition, client.address[0], error)
        if records and begins > records[0].offset:
            return ""  # epochs begin and end elsewhere now
        partition.judge_epoch(asked, epoch, offset, end, records)
    return ""


async def _records(
    world: ClusterWorld, client: Client, topic: TopicModel, partition: PartitionModel, start: int, end: int
) -> list[Record] | str:
    """Read all records from both tiers; return why they cannot be read. Raises `NoAnswer`."""
    records: list[Record] = []
    at, deadline = start, world.loop.time() + _COLD_S
    while at < end:
        found = await client.fetch(topic.topic_id, partition.index, at, max_wait_ms=500)
        if found.error is ErrorCode.offset_out_of_range:
            error, begins, _ = await client.offset(topic.name, partition.index, EARLIEST)
            if error is not ErrorCode.none or begins > at:
                return _WENT_BY
        if found.error is not ErrorCode.none:
            return _refused(partition, client.address[0], found.error)
        records += found.records
        if found.next_offset > at:
            at, deadline = found.next_offset, world.loop.time() + _COLD_S
        elif world.loop.time() > deadline:
            return f"nothing comes from {at}"
    return [one for one in records if one.offset < end]


def _refused(partition: PartitionModel, host: str, error: ErrorCode) -> str:
    if error not in NOT_NOW:
        raise Violation(f"{partition} at {host} answers {error.name}")
    return f"{error.name} at {host}"


# The end


async def revive(world: ClusterWorld, random: Random) -> None:
    """End all faults; check that everything is back within 30 s, and all nodes have the same metadata."""
    world.tell("all faults end")
    for machine in world.machines:
        world.faults[machine.name].on.clear()
        world.store_faults[machine.name].on.clear()
    links = world.network.links
    links.slow_s.clear()
    links.refused.clear()
    links.stalled.clear()
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
    _start_those_that_ended(world)
    world.troubled.clear()
    await others_are_archived(world)
    deadline = world.loop.time() + ALIVE_S
    why = "never looked"
    while world.loop.time() < deadline:
        _start_those_that_ended(world)
        why = _not_up(world) or _differs(world) or await examine_all(world, random) or _not_in_sync(world)
        why = why or world.what_is_left_to_do()
        if not why:
            break
        await asyncio.sleep(_AGAIN_S)
    if why:
        raise Violation(f"not everything is alive {ALIVE_S:.0f} s after the faults ended: {why}")
    await world.settle_rewrites()
    await _followers_have_it(world)
    await _all_is_copied(world)
    await _changes_work(world, random)


def _start_those_that_ended(world: ClusterWorld) -> None:
    """Start the nodes that ended, as a service manager does: one without a controller for a minute ends."""
    world.ended_for_reasons()
    for machine in world.machines:
        if machine.run is None or machine.run.ended:
            world.tell(f"start {machine.name}")
            world.start(machine)


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
    """Return why acknowledged changes are missing in an image, or images differ; else ""."""
    image = world.image()
    for machine in world.machines:
        run = machine.run
        assert run is not None
        assert run.node is not None
        assert run.node.parts.metadata is not None
        own = run.node.parts.metadata.image
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
            # What has expired for one of them, or is in the bucket alone, may be on the disk of another.
            first = max(one.partition.log.local_log_start_offset for one in those if one is not None)
            found = [[one for one in batches if one[1] > first] for batches in found]
            if topic.id in replicas.compacted:
                continue  # each replica cleans its own log when it likes; P3 compares their records
            if topic.id in replicas.erasures.topics:
                continue  # likewise, while an order is open
            if any(one != found[0] for one in found):
                raise Violation(f"P3: the replicas of {name} on {placed.replicas} differ in the end")
    return ""


async def _followers_have_it(world: ClusterWorld) -> None:
    """Check P9: each replica serves the same records as the leader, from both tiers."""
    for topic, partition in world.partitions():
        placed = world.oracle.replicas.placed[topic.topic_id, partition.index]
        clients = [Client(world.machines[number - 1].address) for number in placed.replicas]
        try:
            start, end = partition.log_start, partition.end_offset
            read = [await _records(world, one, topic, partition, start, end) for one in clients]
            begins, deadline = [start], world.loop.time() + _COLD_S
            while (_WENT_BY in read or _differ(partition, begins)) and world.loop.time() < deadline:
                # Records have expired: the leader's log begins later, and then its followers' do.
                await asyncio.sleep(0.5)
                begins = [_begins_at(world, topic, partition, number) for number in placed.replicas]
                start = max(start, *begins)
                read = [await _records(world, one, topic, partition, start, end) for one in clients]
            alike = [_without_cancelled(world, topic, partition, one) for one in read]
            if any(one != alike[0] for one in alike) or _differ(partition, begins):
                why = [one if isinstance(one, str) else len(one) for one in read]
                raise Violation(
                    f"P9: the replicas of {partition} on {placed.replicas} read {why} of {begins} to {end}"
                )
            _epochs_end_alike(world, topic, partition, read[0])
        finally:
            for one in clients:
                one.close()


def _without_cancelled(
    world: ClusterWorld, topic: TopicModel, partition: PartitionModel, read: list[Record] | str
) -> list[Record] | str:
    """Leave out records of orders that were cancelled: some replicas may have carried them out by then."""
    if isinstance(read, str):
        return read
    erasures, key = world.oracle.replicas.erasures, (topic.topic_id, partition.index)

    def may_differ(one: Record) -> bool:
        return erasures.may_differ(key, one.offset, erasures.of_value(one.value, one.timestamp_ms))

    return [one for one in read if not may_differ(one)]


def _differ(partition: PartitionModel, begins: list[int]) -> bool:
    """Return whether the replicas' log starts differ. An unacknowledged deletion may explain a difference: a
    replica that has done it keeps it."""
    return len({*begins}) > 1 and max(begins) > partition.most_asked_start


def _begins_at(world: ClusterWorld, topic: TopicModel, partition: PartitionModel, number: int) -> int:
    """Return a replica's log start, from the memory of its process: followers answer no client."""
    return world.oracle.replicas.seen[number, (topic.topic_id, partition.index)].partition.start_offset


def _epochs_end_alike(
    world: ClusterWorld, topic: TopicModel, partition: PartitionModel, records: list[Record] | str
) -> None:
    """Check P12: all replicas have the same end offset for every record's epoch."""
    key = topic.topic_id, partition.index
    replicas = world.oracle.replicas.placed[key].replicas
    logs = [world.oracle.replicas.seen[number, key].partition.log for number in replicas]
    first = max(one.log_start_offset for one in logs)  # which may have moved since
    there = [one for one in records if not isinstance(one, str) and one.offset >= first]
    for epoch in sorted({one.leader_epoch for one in there}):
        ends = [one.end_offset_of_epoch(epoch) for one in logs]
        if len({*ends}) > 1:
            raise Violation(f"P12: epoch {epoch} of {partition} ended at {ends}, say {replicas}")


async def _all_is_copied(world: ClusterWorld) -> None:
    """Check T7, T10, T11: once all nodes live, sealed segments get into the bucket, and HEADs name them."""
    if not world.tiered:
        return
    placed, seen = world.oracle.replicas.placed, world.oracle.replicas.seen
    deadline = world.loop.time() + _COPIED_S
    while True:
        led = [
            (key, seen[one.leader, key].partition)
            for key, one in placed.items()
            if (one.leader, key) in seen and world.image().partition(*key) is not None
        ]
        why = world.oracle.tiers.not_copied(led)
        if not why:
            break
        if world.loop.time() > deadline:
            raise Violation(f"T11: {_COPIED_S:.0f} s after all is alive: {why}")
        await asyncio.sleep(_AGAIN_S)
    check_archive(world)


def _said(image: MetadataImage) -> tuple[object, ...]:
    """Return the parts of an image that are compared."""
    return (
        sorted((one.name, one.id, sorted(one.partitions.items())) for one in image.topics_by_id.values()),
        sorted((key, sorted(configs.items())) for key, configs in image.configs.items()),
        sorted(image.brokers.items()),
        sorted((number, one.incarnation_id) for number, one in image.controllers.items()),
        sorted(image.features.items()),
        (image.next_producer_id, image.kraft_version),
        sorted(image.acls.entries.items()),
        [dict(image.scram), dict(image.client_quotas)],
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
