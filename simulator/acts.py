"""Acts of a history of one node: requests of clients, actions of operators, faults.

An act is a kind and a seed: all its random choices come from that seed, so that it does the same in a history
from which other acts were removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.records.batch import CompressionType
from simulator import group_acts, pasts, refusal_acts
from simulator.client import NoAnswer
from simulator.faults import (
    DISK_KINDS,
    LITTLE_ROOM,
    SEGMENT_FSYNC,
    SHARED,
    SLOW_FSYNC,
    SLOW_METADATA,
    SLOW_STORE,
    STORE_KINDS,
    UNLINK,
)
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel
from simulator.power_loss import Loss
from simulator.sending import send, send_idempotent, values_of
from simulator.topics import TOPIC_KINDS, create, delete_up_to, offset_to_delete
from simulator.world import SimWorld


class Act(NamedTuple):
    """One thing that happens."""

    kind: str
    seed: int


async def perform(world: SimWorld, act: Act) -> None:
    """Do it. Raises `Violation`."""
    await ACTS[act.kind](world, Random(act.seed))


# What clients do


async def create_topic(world: SimWorld, random: Random) -> None:
    if sum(not topic.deleted for topic in world.topics) >= 5 or not await world.ensure_running():
        return
    await create(world, random, random.choice(TOPIC_KINDS), random.randint(1, 2))


async def produce(world: SimWorld, random: Random) -> None:
    """Produce a few batches to random partitions, one after the other, in the background."""
    await _produce(world, random, idempotent=False)


async def produce_idempotent(world: SimWorld, random: Random) -> None:
    """Do what `produce` does with an idempotent producer, which repeats batches without a response."""
    await _produce(world, random, idempotent=True)


async def _produce(world: SimWorld, random: Random, *, idempotent: bool) -> None:
    there = list(world.partitions())
    if not there or not await world.ensure_running():
        return
    topic, partition = random.choice(there)
    count = random.choice((1, 1, 2, 5, 12))
    batches = [
        values_of(world, random.choice((1, 1, 2, 7)), random.choice((0, 10, 90, 400))) for _ in range(count)
    ]
    codec = random.choice((CompressionType.NONE, CompressionType.NONE, CompressionType.GZIP))
    work = send_idempotent if idempotent else send
    world.spawn(work(world, topic, partition, batches, codec))
    if random.random() < 0.5:
        await asyncio.sleep(random.random() * 0.05)
    else:
        await world.settle()


async def delete_topic(world: SimWorld, random: Random) -> None:
    there = [topic for topic in world.topics if not topic.deleted]
    if len(there) < 2 or not await world.ensure_running():
        return
    topic = random.choice(there)
    await world.settle()
    topic.deleted = True
    try:
        error = await world.client.delete_topic(topic.topic_id)
    except NoAnswer:
        error = ErrorCode.request_timed_out
    world.tell(f"delete {topic.name}: {error.name}")


async def delete_records(world: SimWorld, random: Random) -> None:
    """Delete records up to a random offset, often the border of a segment, or all of them.

    Sometimes the process is killed, or the machine loses power, right after the response."""
    there = list(world.partitions())
    if not there or not await world.ensure_running():
        return
    topic, partition = random.choice(there)
    await world.settle()
    offset = offset_to_delete(random, world.machine, topic, partition)
    await delete_up_to(world.client, world.tell, topic, partition, offset)
    ending = random.random()
    if ending < 0.3:
        world.tell("kill -9 after a deletion")
        world.machine.kill()
        await _again(world, random)
    elif ending < 0.45:
        world.troubled = True
        await world.lose_power(random.choice((Loss.ALL, Loss.LATEST, Loss.ANY)))
        await _again(world, random)


async def alter_topic(world: SimWorld, random: Random) -> None:
    there = [topic for topic in world.topics if not topic.deleted]
    if not there or not await world.ensure_running():
        return
    topic = random.choice(there)
    configs: dict[str, str | None] = {"internal.segment.bytes": str(random.choice((600, 2500, 9000)))}
    if any(one.compacted for one in topic.partitions):
        configs["cleanup.policy"] = random.choice(("compact", "compact", "delete"))
    if topic.tiered:
        configs["local.retention.bytes"] = str(random.choice((1, 2000, 8000)))
    try:
        error = await world.client.alter_config(2, topic.name, configs)
    except NoAnswer:
        error = ErrorCode.request_timed_out
    world.tell(f"alter {topic.name}: {configs}: {error.name}")


async def alter_cluster(world: SimWorld, random: Random) -> None:
    """Change a cluster-wide retention default or remove it; topics keep their own settings."""
    if not await world.ensure_running():
        return
    key, values = random.choice(
        (
            ("log.retention.ms", ("1000", "60000", None)),
            ("log.retention.bytes", ("1", "5000", None)),
            ("log.local.retention.ms", ("1", "1000", None)),
            ("log.local.retention.bytes", ("1", None)),
        )
    )
    value = random.choice(values)
    if key == "log.retention.bytes" and value is not None:  # no topic says anything else of bytes
        world.bytes_expire = True
        for topic in world.topics:
            topic.retention_ms = 0
    try:
        error = await world.client.alter_config(4, "", {key: value})
    except NoAnswer:
        error = ErrorCode.request_timed_out
    world.tell(f"alter all brokers: {key}={value}: {error.name}")


async def wait(world: SimWorld, random: Random) -> None:
    seconds = random.choice((0.05, 0.6, 3.0, 12.0))
    world.tell(f"{seconds} s go by")
    await asyncio.sleep(seconds)


async def examine(world: SimWorld, random: Random) -> None:
    if await world.ensure_running():
        await world.examine()
        world.check_archive()


# What happens to the process


async def kill(world: SimWorld, random: Random) -> None:
    if random.random() < 0.3:
        await _while_a_commit_waits(world, random)
    else:
        await _in_the_middle(world, random)
    world.tell("kill -9")
    world.machine.kill()
    await _again(world, random)


async def lose_power(world: SimWorld, random: Random) -> None:
    world.troubled = True
    loss = random.choice((Loss.ALL, Loss.LATEST, Loss.LATEST, Loss.ANY, Loss.HOLES, Loss.NONE))
    before = random.random()
    if before < 0.25:
        await _after_a_failed_fsync(world, random)
    elif before < 0.5:
        await _as_epochs_begin(world, random)
        loss = Loss.SHORT
    else:
        await _in_the_middle(world, random)
    await world.lose_power(loss)
    await _again(world, random)


async def _as_epochs_begin(world: SimWorld, random: Random) -> None:
    """Restart and write the first record of a leader epoch to every partition: the epoch file is not durable
    yet."""
    await _stop(world, random)
    if await world.ensure_running():
        for topic, partition in list(world.partitions()):
            world.spawn(send(world, topic, partition, [values_of(world, 1, 90)], CompressionType.NONE))
        await asyncio.sleep(random.random() * 0.05)


async def _in_the_middle(world: SimWorld, random: Random) -> None:
    """Often start a request first, so that the act interrupts it."""
    run = world.machine.run
    if run is not None and run.state is State.READY:
        group_acts.commit_meanwhile(world)
    there = list(world.partitions())
    if there and run is not None and run.state is State.READY and random.random() < 0.6:
        topic, partition = random.choice(there)
        batches = [values_of(world, 1, 90) for _ in range(4)]
        world.spawn(send_idempotent(world, topic, partition, batches, CompressionType.NONE))
        await asyncio.sleep(random.random() * 0.006)


async def _after_a_failed_fsync(world: SimWorld, random: Random) -> None:
    """Write segments while their fsync fails; acknowledgements must hold after the loss of power that
    follows."""
    there = list(world.partitions())
    if not there or not await world.ensure_running():
        return
    topic, partition = random.choice([one for one in there if one[0].flushed] or there)
    world.faults.on.add(SEGMENT_FSYNC)
    world.tell(f"now {SEGMENT_FSYNC}")
    batches = [values_of(world, 1, 90) for _ in range(6)]
    work = send_idempotent if random.random() < 0.5 else send
    world.spawn(work(world, topic, partition, batches, CompressionType.NONE))
    await asyncio.sleep(random.choice((0.05, 0.5, 4.0)))
    world.faults.on.discard(SEGMENT_FSYNC)


async def _while_a_commit_waits(world: SimWorld, random: Random) -> None:
    """Slow down the metadata's fsync: segments are copied, and their commits wait while requests go on."""
    there = [one for one in world.partitions() if one[0].tiered]
    if not there or not await world.ensure_running():
        return
    topic, partition = random.choice(there)
    world.troubled = True
    world.faults.on.add(SLOW_METADATA)
    world.tell(f"now {SLOW_METADATA}")
    _fill(world, topic, partition)
    await asyncio.sleep(3 + random.random() * 5)
    world.faults.on.discard(SLOW_METADATA)


