"""Shards of one coordinator on this node: election, load, requests, resignation (Kafka `CoordinatorRuntime`).

Owned by the event loop. A partition has a shard from its election until another node leads it. Leadership
comes from the committed metadata, acknowledgement from the high watermark; nothing here assumes a single
node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, InvariantError, RequestError, StorageError
from service.base.slices import Slice
from service.base.timers import Timers
from service.coordinator.answers import refuse
from service.coordinator.context import ShardContext
from service.coordinator.environment import RuntimeSettings, ShardEnvironment
from service.coordinator.loading import load
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLogs
from service.coordinator.shard import BackgroundWork, Decide, Query, Shard
from service.hot.markers import Marker

_log = logging.getLogger(__name__)
S = TypeVar("S", bound=Shard)
R = TypeVar("R")

_LOADS_AT_ONCE: Final = 1
"""Each load holds a block of its log in memory and the GIL: two would not be done sooner."""


class CoordinatorState(Enum):
    """State of a partition's shard."""

    INITIAL = "initial"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


MOVES: Final[Mapping[CoordinatorState, frozenset[CoordinatorState]]] = {
    CoordinatorState.INITIAL: frozenset({CoordinatorState.LOADING, CoordinatorState.CLOSED}),
    CoordinatorState.LOADING: frozenset(
        {CoordinatorState.ACTIVE, CoordinatorState.FAILED, CoordinatorState.CLOSED}
    ),
    CoordinatorState.ACTIVE: frozenset({CoordinatorState.LOADING, CoordinatorState.CLOSED}),
    CoordinatorState.FAILED: frozenset({CoordinatorState.LOADING, CoordinatorState.CLOSED}),
    CoordinatorState.CLOSED: frozenset(),
}


