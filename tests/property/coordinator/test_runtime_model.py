"""The runtime beside a list: a leader whose appends fail, whose mark lags, who loses the lead and finds it.

Acknowledged is committed; reads are never ahead of the mark; the state is what a replay of the log from zero
gives; nobody's answer is lost or given twice.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.timers import Timers
from service.coordinator.batching import size_of
from service.coordinator.environment import RuntimeSettings
from service.coordinator.runtime import Runtime
from service.coordinator.shard import LATER, CoordinatorRecord, CoordinatorResult, DeferredReply
from service.hot.markers import Marker
from service.records.batch import HEADER_SIZE
from service.records.builder import BatchBuilder, encode_record
from tests.support.coordinators import DictShard, ModelLog, ModelLogs
from tests.support.virtual_loop import VirtualLoop, run_virtually


class DictBlock:
    """A `Block` of a `DictShard`."""

    def __init__(self, shard: DictShard, records: tuple[CoordinatorRecord, ...]) -> None:
        self.shard = shard
        self.records = records
        self.count = len(records)
        self.size = size_of(records)

    def encode(self, offset: int, delta: int, timestamp_delta: int) -> bytes:
        encoded = [encode_record(delta + n, timestamp_delta, *one) for n, one in enumerate(self.records)]
        return b"".join(encoded)

    def replay(self, offset: int, is_committed: bool) -> None:
        journal = self.shard.journal
        assert not is_committed or offset + self.count <= journal.committed_offset
        for number, (key, value) in enumerate(self.records):
            if not is_committed:
                journal.at(offset + number)
            self.shard.replay(offset + number, key, value)


class DictBatch:
    """A `WholeBatch` of a `DictShard`."""

    def __init__(self, shard: DictShard, records: tuple[CoordinatorRecord, ...]) -> None:
        self.block = DictBlock(shard, records)
        self.count = len(records)
        self.size = HEADER_SIZE + self.block.size

    def build(self, offset: int, leader_epoch: int, now_ms: int) -> bytearray:
        builder = BatchBuilder(offset, leader_epoch=leader_epoch)
        builder.add_all(now_ms, self.block.records)
        return builder.build()

    def replay(self, offset: int) -> None:
        self.block.replay(offset, is_committed=True)


KEYS = [f"k{number}".encode() for number in range(6)]
FAILURES: list[tuple[Exception, ErrorCode]] = [
    (RequestError(ErrorCode.not_enough_replicas, "few"), ErrorCode.coordinator_not_available),
    (StorageError("disk full"), ErrorCode.not_coordinator),
    (RequestError(ErrorCode.message_too_large, "large"), ErrorCode.unknown_server_error),
    (KeyError("a bug"), ErrorCode.unknown_server_error),
]
UNKNOWN = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
"""Errors after which a write may be in the log all the same: it timed out, or the lead was lost."""


class Asked:
    """One request, and what came of it."""

    def __init__(self, world: World, kind: str, records: tuple[CoordinatorRecord, ...]) -> None:
        self.world = world
        self.kind = kind
        self.records = records
        self.observed_at = -1
        self.outcome: ErrorCode | str | None = "waits"
        self.future: asyncio.Future[Any] | None = None

    def follow(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        assert self.outcome == "waits", "answered twice"
        error = future.exception()
        if error is not None:
            assert isinstance(error, RequestError), repr(error)
            self.outcome = error.code
            return
        self.outcome = None
        assert future.result() in ("ok", None)
        log = self.world.log
        committed = {(key, value) for _, key, value in log.records(log.high_watermark)}
        assert committed.issuperset(self.records), f"{self.kind} is acknowledged and not committed"
        assert self.observed_at < log.high_watermark, f"{self.kind} saw what is not committed"


class World:
    """A node that leads the one partition, or does not; its random fate."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.log = ModelLog()
        self.settings = RuntimeSettings(linger_ms=self.random.choice([-1, -1, 0, 20]), commit_timeout_ms=500)
        self.shard = DictShard()
        self.shards = [self.shard]
        self.events: dict[int, Asked] = {}
        self.asked: list[Asked] = []
        self.waiting: list[tuple[int, Asked]] = []
        self.number = 0
        self.alone = 0
        """blocks that were written alone"""
        self.leads = True
        self.runtime: Runtime[DictShard] = Runtime(
            "__model",
            self._make_shard,
            ModelLogs(self.log),
            self.loop,
            Timers(self.loop),
            lambda: self.settings,
        )

    def _make_shard(self, partition: int, leader_epoch: int) -> DictShard:
        self.shard = DictShard()
        self.shards.append(self.shard)
        self.waiting.clear()
        return self.shard

    # What a request can be

    def _records(self, most: int = 3) -> tuple[CoordinatorRecord, ...]:
        made = []
        for _ in range(self.random.randint(0, most)):
            self.number += 1
            gone = self.random.random() < 0.2
            made.append(CoordinatorRecord(self.random.choice(KEYS), None if gone else b"v%d" % self.number))
        # A tombstone has no number: a value beside it tells that the batch is there.
        self.number += 1
        return (*made, CoordinatorRecord(b"n", b"v%d" % self.number))

    def write(self, **more: Any) -> None:
        records = self._records()
        if self.random.random() < 0.05:
            records = (CoordinatorRecord(b"large", bytes(8000)),)
        asked = self._new("write", records)
        event, patience_ms = len(self.asked), self.random.choice([None, None, 100, 900, 3000])
        self.events[event] = asked

        def decide(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            return CoordinatorResult("ok", records, event=event, patience_ms=patience_ms, **more)

        self._ask(asked, decide)

    def marker(self) -> None:
        """The end of a transaction, which no record of this model belongs to."""
        asked = self._new("marker", ())
        asked.follow(self.runtime.write_marker(0, Marker(7, 0, 0, True, 1)))

    def divisible(self) -> None:
        records = tuple(CoordinatorRecord(b"d%d" % n, bytes(900)) for n in range(9))
        asked = self._new("divisible", ())
        self._ask(asked, lambda shard, ticket, now: CoordinatorResult("ok", records, divisible=True))

    def block(self) -> None:
        """What is written as bytes: alone, or where there is room for it; else as any write."""
        context = self.runtime.active(0)
        if context is None:
            self.write()
            return
        asked = self._new("block", self._records())
        future = self.loop.create_future()
        asked.follow(future)
        if self.random.random() < 0.5:
            try:
                is_written = context.append_alone(
                    DictBatch(context.shard, asked.records), (), context.now_ms()
                )
            except RequestError as e:
                future.set_exception(e)
                return
            if is_written:
                self.alone += 1
                future.set_result("ok")
                return
        written = DictBlock(context.shard, asked.records)
        if not context.write_block(written, "ok", (), future, context.now_ms()):
            future.set_exception(RequestError(ErrorCode.record_list_too_large, "it is for the ordinary way"))

    def look(self) -> None:
        """A decision without records, which rests on what is not committed yet."""
        asked = self._new("look", ())

        def decide(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            asked.observed_at = max((shard.changed_at[key] for key in shard.values), default=-1)
            return CoordinatorResult("ok")

        self._ask(asked, decide)

    def join(self) -> None:
        """Answered by a later decision."""
        asked = self._new("join", ())

        def decide(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            self.waiting.append((ticket, asked))
            return CoordinatorResult(LATER)

        self._ask(asked, decide)

    def check_events(self) -> None:
        """Each event was told once, and truly."""
        told = [one for shard in self.shards for one in shard.told]
        assert len({event for event, _ in told}) == len(told), "an event is told twice"
        written = {(key, value) for _, key, value in self.log.records()}
        committed = {(key, value) for _, key, value in self.log.records(self.log.high_watermark)}
        for event, error in told:
            assert isinstance(event, int)
            records = self.events[event].records
            if error is None:
                assert committed.issuperset(records), "an event is told of a commit that is none"
            else:
                assert records[-1] not in written, f"an event is told of {error}, and its records are there"

    def complete(self) -> None:
        """Answers those who wait, with a record."""
        waiting, self.waiting = self.waiting, []
        records = self._records(1)
        asked = self._new("complete", records)

        def decide(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            for _, one in waiting:
                if one.future is not None and not one.future.done():
                    one.records = records
            return CoordinatorResult(
                "ok", records, tuple(DeferredReply(number, "ok") for number, _ in waiting)
            )

        self._ask(asked, decide)

    def refuse(self) -> None:
        bug = self.random.random() < 0.5
        asked = self._new("refuse", (CoordinatorRecord(b"never", b"never"),))

        def decide(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            if bug:
                raise KeyError("a bug")
            raise RequestError(ErrorCode.illegal_generation)

        self._ask(asked, decide)

    def replay_bug(self) -> None:
        records = (*self._records(), CoordinatorRecord(b"bug", b"never"))
        asked = self._new("replay_bug", (CoordinatorRecord(b"bug", b"never"),))
        self._ask(asked, lambda shard, ticket, now: CoordinatorResult("ok", records))

    def _new(self, kind: str, records: tuple[CoordinatorRecord, ...]) -> Asked:
        asked = Asked(self, kind, records)
        self.asked.append(asked)
        return asked

    def _ask(self, asked: Asked, decide: Any) -> None:
        asked.follow(self.runtime.write(0, decide))

    def read(self) -> None:
        """Committed state, and nothing newer."""
        if not self.runtime.shards():
            return
        try:
            seen, end = self.runtime.read(
                0, lambda shard, now: (dict(shard.values.committed_items()), shard.journal.committed_offset)
            )
        except RequestError as e:
            # What was loaded is not known to be committed yet.
            if e.code is not ErrorCode.coordinator_load_in_progress:
                raise
            return
        assert end <= self.log.high_watermark
        assert seen == self.log.state(end)

    # What fate can do

    def mark(self) -> None:
        log = self.log
        log.moves_at_once = self.random.random() < 0.5
        log.commit(self.random.randint(log.high_watermark, log.end_offset))

    def catch_up(self) -> None:
        self.log.commit(self.log.end_offset)

    def fail(self) -> None:
        self.log.fails_with = self.random.choice(FAILURES)[0] if self.random.random() < 0.5 else None

    def elect(self) -> None:
        """Away and here again: what was not committed may be lost."""
        log = self.log
        if self.leads:
            self.runtime.resigned(0, log.leader_epoch + 1)
            log.leader_epoch += 1
            log.truncate(self.random.randint(log.high_watermark, log.end_offset))
            self.leads = False
        else:
            log.leader_epoch += 1
            self.runtime.elected(0, log.leader_epoch)
            self.leads = True

    def elect_again(self) -> None:
        """The same lead told twice, an older one, and a newer one without a resignation."""
        self.runtime.elected(0, self.log.leader_epoch - self.random.randint(0, 1))
        if self.leads and self.random.random() < 0.3:
            self.log.leader_epoch += 1
            self.runtime.elected(0, self.log.leader_epoch)

    async def _seen(self) -> None:
        """Whoever decides has every block replayed."""
        self.look()
        await asyncio.sleep(0)

    async def check_state(self) -> None:
        """In quiet, the state is the replay of the log from zero."""
        self.log.fails_with = None
        await asyncio.sleep(0.1)
        context = self.runtime.active(0)
        if context is not None:
            await self._seen()
            assert dict(self.shard.values.items()) == self.log.state()
            assert len(self.shard.journal) == 0 or self.log.high_watermark < self.log.end_offset


async def live(seed: int) -> int:
    """Return how many blocks were written alone."""
    world = World(seed)
    random = world.random
    failures: list[Any] = []
    world.loop.set_exception_handler(lambda loop, context: failures.append(context.get("exception", context)))
    world.runtime.elected(0, 0)
    steps = (
        [world.marker] * 2
        + [world.write] * 8 + [world.block] * 8 + [world.look, world.join, world.complete, world.read] * 3
        + [world.divisible, world.refuse, world.replay_bug, world.mark, world.mark, world.catch_up]
        + [world.fail, world.elect, world.elect_again]
    )  # fmt: skip
    for _ in range(random.randint(50, 400)):
        random.choice(steps)()
        if random.random() < 0.3:
            await asyncio.sleep(random.choice([0, 0, 0, 0.003, 0.03, 0.7]))
        if random.random() < 0.02:
            await world.check_state()
    world.log.fails_with = None
    if not world.leads:
        world.elect()
    world.log.commit(world.log.end_offset)
    world.log.moves_at_once = True
    await world.check_state()
    await asyncio.sleep(1)
    waiting = {number for _, one in world.waiting for number in [id(one)]}
    assert all(one.outcome != "waits" or id(one) in waiting for one in world.asked), "an answer is lost"
    world.read()
    world.check_events()
    await world.runtime.close()
    await asyncio.sleep(0)
    assert all(one.outcome != "waits" for one in world.asked), "an answer is lost"
    assert world.runtime.metrics.waiting == 0
    assert not failures, failures
    written = {(key, value) for _, key, value in world.log.records()}
    for one in world.asked:
        if one.outcome in UNKNOWN or one.outcome is None or not one.records:
            continue
        assert one.records[-1] not in written, f"{one.kind}: {one.outcome} and yet written"
    return world.alone


@pytest.mark.parametrize("block", range(10))
def test_acknowledged_writes_are_committed_whatever_fails(block: int) -> None:
    alone = 0
    for seed in range(block * 12, block * 12 + 12):
        try:
            alone += run_virtually(live(seed))
        except BaseException:
            print("seed", seed)
            raise
    assert alone > 0