def _fill(world: SimWorld, topic: TopicModel, partition: PartitionModel) -> None:
    """Enough for segments to roll."""
    batches = [values_of(world, 1, 400) for _ in range(12)]
    world.spawn(send(world, topic, partition, batches, CompressionType.NONE))


async def _while_files_stay(world: SimWorld, random: Random) -> None:
    """Local segments that the bucket has are to go, and some of their files cannot be removed."""
    there = [one for one in world.partitions() if one[0].tiered]
    if not there or not await world.ensure_running():
        return
    topic, partition = random.choice(there)
    world.troubled = True
    world.faults.on.add(UNLINK)
    world.tell(f"now {UNLINK}")
    _fill(world, topic, partition)
    await asyncio.sleep(random.choice((4.0, 12.0)))
    _fill(world, topic, partition)
    await asyncio.sleep(random.choice((4.0, 12.0)))
    world.faults.on.discard(UNLINK)


async def stop(world: SimWorld, random: Random) -> None:
    if random.random() < 0.3:
        await _while_files_stay(world, random)
    await _stop(world, random)


async def _stop(world: SimWorld, random: Random) -> None:
    world.tell("SIGTERM")
    await world.stop()
    world.ended_for_a_reason()
    await _again(world, random)


async def read_cold(world: SimWorld, random: Random) -> None:
    """Restart the node: a new process has no cache of the bucket, so it reads flipped objects."""
    there = [one for one in world.partitions() if one[0].tiered]
    if there and await world.ensure_running():
        _fill(world, *random.choice(there))
        await asyncio.sleep(random.choice((3.0, 12.0)))
    for _ in range(2):
        await _stop(world, random)
        if not world.store_faults.on and random.random() < 0.7:
            await _store_fault(world, "flipped bits on the way")
        await examine(world, random)


