"""Several brokers on one bucket and one metadata log, under random faults.

Partitions move between them, the one that keeps the prefix dies or is cut off, clocks differ, images are old,
proposals are left unanswered for hours: nothing live is ever deleted, chains are contiguous, and all orphans
go in the end. Work of all brokers is interleaved at every await. A falsifying example is a seed:
`replay(seed, kind=…)` runs it again.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.remote.format.manifest import ManifestLimits
from service.tiering.prefix_fence import NotNamed
from service.tiering.steps import CommitStep
from tests.property.tiering.test_commit_protocol import FAULTS, GRACE_MS, SIM_SETTINGS, LateStore
from tests.unit.tiering.clusters import Member, Quorum
from tests.unit.tiering.world import Crash, Fault, Replica, no_faults, no_probe

TOPIC = UUID(int=7)


class Simulation:
    def __init__(self, seed: int, tmp: Path, kind: str) -> None:
        self.rng = rng = random.Random(seed)
        self.bucket = LateStore(rng)
        self.partitions = rng.choice((1, 2, 3))
        self.quorum = Quorum({"events": TOPIC}, self.partitions)
        limits = rng.choice(
            (ManifestLimits(), ManifestLimits(2, 2), ManifestLimits(2, 2), ManifestLimits(3, 3))
        )
        retention_bytes = rng.choice((-1, -1, 4000, 9000))
        commit_segments = rng.choice((1, 3, 16))
        self.members = [
            Member(
                tmp,
                number,
                self.quorum,
                self.bucket,
                is_remote=kind == "rpc",
                random=rng,
                partitions=self.partitions,
                settings=SIM_SETTINGS._replace(commit_segments=commit_segments),
                limits=limits,
                segment_bytes=rng.choice((900, 1500)),
                retention_bytes=retention_bytes,
            )
            for number in range(1, rng.choice((2, 3)) + 1)
        ]
        self.bucket.on_head = self.members[0].store.on_head
        for member in self.members:
            member.clock.advance(rng.randrange(600_000))
            self.quorum.unfence(member.number)
        self.dead: set[int] = set()
        self.is_on = True
        self.fault_share = rng.choice((0.0, 0.02, 0.1, 0.3))
        self.crash_share = rng.choice((0.0, 0.0, 0.02))

    def copies(self, partition: int) -> list[Replica]:
        return [member.replicas[partition] for member in self.members]

    def alive(self) -> list[Member]:
        return [one for one in self.members if one.number not in self.dead]

    def arm(self) -> None:
        rng = self.rng

        def decide(operation: str, key: str) -> Fault:
            return rng.choice(FAULTS) if rng.random() < self.fault_share else Fault.PASS

        def at_the_controller(operation: str, key: str) -> Fault:
            return rng.choice((Fault.FAIL, Fault.LIE)) if rng.random() < self.fault_share else Fault.PASS

        def probe(step: CommitStep, tip: TopicIdPartition) -> None:
            if rng.random() < self.crash_share:
                raise Crash(step.value)

        self.bucket.late_share = self.fault_share / 3
        self.quorum.decide = at_the_controller
        for member in self.members:
            member.store.decide, member.probe = decide, probe
            if member.wire is not None:
                member.wire.fault_share = self.fault_share / 3

    def disarm(self) -> None:
        self.bucket.late_share = 0
        self.quorum.decide = no_faults
        for member in self.members:
            member.store.decide, member.probe = no_faults, no_probe
            if member.wire is not None:
                member.wire.fault_share = 0

    # -- what happens ----------------------------------------------------------------------------------------

    def produce(self) -> None:
        for partition in range(self.partitions):
            epoch = self.quorum.leader_epochs[TOPIC, partition]
            for _ in range(self.rng.randrange(12)):
                count = self.rng.randrange(1, 5)
                for replica in self.copies(partition):
                    replica.append(count, self.members[0].clock.now_ms(), leader_epoch=epoch)

    def hold_back(self) -> None:
        for partition in range(self.partitions):
            held_back = self.rng.choice((0, 0, 3, 20))
            entry = self.quorum.entries.get((TOPIC, partition))
            for replica in self.copies(partition):
                floor = max(replica.log.log_start_offset, entry.end_offset if entry is not None else 0)
                replica.held_back = max(0, min(held_back, replica.log.log_end_offset - floor))

    def move(self) -> None:
        unfenced = self.quorum.unfenced()
        if unfenced:
            self.quorum.elect(TOPIC, self.rng.randrange(self.partitions), self.rng.choice(unfenced))

    def die(self) -> None:
        """Also whoever keeps the prefix. It is fenced now or later, or is back before anybody noticed."""
        member = self.rng.choice(self.members)
        if member.number in self.dead:
            self.dead.discard(member.number)
            member.reboot()
            self.quorum.unfence(member.number)
        elif len(self.dead) + 1 < len(self.members):
            self.dead.add(member.number)
            if self.rng.random() < 0.7:
                self.quorum.fence(member.number)

    def fence(self) -> None:
        """A broker that lives, and may not hear of it for a while, or is unfenced again."""
        member = self.rng.choice(self.members)
        unfenced = self.quorum.unfenced()
        if member.number not in unfenced:
            if member.number not in self.dead:
                self.quorum.unfence(member.number)
                member.cut_off(False)
        elif len(unfenced) > 1:
            self.quorum.fence(member.number)
            member.cut_off(self.rng.random() < 0.5)

    def cut_off(self) -> None:
        """It goes on leading, and can commit nothing."""
        member = self.rng.choice(self.members)
        member.cut_off(not member.is_cut_off)

    def long_silence(self) -> None:
        """One that leads on has written what the controller does not answer for hours; the others sweep."""
        silent = self.rng.choice(self.members)
        if silent.number in self.dead:
            return
        silent.catch_up()
        silent.cut_off()
        self.produce()
        self.disarm()
        self.work([silent])
        for _ in range(self.rng.choice((2, 3, 4))):
            for member in self.members:
                member.clock.advance(GRACE_MS + 1)
            self.work([one for one in self.alive() if one is not silent])
        silent.cut_off(False)
        silent.catch_up(self.rng.choice((0, None)))
        self.work([silent])

    def drop_local(self) -> None:
        for member in self.alive():
            for replica in member.led():
                member.drop_local(replica)

    def delete_records(self) -> None:
        partition = self.rng.randrange(self.partitions)
        leader = self.quorum.leader(TOPIC, partition)
        for member in self.members:
            if member.number == leader:
                replica = member.replicas[partition]
                start_offset = replica.log.log_start_offset
                offset = self.rng.randrange(start_offset, max(start_offset, replica.high_watermark) + 1)
                replica.log.deletion.advance_log_start(offset)

    def switch_tiering(self, on: bool | None = None) -> None:
        self.is_on = not self.is_on if on is None else on
        self.quorum.set_tiered("events", on=self.is_on)
        for partition in range(self.partitions):
            replicas = self.copies(partition)
            starts = [one.log.local_log_start_offset for one in replicas]
            for replica in replicas:
                if not self.is_on:
                    replica.log.deletion.advance_log_start(max(starts))
                replica.switch(on=self.is_on)

    def sweep(self) -> None:
        member = self.rng.choice(self.alive())
        self.disarm()
        try:
            member.do(member.manager.maintenance.sweep())
        except StorageError:
            return  # cut off, deposed, or not named

    def pass_time(self) -> None:
        step_ms = self.rng.choice((100_000, 100_000, GRACE_MS, GRACE_MS * 3))
        for member in self.members:
            member.clock.advance(step_ms + self.rng.randrange(20_000))

    # -- rounds ----------------------------------------------------------------------------------------------

    def run(self, rounds: int) -> None:
        actions = (
            self.produce, self.produce, self.produce, self.pass_time, self.pass_time, self.drop_local,
            self.hold_back, self.move, self.move, self.die, self.fence, self.cut_off, self.sweep,
            self.long_silence, self.long_silence, self.delete_records, self.switch_tiering,
        )  # fmt: skip
        for _ in range(rounds):
            self.rng.choice(actions)()
            self.arm()
            self.work([one for one in self.alive() if self.rng.random() < 0.9])
            self.bucket.deliver()
            self.deliver()
            self.check()

    def work(self, members: list[Member]) -> None:
        """All at once. Some have read no more of the metadata than before, or a little."""
        for member in members:
            member.catch_up(self.rng.choice((0, 1, 3, None, None, None)))

        async def all_at_once() -> list[BaseException | None]:
            return await asyncio.gather(*(one.manager.run_once() for one in members), return_exceptions=True)

        if not members:
            return
        for member, ended in zip(members, members[0].do(all_at_once()), strict=True):
            if isinstance(ended, BaseExceptionGroup) and ended.split(Crash)[1] is not None:
                raise ended
            if ended is not None and not isinstance(ended, (Crash, BaseExceptionGroup)):
                raise ended
            if ended is not None:
                member.crashes += 1
                member.reboot()
                if self.rng.random() < 0.8:
                    self.quorum.unfence(member.number)

    def deliver(self) -> None:
        decide, self.quorum.decide = self.quorum.decide, no_faults
        for member in self.members:
            if member.wire is not None:
                member.do(member.wire.deliver())
        self.quorum.decide = decide

    def check(self) -> None:
        for member in self.members:
            member.check()

    def come_to_rest(self) -> None:
        self.disarm()
        self.deliver()
        self.switch_tiering(on=True)
        for member in self.members:
            member.cut_off(False)
            if member.number in self.dead:
                member.reboot()
            if member.number not in self.quorum.unfenced():
                self.quorum.unfence(member.number)
            for replica in member.replicas:
                replica.held_back = 0
        self.dead.clear()
        for _ in range(30):
            for member in self.members:
                member.clock.advance(GRACE_MS // 10)
            self.settle()
        for number in range(6):
            if number == 3:  # pages of an archive that was given up may be named yet by who leads on and on
                for partition in range(self.partitions):
                    self.quorum.elect(TOPIC, partition, self.rng.choice(self.members).number)
            for member in self.members:
                member.clock.advance(GRACE_MS)
            self.settle()
            for member in self.members:
                with suppress(NotNamed):  # another one has the office back, and it has not heard of that
                    member.do(member.manager.maintenance.sweep())
            self.settle()
        self.check()
        self.check_at_rest()

    def settle(self) -> None:
        for member in self.members:
            member.catch_up()
        members = self.members
        members[0].do(self._together())

    async def _together(self) -> None:
        await asyncio.gather(*(one.manager.run_once() for one in self.members))

    def check_at_rest(self) -> None:
        assert [one.is_keeper for one in self.members] == [True] + [False] * (len(self.members) - 1)
        live = {"cluster.json", "topics.json"}
        for member in self.members:
            live |= member.live_keys()
            assert member.manager.metrics.displaced is None
            for replica in member.led():
                entry, head = member.entry(replica), member.head(replica)
                assert entry is None or (head is not None and head.manifest_key == entry.manifest_key), "T7"
                assert member.lag(replica) == 0
        stored = self.members[0].stored_keys()
        assert stored == live, f"T8: leaked {sorted(stored - live)}, lost {sorted(live - stored)}"


def replay(seed: int, rounds: int = 40, kind: str = "here") -> None:
    with tempfile.TemporaryDirectory() as tmp:
        simulation = Simulation(seed, Path(tmp), kind)
        simulation.run(rounds)
        simulation.come_to_rest()


@pytest.mark.parametrize("kind", [pytest.param("here", marks=pytest.mark.thorough), "rpc"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_brokers_that_share_a_bucket_destroy_nothing_of_each_other(kind: str, seed: int) -> None:
    replay(seed, kind=kind)
