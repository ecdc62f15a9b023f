"""Clients that produce one record after the other, to any partition, once they know of the one before.

They do a step now and then, and one after the other while a cut begins (`cut_moments.py`). Links between
nodes are a little slow meanwhile, so that nodes hear of a cut one after the other, and most clients ask the
broker that hears of it last: what only that one shows too early, or knows alone, is what they produce from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.acts import create
from simulator.cluster.chain_clients import ChainClient
from simulator.cluster.cut_moments import LEAD_S, CutMoments
from simulator.cluster.replicas import NOBODY as NOBODY_LEADS
from simulator.cluster.replicas import Placed
from simulator.cluster.world import ClusterWorld
from simulator.model import PartitionModel, TopicModel
from simulator.network import Link
from simulator.topics import NOBODY, configs_of

_CLIENTS: Final = 7
_FEW: Final = 5
"""clients of a short chain: one for each role"""
_QUIET_S: Final = 0.5
"""longest time between two steps of a client while no cut begins"""
_THINKS_S: Final = 0.004
_SLOW_S: Final = (0.0, 0.006, 0.015, 0.015)
_LASTS_S: Final = (2.0, 5.0, 9.0)
_SHORTEST_S: Final = 2.5
_PAUSE_S: Final = 0.05
_NEWS_S: Final = 0.004
_FIRST_CUT_S: Final = 40.0
_CHANGES: Final = "min.compaction.lag.ms"
"""a setting without effect on topics that are not compacted"""
_SEALED: Final = 20
"""batches that seal some segments"""

Place = tuple[TopicModel, PartitionModel]


class CuttingWorld(ClusterWorld):
    """`ClusterWorld` that takes cuts often. Made and used on its own loop."""

    disasters = heirs = 0
    """times that everything was lost, and clusters that came back"""
    chain_topic: TopicModel | None = None
    """a topic with a partition at each broker alone"""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.bucket.late_calls_outlive = True
        self.moments = CutMoments(self.loop, self.client_process)

    @property
    def counted(self) -> dict[str, int]:
        """Counts for the summary."""
        cuts = self.oracle.cuts
        return {
            "cuts_taken": cuts.taken,
            "cuts_exact": cuts.exact,
            "disasters": self.disasters,
            "heirs": self.heirs,
        }

    @property
    def active_controller(self) -> str:
        """Machine of the newest active controller; "" before there is one."""
        leaders = self.oracle.leaders
        return leaders[max(leaders)].partition(".")[0] if leaders else ""

    @property
    def cluster_id(self) -> str:
        """Id that its machines are formatted with."""
        return next(iter(self._plans.values())).cluster_id

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {
            **super()._drawn_settings(random),
            "firn.cut.interval.ms": random.choice((*["1000"] * 5, "3000")),
            "firn.tail.wait.ms": random.choice(("0", "4000")),
            "offsets.topic.replication.factor": "3",
            # A record of the metadata twice a second is half of what a cluster at rest does.
            "metadata.max.idle.interval.ms": random.choice(("500", *["3000"] * 7)),
        }


class Slowed(NamedTuple):
    """Links that are slow. `last`: the broker that hears of cuts last; `decider`: the one whose decisions the
    others learn late, as the active controller."""

    links: list[Link]
    last: int | None = None
    decider: int | None = None


ALL_ALIKE: Final = Slowed([])


class _Focus(NamedTuple):
    """Place at which clients look while one cut begins: a broker that has the only replica of `target`, and
    one of `source`, which another one leads; `other` is anywhere else."""

    broker: int
    source: Place
    other: Place
    target: Place


async def chain(world: CuttingWorld, random: Random) -> None:
    """Let some clients produce, read and ask for metadata, one step after the other, while cuts are taken."""
    await _chain(world, random, random.choice(_LASTS_S), _CLIENTS)


async def short_chain(world: CuttingWorld, random: Random) -> None:
    """Do so while few cuts are taken."""
    await _chain(world, random, _SHORTEST_S, _FEW)


async def _chain(world: CuttingWorld, random: Random, lasts_s: float, count: int) -> None:
    if not list(world.partitions()):
        return
    await _make_chain_topic(world, random)
    between = begin_chains(world, random, lasts_s, count)
    await asyncio.sleep(lasts_s)
    for link in between:
        world.network.links.slow_s.pop(link, None)
    world.disturbed()


def begin_chains(world: CuttingWorld, random: Random, lasts_s: float, count: int = _FEW) -> list[Link]:
    """Let some clients begin, and links between nodes become slow; return those."""
    slowed = _slowed(world, random)
    spawn_chains(world, random, lasts_s, count, slowed)
    return slowed.links


async def first_cut(world: CuttingWorld, random: Random) -> None:
    """Wait until a cut is complete, but not for ever: a history in which none is shows nothing of cuts."""
    until_s = world.loop.now_s + _FIRST_CUT_S
    while not world.oracle.cuts.complete and world.loop.now_s < until_s:
        await asyncio.sleep(_PAUSE_S)


async def _make_chain_topic(world: CuttingWorld, random: Random) -> None:
    """Create a topic of which each broker has one partition, which nobody has to be waited for."""
    if world.chain_topic is not None and not world.chain_topic.deleted:
        return
    topic = TopicModel(f"t{len(world.topics)}", NOBODY, [], True, False, -1, deleted=True)
    world.chain_topic = topic
    world.topics.append(topic)
    machine, brokers = random.choice(world.machines), range(1, len(world.machines) + 1)
    await create(world, machine, topic, len(brokers), 1, configs_of(random, "tiered"), list(brokers))


def spawn_chains(
    world: CuttingWorld, random: Random, lasts_s: float, count: int, slowed: Slowed = ALL_ALIKE
) -> None:
    """Let `count` clients begin, each for so many seconds."""
    chains = _Chains(world, Random(random.getrandbits(48)), slowed)
    for number in range(count):
        group = f"c{next(world.oracle.cuts.group_numbers)}"
        client = ChainClient(world, Random(random.getrandbits(48)), group)
        world.spawn(chains.run(number, client, Random(random.getrandbits(48)), lasts_s))
    news = random.choice((None, chains.change, chains.move_leaders))
    if slowed.decider is not None and random.random() < 0.8:
        news = chains.move_leaders
    if news is not None:
        world.spawn(chains.make_news(news, lasts_s))


def seal_segments(world: CuttingWorld, random: Random) -> None:
    """Produce to some tiered partitions what fills a few segments."""
    there = [one for one in world.partitions() if one[0].tiered]
    for topic, partition in random.sample(there, min(len(there), 2)):
        batches = [clients.values_of(world, 1, 400) for _ in range(_SEALED)]
        own = Random(random.getrandbits(48))
        world.spawn(clients.produce(world, own, topic, partition, batches, idempotent=False, pause_s=0.3))


def _slowed(world: CuttingWorld, random: Random) -> Slowed:
    """Make links between nodes a little slow: all, or one, most often from the broker that takes the cuts, or
    those from the active controller, so that others learn late of what it has decided."""
    names = [one.name for one in world.machines]
    slow_s, active, kind = random.choice(_SLOW_S), world.active_controller, random.random()
    slowed = Slowed([(one, other) for one in names for other in names if one != other])
    if kind < 0.3 and active:
        slowed = Slowed([(active, other) for other in names if other != active], decider=int(active[1:]))
        slow_s = slow_s or _SLOW_S[-1]
    elif kind < 0.8:
        unfenced = [one.id for one in world.image().brokers.values() if not one.fenced]
        one = f"n{min(unfenced, default=1)}" if random.random() < 0.7 else random.choice(names)
        others = [other for other in names if other != one]
        is_last = active in others and random.random() < 0.5  # which knows first what it has decided
        other = active if is_last else random.choice(others)
        slowed = Slowed([(one, other)], last=int(other[1:]))
    if slow_s:
        said = ", ".join(f"{one} to {other}" for one, other in slowed.links)
        world.tell(f"slow, up to {slow_s} s: the links from {said}")
        world.disturbed()
        world.network.links.slow_s.update(dict.fromkeys(slowed.links, slow_s))
    return slowed


class _Chains:
    """Some clients that look at the same places while a cut begins."""

    def __init__(self, world: CuttingWorld, random: Random, slowed: Slowed) -> None:
        self._world = world
        self._random = random
        self._last, self._decider = slowed.last, slowed.decider
        self._number = -1
        """of the moment that `_focus` is of"""
        self._focus: _Focus | None = None
        self._moving: list[Place] = []
        """partitions whose preferred leaders do not lead"""

    async def run(self, number: int, client: ChainClient, random: Random, lasts_s: float) -> None:
        """Have one client do its steps."""
        world, moments = self._world, self._world.moments
        until_s = world.loop.now_s + lasts_s
        steps = client.produce, client.read, client.ask, client.commit
        try:
            while world.loop.now_s < until_s:
                is_moment = await moments.next(random.random() * _QUIET_S)
                there = list(world.partitions())
                if not there:
                    return
                if is_moment:
                    await moments.near()
                focus = self._focus_now() if is_moment else None
                if focus is not None and number < len(_ROLES):
                    is_done = await _ROLES[number](client, focus)
                else:
                    step = random.choices(steps, weights=(12, 6, 2, 1))[0]
                    is_done = await step(*random.choice(there))
                await asyncio.sleep(random.random() * (_THINKS_S if is_done else _PAUSE_S))
        finally:
            client.close()

    def _focus_now(self) -> _Focus | None:
        if self._number != self._world.moments.number:
            self._number, self._focus = self._world.moments.number, self._draw_focus()
        return self._focus

    def _draw_focus(self) -> _Focus | None:
        """Draw where the clients look while this cut begins; None: anywhere."""
        world, random, placed = self._world, self._random, self._world.oracle.replicas.placed
        topic, number = world.chain_topic, self._last or random.randint(1, len(world.machines))
        if topic is None or topic.deleted or random.random() < 0.2:
            return None
        states = [(place, placed[place[0].topic_id, place[1].index]) for place in world.partitions()]
        target = next((one for one, state in states if one[0] is topic and state.leader == number), None)
        elsewhere = [(one, state) for one, state in states if state.leader not in (NOBODY_LEADS, number)]
        others = [one for one, _ in elsewhere]
        sources = [one for one, state in elsewhere if number in state.isr]
        if target is None or not others:
            return None
        return _Focus(number, random.choice(sources or others), random.choice(others), target)

    # News of the metadata

    async def make_news(self, news: Callable[[Client], Awaitable[None]], lasts_s: float) -> None:
        """Change the metadata again and again while cuts begin."""
        world, client = self._world, Client(self._random.choice(self._world.machines).address)
        until_s = world.loop.now_s + lasts_s
        try:
            if news == self.move_leaders:
                with suppress(NoAnswer):
                    await self._prefer_others(client)
            while world.loop.now_s < until_s and list(world.partitions()):
                if await world.moments.next(_QUIET_S):
                    try:
                        await news(client)
                    except NoAnswer:
                        await asyncio.sleep(_QUIET_S)
                    await asyncio.sleep(self._random.random() * _NEWS_S)
        finally:
            client.close()

    async def change(self, client: Client) -> None:
        """Change a setting."""
        topic, _ = self._random.choice(list(self._world.partitions()))
        await client.alter_config(2, topic.name, {_CHANGES: str(self._random.randint(1, 1000))})

    async def move_leaders(self, client: Client) -> None:
        """Have the preferred leaders of some partitions elected while the cut begins, and then make other
        replicas the preferred ones."""
        if self._decider is None:
            await self._world.moments.near()
        else:
            await asyncio.sleep(self._random.random() * LEAD_S)  # an election is committed over slow links
        for topic, partition in self._moving:
            await asyncio.sleep(self._random.random() * _NEWS_S)
            await client.elect(topic.name, partition.index)
        await self._prefer_others(client)

    async def _prefer_others(self, client: Client) -> None:
        """Make other in-sync replicas the preferred leaders of some partitions."""
        placed = self._world.oracle.replicas.placed
        self._moving = []
        movable = self._movable()
        for topic, partition in self._random.sample(movable, min(len(movable), 2)):
            state = placed[topic.topic_id, partition.index]
            others = self._others(state)
            others.sort(key=lambda one: one == self._last)  # who hears of the cut last hears of this first
            rest = [one for one in state.replicas if one != others[0]]
            self._moving.append((topic, partition))
            await client.reassign(topic.name, partition.index, [others[0], *rest])

    def _movable(self) -> list[Place]:
        placed = self._world.oracle.replicas.placed
        there = [(place, placed[place[0].topic_id, place[1].index]) for place in self._world.partitions()]
        fixed = self._last, self._decider
        return [place for place, state in there if state.leader not in fixed and self._others(state)]

    def _others(self, state: Placed) -> list[int]:
        """Return the in-sync replicas that may lead next."""
        return [one for one in state.isr if one not in (state.leader, self._decider)]


async def _writes(client: ChainClient, focus: _Focus) -> bool:
    return await client.produce(*focus.source)


async def _relays(client: ChainClient, focus: _Focus) -> bool:
    return await client.read_on(focus.broker, *focus.source) and await client.produce(*focus.target)


async def _returns(client: ChainClient, focus: _Focus) -> bool:
    return await client.produce(*focus.other) and await client.produce(*focus.target)


async def _follows_metadata(client: ChainClient, focus: _Focus) -> bool:
    return await client.ask_at(focus.broker, *focus.target) and await client.produce(*focus.target)


_ROLES: Final = (_writes, _relays, _relays, _returns, _follows_metadata)
"""Roles of the first clients, which look at one broker while a cut begins; the others look anywhere."""

CHAIN_ACTS: Final[dict[str, Callable[[CuttingWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (chain, short_chain, first_cut)
}
