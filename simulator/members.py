"""Clients of groups: they commit and fetch, join and leave; what they hear is judged at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer
from simulator.groups import NOTHING, OFFSETS, GroupModel, Member, Place, Position
from simulator.model import TopicModel, Violation

if TYPE_CHECKING:
    from simulator.world import SimWorld

SETTLED_S: Final = 30.0
_ROUND_S: Final = 0.3
_SESSION: Final = timedelta(seconds=1800)
_PATIENCE: Final = timedelta(seconds=5)
"""of a round of a classic group"""
_FOR_EVER: Final = timedelta(seconds=3600)
AWAY_EPOCH: Final = -2
_GONE: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.group_id_not_found,
        ErrorCode.fenced_instance_id,
        ErrorCode.unreleased_instance_id,
    }
)
"""What a member that leaves may hear: it is not there any more, or another one has its instance id."""
_BEAT_S: Final = 0.1
_JOINS: Final = 6

NOT_NOW: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.request_timed_out,
    }
)
"""Errors of an unavailable coordinator; a write with such a response may be in the log."""
_AWAY: Final = None


# Coordinator and topic


async def find_coordinator(client: Client, group_id: str) -> ErrorCode:
    """Send FindCoordinator, which creates the offsets topic, too. Raises `NoAnswer`."""
    m = request_module(ApiKey.FIND_COORDINATOR)
    answer = await client.ask(
        ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,))
    )
    code: ErrorCode = answer.coordinators[0].error_code
    return code


async def configure(world: SimWorld, *, flushed: bool) -> None:
    """Short segments, so that they are compacted; where `flushed`, what is acknowledged from now on is on the
    disk."""
    configs: dict[str, str | None] = {"internal.segment.bytes": "4000", "min.cleanable.dirty.ratio": "0.1"}
    if flushed:
        configs["flush.messages"] = "1"
    try:
        error = await world.client.alter_config(2, OFFSETS, configs)
    except NoAnswer:
        return
    world.groups.flushed |= flushed and error is ErrorCode.none
    world.tell(f"{OFFSETS}: {configs}: {error.name}")


def topic_of(world: SimWorld, group: GroupModel) -> TopicModel | None:
    """Return the topic that the group reads; None where it is deleted, or may be."""
    for topic in world.topics:
        if topic.topic_id == group.topic_id and not topic.deleted and not topic.vanished:
            return topic
    return None


# Offsets


async def commit(
    world: SimWorld,
    client: Client,
    group: GroupModel,
    partitions: Iterable[int],
    member: Member | None = None,
) -> None:
    """Send an OffsetCommit with a new offset for each partition, and note the response."""
    m = request_module(ApiKey.OFFSET_COMMIT)
    run = world.machine.runs
    sent: list[tuple[int, Position, int]] = []
    for partition in partitions:
        world.groups.committed += 1
        position = group.positions.setdefault(Place(group.topic_id, group.topic, partition), Position())
        sent.append((partition, position, world.groups.committed))
    rows = tuple(
        m.OffsetCommitRequestPartition(partition_index=at, committed_offset=value, committed_metadata="")
        for at, _, value in sent
    )
    request = m.OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=-1 if member is None else member.epoch,
        member_id="" if member is None else member.member_id,
        topics=(m.OffsetCommitRequestTopic(topic_id=group.topic_id, partitions=rows),),
    )
    for _, position, value in sent:
        position.sent.add(value)
        position.late[value] = run
    what = f"{group}: {', '.join(f'{group.topic}-{at}: {value}' for at, _, value in sent)}"
    try:
        answer = await client.ask(ApiKey.OFFSET_COMMIT, request)
    except NoAnswer:
        world.trace.tell("member", f"{what}: no answer")
        return
    errors = {row.partition_index: row.error_code for topic in answer.topics for row in topic.partitions}
    world.trace.tell("member", f"{what}: {', '.join(one.name for one in errors.values())}")
    for partition, position, value in sent:
        error = errors[partition]
        if error is ErrorCode.none:
            position.late.pop(value, None)
            position.there = max(position.there, value)
            position.answered = max(position.answered, value)
        elif error is ErrorCode.unknown_server_error:
            raise Violation(f"{group}: a commit is answered {error.name}")
        elif error not in NOT_NOW:
            position.late.pop(value, None)
            position.refused[value] = error.name


async def delete_positions(world: SimWorld, client: Client, group: GroupModel) -> None:
    """Send an OffsetDelete of all offsets of a group without members."""
    m = request_module(ApiKey.OFFSET_DELETE)
    rows = tuple(m.OffsetDeleteRequestPartition(partition_index=place.partition) for place in group.positions)
    topic = m.OffsetDeleteRequestTopic(name=group.topic, partitions=rows)
    request = m.OffsetDeleteRequest(group_id=group.group_id, topics=(topic,))
    run = world.machine.runs
    try:
        answer = await client.ask(ApiKey.OFFSET_DELETE, request)
    except NoAnswer:
        _deleted(world, group, dict.fromkeys(group.positions), run)
        return
    errors = {row.partition_index: row.error_code for topic in answer.topics for row in topic.partitions}
    whole = answer.error_code if answer.error_code is not ErrorCode.none else None
    told = {place: whole or errors[place.partition] for place in group.positions}
    _deleted(world, group, told, run)


async def delete_group(world: SimWorld, client: Client, group: GroupModel) -> None:
    """Send a DeleteGroups for a group without members: its offsets are deleted, too."""
    m = request_module(ApiKey.DELETE_GROUPS)
    run = world.machine.runs
    error: ErrorCode | None = None
    try:
        answer = await client.ask(ApiKey.DELETE_GROUPS, m.DeleteGroupsRequest(groups_names=(group.group_id,)))
        error = answer.results[0].error_code
    except NoAnswer:
        pass
    _deleted(world, group, dict.fromkeys(group.positions, error), run)


def _deleted(world: SimWorld, group: GroupModel, told: Mapping[Place, ErrorCode | None], run: int) -> None:
    """Note the response to the deletion of each position; None: no response. Raises `Violation`."""
    said = {str(error and error.name) for error in told.values()}
    world.trace.tell("member", f"{group}: deletes {len(told)} positions: {', '.join(sorted(said))}")
    for place, error in told.items():
        position = group.positions[place]
        if error is None or error in NOT_NOW:
            position.may_be_deleted(run)
        elif error is ErrorCode.none:
            position.deleted()
        elif error is ErrorCode.group_id_not_found:
            if not group.excused:
                position.judge(NOTHING, f"{group}, {place.topic}-{place.partition}", run)
        elif error is ErrorCode.unknown_server_error or error is ErrorCode.non_empty_group:
            raise Violation(f"{group}: a deletion is answered {error.name}")


async def fetch(world: SimWorld, client: Client, group: GroupModel) -> ErrorCode:
    """Read all positions, and judge them; a group without any has a coordinator all the same. `NoAnswer`."""
    if topic_of(world, group) is None:
        return await find_coordinator(client, group.group_id)
    m = request_module(ApiKey.OFFSET_FETCH)
    wanted = tuple(place.partition for place in group.positions)
    topic = m.OffsetFetchRequestTopics(topic_id=group.topic_id, partition_indexes=wanted)
    asked = m.OffsetFetchRequestGroup(group_id=group.group_id, topics=(topic,) if wanted else ())
    before = {place: position.there for place, position in group.positions.items()}
    answer = await client.ask(ApiKey.OFFSET_FETCH, m.OffsetFetchRequest(groups=(asked,)))
    found = answer.groups[0]
    if found.error_code is not ErrorCode.none:
        code: ErrorCode = found.error_code
        return code
    for topic_found in found.topics:
        for row in topic_found.partitions:
            if row.error_code is not ErrorCode.none:
                return ErrorCode(row.error_code)
            place = Place(group.topic_id, group.topic, row.partition_index)
            position = group.positions[place]
            if position.there != before[place]:
                continue  # somebody commits meanwhile
            if group.excused:
                position.there = NOTHING
            where = f"{group}, {group.topic}-{row.partition_index}"
            position.judge(row.committed_offset, where, world.machine.runs)
    return ErrorCode.none


# Consumer groups (KIP-848)


async def heartbeat(world: SimWorld, client: Client, group: GroupModel, member: Member) -> bool:
    """Send a heartbeat with the member's full state; return whether a response came."""
    m = request_module(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    if member.is_away:
        return True
    goes_for_a_while = member.epoch == AWAY_EPOCH
    epoch = -1 if member.is_leaving else member.epoch
    owned: tuple[Any, ...] = ()
    if member.owned and epoch > 0:
        owned = (m.TopicPartitions(topic_id=group.topic_id, partitions=tuple(sorted(member.owned))),)
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=group.group_id,
        member_id=member.member_id,
        member_epoch=epoch,
        instance_id=member.instance_id,
        rebalance_timeout=_FOR_EVER,
        subscribed_topic_names=(group.topic,),
        topic_partitions=owned,
    )
    try:
        answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
    except NoAnswer:
        member.is_doubtful = True
        return False
    error: ErrorCode = answer.error_code
    if error in NOT_NOW:
        member.is_doubtful = True
        return False
    if member.is_leaving:
        if error not in _GONE:
            raise Violation(f"{group}: {member.member_id} leaves and hears {error.name}")
        group.leaves(member)
        return True
    if error is ErrorCode.unreleased_instance_id and (member.is_doubtful or group.excused):
        # Its own answer was lost, or a past is there again: who has its place leaves first.
        group.begins_anew(member)
        group.members.append(group.left.pop())
        return False
    if error is not ErrorCode.none:
        lost = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found)
        if error not in lost or not (member.is_doubtful or group.excused):
            raise Violation(f"{group}: {member.member_id} of epoch {epoch} hears {error.name}")
        member.epoch, member.owned = 0, frozenset()
        return True
    if goes_for_a_while:
        member.is_away, member.is_doubtful = True, False
        return True
    if answer.member_epoch < member.epoch:
        raise Violation(f"{group}: the epoch of {member.member_id} went back to {answer.member_epoch}")
    member.epoch, member.is_doubtful = answer.member_epoch, False
    if answer.assignment is not None:
        rows = answer.assignment.topic_partitions
        told = frozenset(at for row in rows if row.topic_id == group.topic_id for at in row.partitions)
        world.trace.tell("member", f"{group}: {member.member_id} in {member.epoch}: {sorted(told)}")
        group.owns(member, told)
    return True


