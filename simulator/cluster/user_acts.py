"""Acts of users: they log in, produce, fetch, commit and ask for changes while their rights come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.security.plain import PLAIN
from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.access import ALLOW, DENY, GROUP, LITERAL, READ, TOPIC, Entry
from simulator.cluster.access_acts import GROUPS, added, change, removed
from simulator.cluster.secured import HOST, PAUL, SecuredWorld
from simulator.cluster.users import UserClient
from simulator.cluster.world import CONTROLLERS
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel

_PAUSE_S: Final = 0.3
_NO_SESSION: Final = 0


@contextmanager
def _somebody(
    world: SecuredWorld,
    random: Random,
    machine: Machine,
    who: tuple[str, str, str] | None = None,
    *,
    renews: bool = True,
) -> Iterator[UserClient]:
    """Yield the connection of `who`, or of any user; what it cannot do ends its work."""
    own = Random(random.getrandbits(48))
    client = UserClient(world, own, machine, who or world.who(random), renews=renews)
    try:
        yield client
    except NoAnswer as e:
        world.trace.note("client", f"{client.user} at {machine.name}: {e}")
    finally:
        client.close()


async def _leader(world: SecuredWorld, random: Random) -> tuple[TopicModel, PartitionModel, Machine] | None:
    there = list(world.partitions())
    if not there:
        return None
    topic, partition = random.choice(there)
    host = await clients.find_leader(world, random, topic.topic_id, partition.index)
    return None if host is None or topic.deleted else (topic, partition, world.machine(host))


async def _in_background(world: SecuredWorld, random: Random, work: Any) -> None:
    world.spawn(work)
    await asyncio.sleep(random.choice((0.0, 0.05, 0.5)))


async def user_produces(world: SecuredWorld, random: Random) -> None:
    """Produce a few batches as a user, with pauses."""
    found = await _leader(world, random)
    if found is not None:
        topic, partition, _ = found
        who, own = world.who(random), Random(random.getrandbits(48))

        def connect(machine: Machine) -> Client:
            return UserClient(world, own, machine, who)

        batches = [clients.values_of(world, 1, 20) for _ in range(random.choice((1, 4, 12)))]
        work = clients.produce(
            world, own, topic, partition, batches, idempotent=False, pause_s=0.6, connect=connect
        )
        await _in_background(world, random, work)


async def user_fetches(world: SecuredWorld, random: Random) -> None:
    """Fetch from near the end as a user, waiting for more, in a fetch session or without."""
    found = await _leader(world, random)
    if found is not None:
        own = Random(random.getrandbits(48))
        work = _fetch_in_session if random.random() < 0.5 else _fetch
        await _in_background(world, random, work(world, own, *found))


async def _fetch(
    world: SecuredWorld, random: Random, topic: TopicModel, partition: PartitionModel, machine: Machine
) -> None:
    at = max(partition.end_offset - random.choice((0, 0, 3)), 0)
    with _somebody(world, random, machine) as client:
        for _ in range(random.choice((1, 3, 6))):
            answer = await client.fetch(topic.topic_id, partition.index, at, max_wait_ms=2000)
            if answer.error is not ErrorCode.none:
                return
            at = answer.next_offset


class FetchSession:
    """An incremental fetch session (KIP-227) of one client."""

    def __init__(self, client: Client, topic_id: UUID, positions: dict[int, int]) -> None:
        self._client = client
        self._topic_id = topic_id
        self._positions = positions
        self._session = (_NO_SESSION, 0)

    async def fetch(self, max_wait_ms: int) -> list[ErrorCode]:
        """Fetch what has come; return the errors. Raises `NoAnswer`."""
        m = request_module(ApiKey.FETCH)
        number, epoch = self._session
        topics: tuple[Any, ...] = ()
        wanted = tuple(
            m.FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 20)
            for index, at in sorted(self._positions.items())
        )
        if wanted:
            topics = (m.FetchTopic(topic_id=self._topic_id, partitions=wanted),)
        request = m.FetchRequest(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=number,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=(),
        )
        answer = await self._client.ask(ApiKey.FETCH, request)
        self._session = answer.session_id, epoch + 1
        self._positions = {}  # the session knows them
        errors = [one.error_code for topic in answer.responses for one in topic.partitions]
        return [answer.error_code, *errors]


async def _fetch_in_session(
    world: SecuredWorld, random: Random, topic: TopicModel, partition: PartitionModel, machine: Machine
) -> None:
    with _somebody(world, random, machine) as client:
        session = FetchSession(client, topic.topic_id, {partition.index: partition.end_offset})
        for _ in range(random.choice((2, 5))):
            if {*(await session.fetch(random.choice((0, 500, 2000))))} - {ErrorCode.none}:
                return


async def revoke_while_waiting(world: SecuredWorld, random: Random) -> None:
    """Take READ from a user whose fetch waits at the end of a partition, then produce to it."""
    found = await _leader(world, random)
    if found is None:
        return
    topic, partition, machine = found
    who = world.who(random)
    right = Entry(TOPIC, topic.name, LITERAL, f"User:{who[0]}", HOST, READ, ALLOW)
    await change(world, random.choice(world.machines), added(right))
    client = UserClient(world, Random(random.getrandbits(48)), machine, who)
    in_session = random.random() < 0.5
    session = FetchSession(client, topic.topic_id, {partition.index: partition.end_offset})

    async def wait() -> None:
        try:
            if in_session:
                await session.fetch(0)
                await session.fetch(4000)
            else:
                await client.fetch(topic.topic_id, partition.index, partition.end_offset, max_wait_ms=4000)
        except NoAnswer as e:
            world.trace.note("client", f"{who[0]} at {machine.name}: {e}")
        finally:
            client.close()

    waiting = world.loop.create_task(wait())
    await asyncio.sleep(random.choice((0.05, 0.3, 1.0)))
    revoked = removed(right) if random.random() < 0.6 else added(right._replace(permission=DENY))
    await change(world, random.choice(world.machines), revoked)
    await asyncio.sleep(random.choice((0.0, 0.01, 0.2, 1.0)))
    batches = [clients.values_of(world, 1, 20)]
    if not topic.deleted:
        await clients.produce(world, random, topic, partition, batches, idempotent=False)
    await waiting


async def user_commits(world: SecuredWorld, random: Random) -> None:
    """Commit offsets several times over one connection, with pauses; sometimes a right goes meanwhile."""
    there = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    group, who = random.choice(GROUPS), world.who(random)
    host = await _coordinator(world, random, group)
    if host is None or topic.deleted:
        return
    own = Random(random.getrandbits(48))
    work = _commit(world, own, who, group, (topic, partition), world.machine(host))
    if random.random() < 0.4:
        await _in_background(world, random, work)
        return
    rights = [
        Entry(kind, name, LITERAL, f"User:{who[0]}", HOST, READ, ALLOW)
        for kind, name in ((GROUP, group), (TOPIC, topic.name))
    ]
    for one in rights:
        await change(world, random.choice(world.machines), added(one))
    world.spawn(work)
    await asyncio.sleep(random.choice((0.3, 1.0)))
    await change(world, random.choice(world.machines), removed(random.choice(rights)))


async def _coordinator(world: SecuredWorld, random: Random, group: str) -> str | None:
    m = request_module(ApiKey.FIND_COORDINATOR)
    client = Client(random.choice(world.machines).address)
    try:
        answer = await client.ask(
            ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
        )
    except NoAnswer:
        return None
    finally:
        client.close()
    found = answer.coordinators[0]
    return str(found.host) if found.error_code is ErrorCode.none else None


async def _commit(
    world: SecuredWorld,
    random: Random,
    who: tuple[str, str, str],
    group: str,
    what: tuple[TopicModel, PartitionModel],
    machine: Machine,
) -> None:
    m, (topic, partition) = request_module(ApiKey.OFFSET_COMMIT), what
    with _somebody(world, random, machine, who) as client:
        for number in range(random.choice((2, 6))):
            row = m.OffsetCommitRequestPartition(
                partition_index=partition.index, committed_offset=number, committed_metadata=""
            )
            request = m.OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=(m.OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=(row,)),),
            )
            await client.ask(ApiKey.OFFSET_COMMIT, request)
            await asyncio.sleep(random.random() * 2 * _PAUSE_S)


async def user_lingers(world: SecuredWorld, random: Random) -> None:
    """Ask this and that over one connection for a while, past the end of the session, too."""
    machine, own = random.choice(world.machines), Random(random.getrandbits(48))
    await _in_background(world, random, _linger(world, own, machine))


async def _linger(world: SecuredWorld, random: Random, machine: Machine) -> None:
    names = [topic.name for topic in world.topics] or ["t0"]
    with _somebody(world, random, machine, renews=random.random() < 0.7) as client:
        for number in range(random.choice((2, 8, 20))):
            await _ask(world, client, random.choice(names), random, number)
            await asyncio.sleep(random.random() * 4 * _PAUSE_S)


async def user_asks_controllers(world: SecuredWorld, random: Random) -> None:
    """Ask each controller itself what the quorum is, while they start, too."""
    own = Random(random.getrandbits(48))
    await _in_background(world, random, _ask_controllers(world, own))


async def _ask_controllers(world: SecuredWorld, random: Random) -> None:
    m = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = m.TopicData(topic_name="__cluster_metadata", partitions=(m.PartitionData(partition_index=0),))
    request = m.DescribeQuorumRequest(topics=(topic,))
    for _ in range(random.choice((1, 3))):
        for machine in world.machines[:CONTROLLERS]:
            client = UserClient(world, random, machine, (PAUL[0], PLAIN, PAUL[1]), of_controller=True)
            try:
                await client.ask(ApiKey.DESCRIBE_QUORUM, request, 1.0)
            except NoAnswer as e:
                world.trace.note("client", f"{client.user} at the controller of {machine.name}: {e}")
            finally:
                client.close()
        await asyncio.sleep(random.random() * _PAUSE_S)


async def _ask(world: SecuredWorld, client: Client, name: str, random: Random, number: int) -> None:
    """Ask a question, or for a change that the controller decides."""
    drawn = random.random()
    if drawn < 0.5:
        m = request_module(ApiKey.METADATA)
        topics = None if random.random() < 0.3 else (m.MetadataRequestTopic(topic_id=None, name=name),)
        request = m.MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        await client.ask(ApiKey.METADATA, request)
    elif drawn < 0.65:
        await client.offset(name, 0, -1)
    elif drawn < 0.85:
        # Twice the same value: a change of nothing is asked for like any other.
        await client.alter_config(2, name, {"max.compaction.lag.ms": "9000000000"})
    else:
        await client.create_topic(f"u{random.getrandbits(24):x}", 1, {"retention.bytes": "-1"}, 1)


USER_ACTS: Final[dict[str, Callable[[Any, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        user_produces,
        user_fetches,
        revoke_while_waiting,
        user_commits,
        user_lingers,
        user_asks_controllers,
    )
}
