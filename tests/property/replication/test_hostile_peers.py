"""Leaders that answer anything, followers that ask anything, in any order: the machines stay whole."""

from __future__ import annotations

from random import Random

from kio.schema.errors import ErrorCode

from service.replication.ack_queue import Waiter
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    AskOffsets,
    BuildLocalStart,
    Done,
    Effect,
    FollowerFetchResponse,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
)
from service.replication.leader import (
    MOVED,
    Accepted,
    BrokerStatus,
    LeaderSettings,
    Leadership,
    LeaderState,
    ReplicaSession,
    Unknown,
)
from service.replication.partition_fetch_state import FetchState
from service.replication.replica_fetch import ReplicaFetch
from tests.property.replication.model import ModelLog, tip_of

ERRORS = (
    ErrorCode.none,
    ErrorCode.none,
    ErrorCode.none,
    ErrorCode.offset_out_of_range,
    ErrorCode.offset_moved_to_tiered_storage,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
    ErrorCode.fetch_session_id_not_found,
)
NUMBERS = (-(2**63), -2, -1, 0, 1, 5, 9, 10, 11, 2**31, 2**63 - 1)


class Follower:
    """A machine, and what a shell does of its effects: or does not, or later."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine = FollowerMachine(FollowerSettings(10))
        self.logs = [ModelLog() for _ in range(3)]
        self.now_ms = 0
        self.epoch = 1
        self.number = 0
        self.pending: list[Effect] = []

    def step(self) -> None:
        random = self.random
        self.now_ms += random.choice((0, 1, 20))
        act = random.random()
        tip = tip_of(random.randrange(3))
        log = self.logs[tip.partition + int(tip.topic[1:])]
        if act < 0.15:
            self.epoch += random.random() < 0.5
            is_clean = random.random() < 0.5
            self.do(self.machine.assign(tip, log, self.epoch, self.now_ms, is_clean=is_clean))
        elif act < 0.2:
            self.machine.remove(tip)
        elif act < 0.5:
            fetch = self.machine.next_fetch(self.now_ms)
            if fetch is not None:
                assert not self.machine._working
                self.number = fetch.number
        elif act < 0.75:
            number = self.number if random.random() < 0.9 else random.choice(NUMBERS)
            if random.random() < 0.1:
                self.machine.failed(number, self.now_ms)
            else:
                self.do(self.machine.answered(number, self.answer(), self.now_ms))
        elif self.pending:
            self.finish(self.pending.pop(random.randrange(len(self.pending))))

    def answer(self) -> FollowerFetchResponse:
        random = self.random
        asked = list(self.machine._session.partitions)
        named = [one for one in asked if random.random() < 0.9]
        if random.random() < 0.1:
            named.append(tip_of(random.randrange(5)))
        partitions = [
            PartitionFetchResponse(
                one,
                random.choice(ERRORS),
                random.choice(NUMBERS),
                random.choice(NUMBERS),
                random.choice((0, 0, 1, 1000)),
                random.choice((None, None, (random.choice(NUMBERS), random.choice(NUMBERS)))),
            )
            for one in named
        ]
        error = ErrorCode.none if random.random() < 0.9 else random.choice(ERRORS)
        return FollowerFetchResponse(error, random.choice((0, 7, 7, 7, 8)), partitions)

    def do(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, AdvanceMarks):
                log = self.logs[int(effect.tip.topic[1:])]
                assert log.high_watermark <= effect.high_watermark <= log.log_end_offset
                assert log.log_start_offset <= effect.start_offset <= effect.high_watermark
                log.high_watermark, log.log_start_offset = effect.high_watermark, effect.start_offset
            elif isinstance(effect, Append | Truncate | Restart | AskOffsets | BuildLocalStart):
                assert effect.number not in {one.number for one in self.pending if hasattr(one, "number")}
                self.pending.append(effect)

    def finish(self, effect: Effect) -> None:
        assert isinstance(effect, Append | Truncate | Restart | AskOffsets | BuildLocalStart)
        random, machine = self.random, self.machine
        log = self.logs[int(effect.tip.topic[1:])]
        is_wanted = machine.is_wanted(effect.number)
        outcome = random.choice((Done.DONE, Done.DONE, Done.CORRUPT, Done.NOT_NOW, Done.OFFLINE))
        if isinstance(effect, AskOffsets):
            offsets = LeaderOffsets(random.choice(NUMBERS), random.choice(NUMBERS))
            self.do(machine.offsets(effect.number, random.choice((offsets, *ERRORS[3:])), self.now_ms))
            return
        if is_wanted and outcome is Done.DONE:
            if isinstance(effect, Truncate):
                assert 0 <= effect.offset <= log.log_end_offset
                assert effect.is_below_high_watermark == (effect.offset < log.high_watermark)
                log.truncate(effect.offset)
            elif isinstance(effect, Append):
                log.append(max(log.latest_epoch, effect.leader_epoch), [1] * random.randint(1, 3))
            elif isinstance(effect, Restart):
                assert effect.offset > log.log_end_offset
                log.restart(min(effect.offset, 2**40), [])
        self.do(machine.done(effect.number, outcome, self.now_ms))

    def check(self) -> None:
        machine = self.machine
        working = [one for one in machine._partitions.values() if one.state is FetchState.WORKING]
        assert machine._working == len(working)
        assert all(number == one.number for number, one in machine._under_way.items())
        for one in machine._partitions.values():
            is_busy = one.state in (FetchState.WORKING, FetchState.ASKING, FetchState.BUILDING)
            assert is_busy == (one.number in machine._under_way)


def test_followers_of_hostile_leaders() -> None:
    for seed in range(300):
        follower = Follower(seed)
        try:
            for _ in range(300):
                follower.step()
                follower.check()
        except Exception as e:
            raise AssertionError(f"seed {seed}") from e


def play_leader(seed: int) -> None:
    random = Random(seed)
    log, now_ms = ModelLog(), 0
    log.append(1, [1, 2, 3])
    brokers = {one: BrokerStatus(one, is_active=True) for one in range(1, 5)}
    replicas = (1, 2, 3)
    leader = LeaderState(
        1,
        LeaderSettings(100, 50),
        brokers,
        log,
        Leadership(2, 1, replicas, (1, 2)),
        high_watermark=random.choice(NUMBERS),
        min_insync_replicas=random.randint(1, 4),
        now_ms=now_ms,
    )
    log.note_epoch(2, 3)
    session, mark, waiting = ReplicaSession(), leader.high_watermark, set[Waiter]()
    for _ in range(300):
        now_ms += random.choice((0, 1, 60))
        act, happened = random.random(), 0
        if act < 0.5:
            asked = ReplicaFetch(*(random.choice((*NUMBERS, 1, 2, 2, 3, 4)) for _ in range(6)))
            session.last_fetch_ms = now_ms
            happened = leader.fetched(asked, random.choice((session, None)), now_ms)[1]
        elif act < 0.6:
            log.append(leader.shape.leader_epoch, [1] * random.randint(1, 3))
            happened = leader.appended(now_ms)
            waiter = leader.wait(None, random.choice((log.log_end_offset, mark)))
            if isinstance(waiter, Waiter):
                waiting.add(waiter)
        elif act < 0.7:
            one = random.randint(2, 4)
            brokers[one] = BrokerStatus(random.randint(1, 9), is_active=random.random() < 0.7)
            happened = leader.reevaluate(now_ms)
        elif act < 0.8:
            happened = leader.tick(now_ms)
        elif act < 0.9:
            number = random.choice((leader.proposal.number if leader.proposal else 0, 1, 99))
            outcome = random.choice((Accepted(2, random.choice(NUMBERS)), Unknown(), *ERRORS))
            happened = leader.answered(number, outcome, now_ms - random.choice((0, 70)), now_ms)
        else:
            isr = tuple(one for one in replicas if one == 1 or random.random() < 0.5)
            epochs = leader.shape.leader_epoch + random.choice((-1, 0, 0, 1)), random.choice((0, 1, 2))
            log.note_epoch(epochs[0], log.log_end_offset)
            shape = Leadership(epochs[0], leader.shape.partition_epoch + epochs[1], replicas, isr)
            happened = leader.image(shape, now_ms)
        assert bool(happened & MOVED) == (leader.high_watermark != mark)
        assert mark <= leader.high_watermark <= log.log_end_offset
        mark = leader.high_watermark
        passed = set(leader.passed()[0])
        assert passed == {one for one in waiting if one.offset <= mark}
        waiting -= passed
        assert leader.in_sync <= leader.counted
        assert leader.proposal is not None or leader.counted == leader.in_sync


def test_leaders_of_hostile_followers() -> None:
    for seed in range(300):
        try:
            play_leader(seed)
        except Exception as e:
            raise AssertionError(f"seed {seed}") from e