def _is_dealt(world: SimWorld, group: GroupModel) -> bool:
    topic = topic_of(world, group)
    if topic is None or not group.members:
        return True
    owned = [at for member in group.members for at in member.owned]
    one_epoch = len({member.epoch for member in group.members}) == 1
    return one_epoch and sorted(owned) == list(range(len(topic.partitions)))


async def _consumer_round(world: SimWorld, client: Client, group: GroupModel) -> bool:
    for member in group.members:
        if member.is_away:
            group.begins_anew(member)
    was = [member.epoch for member in group.members]
    answered = [await heartbeat(world, client, group, member) for member in tuple(group.members)]
    is_quiet = was == [member.epoch for member in group.members]
    return all(answered) and is_quiet and 0 not in was and _is_dealt(world, group)


# Classic groups


async def _join(group: GroupModel, member: Member, client: Client) -> Any:
    """Send JoinGroup until a generation has begun; return the response, None without a coordinator."""
    m = request_module(ApiKey.JOIN_GROUP)
    for _ in range(_JOINS):
        request = m.JoinGroupRequest(
            group_id=group.group_id,
            session_timeout=_SESSION,
            rebalance_timeout=_PATIENCE,
            member_id=member.member_id,
            protocol_type="sim",
            protocols=(m.JoinGroupRequestProtocol(name="all", metadata=b""),),
        )
        try:
            answer = await client.ask(ApiKey.JOIN_GROUP, request)
        except NoAnswer:
            return _AWAY
        if answer.error_code is ErrorCode.none:
            return answer
        if answer.error_code is ErrorCode.member_id_required:
            member.member_id = answer.member_id
        elif answer.error_code is ErrorCode.unknown_member_id:
            member.member_id = ""
        elif answer.error_code in NOT_NOW or answer.error_code is ErrorCode.rebalance_in_progress:
            return _AWAY
        else:
            raise Violation(f"{group}: {member.member_id} joins and hears {answer.error_code.name}")
    return _AWAY


