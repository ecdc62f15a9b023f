"""Act that loses everything but the bucket, in the midst of whatever goes on, and has it come back.

The moment is that of a call of the store, or of nothing in particular. Processes of the lost cluster are
killed or stopped, their last requests still on their way; those that were stopped go on once the prefix is
the heir's. The heir has one, three or five nodes, which are killed while they load, and may be lost, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.inspect.restore_source import CutChoice
from service.inspect.take_over import Restored
from service.records.builder import BatchBuilder
from service.remote.format.cut_codec import Cuts, decode_cuts, open_cut
from service.remote.format.keys import CLUSTER_KEY, CUT_NAME, HeadKey, parse_key
from simulator.client import Client, NoAnswer
from simulator.cluster.chain_acts import CuttingWorld, begin_chains, seal_segments
from simulator.cluster.examining import check_archive
from simulator.cluster.heir_oracle import HeirOracle, Lost
from simulator.cluster.heirs import HeirWorld, Wanted
from simulator.cluster.process_acts import is_down
from simulator.cluster.put_acts import MOMENTS
from simulator.cluster.world import START_S, is_ready
from simulator.machine import Machine
from simulator.model import Violation
from simulator.process import Life
from simulator.store import Sent, arrive_late

_WAITS_S: Final = 12.0
_BEFORE_S: Final = 1.5
_LATE_S: Final = 3.0
_LONGEST_S: Final = 8.0
_REFUSAL: Final = 0.07
"""Share of heirs that wait until the lost cluster has noticed them: a minute and a half, at most."""
_RESTS_S: Final = 1.5
"""so long all goes on once nothing of the lost cluster is late any more"""
_ASKED: Final = 3
_LOADED_S: Final = 120.0
_CUT_S: Final = 90.0
_NOTICED_S: Final = 90.0
"""Time in which a process of the lost cluster that lives on finds that there is an heir"""
_LOOK_S: Final = 0.25
_GRACE_MS: Final = 5_000
_LATE_HEADS: Final = 0.8
"""Share of disasters in the midst of a HEAD's PUT in which that one arrives late, in the way of the heir."""
_LETTERS: Final = "hi"
_NODES: Final = (1, 1, 1, 1, 1, 3, 3, 3, 5)
"""of an heir"""


async def lose_everything(world: CuttingWorld, random: Random) -> None:
    """Lose all machines, and have an heir come back; nothing follows in this history."""
    if not list(world.partitions()):
        return
    begin_chains(world, random, _WAITS_S)
    seal_segments(world, random)
    await asyncio.sleep(random.random() * _BEFORE_S)
    await _Disaster(world, random).strike()


