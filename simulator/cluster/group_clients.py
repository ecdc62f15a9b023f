"""Clients of groups in a cluster: they ask any node for the coordinator, commit there, and read back."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer
from simulator.cluster.groups import OFFSETS, ClusterGroup
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import TopicModel, Violation

GROUP: Final = 0
"""Kind of a coordinator's key."""
NOT_NOW: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
    }
)
"""Errors of a coordinator that is away; what was asked for may be done all the same."""
_SETTINGS: Final[dict[str, str | None]] = {
    "internal.segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.insync.replicas": "2",
}
_TRIES: Final = 6
_PAUSE_S: Final = 0.3
_ANSWER_S: Final = 8.0
_BY_NAME: Final = 9
"""newest version of OffsetFetch that names topics"""


async def find_coordinator(world: TransactionalWorld, random: Random, kind: int, name: str) -> Machine | None:
    """Return the coordinator of a group (0) or transactional id (1), as the first node says that knows it."""
    m = request_module(ApiKey.FIND_COORDINATOR)
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=(name,))
    for machine in random.sample(world.machines, len(world.machines)):
        client = Client(machine.address)
        try:
            found = (await client.ask(ApiKey.FIND_COORDINATOR, request, _ANSWER_S)).coordinators[0]
        except NoAnswer:
            continue
        finally:
            client.close()
        if found.error_code is ErrorCode.none:
            return world.of_broker(int(found.node_id))
        if found.error_code not in NOT_NOW:
            raise Violation(f"{machine.name} says {found.error_code.name} of the coordinator of {name}")
    return None


async def configure_internal(world: TransactionalWorld, random: Random, name: str, *, flushed: bool) -> bool:
    """Give an internal topic short segments, which are compacted, and two replicas that must be in sync."""
    configs = {**_SETTINGS, **({"flush.messages": "1"} if flushed else {})}
    client = Client(random.choice(world.machines).address)
    try:
        error = await client.alter_config(2, name, configs)
    except NoAnswer:
        error = ErrorCode.request_timed_out
    finally:
        client.close()
    world.tell(f"{name}: {configs}: {error.name}")
    return error is ErrorCode.none


async def commit(
    world: TransactionalWorld, random: Random, group: ClusterGroup, topic: TopicModel, partitions: list[int]
) -> None:
    """Commit a new offset of each of these partitions, once, and note what is said of it."""
    machine = await find_coordinator(world, random, GROUP, group.group_id)
    if machine is None:
        await asyncio.sleep(_PAUSE_S)
        return
    m = request_module(ApiKey.OFFSET_COMMIT)
    sent = {partition: world.new_number() for partition in partitions}
    rows = tuple(
        m.OffsetCommitRequestPartition(partition_index=at, committed_offset=value, committed_metadata="")
        for at, value in sent.items()
    )
    request = m.OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(m.OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=rows),),
    )
    errors = await _send(machine, ApiKey.OFFSET_COMMIT, request, group, sent)
    said = "no answer" if errors is None else ", ".join(one.name for one in errors.values())
    world.trace.tell("member", f"{group}: {sent} of {topic.name} at {machine.name}: {said}")
    for partition, value in sent.items():
        error = None if errors is None else errors.get(partition)
        if error is ErrorCode.none:
            world.committed_offsets += 1
        _hears(group, partition, value, error)


def _hears(group: ClusterGroup, partition: int, value: int, error: ErrorCode | None) -> None:
    """Note the response to a commit; None: there is none."""
    committed = group.of(partition)
    if error is ErrorCode.none:
        committed.late.pop(value, None)
        committed.there = max(committed.there, value)
    elif error is ErrorCode.unknown_server_error:
        raise Violation(f"{group}: a commit is answered {error.name}")
    elif error is not None and error not in NOT_NOW:
        committed.late.pop(value, None)
        committed.refused[value] = error.name


