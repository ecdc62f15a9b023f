"""Old nodes and foreign nodes beside a restored cluster: they must not harm it.

No object of the cluster may be deleted, and a node that does not belong to it has to say so.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, TOPICS_KEY
from simulator.machine import State
from simulator.model import Violation
from simulator.restore.operating import (
    SeveralWorld,
    empty,
    grow,
    lose_all,
    take_over,
)
from simulator.store import Bucket

_BESIDE_S: Final = 60.0


async def old_disk(world: SeveralWorld, random: Random) -> None:
    """Let a third node join, and start the second one with its old disk and settings."""
    await grow(world, ("n3",))
    await _old_disks_return(world, ("n2",))


async def old_majority(world: SeveralWorld, random: Random) -> None:
    """Two nodes of the lost cluster, a majority of its voters, are started with their old disks."""
    await _old_disks_return(world, ("n2", "n3"))
    _is_named(world, ("n2", "n3"), "ahead of this node's metadata", "requires the metadata log to end at")


async def _old_disks_return(world: SeveralWorld, names: tuple[str, ...]) -> None:
    for name in names:
        machine = world.machine(name)
        machine.platter = world.old_disks[name].copy()
        world.settings[name] = world.first_settings[name]
        world.tell(f"{name} is back with its old disk")
        world.start(machine)
    await asyncio.sleep(_BESIDE_S)
    _no_bugs(world)
    world.check()


async def second_take_over(world: SeveralWorld, random: Random) -> None:
    """Recover the bucket on a second node while the first one runs: the second is the cluster then."""
    machine = world.machine("n2")
    empty(machine)
    await take_over(world, by=machine)
    await asyncio.sleep(_BESIDE_S)
    _is_named(world, ("n1",), "two nodes on one prefix")
    _no_bugs(world)
    world.check()
    world.members = ("n2",)


async def documents_of_a_clone(world: SeveralWorld, random: Random) -> None:
    """Put documents of a clone into our bucket: it recovered a copy of the bucket and has short retention.

    Our disk is lost again: the next recovery is refused until an operator has moved the clone's copies of the
    metadata away."""
    machine = world.machine("n2")
    empty(machine)
    machine.bucket = Bucket()
    machine.bucket.objects = dict(world.old_bucket)
    world.members = ("n2",)
    await take_over(world, 2, by=machine)
    client = world.client()
    for topic in ("own", "by-default"):
        for _ in range(30):
            await client.alter_config(2, topic, {"retention.ms": "1000"})
    client.close()
    await asyncio.sleep(5.0)
    machine.kill()
    world.members = ("n1",)
    world.tell("documents of the clone come into the bucket")
    theirs = machine.bucket.objects.keys() - world.bucket.objects.keys()
    for key, found in machine.bucket.objects.items():
        if key in (CLUSTER_KEY, TOPICS_KEY) or key.startswith(METADATA_PREFIX):
            world.bucket.write(key, found.data, world.real_ms())
    machine.bucket = world.bucket
    await asyncio.sleep(_BESIDE_S)
    _is_named(world, ("n1",), "two nodes on one prefix")
    _no_bugs(world)
    lose_all(world)
    await _is_refused(world, "metadata of two recoveries of one bucket lies here")
    for key in theirs:
        if key.startswith(METADATA_PREFIX):
            del world.bucket.objects[key]
    await take_over(world)


async def _is_refused(world: SeveralWorld, words: str) -> None:
    try:
        await take_over(world)
    except Violation as e:
        if words in str(e):
            return
        raise
    raise Violation(f"the bucket is taken over, though {words}")


def _no_bugs(world: SeveralWorld) -> None:
    for machine in world.machines:
        if machine.run is not None and machine.run.state is State.BUG:
            raise Violation(f"{machine.run.name} ended by a bug: {machine.run.reason}")


def _is_named(world: SeveralWorld, names: tuple[str, ...], *words: str) -> None:
    said = [text for actor, text in world.lines if actor.partition(".")[0] in names]
    if not any(one in text for one in words for text in said):
        raise Violation(f"none of {', '.join(names)} says {words!r}: {said[-3:]}")