async def _again(world: SimWorld, random: Random) -> None:
    """Start again; now and then it is killed while it starts, too. Producers try again meanwhile."""
    if random.random() < 0.2:
        await world.start(wait=False)
        await asyncio.sleep(random.random() * 0.3)
        run = world.machine.run
        assert run is not None
        if run.state is not State.READY:
            world.tell("kill -9 while it starts")
        world.machine.kill()
    await world.ensure_running()


async def pause(world: SimWorld, random: Random) -> None:
    run = world.machine.run
    if run is None or run.ended:
        return
    seconds = random.choice((0.5, 5.0, 40.0))
    world.tell(f"SIGSTOP for {seconds} s")
    run.process.stop()
    await asyncio.sleep(seconds)
    run.process.resume()


async def jump_clock(world: SimWorld, random: Random) -> None:
    """Change the wall clock by up to an hour back or a few seconds ahead."""
    seconds = random.choice((-3600, -30, -5, 5))
    world.tell(f"the wall clock jumps by {seconds} s")
    world.machine.clock.ahead_ms += seconds * 1000


# Faults


async def disk_faults(world: SimWorld, random: Random) -> None:
    kind = random.choice((*DISK_KINDS, SLOW_FSYNC, LITTLE_ROOM))
    await _disk_fault(world, random, kind)


async def _disk_fault(world: SimWorld, random: Random, kind: str) -> None:
    if kind in world.faults.on:
        world.faults.on.discard(kind)
        world.tell(f"no more {kind}")
        return
    world.troubled = True
    world.faults.on.add(kind)
    world.tell(f"now {kind}")


async def disk_heals(world: SimWorld, random: Random) -> None:
    if world.faults.on:
        world.faults.on.clear()
        world.tell("the disk works")


async def store_faults(world: SimWorld, random: Random) -> None:
    kind = random.choice((*(kind for kind in STORE_KINDS if kind != SHARED), SLOW_STORE))
    await _store_fault(world, kind)


async def damage_shared(world: SimWorld, random: Random) -> None:
    """Flip bits of cluster.json and topics.json on their way to the bucket, or end that."""
    await _store_fault(world, SHARED)


async def repair(world: SimWorld, random: Random) -> None:
    """End that fault, and run `firn repair` on the bucket."""
    if SHARED in world.store_faults.on:
        await _store_fault(world, SHARED)
    world.repair_bucket()


async def _store_fault(world: SimWorld, kind: str) -> None:
    if kind in world.store_faults.on:
        world.store_faults.on.discard(kind)
        world.tell(f"no more {kind}")
        return
    world.troubled = True
    world.store_faults.on.add(kind)
    world.tell(f"now {kind}")


async def store_heals(world: SimWorld, random: Random) -> None:
    if world.store_faults.on:
        world.store_faults.on.clear()
        world.tell("the store works")


ACTS: Final[dict[str, Callable[[SimWorld, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        create_topic, produce, produce_idempotent, delete_topic, delete_records, alter_topic, alter_cluster,
        wait, examine,
        kill, lose_power, stop, read_cold, pause, jump_clock, disk_faults, disk_heals, store_faults,
        store_heals, damage_shared, repair,
        pasts.copy_disk, pasts.restore_disk, pasts.lose_partition, pasts.lose_metadata, pasts.flip_bit,
        pasts.clone_disk, pasts.copy_bucket, pasts.roll_back_bucket, pasts.empty_bucket, pasts.without_url,
        pasts.new_disk, group_acts.commit_offsets, group_acts.join_group, refusal_acts.refuse_objects,
    )
}  # fmt: skip