class _Led(Generic[S]):
    """Partition that this node leads in `leader_epoch`."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = CoordinatorState.INITIAL
        self.context: ShardContext[S] | None = None
        self.loading: asyncio.Task[None] | None = None
        self.changed: dict[str, None] = {}
        """topics that changed during the load"""
        self.deleted: list[UUID] = []

    def move(self, state: CoordinatorState) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"partition {self.partition} of a coordinator: {self.state} to {state}")
        self.state = state


class Runtime(Generic[S]):
    """All shards of one coordinator on this node."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int, int], S],
        logs: PartitionLogs,
        clock: Clock,
        timers: Timers,
        settings: Callable[[], RuntimeSettings],
        metrics: RuntimeMetrics | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`make_shard` gets the partition and its leader epoch. `prepare` is awaited before a shard is made:
        it may import the shard's code."""
        self.topic = topic
        self.metrics = metrics or RuntimeMetrics()
        self._make_shard = make_shard
        self._prepare = prepare
        self._logs = logs
        self._clock = clock
        self._settings = settings
        self._env = ShardEnvironment(
            clock.now_ms, clock.monotonic_ms, timers, settings, self.metrics, self._enqueue
        )
        self._loop = asyncio.get_running_loop()
        self._led: dict[int, _Led[S]] = {}
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._work: deque[tuple[ShardContext[Any], Hashable, BackgroundWork]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._is_closed = False

    # -- requests

    def write(self, partition: int, decide: Decide[S, R]) -> asyncio.Future[R]:
        """Decide, and return a future of the response, which is set when the decision is committed.

        The future raises `RequestError`: that of `decide`, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or
        the write's error as `errors` translates it.
        """
        future: asyncio.Future[R] = self._loop.create_future()
        try:
            context = self._active(partition)
        except RequestError as e:
            refuse(future, e)
        else:
            context.submit(decide, future)
        return future

    def write_marker(self, partition: int, marker: Marker) -> asyncio.Future[None]:
        """Append the end of a transaction (Kafka ``completeTransaction``); the future raises as that of
        `write`, and INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED."""
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            context = self._active(partition)
        except RequestError as e:
            refuse(future, e)
        else:
            context.write_marker(marker, future)
        return future

    def active(self, partition: int) -> ShardContext[S] | None:
        """Return the context that takes blocks now (`ShardContext.write_block`); None if the caller has to
        use `write`, which raises the reason."""
        led = self._led.get(partition)
        return None if led is None else led.context

    def read(self, partition: int, query: Query[S, R]) -> R:
        """Return what `query` reads of the committed state. Raises `RequestError` as `write` does, and what
        `query` raises."""
        context = self._active(partition)
        # A new leader learns late how far its log is committed: what it would read until then is from before
        # commits that an earlier leader has acknowledged.
        if context.shard.journal.committed_offset < context.loaded_end:
            raise RequestError(
                ErrorCode.coordinator_load_in_progress,
                f"{self.topic}-{partition} does not know yet what is committed of its log",
            )
        return query(context.shard, self._clock.now_ms())

    def partitions(self) -> tuple[int, ...]:
        """Return the partitions that this node leads, in any state."""
        return tuple(self._led)

    @property
    def is_loading(self) -> bool:
        """Some shard's log is being read."""
        return any(led.loading is not None for led in self._led.values())

    def states(self) -> dict[CoordinatorState, int]:
        """Return the number of partitions in each state."""
        counts = dict.fromkeys(CoordinatorState, 0)
        for led in self._led.values():
            counts[led.state] += 1
        return counts

    def shards(self) -> tuple[S, ...]:
        """Return the active shards."""
        return tuple(led.context.shard for led in self._led.values() if led.context is not None)

    def _active(self, partition: int) -> ShardContext[S]:
        led = self._led.get(partition)
        if led is not None:
            if led.context is not None:
                return led.context
            if led.state in (CoordinatorState.INITIAL, CoordinatorState.LOADING):
                raise RequestError(
                    ErrorCode.coordinator_load_in_progress, f"{self.topic}-{partition} is loading"
                )
        raise RequestError(ErrorCode.not_coordinator, f"this node does not lead {self.topic}-{partition}")

    # -- leadership

    def elected(self, partition: int, leader_epoch: int, *, has_log: bool = True) -> None:
        """Begin to load the partition, which this node leads now; an earlier leadership of it ends. An epoch
        that is not newer changes nothing, except that a failed load begins again, and one that has waited
        for its log. Without `has_log` it waits: requests get COORDINATOR_LOAD_IN_PROGRESS."""
        led = self._led.get(partition)
        if self._is_closed or (led is not None and leader_epoch < led.leader_epoch):
            return
        if led is not None and leader_epoch == led.leader_epoch:
            if led.state is CoordinatorState.INITIAL and has_log:
                self._load(led)
            if led.state is not CoordinatorState.FAILED:
                return
        if led is not None:
            self._close(led)
        led = self._led[partition] = _Led(partition, leader_epoch)
        if has_log:
            self._load(led)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Drop the partition: another node leads it, in `leader_epoch`; or it has no leader, or no replica
        here."""
        led = self._led.get(partition)
        if led is None or (leader_epoch is not None and leader_epoch < led.leader_epoch):
            return
        del self._led[partition]
        self._close(led)

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...]) -> None:
        """Pass topic changes to all shards: created, grown or deleted topics by name, and `deleted` ids."""
        for led in self._led.values():
            if led.context is not None:
                _schedule_topics_changed(led.context, self._clock, names, deleted)
            else:
                led.changed.update(dict.fromkeys(names))
                led.deleted += deleted

    async def close(self) -> None:
        """Drop all shards, and wait for their tasks."""
        self._is_closed = True
        tasks = [led.loading for led in self._led.values() if led.loading is not None]
        for partition in tuple(self._led):
            self.resigned(partition)
        if self._worker is not None:
            self._worker.cancel()
            tasks.append(self._worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, led: _Led[S]) -> None:
        led.move(CoordinatorState.CLOSED)
        if led.loading is not None:
            led.loading.cancel()
        if led.context is not None:
            context, led.context = led.context, None
            context.close()

    # -- loading

    def _load(self, led: _Led[S]) -> None:
        led.move(CoordinatorState.LOADING)
        led.loading = self._loop.create_task(
            self._load_in_turn(led), name=f"load-{self.topic}-{led.partition}"
        )

    async def _load_in_turn(self, led: _Led[S]) -> None:
        name = f"{self.topic}-{led.partition}"
        try:
            async with self._loads:
                began_ms = self._clock.monotonic_ms()
                if self._prepare is not None:
                    await self._prepare()
                log = self._logs.find(led.partition)
                shard = self._make_shard(led.partition, led.leader_epoch)
                if not await load(
                    shard,
                    log,
                    self._settings().load_buffer_bytes,
                    lambda: led.state is CoordinatorState.LOADING,
                    self.metrics,
                ):
                    return
                context = ShardContext(
                    name, shard, log, led.leader_epoch, self._env, lambda: self._reload(led)
                )
                try:
                    await context.begin()
                except BaseException:
                    context.close()
                    raise
        except (CorruptionError, StorageError, RequestError) as e:
            _log.error("loading %s failed, this node does not coordinate with it: %s", name, e)
            led.loading = None
            led.move(CoordinatorState.FAILED)
            return
        except Exception:
            _log.exception("loading %s failed, this node does not coordinate with it", name)
            led.loading = None
            led.move(CoordinatorState.FAILED)
            return
        self.metrics.load.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        led.loading = None
        led.move(CoordinatorState.ACTIVE)
        led.context = context
        if led.changed or led.deleted:
            _schedule_topics_changed(context, self._clock, tuple(led.changed), tuple(led.deleted))
            led.changed, led.deleted = {}, []

    def _reload(self, led: _Led[S]) -> None:
        """Load the shard again: the log's offsets differ from the shard's."""
        context, led.context = led.context, None
        if context is not None:
            context.close()
        self._load(led)

    # -- long work

    def _enqueue(self, context: ShardContext[Any], name: Hashable, work: BackgroundWork) -> None:
        """Queue long work. All shards share one worker, so that together they take one slice of a turn."""
        self._work.append((context, name, work))
        if self._worker is None or self._worker.done():
            self._worker = self._loop.create_task(self._run_work(), name=f"work-{self.topic}")

    async def _run_work(self) -> None:
        piece = Slice()
        while self._work:
            context, name, work = self._work.popleft()
            if not context.is_wanted(name, work):
                continue
            try:
                result = await _run_steps(context, name, work, piece)
            except InvariantError:
                raise
            except Exception:
                _log.exception("background work of %s failed, retrying later", context.name)
                context.work_failed(name, work)
                continue
            if piece.is_over():
                await piece.next_turn()
            context.worked(name, work, result)


async def _run_steps(
    context: ShardContext[Any], name: Hashable, work: BackgroundWork, piece: Slice
) -> object:
    """Run the steps and return their result; None if the work is no longer wanted."""
    steps = work.steps
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return e.value
        if piece.is_over():
            await piece.next_turn()
            if not context.is_wanted(name, work):
                steps.close()
                return None


def _schedule_topics_changed(
    context: ShardContext[Any], clock: Clock, names: tuple[str, ...], deleted: tuple[UUID, ...]
) -> None:
    context.later(lambda: context.shard.topics_changed(names, deleted, clock.now_ms()))