class _Disaster:
    def __init__(self, world: CuttingWorld, random: Random) -> None:
        self._world = world
        self._random = random
        self._is_forced = random.random() < 0.3
        self._is_clone = random.random() < 0.15
        fates = ["killed", "stopped"] + (["alive"] if self._is_forced or self._is_clone else [])
        self._fates = {one.name: random.choice(fates) for one in world.machines}
        self._lives = 2 if random.random() < 0.15 else 1
        self._late: list[Sent] = []
        self._late_head: Sent | None = None
        """a HEAD that has to be refused once it arrives, as the heir's is there"""
        self._awake_s = 0.0
        """when the last of the lost cluster's processes goes on"""

    async def strike(self) -> None:
        world = self._world
        await self._moment()
        world.disasters += 1
        lost = Lost.of(world, world.cluster_id)
        wanted = self._wanted()
        if wanted is None:
            world.tell("no cut was complete: nothing can come back")
            return
        before: CuttingWorld = world
        first: Restored | None = None
        for life in range(1, self._lives + 1):
            nodes = self._random.choice(_NODES)
            heir = HeirWorld(
                before, _LETTERS[life - 1], nodes, self._random.getrandbits(48), is_clone=wanted.is_clone
            )
            heir.is_fresh = life > 1 or self._is_fresh(wanted)
            restored = await heir.restore(wanted)
            if restored is None:
                if heir.is_fresh and "alive" not in self._fates.values():
                    raise Violation("T19: the restore of a cut that is complete is refused")
                return
            self._check_choice(wanted, restored, is_fresh=heir.is_fresh)
            if first is not None and isinstance(before, HeirWorld):
                # An heir that has written nothing to the bucket is one that nobody can know of.
                is_known = first.cluster_id != restored.cluster_id
                lost = lost.with_heir(before, first, is_known=is_known)
            self._late_writes_come()
            await self._live(heir, lost, restored, is_last=life == self._lives)
            first, before = restored, heir
            wanted = Wanted(CutChoice(allows_loose=True), kills=self._kills())
        world.heirs += 1

    # The end of the first cluster

    async def _moment(self) -> None:
        """Wait for the moment, and lose everything."""
        world, random = self._world, self._random
        struck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        part, call = random.choice(MOMENTS)
        chosen = random.random() < 0.8
        is_of_late_head = part == "/HEAD" and random.random() < _LATE_HEADS

        def sent(one: Sent) -> None:
            self._late = [*(it for it in self._late if it.is_under_way), one]
            if not chosen or struck.done() or part not in one.key or not one.call.startswith(call):
                return
            if is_of_late_head and not self._replaces_the_heirs(one):
                return
            self._late_head = one if is_of_late_head else None
            struck.set_result(None)

        world.bucket.on_sent = sent
        try:
            async with asyncio.timeout(_WAITS_S if chosen else random.random() * 3):
                await struck
        except TimeoutError:
            pass
        if self._late_head is not None:
            self._kill_whoever_sent(self._late_head)
        world.is_lost = True
        world.loop.after_turn = None
        world.bucket.on_sent = lambda _: None
        for task in world.background:
            task.cancel()
        world.background.clear()
        if world.foreign:
            world.bucket.write(CLUSTER_KEY, world.owned, world.real_ms())  # as an operator does
        for machine in world.machines:
            world.faults[machine.name].on.clear()
            world.store_faults[machine.name].on.clear()
            world.store_faults[machine.name].lasting = None
            fate = self._fates[machine.name]
            if machine.run is None or machine.run.ended or fate == "alive":
                continue
            if fate == "killed":
                world.note_death(machine)
                machine.kill()
            else:
                machine.run.process.stop()
        world.tell(f"everything is lost, but the bucket: {self._fates}")
        self._late = [one for one in self._late if self._is_under_way(one)]

    def _replaces_the_heirs(self, one: Sent) -> bool:
        """Return whether a HEAD is on its way to a partition whose HEAD of now names the heir's chain: the
        newest cut has all of it. Only the heir's own HEAD can refuse it then."""
        cuts, place = self._cuts(), parse_key(one.key)
        ref = None if cuts is None else cuts.exact or cuts.complete
        data = None if ref is None else self._world.archive.object(ref.key)
        if ref is None or data is None or not isinstance(place, HeadKey):
            return False
        rows = open_cut(data, ref).topics.get(place.topic_id, ())
        _, end = self._world.archive.live(place.topic_id, place.partition)
        return place.partition < len(rows) and 0 < end <= rows[place.partition].end

    def _kill_whoever_sent(self, one: Sent) -> None:
        """Have the sender of a late call dead, and its prefix taken over, as of the newest cut."""
        self._is_clone = False
        if not self._is_forced:
            self._fates = {name: "killed" if fate == "alive" else fate for name, fate in self._fates.items()}
        self._fates[one.by.partition(".")[0]] = "killed"

    def _is_under_way(self, one: Sent) -> bool:
        """Return whether a call of a process that was killed now may still arrive, however late."""
        return one.is_under_way and self._fates[one.by.partition(".")[0]] == "killed"

    def _late_writes_come(self) -> None:
        """Let the last requests of the dead arrive, and the stopped go on."""
        world, random = self._world, self._random
        longest_s = 0.0
        for one in self._late:
            what, after_s = f"late {one.call} {one.key} of {one.by}", random.random() * _LATE_S
            longest_s = max(longest_s, after_s)
            world.loop.call_later(after_s, arrive_late, world.trace, what, one.arrive)
        self._late = []
        for machine in world.machines:
            run = machine.run
            if run is not None and run.process.life is Life.STOPPED:
                after_s = random.choice((0.0, 0.0, 1.0, 1.0, _LONGEST_S))
                longest_s = max(longest_s, after_s)
                world.tell(f"{run.name} goes on in {after_s} s")
                world.loop.call_later(after_s, run.process.resume)
        self._awake_s = world.loop.now_s + longest_s

    async def _sources_refuse(self) -> None:
        """T21: who finds that there is an heir takes no records any more, as nobody would copy them."""
        world = self._world
        there = [one for one in world.machines if is_ready(one) and one.bucket is world.bucket]
        if self._is_clone or not there:
            return
        await asyncio.sleep(max(self._awake_s - world.loop.now_s, 0.0))
        until_s = self._awake_s + _NOTICED_S
        while world.loop.now_s < until_s and not all(map(_is_displaced, there)):
            await asyncio.sleep(_LOOK_S)
        for machine in there:
            for topic, partition in list(world.partitions())[:_ASKED]:
                builder = BatchBuilder()
                builder.add(world.real_ms(), None, world.new_values(1)[0])
                client = Client(machine.address)
                try:
                    answer = await client.produce(topic.topic_id, partition.index, bytes(builder.build()), 1)
                except NoAnswer:
                    continue
                finally:
                    client.close()
                if answer.error is ErrorCode.none:
                    raise Violation(f"T21: {machine.name}, whose cluster has an heir, takes records")

    # The choice

    def _cuts(self) -> Cuts | None:
        data = self._world.archive.object(CUT_NAME)
        return None if data is None else decode_cuts(data)

    def _wanted(self) -> Wanted | None:
        """Draw what the operator asks for, None where no cut is complete."""
        cuts, random = self._cuts(), self._random
        complete = [] if cuts is None else [ref for ref in cuts.kept if ref.is_complete]
        exact = [ref for ref in complete if ref.is_exact]
        if not complete:
            return None
        choice = CutChoice(allows_loose=not exact)
        if self._is_clone:
            choice = CutChoice(number=(exact or complete)[-1].cut, allows_loose=not exact)
        elif random.random() < 0.4 and self._late_head is None:
            choice = CutChoice(number=random.choice(exact or complete).cut, allows_loose=not exact)
        return Wanted(choice, self._is_clone, self._is_forced and not self._is_clone, self._kills())

    def _kills(self) -> tuple[int, ...]:
        random = self._random
        return tuple(random.randint(1, 60) for _ in range(random.choice((0, 0, 1, 2))))

    def _is_fresh(self, wanted: Wanted) -> bool:
        """Return whether the chosen cut is younger than the grace, by the clock of who wrote `CUT`: what it
        needs is promised to be there."""
        cuts, number = self._cuts(), wanted.choice.number
        if cuts is None or cuts.stamp is None:
            return False
        machine = self._world.of_broker(cuts.stamp.writer.node_id)
        chosen = [ref for ref in cuts.kept if ref.is_complete and number in (None, ref.cut)]
        if machine is None or not chosen:
            return False
        return abs(machine.clock.now_ms() - chosen[-1].at_ms) < _GRACE_MS

    def _check_choice(self, wanted: Wanted, restored: Restored, *, is_fresh: bool) -> None:
        source, number = restored.source, wanted.choice.number
        if number is not None and source.ref.cut != number:
            raise Violation(f"T19: cut {source.ref.cut} comes back, and {number} was asked for")
        if source.passed_over and is_fresh:
            raise Violation(f"T19: {source.passed_over[0]}")
        if restored.missing and is_fresh:
            raise Violation(f"T19: {restored.missing[0]}")

    # The life of the heir

    async def _live(self, heir: HeirWorld, lost: Lost, restored: Restored, *, is_last: bool) -> None:
        random = self._random
        for machine in heir.machines:
            heir.start(machine)
        if not is_last:
            await asyncio.sleep(random.choice((0.5, 3.0, 10.0)) * random.random())
            heir.last_image = heir.image()
            for machine in heir.machines:
                machine.kill()
            heir.tell("everything is lost again")
            return
        for _ in range(random.choice((0, 0, 1, 2))):
            await asyncio.sleep(random.random() * 5)
            machine = random.choice(heir.machines)
            heir.kill(machine)
            await asyncio.sleep(random.random() * 2)
            heir.start(machine)
        await _until(heir, START_S, lambda: _not_ready(heir))
        await _until(heir, _LOADED_S, heir.loading)
        await HeirOracle(heir, lost, restored, random).judge()
        number = restored.source.ref.cut
        await _until(heir, _CUT_S, lambda: "" if heir.has_written_cut(number) else "no cut is complete")
        await asyncio.sleep(max(self._awake_s - heir.loop.now_s, 0.0) + _RESTS_S)
        if random.random() < _REFUSAL:
            await self._sources_refuse()
        heir.check()
        check_archive(heir)


async def _until(heir: HeirWorld, seconds: float, why_not: Callable[[], str]) -> None:
    until_s, why = heir.loop.now_s + seconds, why_not()
    while why:
        for machine in heir.machines:
            if is_down(machine):
                said = "" if machine.run is None else f"{machine.run.state.value} {machine.run.reason}"
                raise Violation(f"the heir's {machine.name} has ended: {said}")
        if heir.loop.now_s > until_s:
            raise Violation(f"the heir is not alive after {seconds:.0f} s: {why}")
        await asyncio.sleep(_LOOK_S)
        why = why_not()


def _is_displaced(machine: Machine) -> bool:
    """Return whether the machine's process has found out that the prefix is not its own any more."""
    node = None if machine.run is None else machine.run.node
    broker = None if node is None else node.parts.broker
    cuts = None if broker is None else broker.cuts
    manager: Any = None if cuts is None else cuts._fence
    return manager is not None and manager._fence.displaced is not None


def _not_ready(heir: HeirWorld) -> str:
    return next((f"{one.name} does not become ready" for one in heir.machines if not is_ready(one)), "")


LOSING_ACTS: Final[dict[str, Callable[[CuttingWorld, Random], Awaitable[None]]]] = {
    lose_everything.__name__: lose_everything
}
