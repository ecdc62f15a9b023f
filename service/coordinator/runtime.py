"""The shards of one coordinator on this node: elected, loaded, asked, resigned (Kafka `CoordinatorRuntime`).

Owned by the event loop. A partition's shard is here from its election on and until its partition is led
elsewhere. What is told of leadership comes from the committed metadata; what is acknowledged, from the high
watermark; nothing here assumes that there is one node.
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
from service.coordinator.context import Context, RuntimeSettings, Surroundings
from service.coordinator.loading import load
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLogs
from service.coordinator.shard import Decide, Look, Shard, Work

_log = logging.getLogger(__name__)
S = TypeVar("S", bound=Shard)
R = TypeVar("R")

_LOADS_AT_ONCE: Final = 1
"""Each holds a block of its log in memory, and takes the interpreter: two would not be done sooner."""
_RESULT_US: Final = 1000
"""To decide about what long work has found, and to replay that."""


class State(Enum):
    """Of a partition's shard."""

    INITIAL = "initial"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.INITIAL: frozenset({State.LOADING, State.CLOSED}),
    State.LOADING: frozenset({State.ACTIVE, State.FAILED, State.CLOSED}),
    State.ACTIVE: frozenset({State.LOADING, State.CLOSED}),
    State.FAILED: frozenset({State.LOADING, State.CLOSED}),
    State.CLOSED: frozenset(),
}