async def _send(
    machine: Machine, key: ApiKey, request: Any, group: ClusterGroup, sent: dict[int, int]
) -> dict[int, ErrorCode] | None:
    """Send a commit; return the error of each partition, None without a response."""
    run = "" if machine.run is None else machine.run.name
    for partition, value in sent.items():
        committed = group.of(partition)
        committed.sent.add(value)
        committed.late[value] = run
    client = Client(machine.address)
    try:
        answer = await client.ask(key, request, _ANSWER_S)
    except NoAnswer:
        return None
    finally:
        client.close()
    return {int(row.partition_index): row.error_code for topic in answer.topics for row in topic.partitions}


async def fetch(
    world: TransactionalWorld, group: ClusterGroup, topic: TopicModel, machine: Machine, *, stable: bool
) -> dict[int, int] | ErrorCode:
    """Return the committed offsets by partition, or the error. Raises `NoAnswer`."""
    m = request_module(ApiKey.OFFSET_FETCH)
    asked = m.OffsetFetchRequestTopics(topic_id=topic.topic_id, partition_indexes=tuple(group.committed))
    request = m.OffsetFetchRequest(
        groups=(m.OffsetFetchRequestGroup(group_id=group.group_id, topics=(asked,)),), require_stable=stable
    )
    client = Client(machine.address)
    try:
        found = (await client.ask(ApiKey.OFFSET_FETCH, request, _ANSWER_S)).groups[0]
    finally:
        client.close()
    if found.error_code is not ErrorCode.none:
        return ErrorCode(found.error_code)
    rows = [row for one in found.topics for row in one.partitions]
    wrong = next((row.error_code for row in rows if row.error_code is not ErrorCode.none), None)
    return wrong or {int(row.partition_index): int(row.committed_offset) for row in rows}


async def fetch_all(group_id: str, machine: Machine) -> dict[tuple[str, int], int] | ErrorCode:
    """Return all committed offsets of a group, by topic and partition, or the error. Raises `NoAnswer`."""
    m = request_module(ApiKey.OFFSET_FETCH)
    request = m.OffsetFetchRequest(groups=(m.OffsetFetchRequestGroup(group_id=group_id, topics=None),))
    client = Client(machine.address)
    try:
        answer = await client.ask(ApiKey.OFFSET_FETCH, request, _ANSWER_S, version=_BY_NAME)
    finally:
        client.close()
    found = answer.groups[0]
    if found.error_code is not ErrorCode.none:
        return ErrorCode(found.error_code)
    return {
        (str(one.name), int(row.partition_index)): int(row.committed_offset)
        for one in found.topics
        for row in one.partitions
    }


async def examine_group(
    world: TransactionalWorld, random: Random, group: ClusterGroup, *, final: bool = False
) -> str:
    """Read all that the group has committed, and judge it; return why that cannot be done now, else ""."""
    topic = next((one for one in world.topics if one.name == group.topic and not one.deleted), None)
    if group.is_busy or topic is None or not group.committed:
        return ""
    machine = await find_coordinator(world, random, GROUP, group.group_id)
    if machine is None:
        return f"{group} has no coordinator"
    for partition, committed in group.committed.items() if final else ():
        committed.settle((group.group_id, partition), world.transactions.decision)
    before = world.term(OFFSETS, group.partition, machine)
    known = {partition: (one.there, len(one.sent)) for partition, one in group.committed.items()}
    try:
        found = await fetch(world, group, topic, machine, stable=final)
    except NoAnswer as e:
        return f"{group} at {machine.name}: {e}"
    if isinstance(found, ErrorCode):
        if found not in NOT_NOW and found is not ErrorCode.unstable_offset_commit:
            raise Violation(f"{group}: its offsets are answered {found.name}")
        return f"{group} at {machine.name}: {found.name}"
    if before < 0 or world.term(OFFSETS, group.partition, machine) != before or topic.deleted:
        return f"{machine.name} may not coordinate {group} any more"
    for partition, value in found.items():
        committed = group.committed[partition]
        if known[partition] == (committed.there, len(committed.sent)):  # else somebody commits meanwhile
            committed.judge(value, f"{group}, {topic.name}-{partition} at {machine.name}", world.runs())
    return ""
