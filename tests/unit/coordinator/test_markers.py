"""Ends of transactions that are written into a coordinator's own log."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.coordinator.batching import size_of
from service.coordinator.environment import RuntimeSettings
from service.coordinator.shard import CoordinatorRecord, Producer
from service.hot.markers import Marker
from service.records.batch import iter_headers
from service.records.builder import encode_record
from tests.support.coordinators import DictShard
from tests.support.runtime_world import World, lived

COMMIT = Marker(7, 1, 3, True, 1)
ABORT = COMMIT._replace(is_commit=False)


class Block:
    """One record that is replayed when it is committed."""

    count = 1

    def __init__(self, shard: DictShard, record: CoordinatorRecord) -> None:
        self.shard = shard
        self.record = record
        self.size = size_of((record,))

    def encode(self, offset: int, delta: int, timestamp_delta: int) -> bytes:
        return encode_record(delta, timestamp_delta, *self.record)

    def replay(self, offset: int, is_committed: bool) -> None:
        self.shard.replay(offset, *self.record)


def test_a_marker_stands_behind_what_was_decided_and_is_answered_at_its_commit() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.moves_at_once = False
        before = [world.put(b"a"), world.put(b"t", producer=Producer(7, 1)), world.put(b"b")]
        ended = world.runtime.write_marker(0, COMMIT)
        after = world.put(b"c")
        await asyncio.sleep(0.1)
        assert [next(iter_headers(one)).is_control for one in world.log.batches] == [False] * 3 + [
            True,
            False,
        ]
        assert world.shard.markers == [(7, 1, True)]
        world.log.commit(3)
        await asyncio.gather(*before)
        await asyncio.sleep(0.1)
        assert not ended.done()
        world.log.commit(4)
        await ended
        assert not after.done()
        world.log.commit(5)
        assert await after == "ok"
        world.runtime.resigned(0)
        await world.lead()
        assert world.shard.markers == [(7, 1, True)]

    lived(scenario)


def test_records_that_nobody_has_seen_yet_are_seen_before_the_marker() -> None:
    """The later record wins, so what stands before the marker is replayed before it (invariant X10)."""

    async def scenario(world: World) -> None:
        await world.lead()
        context = world.runtime.active(0)
        assert context is not None
        world.log.moves_at_once = False
        done = [world.loop.create_future() for _ in range(2)]
        for n, sink in enumerate(done):
            block = Block(world.shard, CoordinatorRecord(b"quick%d" % n, b"1"))
            assert context.write_block(block, "ok", (), sink, context.now_ms())
        world.runtime.write_marker(0, ABORT)
        assert world.shard.seen_by_markers == [[b"quick0", b"quick1"]]
        world.log.commit(3)
        assert await asyncio.gather(*done) == ["ok", "ok"]

    lived(scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(ErrorCode.transaction_coordinator_fenced), ErrorCode.transaction_coordinator_fenced),
        (RequestError(ErrorCode.invalid_producer_epoch), ErrorCode.invalid_producer_epoch),
        (RequestError(ErrorCode.not_enough_replicas), ErrorCode.coordinator_not_available),
        (RequestError(ErrorCode.not_leader_or_follower), ErrorCode.not_coordinator),
        (StorageError("disk full"), ErrorCode.not_coordinator),
        (KeyError("a bug"), ErrorCode.unknown_server_error),
    ],
)
def test_a_marker_that_the_log_refuses_changes_nothing(error: Exception, code: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.fails_with = error
        assert await world.error_of(world.runtime.write_marker(0, COMMIT)) is code
        world.log.fails_with = None
        assert world.shard.markers == []
        assert await world.put(b"a") == "ok"
        await world.runtime.write_marker(0, COMMIT)
        assert world.shard.markers == [(7, 1, True)]

    lived(scenario)


def test_a_failed_flush_fails_the_marker_behind_it() -> None:
    async def scenario(world: World) -> None:
        world.settings = RuntimeSettings(linger_ms=1000)
        await world.lead()
        first = world.put(b"a")
        world.log.fails_with = StorageError("disk full")
        ended = world.runtime.write_marker(0, COMMIT)
        assert await world.error_of(ended) is ErrorCode.not_coordinator
        assert await world.error_of(first) is ErrorCode.not_coordinator
        assert world.shard.markers == []

    lived(scenario)


def test_a_marker_needs_an_active_shard_and_falls_with_it() -> None:
    async def scenario(world: World) -> None:
        assert await world.error_of(world.runtime.write_marker(0, COMMIT)) is ErrorCode.not_coordinator
        world.runtime.elected(0, 0)
        loading = world.runtime.write_marker(0, COMMIT)
        assert await world.error_of(loading) is ErrorCode.coordinator_load_in_progress
        await world.loaded()
        world.log.moves_at_once = False
        ended = world.runtime.write_marker(0, COMMIT)
        world.runtime.resigned(0)
        assert await world.error_of(ended) is ErrorCode.not_coordinator

    lived(scenario)


def test_a_marker_behind_foreign_records_reloads_the_shard() -> None:
    async def scenario(world: World) -> None:
        await world.lead()
        world.log.append_marker(ABORT, 0)
        assert await world.error_of(world.runtime.write_marker(0, COMMIT)) is ErrorCode.not_coordinator
        await world.loaded()
        assert world.shard.markers == [(7, 1, False), (7, 1, True)]

    lived(scenario)