async def _join_and_sync(world: SimWorld, group: GroupModel, member: Member) -> bool | None:
    """Join and sync; return whether the member got its assignment; None without a coordinator."""
    client = Client(world.machine.address)
    try:
        joined = await _join(group, member, client)
        if joined is None:
            return None
        generation, shares = joined.generation_id, {}
        if joined.leader == member.member_id:
            world.groups.committed += 1
            share = b"%d, deal %d, of " % (generation, world.groups.committed)
            shares = {one.member_id: share + one.member_id.encode() for one in joined.members}
            group.deal(generation, shares)
        m = request_module(ApiKey.SYNC_GROUP)
        request = m.SyncGroupRequest(
            group_id=group.group_id,
            generation_id=generation,
            member_id=member.member_id,
            protocol_type="sim",
            protocol_name="all",
            assignments=tuple(
                m.SyncGroupRequestAssignment(member_id=who, assignment=what) for who, what in shares.items()
            ),
        )
        try:
            answer = await client.ask(ApiKey.SYNC_GROUP, request)
        except NoAnswer:
            return None
        if answer.error_code is not ErrorCode.none:
            return None if answer.error_code in NOT_NOW else False
        group.told(generation, member.member_id, answer.assignment)
        member.epoch = generation
        return True
    finally:
        client.close()


