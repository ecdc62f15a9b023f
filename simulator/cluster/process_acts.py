"""Acts on processes and machines: kill, stop and pause them, take their power or a disk."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulator.cluster.world import CLIENT, ClusterWorld
from simulator.machine import Machine, State
from simulator.power_loss import Loss

_LOSSES: Final = (Loss.ALL, Loss.LATEST, Loss.ANY, Loss.HOLES, Loss.NONE)


def somebody(world: ClusterWorld, random: Random) -> Machine:
    """Return a random machine, often that of the active controller."""
    leaders = [
        one
        for one in world.alive
        if one.run
        and one.run.node
        and one.run.node.parts.metadata
        and one.run.node.parts.metadata.quorum.is_leader
    ]
    return random.choice(leaders) if leaders and random.random() < 0.4 else random.choice(world.machines)


async def kill(world: ClusterWorld, random: Random) -> None:
    """Kill one node, sometimes two or all; they start again soon, or at the act `start`."""
    count = random.choice((1, 1, 1, 1, 2, len(world.machines)))
    chosen = {somebody(world, random).name for _ in range(count)}
    if count == len(world.machines):
        chosen = {one.name for one in world.machines}
    for name in sorted(chosen):
        if not is_down(world.machine(name)):
            world.kill(world.machine(name))
            await asyncio.sleep(random.random() * 0.02)
    if random.random() < 0.6:
        await asyncio.sleep(random.choice((0.0, 0.1, 1.0, 4.0)))
        for name in sorted(chosen):
            await start_again(world, random, world.machine(name))


async def start(world: ClusterWorld, random: Random) -> None:
    """Start all nodes that are down."""
    for machine in world.machines:
        if is_down(machine):
            await start_again(world, random, machine)


async def start_again(world: ClusterWorld, random: Random, machine: Machine) -> None:
    """Start a machine that is down, with its power, and wait for it or not."""
    world.ended_for_reasons()
    if not is_down(machine):
        return
    if world.dark(machine.name):
        world.network.heal(world.links_of(machine.name))
        world.darkness.discard(machine.name)
    world.tell(f"start {machine.name}")
    world.start(machine)
    if random.random() < 0.5:
        await world.until_ready(machine, random.choice((0.1, 2.0, 10.0)))


def is_down(machine: Machine) -> bool:
    return machine.run is None or machine.run.ended


async def stop(world: ClusterWorld, random: Random) -> None:
    machine = somebody(world, random)
    if machine.run is None or machine.run.state is not State.READY:
        return
    await world.stop(machine)
    world.ended_for_reasons()
    if random.random() < 0.7:
        await start_again(world, random, machine)


async def lose_power(world: ClusterWorld, random: Random) -> None:
    machine = somebody(world, random)
    if is_down(machine):
        return
    await asyncio.sleep(0.05)
    await world.lose_power(machine, random.choice(_LOSSES))
    if random.random() < 0.6:
        await asyncio.sleep(random.choice((0.1, 2.0, 12.0)))
        await start_again(world, random, machine)


async def refuse_broker(world: ClusterWorld, random: Random) -> None:
    """Let one broker's listener refuse new connections while its process lives and sends heartbeats.

    From its start on or for a while, it refuses all other nodes or one of them, sometimes clients, too.
    Sometimes its existing connections with them are reset several times."""
    machine, names = random.choice(world.machines), [one.name for one in world.machines]
    others = [name for name in names if name != machine.name]
    hosts = random.choice((others, others, [random.choice(others)], [*others, CLIENT]))
    from_start = random.random() < 0.4
    if from_start and not is_down(machine):
        world.kill(machine)
    world.disturbed()
    world.tell(f"the broker of {machine.name} refuses {', '.join(hosts)}, though it lives")
    world.network.links.refused |= {(host, machine.address) for host in hosts}
    if from_start:
        await start_again(world, random, machine)
    if random.random() < 0.5:
        between_s = random.choice((0.01, 0.1, 0.3, 0.7))
        for _ in range(random.randrange(2, 6)):
            broken = sum(world.network.reset(machine.name, other) for other in others)
            world.tell(f"{broken} connections of {machine.name} are reset")
            await asyncio.sleep(between_s)
    if random.random() < 0.5:
        await asyncio.sleep(random.choice((0.3, 2.0, 5.0)))
        world.network.links.refused.clear()
        world.tell("no broker refuses any more")


async def pause(world: ClusterWorld, random: Random) -> None:
    machine = somebody(world, random)
    run = machine.run
    if run is None or run.ended:
        return
    seconds = random.choice((0.5, 3.0, 12.0))
    world.tell(f"SIGSTOP {machine.name} for {seconds} s")
    world.disturbed()
    run.process.stop()
    await asyncio.sleep(seconds)
    run.process.resume()
    world.disturbed()


async def jump_clock(world: ClusterWorld, random: Random) -> None:
    machine, seconds = random.choice(world.machines), random.choice((-3600, -30, -5, 5))
    world.tell(f"the wall clock of {machine.name} jumps by {seconds} s")
    world.latest_wall_ms = world.wall_ms()
    machine.clock.ahead_ms += seconds * 1000


async def wipe_disk(world: ClusterWorld, random: Random) -> None:
    """Give a node an empty disk, but no controller that would lose its metadata log by that."""
    there = [one for one in world.machines if world.can_lose_disk(one)]
    if not there:
        return
    machine = random.choice(there)
    if random.random() < 0.3:
        await world.stop(machine)
        world.ended_for_reasons()
    world.wipe(machine, Random(random.getrandbits(48)))
    if random.random() < 0.7:
        await asyncio.sleep(random.choice((0.0, 0.5, 5.0, 15.0)))
        await start_again(world, random, machine)
