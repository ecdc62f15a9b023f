"""The runtime's states, timers, long work and batches, on a log in memory and under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.steps import Steps
from service.coordinator.environment import RuntimeSettings
from service.coordinator.loading import load
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.runtime import CoordinatorState
from service.coordinator.shard import (
    LATER,
    BackgroundWork,
    Cancel,
    CoordinatorRecord,
    CoordinatorResult,
    DeferredReply,
    Effect,
    Outcome,
    Producer,
    Schedule,
)
from service.records.batch import CompressionType, iter_headers
from service.records.builder import BatchBuilder
from tests.support.built_batches import build_batch
from tests.support.coordinators import DictShard
from tests.support.runtime_world import World, lived


def test_decisions_of_one_turn_are_one_batch() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        assert await asyncio.gather(*[world.put(b"a%d" % n) for n in range(20)]) == ["ok"] * 20
        assert len(world.log.batches) == 1
        world.settings = RuntimeSettings(linger_ms=0)
        await asyncio.gather(*[world.put(b"b%d" % n) for n in range(3)])
        assert len(world.log.batches) == 4
        world.settings = RuntimeSettings(linger_ms=50, codec=CompressionType.LZ4)
        first = world.put(b"c")
        await asyncio.sleep(0.03)
        second = world.put(b"d")
        assert not first.done()
        await asyncio.sleep(0.03)
        assert first.done()
        assert second.done()
        assert [header.codec for header in iter_headers(world.log.batches[-1])] == [CompressionType.LZ4]
        assert len(world.log.batches) == 5

    lived(scenario)


def test_a_decision_is_never_cut_and_one_that_is_too_large_fails_alone() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        keys = [b"%d" % n + bytes(1500) for n in range(4)]
        small, pair, large = world.put(b"s"), world.put(*keys[:2]), world.put(*keys)
        other = world.put(*keys[2:])
        assert await world.error_of(large) is ErrorCode.unknown_server_error
        assert await asyncio.gather(small, pair, other) == ["ok"] * 3
        assert [next(iter_headers(one)).record_count for one in world.log.batches] == [3, 2]
        await world.put(*keys, divisible=True)
        assert [next(iter_headers(one)).record_count for one in world.log.batches] == [3, 2, 2, 2]

    lived(scenario)


def test_a_failed_append_reverts_everything_that_was_in_the_batch() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        await world.put(b"a")
        world.log.fails_with = StorageError("disk full")
        writes = [world.put(b"b", event="b"), world.put(b"c")]
        look = world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(len(shard.values)))
        asks: tuple[asyncio.Future[Any], ...] = (*writes, look)
        for asked in asks:
            assert await world.error_of(asked) is ErrorCode.not_coordinator
        await asyncio.sleep(0)
        assert dict(world.shard.values.items()) == {b"a": b"value"}
        assert world.shard.told == [("b", ErrorCode.not_coordinator)]
        world.log.fails_with = None
        await world.put(b"d", event="d")
        await asyncio.sleep(0)
        assert world.shard.told[-1] == ("d", None)

    lived(scenario)


def test_a_write_that_is_not_committed_in_time_fails_and_stays() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        began = world.loop.time()
        asked = world.put(b"a", event="a")
        assert await world.error_of(asked) is ErrorCode.coordinator_not_available
        assert 5 <= world.loop.time() - began < 5.1
        assert dict(world.shard.values.committed_items()) == {}
        world.log.commit(1)
        await asyncio.sleep(0)
        assert dict(world.shard.values.committed_items()) == {b"a": b"value"}
        assert world.shard.told == [("a", None)]

    lived(scenario)


def test_reads_see_what_is_committed_and_looks_wait_for_what_they_saw() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        world.put(b"a")
        look = world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(len(shard.values)))
        await asyncio.sleep(0.1)
        assert world.runtime.read(0, lambda shard, now: dict(shard.values.committed_items())) == {}
        assert not look.done()
        world.log.commit(1)
        assert await look == 1
        assert world.runtime.read(0, lambda shard, now: len(dict(shard.values.committed_items()))) == 1

    lived(scenario)


def test_states_from_election_to_resignation() -> None:
    async def scenario(world: World) -> None:
        assert world.read_error() is ErrorCode.not_coordinator
        world.log.append(build_batch([(1, b"a", b"1"), (1, b"b", b"2"), (2, b"a", None)]), 0)
        world.runtime.elected(0, 0)
        assert world.read_error() is ErrorCode.coordinator_load_in_progress
        assert await world.error_of(world.put(b"x")) is ErrorCode.coordinator_load_in_progress
        await world.loaded()
        assert dict(world.shard.values.items()) == {b"b": b"2"}
        world.runtime.elected(0, 0)
        assert world.runtime.states()[CoordinatorState.ACTIVE] == 1
        waits: asyncio.Future[Any] = world.runtime.write(
            0, lambda shard, ticket, now: CoordinatorResult(LATER)
        )
        world.runtime.resigned(0, 1)
        assert await world.error_of(waits) is ErrorCode.not_coordinator
        assert world.shard.is_unloaded
        assert world.read_error() is ErrorCode.not_coordinator
        world.log.leader_epoch = 2
        world.runtime.elected(0, 2)
        world.runtime.resigned(0, 1)
        await world.loaded()
        assert await world.put(b"c") == "ok"

    lived(scenario)


def test_a_second_election_while_loading_starts_over() -> None:
    async def scenario(world: World) -> None:
        for n in range(50):
            world.log.append(build_batch([(1, b"k%d" % n, b"v")]), 0)
        world.settings = RuntimeSettings(load_buffer_bytes=100)
        world.runtime.elected(0, 0)
        await asyncio.sleep(0.2)
        world.log.leader_epoch = 1
        world.runtime.elected(0, 1)
        await world.loaded()
        assert len(world.shards) == 2
        assert len(world.shard.values) == 50
        assert await world.put(b"x") == "ok"

    lived(scenario)


def test_the_mark_may_lag_behind_what_is_loaded() -> None:
    async def scenario(world: World) -> None:
        world.log.moves_at_once = False
        for n in range(10):
            world.log.append(build_batch([(1, b"k%d" % n, b"v")]), 0)
        world.log.commit(4)
        await world.lead()
        assert world.read_error() is ErrorCode.coordinator_load_in_progress  # else it would be 4 of them
        look = world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(len(shard.values)))
        await asyncio.sleep(0.1)
        assert not look.done()
        world.log.commit(10)
        assert await look == 10
        assert world.runtime.read(0, lambda shard, now: len(dict(shard.values.committed_items()))) == 10

    lived(scenario)


@pytest.mark.parametrize("damage", ["record", "checksum", "bug", "offline"])
def test_a_log_that_cannot_be_read_leaves_the_shard_failed(damage: str) -> None:
    async def scenario(world: World) -> None:
        key = {"record": b"damaged", "bug": b"bug"}.get(damage, b"a")
        world.log.append(build_batch([(1, key, b"1")]), 0)
        if damage == "checksum":
            world.log.batches[0][-1] ^= 1
        if damage == "offline":
            world.logs.missing.add(0)
        await world.lead()
        assert world.runtime.states()[CoordinatorState.FAILED] == 1
        assert world.read_error() is ErrorCode.not_coordinator
        assert await world.error_of(world.put(b"x")) is ErrorCode.not_coordinator
        world.log.batches[0][:] = build_batch([(1, b"a", b"1")])
        world.logs.missing.clear()
        await world.lead()
        assert await world.put(b"x") == "ok"

    lived(scenario)


def test_foreign_records_in_the_log_cause_a_reload() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        await world.put(b"a")
        world.log.append(build_batch([(1, b"foreign", b"1")]), 0)
        assert await world.error_of(world.put(b"b")) is ErrorCode.not_coordinator
        await world.loaded()
        assert list(world.shard.values) == [b"a", b"foreign", b"b"]

    lived(scenario)


def test_timers_are_replaced_by_name_and_go_with_the_shard() -> None:
    async def scenario(world: World) -> None:
        world.first_effects = (Schedule("first", world.loop.now_ms() + 1000),)
        await world.lead()
        now = world.loop.now_ms()

        def decide(*effects: Effect) -> asyncio.Future[None]:
            return world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), effects))

        await decide(Schedule("a", now + 50), Schedule("b", now + 60), Schedule("c", now + 70))
        await decide(Schedule("a", now + 90), Cancel("b"))
        await asyncio.sleep(0.2)
        assert world.shard.fired == ["c", "a"]
        await decide(Schedule("a", now - 5))
        await asyncio.sleep(1)
        assert world.shard.fired == ["c", "a", "a", "first"]
        await decide(Schedule("d", world.loop.now_ms() + 50))
        shard = world.shard
        world.runtime.resigned(0)
        await asyncio.sleep(1)
        assert "d" not in shard.fired

    lived(scenario)


def test_an_expiry_that_fails_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        times: list[int] = []

        def expire(name: Hashable, now_ms: int) -> Outcome:
            times.append(now_ms)
            return CoordinatorResult(None, (CoordinatorRecord(b"expired", b"1"),))

        world.shard.on_expired = expire
        world.log.fails_with = StorageError("disk full")
        due = Schedule("a", world.loop.now_ms() + 50)
        await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), (due,)))
        await asyncio.sleep(1.2)
        world.log.fails_with = None
        await asyncio.sleep(2)
        assert len(times) == 4
        assert all(490 <= later - before <= 510 for before, later in pairwise(times))
        assert b"expired" in world.shard.values

    lived(scenario)


def test_many_timers_of_one_moment_are_spread_over_turns() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        due = tuple(Schedule(n, world.loop.now_ms() + 50) for n in range(1000))
        await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), due))
        turns: list[int] = []

        def count() -> None:
            turns.append(len(world.shard.fired))
            if len(world.shard.fired) < 1000:
                world.loop.call_soon(count)

        def fired(name: Hashable, now_ms: int) -> Outcome:
            if not turns:
                count()
            return CoordinatorResult(None)

        world.shard.on_expired = fired
        await asyncio.sleep(1)
        assert max(later - before for before, later in pairwise(turns)) <= 64
        assert world.shard.fired == list(range(1000))

    lived(scenario)


def test_long_work_is_stepped_and_replaced_by_name() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        steps: list[str] = []

        def work(name: str, count: int) -> Steps[object]:
            for _ in range(count):
                yield
                steps.append(name)
            return name

        async def start(name: str, count: int) -> None:
            effect = BackgroundWork("assign", work(name, count))
            await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), (effect,)))

        await start("old", 10_000)  # 200 in a turn, as the clock stands still
        for _ in range(5):
            await asyncio.sleep(0)
        assert 0 < len(steps) < 3000
        await start("new", 3)
        await asyncio.sleep(1)
        assert steps.count("old") < 3000
        assert world.shard.worked_on == [("assign", "new")]

    lived(scenario)


@pytest.mark.parametrize("where", ["steps", "decision"])
def test_long_work_that_fails_has_its_timer_go_off_later(where: str) -> None:
    async def scenario(world: World) -> None:
        await world.lead()

        def work() -> Steps[object]:
            yield
            if where == "steps":
                raise ValueError("a defect")
            return "result"

        def worked(name: Hashable, result: object, now_ms: int) -> Outcome:
            raise ValueError("a defect")

        world.shard.worked = worked  # type: ignore[method-assign]
        effect = BackgroundWork("assign", work())
        await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), (effect,)))
        await asyncio.sleep(1)
        assert world.shard.fired == ["assign"]

    lived(scenario)


def test_many_small_works_share_the_slice_of_a_turn() -> None:
    async def scenario(world: World) -> None:
        await world.lead()

        def work(n: int) -> Steps[object]:
            yield
            return n

        effects = tuple(BackgroundWork(n, work(n)) for n in range(1000))
        await world.runtime.write(0, lambda shard, ticket, now: CoordinatorResult(None, (), effects))
        done, turns = world.shard.worked_on, [0]
        while len(done) < 1000:
            await asyncio.sleep(0)
            turns.append(len(done))
        assert max(later - before for before, later in pairwise(turns)) <= 200

    lived(scenario)


def test_timers_after_a_load_are_set_over_many_turns_and_go_off_once_it_is_over() -> None:
    async def scenario(world: World) -> None:
        world.first_effects = tuple(Schedule(n, 0) for n in range(5000))
        world.runtime.elected(0, 0)
        turns = 0
        while world.runtime.states()[CoordinatorState.LOADING]:
            turns += 1
            assert not world.shards or not world.shard.fired
            await asyncio.sleep(0)
        assert turns > 20
        await asyncio.sleep(10)
        assert sorted(map(str, world.shard.fired)) == sorted(map(str, range(5000)))
        world.first_effects = tuple(Schedule(n, 0) for n in range(5000))
        world.log.leader_epoch = 1
        world.runtime.elected(0, 1)
        while len(world.shards) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.runtime.resigned(0)
        await asyncio.sleep(10)
        assert world.shard.is_unloaded
        assert not world.shard.fired
        assert world.log.listener is None

    lived(scenario)


def test_replies_come_with_the_commit_of_the_decision_that_gives_them() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        tickets: list[int] = []

        def join(shard: DictShard, ticket: int, now_ms: int) -> CoordinatorResult[str]:
            tickets.append(ticket)
            return CoordinatorResult(LATER)

        joined = [world.runtime.write(0, join) for _ in range(3)]
        replies = tuple(DeferredReply(ticket, f"member {ticket}") for ticket in tickets)
        refusal = DeferredReply(tickets[2], RequestError(ErrorCode.group_max_size_reached))
        done = world.put(b"generation", effects=(*replies[:2], refusal, DeferredReply(tickets[0], "again")))
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in joined)
        world.log.commit(1)
        assert await asyncio.gather(done, *joined[:2]) == ["ok", "member 1", "member 2"]
        assert await world.error_of(joined[2]) is ErrorCode.group_max_size_reached

    lived(scenario)


def test_topics_that_changed_while_loading_are_told_afterwards() -> None:
    async def scenario(world: World) -> None:
        world.log.append(build_batch([(1, b"a", b"1")]), 0)
        world.runtime.elected(0, 0)
        world.runtime.topics_changed(("t",), ())
        world.runtime.topics_changed(("t", "u"), (UUID(int=1),))
        await world.loaded()
        await asyncio.sleep(0)
        assert world.shard.topics == [(("t", "u"), (UUID(int=1),))]

    lived(scenario)


def test_a_transactional_write_goes_alone_and_markers_are_replayed() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        writes = [world.put(b"a"), world.put(b"t", producer=Producer(7, 1)), world.put(b"b")]
        await asyncio.gather(*writes)
        headers = [next(iter_headers(one)) for one in world.log.batches]
        assert [(one.is_transactional, one.producer_id, one.producer_epoch) for one in headers] == [
            (False, -1, -1),
            (True, 7, 1),
            (False, -1, -1),
        ]
        marker = BatchBuilder(producer_id=7, producer_epoch=1, is_transactional=True, is_control=True)
        marker.add(1, b"\0\0\0\1", b"\0\0\0\0\0\5")
        world.runtime.resigned(0)
        world.log.append(marker.build(), 0)
        await world.lead()
        assert world.shard.markers == [(7, 1, True)]
        assert len(world.shard.values) == 3

    lived(scenario)


def test_a_timer_that_is_put_off_goes_off_once_and_then() -> None:
    async def scenario(world: World) -> None:
        await world.lead()

        def schedule(after_ms: int) -> None:
            world.runtime.write(
                0,
                lambda shard, ticket, now: CoordinatorResult(
                    "ok", (), (Schedule("session", now + after_ms),)
                ),
            )

        for _ in range(10):
            schedule(300)
            await asyncio.sleep(0.2)
        assert world.shard.fired == []
        await asyncio.sleep(0.08)
        assert world.shard.fired == []
        await asyncio.sleep(0.1)
        assert world.shard.fired == ["session"]
        schedule(10_000)
        schedule(100)
        await asyncio.sleep(0.2)
        assert world.shard.fired == ["session"] * 2
        await asyncio.sleep(20)
        assert world.shard.fired == ["session"] * 2

    lived(scenario)


def test_slices_of_a_load_end_by_the_clock() -> None:
    """However few records that are."""

    async def scenario(world: World) -> None:
        clock_s, turn_s = 0.0, 0.0
        slices: list[float] = []

        class Slow(DictShard):
            def replay(self, *about: Any) -> None:
                nonlocal clock_s, turn_s
                super().replay(*about)
                clock_s += 0.0015
                turn_s += 0.0015

        def is_wanted() -> bool:
            """Asked at the begin of each slice."""
            nonlocal turn_s
            slices.append(turn_s)
            turn_s = 0.0
            return True

        for first in range(0, 60, 20):
            world.log.append(build_batch([(1, b"k%d" % (first + n), b"v") for n in range(20)]), 0)
        shard, loop = Slow(), asyncio.get_running_loop()
        time = loop.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "time", lambda: time() + clock_s)
            assert await load(shard, world.log, 1 << 20, is_wanted, RuntimeMetrics())
        assert len(shard.values) == 60
        assert sum(slices) + turn_s == pytest.approx(0.09)
        assert max(slices) <= 0.0031

    lived(scenario)
