"""One broker of the world of replicas: the shells around the machines, as small as they can be."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.replication.ack_queue import Waiter
from service.replication.alter_partition_queue import AlterPartitionQueue, ProposalResponse, ProposalSettings
from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    AskOffsets,
    BuildLocalStart,
    CaughtUp,
    Done,
    Effect,
    Fetch,
    FlushAppended,
    FollowerFetchResponse,
    HoldPartition,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
    Warn,
)
from service.replication.leader import (
    MOVED,
    PROPOSES,
    BrokerStatus,
    Leadership,
    LeaderState,
    ReplicaSession,
)
from service.replication.replica_fetch import ReplicaFetch, judge_epoch
from tests.property.replication.model import Batch, Image, ModelLog, Record, Violation

if TYPE_CHECKING:
    from tests.property.replication.world import World


class Served:
    """A follower's fetch session, as the leader's side has it."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.clock = ReplicaSession()
        self.asked: dict[TopicIdPartition, FetchPartitionData] = {}
        self.told: dict[TopicIdPartition, tuple[int, int, int]] = {}
        """(end, high watermark, start) of the leader as of the last look"""


class Sent(NamedTuple):
    """An answer whose records are read when it is sent, which may be long after the fetch was looked at."""

    answer: FollowerFetchResponse
    reads: dict[TopicIdPartition, tuple[int, int]]