async def _classic_round(world: SimWorld, client: Client, group: GroupModel) -> bool:
    """Let members leave that want to, and the others join again; return whether the group is settled."""
    group.is_settled = False
    for member in [one for one in group.members if one.is_leaving]:
        if await _leave(group, member, client):
            group.leaves(member)
    waiting = set(range(len(group.members)))
    told = await asyncio.gather(
        *[
            _until_all_are_told(world, group, member, number, waiting)
            for number, member in enumerate(group.members)
        ]
    )
    group.is_settled = all(told) and len({member.epoch for member in group.members}) <= 1
    world.trace.tell(
        "member", f"{group}: {[(one.member_id[-6:], one.epoch) for one in group.members]} {told}"
    )
    return group.is_settled and not any(member.is_leaving for member in group.members)


async def _until_all_are_told(
    world: SimWorld, group: GroupModel, member: Member, number: int, waiting: set[int]
) -> bool:
    """Join like a living client, again while other members join; return whether it got an assignment.

    `waiting`: numbers of the members without one."""
    client = Client(world.machine.address)
    told: bool | None = False
    try:
        for _ in range(_JOINS):
            waiting.add(number)
            told = await _join_and_sync(world, group, member)
            waiting.discard(number)
            is_called = False
            while told and waiting and not is_called:
                await asyncio.sleep(_BEAT_S)
                is_called = await _is_member(group, member, client) is ErrorCode.rebalance_in_progress
            if told is None or (told and not is_called):
                return bool(told)
    except NoAnswer:
        return False
    finally:
        waiting.discard(number)
        client.close()
    return False


