"""Producers, zombies and admins of a few ids ask at random; writes lag and fail, the coordinator moves.

Looked at after each step: every record follows the one before by the table; what is decided is carried out as
it was decided (X2); a producer id with an epoch is given to one producer (X8); a coordinator that reads the
log has the state that the one before had committed, and is told of exactly the decisions that are open.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.transactions.metadata import TransactionMetadata
from service.transactions.records import decode_key, decode_value
from tests.support.shards import Written
from tests.support.transaction_shards import WAITS, TransactionLeader

MAY_FOLLOW = {
    None: {0},
    0: {0, 1, 3},
    1: {1, 2, 3},
    2: {4},
    3: {5},
    4: {0, 1, 3},
    5: {0, 1, 3},
}
"""States by number: those of the next record of an id; a tombstone follows 0, 4 and 5."""
NAMES = ("t", "u", "v")
PLACES = (("a", 0), ("a", 1), ("b", 0))
ERRORS = {
    ErrorCode.concurrent_transactions,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_txn_state,
    ErrorCode.coordinator_not_available,
    ErrorCode.unknown_server_error,
    ErrorCode.not_coordinator,
}


class World:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.level = self.draw.choice((0, 1, 2))
        self.leader = TransactionLeader(transaction_version=self.level)
        self.producers: dict[str, list[tuple[int, int]]] = {name: [(-1, -1)] for name in NAMES}
        self.given: dict[tuple[int, int], str] = {}
        self.told: dict[tuple[str, int, int], bool] = {}

    # What happens.

    def step(self) -> None:
        kinds = (self.init, self.add, self.end, self.marked, self.time, self.trouble)
        self.draw.choices(kinds, (3, 6, 6, 5, 1, 1))[0]()
        self.look()

    def init(self) -> None:
        name = self.draw.choice(NAMES)
        given = self.draw.choice(((-1, -1), self.draw.choice(self.producers[name])))
        answer = self.leader.init(name, given, timeout_ms=self.draw.choice((5_000, 60_000)))
        if isinstance(answer, tuple):
            self.take(name, answer, given)
        else:
            assert answer in ERRORS or answer == WAITS

    def take(self, name: str, answer: tuple[int, int], before: tuple[int, int]) -> None:
        """X8: a new one for each, but for a producer that repeats its request."""
        if answer in self.given:
            assert before != (-1, -1)
            assert self.given[answer] == name
        self.given[answer] = name
        self.producers[name].append(answer)

    def producer(self, name: str) -> tuple[int, int]:
        known = self.producers[name]
        return known[-1] if self.draw.random() < 0.8 else self.draw.choice(known)

    def add(self) -> None:
        name = self.draw.choice(NAMES)
        version = self.draw.choice((0, 2)) if self.level else 0
        answer = self.leader.add(name, self.producer(name), self.draw.choice(PLACES), version=version)
        assert answer is None or answer in ERRORS or answer == WAITS

    def end(self) -> None:
        name = self.draw.choice(NAMES)
        producer = self.producer(name)
        version = self.draw.choice((0, 2)) if self.level else 0
        answer = self.leader.end(name, producer, self.draw.random() < 0.5, version)
        if isinstance(answer, tuple) and version:
            self.take(name, answer, producer)
        else:
            assert isinstance(answer, tuple) or answer in ERRORS or answer == WAITS

    def marked(self) -> None:
        if self.leader.told and not self.leader.leader.lagging:
            one = self.leader.told.pop(self.draw.randrange(len(self.leader.told)))
            self.leader.marked(one)
            if self.leader.leader.failing is not None:
                self.leader.leader.failing = None
                self.leader.leader.advance(500)

    def time(self) -> None:
        self.leader.leader.advance(self.draw.choice((10, 1_000, 20_000)))
        for name in self.leader.wanting_ids:
            self.leader.abort_timed_out(name)
        self.leader.wanting_ids.clear()

    def trouble(self) -> None:
        leader = self.leader.leader
        what = self.draw.choice(("lag", "lose", "fail", "commit", "commit", "move"))
        if what == "lag":
            leader.lagging = True
        elif what == "lose" and leader.lagging:
            leader.lagging = False
            leader.fail_uncommitted(ErrorCode.not_coordinator)
        elif what == "fail":
            leader.failing = self.draw.choice((None, ErrorCode.coordinator_not_available))
        elif what == "commit":
            leader.failing = None
            leader.commit()
        elif what == "move":
            self.move()

    def move(self) -> None:
        leader = self.leader.leader
        log = leader.log[: leader.mark] if self.draw.random() < 0.5 else leader.log
        before = {name: self.leader.shard.ids.committed(name) for name in NAMES}
        is_whole = len(log) == leader.mark
        self.leader.coordinator_epoch += 1
        self.leader.told.clear()
        self.told.clear()
        leader.reload(log)
        if is_whole:
            after = {name: self.leader.shard.ids.committed(name) for name in NAMES}
            assert {name: _in_log(one) for name, one in after.items()} == {
                name: _in_log(one) for name, one in before.items()
            }
        leader.advance(0)

    # Invariants.

    def look(self) -> None:
        last: dict[str, TransactionMetadata | None] = {}
        for entry in self.leader.leader.log:
            assert isinstance(entry, Written)
            name = decode_key(entry.record.key)
            assert isinstance(name, str)
            before = last.get(name)
            if entry.record.value is None:
                assert before is not None
                assert before.state in (0, 4, 5)
                last[name] = None
                continue
            after = decode_value(entry.record.value)
            assert isinstance(after, TransactionMetadata)
            assert int(after.state) in MAY_FOLLOW[None if before is None else int(before.state)]
            if before is not None:
                self.follows(before, after)
            last[name] = after
        self.is_told_once()

    def follows(self, before: TransactionMetadata, after: TransactionMetadata) -> None:
        if before.producer_id == after.producer_id:
            assert after.producer_epoch >= before.producer_epoch
        else:
            assert (after.producer_epoch, after.previous_producer_id) in (
                (0, before.producer_id), (0, -1),
            )  # fmt: skip
        if before.state == 1:
            assert after.partitions >= before.partitions
        if after.state in (4, 5):
            assert after.partitions == frozenset()

    def is_told_once(self) -> None:
        """A coordinator tells each committed decision once; until then it is not completed."""
        for one in self.leader.told:
            there = self.leader.shard.ids.committed(one.transactional_id)
            assert there is not None
            assert there.state in (2, 3)
            assert (there.producer_id, there.producer_epoch) == one[1:3]
            assert one.is_commit == (there.state == 2)
            assert one.coordinator_epoch == self.leader.coordinator_epoch
        names = [one.transactional_id for one in self.leader.told]
        assert len(names) == len(set(names))

    def settle(self) -> None:
        """X3: all that is decided is carried out in the end, and nothing else stays open."""
        leader = self.leader.leader
        leader.failing = None
        leader.commit()
        for _ in range(8):
            self.leader.mark()
            leader.advance(20_000)
            for name in self.leader.wanting_ids:
                self.leader.abort_timed_out(name)
            self.leader.wanting_ids.clear()
            self.look()
        leader.advance(80_000)
        self.leader.mark()
        for name in NAMES:
            there = self.leader.shard.ids.committed(name)
            assert there is None or there.state in (0, 4, 5)


def _in_log(there: TransactionMetadata | None) -> Any:
    """What of a state the log has in every version."""
    return None if there is None else there[:7]


@pytest.mark.parametrize("seed", range(60))
def test_decisions_hold_whatever_happens(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.step()
    world.settle()