class Broker:
    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.logs: dict[TopicIdPartition, ModelLog] = {}
        self.life = 0
        self.is_alive = False
        self.is_clean = True
        self.epoch = -1
        self.registered_at = 0

    # -- processes

    def start(self) -> None:
        world = self.world
        self.is_alive = True
        self.life += 1
        self.epoch = world.controller.register(self.id, is_clean=self.is_clean)
        self.is_clean = False
        self.registered_at = len(world.controller.images)
        self.seen = 0
        self.brokers: dict[int, BrokerStatus] = {}
        self.leaders: dict[TopicIdPartition, LeaderState] = {}
        self.fetchers: dict[int, FollowerMachine] = {}
        self.waiters: dict[Waiter, tuple[TopicIdPartition, int, tuple[Record, ...]]] = {}
        self.served: dict[int, Served] = {}
        self.proposals = AlterPartitionQueue(self.leaders.get, ProposalSettings())
        self.later(5, self.learn)
        self.later(world.lag_ms / 2, self.tick)
        self.later(50, self.flush)

    def crash(self, *, loses: bool) -> None:
        """Killed. With `loses`, what was not flushed may be gone."""
        self.is_alive = False
        self.life += 1
        self.is_clean = False
        random = self.world.random
        for tip, log in self.logs.items():
            lost_from = None
            if loses and random.random() < 0.8:
                lost_from = random.randint(log.durable, log.log_end_offset)
            if log.crash(lost_from):
                self.world.oracle.loses(tip, self.id)

    def stop(self) -> None:
        """In good order: all is on disk."""
        self.is_alive = False
        self.life += 1
        self.is_clean = True
        for log in self.logs.values():
            log.flush()
            log.checkpointed_mark = log.high_watermark
            log.crash(None)

    def later(self, wait_ms: float, action: Any) -> None:
        """Unless the process has ended by then."""
        self.world.at(self.world.now + wait_ms, partial(self._if_alive, self.life, action))

    def _if_alive(self, life: int, action: Any) -> None:
        if self.life == life and self.is_alive:
            action()

    @property
    def now_ms(self) -> int:
        return int(self.world.now)

    def flush(self) -> None:
        random = self.world.random
        for log in self.logs.values():
            if random.random() < 0.5:
                log.flush()
            if random.random() < 0.3:
                log.checkpointed_mark = log.high_watermark
        self.later(random.choice((20, 200, 1000)), self.flush)

    # -- the image

    def learn(self) -> None:
        """Take over an image that is newer, sometimes the newest; none from before its process registered,
        or it would lead again in an epoch in which it led before."""
        world, images = self.world, self.world.controller.images
        if self.seen < len(images):
            newest = len(images)
            first = max(self.seen + 1, self.registered_at)
            self.seen = newest if world.random.random() < 0.6 else world.random.randint(first, newest)
            self._apply(images[self.seen - 1])
            if self.seen >= self.registered_at and not world.is_fenced_by_will(self.id):
                known = world.controller.brokers[self.id]
                if known.epoch == self.epoch and not known.is_active:
                    world.controller.unfence(self.id)
        self.later(world.random.choice((1, world.image_lag_ms)) * world.random.random() + 1, self.learn)

    def _apply(self, image: Image) -> None:
        before = dict(self.brokers)
        self.brokers.clear()
        self.brokers.update(image.brokers)
        for tip, state in image.partitions.items():
            if self.id not in state.replicas:
                continue
            log = self.logs.setdefault(tip, ModelLog())
            if state.leader == self.id:
                self._lead(
                    tip, log, Leadership(state.leader_epoch, state.partition_epoch, state.replicas, state.isr)
                )
            else:
                self._follow(tip, log, state.leader, state.leader_epoch)
        if before != self.brokers:
            for tip, leader in self.leaders.items():
                self.react(tip, leader.reevaluate(self.now_ms))

    def _lead(self, tip: TopicIdPartition, log: ModelLog, shape: Leadership) -> None:
        for fetcher in self.fetchers.values():
            fetcher.remove(tip)
        leader = self.leaders.get(tip)
        oracle = self.world.oracle
        if leader is None:
            log.note_epoch(shape.leader_epoch, log.log_end_offset)
            oracle.leads(self, tip, shape.leader_epoch)
            leader = self.leaders[tip] = self.world.plant.leader(
                self.id,
                self.world.leader_settings,
                self.brokers,
                log,
                shape,
                high_watermark=log.high_watermark,
                min_insync_replicas=self.world.controller.min_isr[tip],
                now_ms=self.now_ms,
            )
            self.react(tip, leader.reevaluate(self.now_ms))
        else:
            if shape.leader_epoch > leader.shape.leader_epoch:
                log.note_epoch(shape.leader_epoch, log.log_end_offset)
                oracle.leads(self, tip, shape.leader_epoch)
            self.react(tip, leader.image(shape, self.now_ms))

    def _follow(self, tip: TopicIdPartition, log: ModelLog, leader_id: int, leader_epoch: int) -> None:
        leader = self.leaders.pop(tip, None)
        if leader is not None:
            for waiter in leader.deposed():
                del self.waiters[waiter]
        for other, fetcher in self.fetchers.items():
            if other != leader_id:
                fetcher.remove(tip)
        if leader_id < 0:
            return
        if leader_id not in self.fetchers:
            machine = self.world.plant.follower(
                FollowerSettings(self.world.backoff_ms, self.world.backoff_ms)
            )
            self.fetchers[leader_id] = machine
            self.later(1, partial(self.poll, leader_id))
        fetcher = self.fetchers[leader_id]
        effects = fetcher.assign(tip, log, leader_epoch, self.now_ms, is_clean=True)
        self._do(leader_id, effects, {})

    # -- leading

    def tick(self) -> None:
        for tip, leader in self.leaders.items():
            self.react(tip, leader.tick(self.now_ms))
        self.later(self.world.lag_ms / 2, self.tick)

    def react(self, tip: TopicIdPartition, happened: int) -> None:
        leader = self.leaders[tip]
        if happened & MOVED:
            self.logs[tip].high_watermark = leader.high_watermark
            self.world.oracle.moved(self, tip, leader)
            passed, error = leader.passed()
            for waiter in passed:
                _, offset, records = self.waiters.pop(waiter)
                if error is ErrorCode.none:
                    self.world.oracle.acked(tip, offset, records, leader.min_isr)
        if happened & PROPOSES:
            self.proposals.propose(tip)
        self.send_proposals()

    def send_proposals(self) -> None:
        request = self.proposals.next_request(self.now_ms)
        if request is not None:
            self.world.send_proposals(self, request)
            return
        due = self.proposals.next_deadline_ms()
        if due is not None:
            self.later(max(due - self.now_ms, 1), self.send_proposals)

    def proposals_answered(self, number: int, answer: ProposalResponse | None) -> None:
        if answer is None:
            happened = self.proposals.failed(number, self.now_ms, was_sent=True)
        else:
            happened = self.proposals.answered(number, answer, self.now_ms)
        for tip, what in happened:
            self.react(tip, what)
        self.send_proposals()

    def produce(self, tip: TopicIdPartition, values: list[int], *, acks_all: bool) -> None:
        leader, log = self.leaders[tip], self.logs[tip]
        if acks_all and leader.check_replicas() is not ErrorCode.none:
            return
        offset = log.log_end_offset
        log.append(leader.shape.leader_epoch, values)
        records = tuple(log.records[-len(values) :])
        self.react(tip, leader.appended(self.now_ms))
        if not acks_all:
            return
        waiter = leader.wait(tip, log.log_end_offset)
        if isinstance(waiter, Waiter):
            self.waiters[waiter] = (tip, offset, records)
            if self.world.random.random() < 0.2:
                self.later(300 * self.world.random.random(), partial(self._give_up, tip, waiter))
        elif waiter is ErrorCode.none:
            self.world.oracle.acked(tip, offset, records, leader.min_isr)

    def _give_up(self, tip: TopicIdPartition, waiter: Waiter) -> None:
        leader = self.leaders.get(tip)
        if leader is not None and leader.give_up(waiter):
            del self.waiters[waiter]

    def fetched(self, follower: int, broker_epoch: int, fetch: Fetch) -> Sent:
        """A fetch arrives, maybe late."""
        served = self.served.setdefault(follower, Served())
        if fetch.session_epoch == 0:
            for tip in served.asked:
                if tip in self.leaders:
                    self.leaders[tip].detach(follower, served.clock)
            served = self.served[follower] = Served()
            if self.world.random.random() < 0.9:
                served.session_id = self.world.random.randint(1, 2**30)
        elif served.session_id != fetch.session_id:
            return Sent(FollowerFetchResponse(ErrorCode.fetch_session_id_not_found, 0, ()), {})
        elif served.epoch != fetch.session_epoch:
            return Sent(FollowerFetchResponse(ErrorCode.invalid_fetch_session_epoch, 0, ()), {})
        served.epoch = fetch.session_epoch + 1
        served.clock.last_fetch_ms = self.now_ms
        for tip in fetch.forgotten:
            if served.asked.pop(tip, None) is not None and tip in self.leaders:
                self.leaders[tip].detach(follower, served.clock)
        for tip, asked in fetch.partitions:
            served.asked[tip] = asked
            served.told.pop(tip, None)
        answers: list[PartitionFetchResponse] = []
        reads: dict[TopicIdPartition, tuple[int, int]] = {}
        for tip, asked in served.asked.items():
            leader = self.leaders.get(tip)
            if leader is not None and served.told.get(tip) == self._shown(tip, leader):
                continue  # nothing has changed since it was looked at, and nothing was asked: not touched
            session = served.clock if served.session_id else None
            answer = self._look(follower, broker_epoch, tip, asked, session, reads)
            leader = self.leaders.get(tip)
            is_worth = answer.size or answer.diverging or answer.error is not ErrorCode.none
            if leader is not None and not is_worth:
                shown = self._shown(tip, leader)
                is_worth = served.told.get(tip) != shown
                served.told[tip] = shown
            if is_worth or fetch.session_epoch == 0:
                answers.append(answer)
        return Sent(FollowerFetchResponse(ErrorCode.none, served.session_id, answers), reads)

    def _shown(self, tip: TopicIdPartition, leader: LeaderState) -> tuple[int, int, int]:
        return leader.end_offset, leader.high_watermark, self.logs[tip].log_start_offset

    def _look(
        self,
        follower: int,
        broker_epoch: int,
        tip: TopicIdPartition,
        asked: FetchPartitionData,
        session: ReplicaSession | None,
        reads: dict[TopicIdPartition, tuple[int, int]],
    ) -> PartitionFetchResponse:
        leader = self.leaders.get(tip)
        if leader is None:
            fetchers = [one for one in self.fetchers.values() if tip in one]
            if not fetchers:
                return PartitionFetchResponse(tip, ErrorCode.not_leader_or_follower)
            error = judge_epoch(asked.leader_epoch, self.epoch_of(tip))
            return PartitionFetchResponse(tip, error or ErrorCode.not_leader_or_follower)
        whole = ReplicaFetch(
            follower, broker_epoch, asked.leader_epoch, asked.offset, asked.last_epoch, asked.start_offset
        )
        verdict, happened = leader.fetched(whole, session, self.now_ms)
        self.react(tip, happened)
        log = self.logs[tip]
        if verdict.error is not ErrorCode.none:
            return PartitionFetchResponse(tip, verdict.error, start_offset=log.log_start_offset)
        if verdict.diverging is not None:
            return PartitionFetchResponse(tip, diverging=verdict.diverging)
        count = min(leader.end_offset - asked.offset, self.world.random.randint(1, 8))
        if count:
            reads[tip] = asked.offset, count
        return PartitionFetchResponse(
            tip, high_watermark=leader.high_watermark, start_offset=log.log_start_offset, size=count
        )

    def epoch_of(self, tip: TopicIdPartition) -> int:
        return self.world.controller.images[self.seen - 1].partitions[tip].leader_epoch

    def read(self, sent: Sent) -> dict[TopicIdPartition, list[Batch]]:
        return {tip: self.logs[tip].read(offset, count) for tip, (offset, count) in sent.reads.items()}

    def list_offsets(self, tip: TopicIdPartition, leader_epoch: int) -> LeaderOffsets | ErrorCode:
        leader = self.leaders.get(tip)
        if leader is None or leader.shape.leader_epoch != leader_epoch:
            return ErrorCode.not_leader_or_follower
        return LeaderOffsets(self.logs[tip].log_start_offset, leader.end_offset)

    # -- following

    def poll(self, leader_id: int) -> None:
        """Look whether something is to be fetched; this goes on for as long as the process lives."""
        fetcher = self.fetchers[leader_id]
        fetch = fetcher.next_fetch(self.now_ms)
        if fetch is not None:
            self.world.send_fetch(self, leader_id, fetch)
        self.later(2 + 20 * self.world.random.random(), partial(self.poll, leader_id))

    def answered(
        self,
        leader_id: int,
        number: int,
        answer: FollowerFetchResponse,
        batches: dict[TopicIdPartition, list[Batch]],
    ) -> None:
        effects = self.fetchers[leader_id].answered(number, answer, self.now_ms)
        self._do(
            leader_id, effects, {at: batches.get(one.tip, []) for at, one in enumerate(answer.partitions)}
        )

    def failed(self, leader_id: int, number: int) -> None:
        self.fetchers[leader_id].failed(number, self.now_ms)

    def _do(self, leader_id: int, effects: tuple[Effect, ...], batches: dict[int, list[Batch]]) -> None:
        fetcher, world = self.fetchers[leader_id], self.world
        for effect in effects:
            if isinstance(effect, AdvanceMarks):
                log = self.logs[effect.tip]
                log.high_watermark, log.log_start_offset = effect.high_watermark, effect.start_offset
                world.oracle.follows(self, effect.tip)
            elif isinstance(effect, CaughtUp):
                log = self.logs[effect.tip]
                assert log.log_end_offset >= log.high_watermark, "it lacks nothing of what it was told"
            elif isinstance(effect, HoldPartition | Warn):
                raise Violation(f"{self.id}: {effect.why}")
            elif isinstance(effect, Append):
                self._append(leader_id, effect, list(batches[effect.at]))
            elif isinstance(effect, AskOffsets):
                world.ask_offsets(self, leader_id, effect)
            elif isinstance(effect, BuildLocalStart):
                self.later(50 * world.random.random(), partial(self._build, leader_id, effect))
            else:
                assert not isinstance(effect, FlushAppended), "no topic here asks for flushes"
                self._cut(effect)
                self._do(leader_id, fetcher.done(effect.number, Done.DONE, self.now_ms), {})

    def _cut(self, effect: Truncate | Restart) -> None:
        log = self.logs[effect.tip]
        if isinstance(effect, Truncate):
            log.truncate(effect.offset)
        else:
            log.restart(effect.offset, [])
            log.log_start_offset = log.high_watermark = effect.offset

    def offsets_told(self, leader_id: int, number: int, told: LeaderOffsets | ErrorCode) -> None:
        self._do(leader_id, self.fetchers[leader_id].offsets(number, told, self.now_ms), {})

    def _append(self, leader_id: int, effect: Append, batches: list[Batch]) -> None:
        """In slices: batch by batch, with pauses in which anything may happen."""
        fetcher, world = self.fetchers[leader_id], self.world
        random = world.random
        if not fetcher.is_wanted(effect.number):
            return
        log = self.logs[effect.tip]
        found = world.plant.fits(
            batches,
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
            latest_epoch=log.latest_epoch,
            leader_epoch=effect.leader_epoch,
            may_lack=False,
        )
        is_corrupt = random.random() < world.corruption
        if is_corrupt or not found.accepted or not batches:
            outcome = Done.CORRUPT if is_corrupt or found.why else Done.DONE
            self._do(leader_id, fetcher.done(effect.number, outcome, self.now_ms), {})
            return
        log.append_batch(batches.pop(0))
        if batches and random.random() < 0.3:
            self.later(world.slice_ms * random.random(), partial(self._append, leader_id, effect, batches))
        else:
            self._append(leader_id, effect, batches)

    def _build(self, leader_id: int, effect: BuildLocalStart) -> None:
        fetcher = self.fetchers[leader_id]
        if not fetcher.is_wanted(effect.number):
            return
        committed, end = self.world.oracle.archive(effect.tip)
        log = self.logs[effect.tip]
        outcome = Done.NOT_NOW
        if end > log.log_end_offset:
            epochs: list[tuple[int, int]] = []
            for offset in range(end):
                epoch = committed[offset][0]
                if not epochs or epochs[-1][0] != epoch:
                    epochs.append((epoch, offset))
            log.restart(end, epochs)
            log.high_watermark = end
            log.log_start_offset = max(log.log_start_offset, effect.start_offset)
            outcome = Done.DONE
        self._do(leader_id, fetcher.done(effect.number, outcome, self.now_ms), {})
