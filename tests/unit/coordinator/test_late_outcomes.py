"""Decisions whose commit takes long, fails late, or that a load finds uncommitted."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import pairwise
from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.coordinator.environment import RuntimeSettings
from service.coordinator.runtime import CoordinatorState
from service.coordinator.shard import (
    LATER,
    CoordinatorRecord,
    CoordinatorResult,
    DeferredReply,
    Outcome,
    Schedule,
)
from tests.support.built_batches import build_batch
from tests.support.coordinators import DictShard
from tests.support.runtime_world import World, lived


def test_an_event_hears_of_a_late_commit_once_and_never_that_time_ran_out() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        asked = world.put(b"a", event="a")
        assert await world.error_of(asked) is ErrorCode.coordinator_not_available
        await asyncio.sleep(60)
        assert world.shard.told == []
        assert world.shard.values.get(b"a") == b"value"
        assert world.runtime.metrics.waiting == 1
        world.log.commit(1)
        await asyncio.sleep(60)
        assert world.shard.told == [("a", None)]
        assert world.runtime.metrics.waiting == 0
        assert world.runtime.metrics.timeouts == 1

    lived(scenario)


def test_a_decision_may_want_room_for_what_follows_it() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.max_batch_bytes = 1000
        assert await world.put(bytes(800)) == "ok"
        assert await world.error_of(world.put(bytes(801), spare_bytes=100)) is ErrorCode.unknown_server_error
        assert bytes(801) not in world.shard.values
        assert await world.put(bytes(700), spare_bytes=100) == "ok"

    lived(scenario)


def test_patience_of_a_decision_is_how_long_its_caller_waits() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        began = world.loop.time()
        patient, usual = world.put(b"a", patience_ms=60_000), world.put(b"b")
        hasty, committed = world.put(b"c", patience_ms=10), world.put(b"d", patience_ms=30_000)
        assert await world.error_of(usual) is ErrorCode.coordinator_not_available
        assert await world.error_of(hasty) is ErrorCode.coordinator_not_available
        assert 5 <= world.loop.time() - began < 5.1
        assert await world.error_of(committed) is ErrorCode.coordinator_not_available
        assert 30 <= world.loop.time() - began < 30.1
        assert not patient.done()
        world.log.commit(1)
        assert await patient == "ok"
        again = world.put(b"e", patience_ms=60_000)
        assert await world.error_of(again) is ErrorCode.coordinator_not_available
        assert 90 <= world.loop.time() - began < 90.1

    lived(scenario)


def test_an_event_hears_of_the_revert_of_what_was_never_appended() -> None:
    """A decision out of time may still be in the open batch, whose append fails."""

    async def scenario(world: World) -> None:
        world.settings = RuntimeSettings(linger_ms=9000, commit_timeout_ms=1000)
        await world.lead()
        world.log.moves_at_once = False
        first = world.put(b"a", event="a")
        asks = [world.put(b"b", event="b"), world.put(b"c")]
        await asyncio.sleep(0)
        world.settings = RuntimeSettings(linger_ms=0, commit_timeout_ms=1000)
        world.log.fails_with = StorageError("disk full")
        asks.append(world.put(b"d", event="d"))
        for asked in (first, *asks):
            assert await world.error_of(asked) is ErrorCode.not_coordinator
        await asyncio.sleep(10)
        assert world.shard.told == [(name, ErrorCode.not_coordinator) for name in "abd"]
        assert not world.shard.values

    lived(scenario)


def test_a_deposed_shard_is_told_so_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        late = world.put(b"a", event="a")
        assert await world.error_of(late) is ErrorCode.coordinator_not_available
        young, shard = world.put(b"b", event="b"), world.shard
        world.runtime.resigned(0, 1)
        assert await world.error_of(young) is ErrorCode.not_coordinator
        world.log.commit(1)
        await asyncio.sleep(60)
        assert shard.is_unloaded
        assert shard.told == []
        assert world.runtime.metrics.waiting == 0

    lived(scenario)


def test_a_timer_whose_decision_takes_long_goes_off_again_only_when_it_failed() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False

        def decide(name: Hashable, now_ms: int) -> Outcome:
            return CoordinatorResult(None, (CoordinatorRecord(b"expired", b"1"),), event="expired")

        world.shard.on_expired = decide
        due = Schedule("sweep", world.loop.now_ms() + 50)
        await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), (due,)))
        await asyncio.sleep(60)
        assert world.shard.fired == ["sweep"]
        assert world.shard.told == []

    lived(scenario)


def test_a_reply_to_somebody_else_fails_in_time_though_the_event_waits() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        tickets: list[int] = []

        def join(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[Any]:
            tickets.append(ticket)
            return CoordinatorResult(LATER)

        joined = world.runtime.write(0, join)
        world.put(b"a", event="a", effects=(DeferredReply(tickets[0], "late"),)).add_done_callback(
            lambda one: one.exception()
        )
        assert await world.error_of(joined) is ErrorCode.coordinator_not_available
        world.log.commit(1)
        await asyncio.sleep(1)
        assert world.shard.told == [("a", None)]

    lived(scenario)


def test_records_that_a_load_finds_above_the_mark_are_settled_when_the_mark_has_passed_them() -> None:
    """A coordinator acts on a decision of its predecessor when that is committed, not when it is read: an
    election may still take it back (invariant X2), and none can from then on (X3)."""

    async def scenario(world: World) -> None:
        world.log.moves_at_once = False
        for n in range(3):
            world.log.append(build_batch([(1, b"prepare%d" % n, b"v")]), 0)
        world.log.commit(1)
        world.first_effects = (Schedule("undecided", 0),)
        world.on_expired = lambda name, now: CoordinatorResult(None, event="all of it")
        await world.lead()
        await asyncio.sleep(60)
        assert world.shard.fired == ["undecided"]
        world.log.commit(2)
        await asyncio.sleep(60)
        assert world.shard.told == []
        world.log.commit(3)
        await asyncio.sleep(0.1)
        assert world.shard.told == [("all of it", None)]

    lived(scenario)


def test_records_that_a_load_finds_committed_are_settled_at_once() -> None:
    async def scenario(world: World) -> None:
        world.log.append(build_batch([(1, b"prepare", b"v")]), 0)
        world.first_effects = (Schedule("undecided", 0),)
        world.on_expired = lambda name, now: CoordinatorResult(None, event="all of it")
        await world.lead()
        await asyncio.sleep(0.1)
        assert world.shard.told == [("all of it", None)]

    lived(scenario)


def test_many_late_decisions_are_settled_over_many_turns_in_the_order_of_the_log() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        for n in range(1000):
            world.put(b"%d" % n, event=n).add_done_callback(lambda one: one.exception())
        await asyncio.sleep(10)
        world.log.commit(world.log.end_offset)
        told = world.shard.told
        steps = [0]
        while len(told) < 1000:
            await asyncio.sleep(0)
            steps.append(len(told))
        assert max(later - before for before, later in pairwise(steps)) <= 128
        assert told == [(n, None) for n in range(1000)]

    lived(scenario)


def test_a_read_that_fails_in_the_middle_of_a_load_fails_the_shard() -> None:
    """What was read before is not served as if it were all."""

    async def scenario(world: World) -> None:
        for n in range(50):
            world.log.append(build_batch([(1, b"k%d" % n, b"v")]), 0)
        world.settings = RuntimeSettings(load_buffer_bytes=100)
        read, reads = world.log.read, 0

        async def failing(offset: int, max_bytes: int) -> Any:
            nonlocal reads
            reads += 1
            if reads == 20:
                raise StorageError("a bad sector")
            return await read(offset, max_bytes)

        world.log.read = failing  # type: ignore[method-assign]
        await world.lead()
        assert 10 < len(world.shard.values) < 50
        assert world.runtime.states()[CoordinatorState.FAILED] == 1
        assert world.runtime.shards() == ()
        assert world.read_error() is ErrorCode.not_coordinator
        await world.lead()
        assert world.runtime.states()[CoordinatorState.ACTIVE] == 1
        assert len(world.shard.values) == 50

    lived(scenario)


def test_a_shard_knows_the_leader_epoch_it_was_elected_in() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.leader_epoch = 5
        await world.lead()
        assert [shard.leader_epoch for shard in world.shards] == [0, 5]

    lived(scenario)


def test_an_error_that_a_decision_raises_is_no_outcome_of_a_write() -> None:
    async def scenario(world: World) -> None:
        await world.lead()

        def refuse(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            raise RequestError(ErrorCode.producer_fenced)

        asked: asyncio.Future[str] = world.runtime.write(0, refuse)
        assert await world.error_of(asked) is ErrorCode.producer_fenced
        assert world.shard.told == []

    lived(scenario)
