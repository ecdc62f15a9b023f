"""Final check of a history with groups and transactions, once all faults have ended.

X11  every transaction ends, and every LSO reaches the log's end
X1, X3  transactions have ended as was answered, in all partitions, offsets included
X6  LSO and aborted rows of every replica are those of a replay of the committed batches
X4  every replica shows exactly what is committed, from both tiers
X10 committed offsets are those of a replay of `__consumer_offsets`
X12 the archive ends at or below the LSO (`stable_archives`)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from service.partition.partition import Partition
from simulator.client import EARLIEST, Client, NoAnswer
from simulator.cluster.group_clients import GROUP, examine_group, fetch_all, find_coordinator
from simulator.cluster.pipelines import examine_pipeline
from simulator.cluster.replicas import Key
from simulator.cluster.stable_archives import examine_archives
from simulator.cluster.stable_reads import read_stable
from simulator.cluster.transaction_replay import Replay, Row
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import Violation

_AGAIN_S: Final = 0.5
_READ_S: Final = 30.0
ENDED_S: Final = 60.0
"""Longest timeout of a transaction, its sweep, and half a minute for the rest."""


async def examine_transactions(world: TransactionalWorld, random: Random) -> None:
    """Check all promises at rest. Raises `Violation`."""
    await _until(world, ENDED_S, "X11", partial(_is_stable, world))
    world.transactions.all_ended_as_answered()
    for key in list(world.transactions.replays):
        if key not in world.oracle.replicas.shaken and key[0] not in world.gone:
            _replicas_say_the_same(world, key)
    for topic, partition in list(world.partitions()):
        key = topic.topic_id, partition.index
        for number in world.oracle.replicas.placed[key].replicas:
            where = f"{partition} at n{number}"
            await _until(world, _READ_S, "X4", partial(_is_read, world, key, number, where))
    examine_archives(world)
    for pipeline in world.pipelines:
        await _until(world, _READ_S, "X1", partial(examine_pipeline, world, random, pipeline))
    for group in world.groups:
        await _until(world, _READ_S, "G3", partial(examine_group, world, random, group, final=True))
    for key, offsets in list(world.transactions.offsets.items()):
        for group_id in sorted(offsets.groups if key not in world.oracle.replicas.shaken else ()):
            await _until(world, _READ_S, "X10", partial(_are_its_offsets, world, random, key, group_id))


async def _until(
    world: TransactionalWorld, seconds: float, name: str, why: Callable[[], Awaitable[str]]
) -> None:
    """Wait until `why` has no reason any more. Raises `Violation` after so many seconds."""
    deadline = world.loop.time() + seconds
    while said := await why():
        if world.loop.time() > deadline:
            raise Violation(f"{name}: {seconds:.0f} s after all is alive: {said}")
        await asyncio.sleep(_AGAIN_S)


async def _is_stable(world: TransactionalWorld) -> str:
    """X11."""
    if why := world.transactions.left_open():
        return why
    for (number, key), seen in world.oracle.replicas.seen.items():
        placed = world.oracle.replicas.placed.get(key)
        is_there = placed is not None and number in placed.replicas and world.image().partition(*key)
        if not is_there or key in world.oracle.replicas.shaken or _is_excused(world, key):
            continue
        stable, end = seen.partition.last_stable_offset, seen.partition.log.log_end_offset
        if stable != end:
            return f"the LSO of {seen.partition.tip} at n{number} is {stable}, its log ends at {end}"
    return ""


def _is_excused(world: TransactionalWorld, key: Key) -> bool:
    """Return whether a transaction is open there whose coordinator may have lost what it knew."""
    replay, ids = world.transactions.replays.get(key), world.transactions.ids
    return replay is not None and any(
        world.transactions.is_excused(ids.of_producer.get(producer_id, "")) for producer_id in replay.open
    )


def _replicas_say_the_same(world: TransactionalWorld, key: Key) -> None:
    """X6."""
    replay, is_compacted = world.transactions.replays[key], key[0] in world.oracle.replicas.compacted
    for number in world.oracle.replicas.placed[key].replicas:
        seen = world.oracle.replicas.seen[number, key]
        partition: Partition = seen.partition
        name = f"{world.transactions.name(key)}-{key[1]} at n{number}"
        if partition.high_watermark != replay.end or partition.log.log_end_offset != replay.end:
            continue
        beginning = world.beginnings.of(number, key)
        others = world.beginnings.all_of(key)
        # What an archive says that was written by one that was told nothing may lack what that one lacks.
        is_whole = all(one.is_told or not replay.is_open_at(one.offset) for one in others)
        if not beginning.offset or is_whole or not beginning.is_told:
            _says_the_same(
                partition, name, replay, 0 if beginning.is_told else beginning.offset, is_compacted
            )
        else:
            _says_no_less(partition, name, replay, is_compacted)


def _says_the_same(partition: Partition, name: str, replay: Replay, begin: int, is_compacted: bool) -> None:
    """X6, of a replica that has seen all batches from `begin` on."""
    log = partition.log
    rows, unstable = replay.known_from(begin)
    found_unstable = log.producers.first_unstable_offset
    if found_unstable != unstable:
        raise Violation(
            f"X6: {name}, which begins at {begin}, is unstable from {found_unstable}, by a replay {unstable}"
        )
    found = [(*row,) for row in log.aborted_transactions(log.local_log_start_offset, replay.end)]
    wanted = [row for row in rows if row[2] >= log.local_log_start_offset]
    if found != wanted and not is_compacted:
        raise Violation(f"X6: {name}, which begins at {begin}, has rows {found}, by a replay {wanted}")


def _says_no_less(partition: Partition, name: str, replay: Replay, is_compacted: bool) -> None:
    """X6, of a replica that was told of open transactions by an archive which may not know all: what lies
    below the log's start may be missing, and nothing else."""
    log = partition.log
    start = log.log_start_offset
    unstable, found_unstable = replay.first_unstable, log.first_unstable_offset
    _, least = replay.known_from(start)
    if found_unstable not in (least, unstable if unstable is None else max(unstable, start)):
        raise Violation(
            f"X6: {name} is unstable from {found_unstable} on, by a replay from {unstable} or {least}"
        )
    gone = {one.marker.offset for one in replay.spans if one.marker is not None and one.offsets[-1] < start}
    rows = log.aborted_transactions(log.local_log_start_offset, replay.end)
    found: list[Row] = [(*row,) for row in rows if row.last_offset not in gone]
    wanted = [row for row in replay.rows if row[2] >= log.local_log_start_offset and row[2] not in gone]
    if not is_compacted and not replay.are_rows(found, wanted, start):
        raise Violation(f"X6: {name} has rows {found}, by a replay {wanted}, its log starts at {start}")


