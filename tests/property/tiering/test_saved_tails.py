"""Tails that a cut names have everything below its ends, byte for byte the log's, whatever happens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.base.errors import StorageError
from service.tiering.cuts import saved_progress, saving, tail_writer
from service.tiering.cuts.saving import SavedTails
from tests.unit.tiering.cut_keeper import CutKeeper, bytes_of
from tests.unit.tiering.world import Fault, Replica, World


class Play:
    """One broker, whose keeper makes cuts of which some are void, and whose partitions change leaders."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(folder, partitions=3, remote_storage_enable=False, segment_bytes=600)
        self.world.run()
        self.keeper = CutKeeper(self.world)
        self.epoch = 0
        self.proved = self.void = 0

    def step(self) -> None:
        world, keeper = self.world, self.keeper
        replica = self.random.choice(world.replicas)
        act = self.random.choices(
            (
                self.produce, self.cut, self.void_attempt, self.answer_lost, self.store_fails, self.elect,
                self.unclean, self.retention, self.restart, self.passed_over,
            ),
            (12, 8, 3, 2, 2, 2, 1, 1, 1, 1),
        )[0]  # fmt: skip
        act(replica)
        world.clock.advance(self.random.randrange(10_000))
        assert keeper.cut > 0

    def produce(self, replica: Replica) -> None:
        for _ in range(self.random.randrange(1, 9)):
            replica.append(self.random.randrange(1, 4), 5)

    def save(self) -> SavedTails:
        ends = {
            one: one.high_watermark if self.random.random() < 0.8 else self._border(one)
            for one in self.world.replicas
        }
        return self.keeper.save(ends=ends)

    def _border(self, replica: Replica) -> int:
        """An end below the newest batch, as of a moment before."""
        low = max(replica.log.local_log_start_offset, 0)
        found = replica.log.read(low, 1 << 30, replica.high_watermark)
        return low if found.slice is None else replica.high_watermark

    def cut(self, _: Replica) -> None:
        self.keeper.name(self.save())
        for replica in self.world.replicas:
            place = replica.tip.topic_id, replica.tip.partition
            row = self.keeper.rows[place[0]][place[1]]
            start = replica.log.local_log_start_offset
            if row.saved > start:
                assert self.keeper.read(replica, start, row.saved) == bytes_of(replica, start, row.saved)
                self.proved += 1

    def void_attempt(self, _: Replica) -> None:
        self.save()
        self.void += 1

    def answer_lost(self, replica: Replica) -> None:
        """The keeper takes an attempt for void, and writes it all the same in the end."""
        saved = self.save()
        attempt, taken = self.keeper.attempt, self.keeper.taken
        self.produce(replica)
        self.save()
        self.keeper.attempt, self.keeper.taken = attempt, taken
        self.keeper.name(saved)

    def passed_over(self, _: Replica) -> None:
        """Cuts are made in which this broker had no part."""
        self.keeper.cut += self.random.randrange(1, 3)

    def store_fails(self, replica: Replica) -> None:
        self.produce(replica)
        fault = self.random.choice((Fault.FAIL, Fault.LIE, Fault.REFUSE))
        share = self.random.random()
        self.world.store.decide = lambda operation, key: (
            fault if key.startswith("tail/") and self.random.random() < share else Fault.PASS
        )
        try:
            self.save()
        except StorageError:
            self.void += 1
        finally:
            self.world.store.decide = lambda *_: Fault.PASS

    def elect(self, replica: Replica) -> None:
        self.epoch += 1
        replica.leader_epoch = self.epoch

    def unclean(self, replica: Replica) -> None:
        """Another replica has led, which lacked the newest batches and took others."""
        log = replica.log
        if log.log_end_offset - log.local_log_start_offset < 6:
            return
        log.truncation.truncate_to(self.random.randrange(log.local_log_start_offset + 1, log.log_end_offset))
        self.epoch += 1
        replica.append(self.random.randrange(1, 4), 6, leader_epoch=self.epoch)
        self.epoch += 1
        replica.leader_epoch = self.epoch

    def retention(self, replica: Replica) -> None:
        log = replica.log
        log.deletion.move_log_start(self.random.randrange(log.log_start_offset, log.log_end_offset + 1))
        log.deletion.delete_below_start()

    def restart(self, _: Replica) -> None:
        """Of the process: it leads what it led, in later epochs, and knows nothing of what it has saved."""
        self.world.reboot()
        self.world.run()
        for replica in self.world.replicas:
            self.epoch += 1
            replica.leader_epoch = self.epoch


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 100))]


@pytest.mark.parametrize("seed", SEEDS)
def test_tails_have_what_cuts_say(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "HIGH_EVERY", 4)
    monkeypatch.setattr(saved_progress, "_LEAST_BASE_BYTES", 2000)
    monkeypatch.setattr(tail_writer, "MAX_OBJECT_BYTES", 3000 if seed % 2 else 1 << 20)
    play = Play(tmp_path, seed)
    for _ in range(120):
        play.step()
    play.cut(play.world.replicas[0])
    assert play.proved > 30
    assert play.void
