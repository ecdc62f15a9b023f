"""Cuts in random histories: answers and calls that fail, keepers that change, chains that move, sweeps."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from service.tiering.cuts.round import CutStep
from tests.unit.tiering.cut_world import GRACE_MS, OTHER, TOPIC, CutWorld, Harm, Log
from tests.unit.tiering.world import Fault, no_faults

HISTORIES, MANY = 6, 150
STEPS = 24
FAULTS = (Fault.FAIL, Fault.LIE, Fault.REFUSE)


class History:
    """One random history, with what must hold after each of its steps."""

    def __init__(self, tmp: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = CutWorld(tmp, seed=seed)
        self.world.logs = {(TOPIC, n): Log(n % 3 + 1, 3) for n in range(4)} | {(OTHER, 0): Log(1, 2)}
        self.world.begin()
        self.last = 0

    def run(self) -> None:
        acts = (
            self.append, self.append, self.cut, self.cut, self.cut, self.torn, self.store_fails, self.chain,
            self.waits, self.elect, self.metadata, self.keeper_starts_again, self.sweep, self.time,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(acts)()
            self.check()
        self.world.cluster.harm = lambda broker_id, step: None
        self.world.store.decide = no_faults
        for log in self.world.logs.values():
            log.waits = False
        self.append()
        for _ in range(3):
            self.world.run()
            self.world.round()
        self.check()
        assert self.world.complete()[-1:] == self.world.numbers()[-1:], "once all is well all is saved"
        cut = self.world.newest()
        assert cut.is_exact
        for (topic_id, partition), log in self.world.logs.items():
            assert cut.topics[topic_id][partition].end == log.end

    def check(self) -> None:
        decide, self.world.store.decide = self.world.store.decide, no_faults
        self.world.check_kept()
        numbers = self.world.numbers()
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[-1] >= self.last, "numbers never fall"
        self.last = numbers[-1] if numbers else self.last
        self.world.store.decide = decide

    # -- acts

    def append(self) -> None:
        for log in self.random.sample(list(self.world.logs.values()), 2):
            log.end += self.random.randrange(1, 5)

    def cut(self) -> None:
        self.world.round()

    def torn(self) -> None:
        broker_id, step = self.random.choice((1, 2, 3)), self.random.choice(list(CutStep)[:3])
        harm = self.random.choice(list(Harm))
        self.world.cluster.harm = lambda one, asked: harm if (one, asked) == (broker_id, step) else None
        self.world.round()
        self.world.cluster.harm = lambda one, asked: None

    def store_fails(self) -> None:
        fault, chance = self.random.choice(FAULTS), self.random.choice((0.1, 0.5, 1))
        self.world.store.decide = lambda operation, key: (
            fault if self.random.random() < chance else Fault.PASS
        )
        self.world.round()
        self.world.store.decide = no_faults

    def chain(self) -> None:
        place, log = self.random.choice(list(self.world.logs.items()))
        before = self.world.catalog.entries.get(place)
        if before is None or before.end_offset < log.end:
            self.world.commit_chain(place, log.end, epoch=log.epoch)

    def waits(self) -> None:
        log = self.random.choice(list(self.world.logs.values()))
        log.waits = not log.waits

    def elect(self) -> None:
        log = self.random.choice(list(self.world.logs.values()))
        log.epoch += 1
        log.leader = self.random.choice((1, 2, 3))
        log.saved = log.named = 0
        self.world.cluster.metadata_end += 1

    def metadata(self) -> None:
        self.world.cluster.metadata_end += self.random.randrange(1, 4)
        if self.random.random() < 0.5:
            self.world.manager.maintenance.topics_changed()
            self.world.clock.advance(10_000)
            self.world.run()

    def keeper_starts_again(self) -> None:
        self.world.reboot()
        self.world.begin()

    def sweep(self) -> None:
        self.world.sweep()

    def time(self) -> None:
        self.world.clock.advance(self.random.choice((1_000, 60_000, 2 * GRACE_MS)))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_history_leaves_a_kept_cut_that_lacks_anything(tmp_path: Path, seed: int) -> None:
    History(tmp_path, seed).run()


@pytest.mark.thorough
def test_none_of_many_histories_leaves_a_kept_cut_that_lacks_anything(tmp_path: Path) -> None:
    for seed in range(1_000, 1_000 + MANY):
        History(tmp_path / str(seed), seed).run()
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