async def _is_read(world: TransactionalWorld, key: Key, number: int, name: str) -> str:
    """X4: read one replica from its start to its end, of both tiers."""
    client = Client(world.machines[number - 1].address)
    topic = world.transactions.name(key)
    seen = world.oracle.replicas.seen[number, key].partition
    # Where markers may be lost a transaction may stay open.
    is_shaken = key in world.oracle.replicas.shaken
    end = seen.last_stable_offset if is_shaken else seen.high_watermark
    try:
        at = await _start(world, client, topic, key)
        deadline = world.loop.time() + _READ_S
        while at < end and world.loop.time() < deadline:
            found = await read_stable(world, client, key, name, at)
            if found.error is ErrorCode.offset_out_of_range:
                at = await _start(world, client, topic, key)
            elif found.error is not ErrorCode.none:
                return f"{name} answers {found.error.name}"
            at = max(at, found.next_offset)
    except NoAnswer as e:
        return f"{name}: {e}"
    return "" if at >= end or _is_excused(world, key) else f"{name} is read up to {at} of {end}"


async def _are_its_offsets(world: TransactionalWorld, random: Random, key: Key, group_id: str) -> str:
    """X10: ask a group's coordinator for all its offsets."""
    machine = await find_coordinator(world, random, GROUP, group_id)
    if machine is None:
        return f"group {group_id} has no coordinator"
    try:
        found = await fetch_all(group_id, machine)
    except NoAnswer as e:
        return f"group {group_id} at {machine.name}: {e}"
    wanted = world.transactions.offsets[key].of_group(group_id)
    if found == wanted or key in world.oracle.replicas.shaken:
        return ""
    said = found.name if isinstance(found, ErrorCode) else str(found)
    return f"{machine.name} says that group {group_id} has {said}, by a replay {wanted}"


async def _start(world: TransactionalWorld, client: Client, topic: str, key: Key) -> int:
    """Return where a partition begins: its leader says that, or the replica's memory."""
    error, start, _ = await client.offset(topic, key[1], EARLIEST)
    if error is ErrorCode.none:
        return start
    number = int(client.address[0][1:])
    return world.oracle.replicas.seen[number, key].partition.start_offset