async def _leave(group: GroupModel, member: Member, client: Client) -> bool:
    if not member.member_id:
        return True
    m = request_module(ApiKey.LEAVE_GROUP)
    who = m.MemberIdentity(member_id=member.member_id)
    try:
        answer = await client.ask(
            ApiKey.LEAVE_GROUP, m.LeaveGroupRequest(group_id=group.group_id, members=(who,))
        )
    except NoAnswer:
        return False
    return answer.error_code not in NOT_NOW and all(one.error_code not in NOT_NOW for one in answer.members)


async def _is_member(group: GroupModel, member: Member, client: Client) -> ErrorCode:
    m = request_module(ApiKey.HEARTBEAT)
    request = m.HeartbeatRequest(
        group_id=group.group_id, generation_id=member.epoch, member_id=member.member_id
    )
    code: ErrorCode = (await client.ask(ApiKey.HEARTBEAT, request)).error_code
    return code


async def still_members(world: SimWorld, client: Client, group: GroupModel) -> bool:
    """Check that members with an assignment are still in their generation, also after a restart.

    Returns False without a coordinator. Raises `Violation`, and `NoAnswer`.
    """
    if group.kind == "consumer":
        answered = [await heartbeat(world, client, group, one) for one in tuple(group.members)]
        return all(answered)
    for member in group.members if group.is_settled else ():
        error = await _is_member(group, member, client)
        if error in NOT_NOW:
            return False
        if error not in (ErrorCode.none, ErrorCode.rebalance_in_progress) and not group.excused:
            raise Violation(
                f"{group}: {member.member_id} was in generation {member.epoch} and hears {error.name}"
            )
    return True


# Both


async def drive(world: SimWorld, group: GroupModel, seconds: float) -> bool:
    """Let members join and follow their assignments until the group is settled; False after `seconds`."""
    client = Client(world.machine.address)
    turn = _classic_round if group.kind == "classic" else _consumer_round
    deadline = world.loop.time() + seconds
    group.is_busy = True
    try:
        while True:
            if await turn(world, client, group):
                return True
            if world.loop.time() > deadline:
                return False
            await asyncio.sleep(_ROUND_S)
    finally:
        group.is_busy = False
        client.close()


def joined(random: Random, group: GroupModel) -> None:
    """Add a new member, which knows only its id."""
    # Members of consumer groups name themselves, classic ones are named.
    member_id = f"m{random.getrandbits(64):016x}" if group.kind == "consumer" else ""
    instance_id = f"i{member_id}" if group.kind == "consumer" and random.random() < 0.4 else None
    group.members.append(Member(member_id, instance_id=instance_id))


def _cannot_write(world: SimWorld, group: GroupModel) -> bool:
    """Return whether the group's log is offline: the coordinator answers for offsets, and refuses joins."""
    here = world.partitions_here()
    return here is None or any(
        one.is_offline for one in here if one.tip.topic == OFFSETS and one.tip.partition == group.partition
    )


async def examine(world: SimWorld, group: GroupModel, final: bool) -> bool:
    """Read and judge one group; False where that cannot be done now. `NoAnswer`."""
    if group.is_busy:
        return True
    client = Client(world.machine.address)
    try:
        error = await fetch(world, client, group)
        if error is ErrorCode.not_coordinator:  # a disk of before may not know the topic
            await find_coordinator(client, group.group_id)
        if error is ErrorCode.none and await still_members(world, client, group):
            if not final or group.kind == "simple" or group.excused:
                return True
            if await drive(world, group, SETTLED_S):
                return True
            if _cannot_write(world, group):
                return False
            raise Violation(f"{group} has not settled within {SETTLED_S:.0f} s")
    finally:
        client.close()
    if error is not ErrorCode.none and error not in NOT_NOW and not group.excused:
        raise Violation(f"{group}: its positions are answered {error.name}")
    world.trace.note("oracle", f"{group}: {error.name}")
    world.unavailable += 1
    excused = bool(world.excuse or group.excused)
    if error is ErrorCode.not_coordinator and not world.troubled and not excused:
        raise Violation(f"{group} has no coordinator, and nothing was wrong")
    return excused and final