class _Led(Generic[S]):
    """A partition that this node leads in `leader_epoch`."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = State.INITIAL
        self.context: Context[S] | None = None
        self.loading: asyncio.Task[None] | None = None
        self.changed: dict[str, None] = {}
        """topics that changed while it was loading"""
        self.deleted: list[UUID] = []

    def move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"partition {self.partition} of a coordinator: {self.state} to {state}")
        self.state = state


class Runtime(Generic[S]):
    """All shards of one coordinator on this node."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int], S],
        logs: PartitionLogs,
        clock: Clock,
        timers: Timers,
        settings: Callable[[], RuntimeSettings],
        metrics: RuntimeMetrics | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`prepare` is waited for before a shard is made: it may load the code of one."""
        self.topic = topic
        self.metrics = metrics or RuntimeMetrics()
        self._make_shard = make_shard
        self._prepare = prepare
        self._logs = logs
        self._clock = clock
        self._settings = settings
        self._around = Surroundings(
            clock.now_ms, clock.monotonic_ms, timers, settings, self.metrics, self._enqueue
        )
        self._loop = asyncio.get_running_loop()
        self._led: dict[int, _Led[S]] = {}
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._work: deque[tuple[Context[Any], Hashable, Work]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._is_closed = False

    # -- requests

    def write(self, partition: int, decide: Decide[S, R]) -> asyncio.Future[R]:
        """What comes of ``decide(shard, ticket, now_ms)``, once that is committed.

        The future raises `RequestError`: what `decide` raised, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        or what became of the write in the words of `errors`.
        """
        asked: asyncio.Future[R] = self._loop.create_future()
        try:
            context = self._active(partition)
        except RequestError as e:
            asked.set_exception(e)
        else:
            context.ask(decide, asked)
        return asked

    def active(self, partition: int) -> Context[S] | None:
        """Where blocks are written (`Context.write_block`), for now; None where `write` would have to say why
        it cannot.
        """
        led = self._led.get(partition)
        return None if led is None else led.context

    def read(self, partition: int, look: Look[S, R]) -> R:
        """What `look` finds in the committed state. `RequestError` as in `write`, and what `look` raises."""
        return look(self._active(partition).shard, self._clock.now_ms())

    def partitions(self) -> tuple[int, ...]:
        """Those that are led here, whatever their state."""
        return tuple(self._led)

    @property
    def is_loading(self) -> bool:
        """Whether any shard's log is being read."""
        return any(led.loading is not None for led in self._led.values())

    def states(self) -> dict[State, int]:
        """How many partitions are in each state."""
        counts = dict.fromkeys(State, 0)
        for led in self._led.values():
            counts[led.state] += 1
        return counts

    def shards(self) -> tuple[S, ...]:
        """Those that are active."""
        return tuple(led.context.shard for led in self._led.values() if led.context is not None)

    def _active(self, partition: int) -> Context[S]:
        led = self._led.get(partition)
        if led is not None:
            if led.context is not None:
                return led.context
            if led.state in (State.INITIAL, State.LOADING):
                raise RequestError(
                    ErrorCode.coordinator_load_in_progress, f"{self.topic}-{partition} is being read"
                )
        raise RequestError(ErrorCode.not_coordinator, f"{self.topic}-{partition} is not led here")

    # -- leadership

    def elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads it. An epoch that is not newer changes nothing, but after a failed load."""
        led = self._led.get(partition)
        if self._is_closed or (
            led is not None
            and leader_epoch <= led.leader_epoch
            and not (led.state is State.FAILED and leader_epoch == led.leader_epoch)
        ):
            return
        if led is not None:
            self._close(led)
        led = self._led[partition] = _Led(partition, leader_epoch)
        self._load(led)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Another node leads the partition, in `leader_epoch`; or nobody does, and it is gone from here."""
        led = self._led.get(partition)
        if led is None or (leader_epoch is not None and leader_epoch < led.leader_epoch):
            return
        del self._led[partition]
        self._close(led)

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...]) -> None:
        """Topics of these names were made, grew or went; `deleted`: ids that are gone for good."""
        for led in self._led.values():
            if led.context is not None:
                _tell_topics(led.context, self._clock, names, deleted)
            else:
                led.changed.update(dict.fromkeys(names))
                led.deleted += deleted

    async def close(self) -> None:
        """No shard is here any more."""
        self._is_closed = True
        tasks = [led.loading for led in self._led.values() if led.loading is not None]
        for partition in tuple(self._led):
            self.resigned(partition)
        if self._worker is not None:
            self._worker.cancel()
            tasks.append(self._worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, led: _Led[S]) -> None:
        led.move(State.CLOSED)
        if led.loading is not None:
            led.loading.cancel()
        if led.context is not None:
            context, led.context = led.context, None
            context.close()

    # -- loading

    def _load(self, led: _Led[S]) -> None:
        led.move(State.LOADING)
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
                shard = self._make_shard(led.partition)
                if not await load(
                    shard,
                    log,
                    self._settings().load_buffer_bytes,
                    lambda: led.state is State.LOADING,
                    self.metrics,
                    self._loop.time,
                ):
                    return
                context = Context(name, shard, log, led.leader_epoch, self._around, lambda: self._reload(led))
                try:
                    await context.begin()
                except BaseException:
                    context.close()
                    raise
        except (CorruptionError, StorageError, RequestError) as e:
            _log.error("%s cannot be read, its groups have no coordinator: %s", name, e)
            led.loading = None
            led.move(State.FAILED)
            return
        except Exception:
            _log.exception("%s cannot be read, its groups have no coordinator", name)
            led.loading = None
            led.move(State.FAILED)
            return
        self.metrics.load.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        led.loading = None
        led.move(State.ACTIVE)
        led.context = context
        if led.changed or led.deleted:
            _tell_topics(context, self._clock, tuple(led.changed), tuple(led.deleted))
            led.changed, led.deleted = {}, []

    def _reload(self, led: _Led[S]) -> None:
        """The log is not what the shard thought."""
        context, led.context = led.context, None
        if context is not None:
            context.close()
        self._load(led)

    # -- long work

    def _enqueue(self, context: Context[Any], name: Hashable, work: Work) -> None:
        """One after the other, whosever they are: together they take a slice of a turn."""
        self._work.append((context, name, work))
        if self._worker is None or self._worker.done():
            self._worker = self._loop.create_task(self._do_work(), name=f"work-{self.topic}")

    async def _do_work(self) -> None:
        piece = Slice()
        while self._work:
            context, name, work = self._work.popleft()
            if not context.is_wanted(name, work):
                continue
            try:
                result = await _stepped(context, name, work, piece)
            except InvariantError:
                raise
            except Exception:
                _log.exception("long work of %s failed; it is begun again later", context.name)
                context.work_failed(name, work)
                continue
            if piece.charge(_RESULT_US):
                await piece.next_turn()
            context.worked(name, work, result)


async def _stepped(context: Context[Any], name: Hashable, work: Work, piece: Slice) -> object:
    """What the steps return; None where nobody waits for it any more."""
    steps = work.steps
    while True:
        try:
            work_us = next(steps)
        except StopIteration as e:
            return e.value
        if piece.charge(work_us):
            await piece.next_turn()
            if not context.is_wanted(name, work):
                steps.close()
                return None


def _tell_topics(
    context: Context[Any], clock: Clock, names: tuple[str, ...], deleted: tuple[UUID, ...]
) -> None:
    context.later(lambda: context.shard.topics_changed(names, deleted, clock.now_ms()))
