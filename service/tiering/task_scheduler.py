"""Scheduler of the partitions' tasks: assess those with news, run their tasks, back off after failures.

One asyncio task, woken by events: a segment was sealed, a partition was added or removed, its settings or its
entry changed, the transaction that held it back has ended, its time has come (`work_queue`). It assesses only
those partitions, a slice at a time, and starts an asyncio task for each task of a partition: at most
`copier_threads` at a time, the longest waiting first, failed ones after the others. HEAD comparisons have a
lane of their own, so they wait for no upload: appends wait for them after a start. A task that fails backs
off alone (`tasks`). When the store fails, the `Breaker` holds all tasks back, then lets one partition at a
time try. An error that is neither the store's nor the data's is a bug and ends `run`, and so the node. Owned
by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice
from service.base.world import World
from service.remote.catalog import CatalogEntry
from service.remote.stores.breaker import Breaker, BreakerSettings, is_failure
from service.tiering.archive_attempt import CommitRefused, Deposed, TieringContext
from service.tiering.offload_pool import Stalled
from service.tiering.partition_archiver import PartitionArchiver
from service.tiering.ports import TieredPartition
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.rewriting.report_check import RewriteReport
from service.tiering.tasks import Task, is_worth_a_line, lasts
from service.tiering.work_queue import WorkQueue

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

_HEAD_CHECKS: Final = 0
_TASKS: Final = 1


class TaskScheduler:
    """Archivers of the partitions that this node leads, and when each runs.

    `partitions` and `find` as in `TieringManager`. `task_ended` is called with None after a task that
    succeeded, and with the error where this node may not write, or not for this partition (`Deposed`);
    `all_compared` once, when every HEAD was compared before this node might write.
    """

    def __init__(
        self,
        context: TieringContext,
        world: World,
        partitions: Callable[[], Iterable[TieredPartition]],
        find: Callable[[UUID, int], TieredPartition | None],
        task_ended: Callable[[FirnError | None], None],
        all_compared: Callable[[], None],
    ) -> None:
        self._metrics = context.metrics
        self._context = context
        self._clock = world.clock
        self._random = world.random
        self._partitions = partitions
        self._find = find
        self._task_ended = task_ended
        self._all_compared = all_compared
        settings = context.settings
        self._free = [2 * settings.copier_threads, settings.copier_threads]
        """free slots in the lanes of HEAD comparisons and of all other tasks"""
        self._queue: WorkQueue[Key] = WorkQueue(len(self._free), world.clock.monotonic_ms())
        self._breaker = Breaker(
            BreakerSettings(
                first_pause_ms=settings.backoff_initial_ms,
                longest_pause_ms=settings.backoff_max_ms,
                jitter=settings.backoff_jitter,
            )
        )
        self._blocked_until_ms: int | None = None
        """when the breaker lets a partition try, where one waits for that"""
        self._archivers: dict[Key, PartitionArchiver] = {}
        self._busy: set[Key] = set()
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._unchecked: set[Key] = set()
        """partitions whose HEAD was not compared since the start, nor failed to be"""
        self._had_compared_all = False
        self._is_all_dirty = True
        """every partition is to be assessed: at the start, and when all may have changed"""
        self._wake = asyncio.Event()
        self._compared = asyncio.Event()

    def wake(self) -> None:
        """Have all partitions assessed: any of them may have changed."""
        self._is_all_dirty = True
        self._wake.set()

    def changed(self, topic_id: UUID, partition: int) -> None:
        """Have a partition assessed: it was added or removed, or has another leader, entry or settings.

        Work under way for a partition that this node does not lead any more ends before its next effect.
        """
        archiver = self._archivers.get((topic_id, partition))
        if archiver is not None and self._find(topic_id, partition) is not archiver.partition:
            archiver.depose()
        self._mark_dirty((topic_id, partition))

    def _mark_dirty(self, key: Key) -> None:
        self._queue.mark_dirty(key)
        self._wake.set()

    async def heads_compared(self) -> None:
        """Return once every HEAD was compared since the start, or its first comparison failed."""
        while not self.has_compared_all():
            self._compared.clear()
            await self._compared.wait()

    def has_compared_all(self) -> bool:
        """Return whether `heads_compared` would return at once."""
        return not self._is_all_dirty and not self._unchecked

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Work until cancelled."""
        while True:
            self._wake.clear()
            await self._pass(tasks)
            await self._pause()

    async def _pause(self) -> None:
        """Wait for an event, at most until a partition is due or the breaker lets one try."""
        now_ms = self._clock.monotonic_ms()
        due = [at for at in (self._queue.next_due_ms, self._blocked_until_ms) if at is not None]
        try:
            async with asyncio.timeout(max(0, min(due) - now_ms) / 1000 if due else None):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _pass(self, tasks: asyncio.TaskGroup) -> None:
        """Assess the partitions that are dirty or due, a slice at a time, and start the tasks that are
        ready."""
        piece = Slice()
        if self._is_all_dirty:
            await self._mark_all_dirty(piece)
        while (key := self._queue.pop_dirty(self._clock.monotonic_ms())) is not None:
            self._assess(key)
            if piece.is_over():
                self._start_ready(tasks)
                await piece.next_turn()
        self._start_ready(tasks)
        self._compared.set()
        if not self._had_compared_all and not self._context.fence.may_write and self.has_compared_all():
            self._had_compared_all = True
            self._all_compared()

    async def _mark_all_dirty(self, piece: Slice) -> None:
        """Have every partition assessed, also those that were added or removed without a call of
        `changed`."""
        self._is_all_dirty = False
        for one in self._partitions():
            key = (one.tip.topic_id, one.tip.partition)
            if key not in self._archivers:
                self._unchecked.add(key)
            self._queue.mark_dirty(key)
            if piece.is_over():
                await piece.next_turn()
        for key in list(self._archivers):
            self._queue.mark_dirty(key)

    def _assess(self, key: Key) -> None:
        """Put `key` where it belongs: ready, delayed, or nowhere. A busy one is marked dirty when its task
        ends."""
        partition, archiver = self._find(*key), self._archivers.get(key)
        if archiver is not None and (archiver.term.is_deposed or archiver.partition is not partition):
            self._remove(key, archiver)
            archiver = None
        if partition is None:
            self._unchecked.discard(key)
            return
        if archiver is None:
            archiver = self._archivers[key] = PartitionArchiver(partition, self._context)
            partition.log.sealed.watch(partial(self._mark_dirty, key))
            self._unchecked.add(key)
        if key in self._busy:
            return
        now_ms = self._clock.monotonic_ms()
        if (until_ms := archiver.retries.waits_until(Task.PLAN, now_ms)) is not None:
            self._queue.add_delayed(key, until_ms)
            return
        try:
            priority = archiver.assess()
            partition.on_stable = partial(self._mark_dirty, key) if archiver.waits_for is not None else None
            self._succeeded(archiver, Task.PLAN)
        except (StorageError, CorruptionError) as e:
            priority, archiver.due_ms = None, now_ms + self._failed(archiver, Task.PLAN, e)
        if (
            archiver.head.has_compared
            or archiver.retries.count(Task.COMPARE_HEAD)
            or archiver.retries.count(Task.PLAN)
        ):
            self._unchecked.discard(key)
        if priority is None:
            self._queue.add_delayed(key, archiver.due_ms)
        else:
            self._queue.add_ready(key, _HEAD_CHECKS if archiver.must_compare_head else _TASKS, priority)

    def _remove(self, key: Key, archiver: PartitionArchiver) -> None:
        """Remove the archiver: this node does not lead the partition any more, or leads it as a new
        object."""
        del self._archivers[key]
        archiver.depose()
        archiver.partition.log.sealed.watch(None)
        archiver.partition.on_stable = None
        if key not in self._busy:
            archiver.abandon()

    def _start_ready(self, tasks: asyncio.TaskGroup) -> None:
        """Start ready tasks in free slots, as far as the breaker allows."""
        self._blocked_until_ms = None
        for lane in (_HEAD_CHECKS, _TASKS):
            while self._free[lane] and self._queue.ready_count(lane):
                now_ms = self._clock.monotonic_ms()
                if wait_ms := self._breaker.wait_ms(now_ms):
                    self._blocked_until_ms = now_ms + wait_ms
                    return
                key = self._queue.pop_ready(lane)
                assert key is not None
                archiver = self._archivers[key]
                if archiver.term.is_deposed:
                    continue  # it is dirty: the next pass removes it
                self._busy.add(key)
                self._free[lane] -= 1
                self._running[key] = tasks.create_task(
                    self._run_task(key, archiver, lane), name=f"tiering-{archiver.partition.tip}"
                )

    async def _run_task(self, key: Key, archiver: PartitionArchiver, lane: int) -> None:
        """Run one task of one partition."""
        began_ms = self._clock.monotonic_ms()
        try:
            await archiver.run_once()
        except (Displaced, NotNamed, Deposed) as e:
            self._task_ended(e)
        except (StorageError, CorruptionError, RequestError) as e:
            if not archiver.term.is_deposed:
                self._note_results(archiver, e)
            self._update_breaker(key, e, began_ms)
        else:
            self._note_results(archiver, None)
            self._update_breaker(key, None, began_ms)
            self._task_ended(None)
        finally:
            self._free[lane] += 1
            self._busy.discard(key)
            self._running.pop(key, None)
            if archiver.term.is_deposed:
                archiver.abandon()
            self._mark_dirty(key)

    def _update_breaker(self, key: Key, error: FirnError | None, began_ms: int) -> None:
        """Record in the breaker how a task ended."""
        if not (is_failure(error) or isinstance(error, Stalled)):
            if self._breaker.answered():
                log.info("the store answers again")
                self._metrics.store = None
            return
        now_ms, uniform = self._clock.monotonic_ms(), self._random.random()
        opened = self._breaker.failed(error, key, began_ms=began_ms, now_ms=now_ms, uniform=uniform)
        if opened:
            self._metrics.store = f"calls to the store are suspended: {error}"
            self._metrics.store_opened = self._breaker.opened
            if self._breaker.pauses & (self._breaker.pauses - 1) == 0:
                log.warning(
                    "calls to the store are suspended, %d times in a row: %s", self._breaker.pauses, error
                )

    def _note_results(self, archiver: PartitionArchiver, error: FirnError | None) -> None:
        """Record how each task of a run ended, the last one with `error`."""
        for task in archiver.begun if error is None else archiver.begun[:-1]:
            self._succeeded(archiver, task)
        if error is not None:
            self._failed(archiver, archiver.begun[-1], error)

    def _failed(self, archiver: PartitionArchiver, task: Task, error: FirnError) -> int:
        """Count the failure and log it, if it is worth a line; return how long the task waits."""
        tip, count = archiver.partition.tip, archiver.retries.count(task) + 1
        wait_ms = self._context.backoff_ms(count)
        archiver.retries.failed(
            task, str(error), now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms, wall_ms=self._clock.now_ms()
        )
        self._metrics.failing[task, tip] = str(error)
        if task not in (Task.COPY, Task.EXPIRE):  # a report waits for all the others
            archiver.rewriting.failed(f"{task.value}: {error}", count)
        if not isinstance(error, CommitRefused):
            self._metrics.task_errors[task] += 1
        is_damaged = isinstance(error, CorruptionError)  # and so it is at the next try
        if is_worth_a_line(count) or is_damaged:
            log.log(
                logging.WARNING if lasts(count) or is_damaged else logging.INFO,
                "%s: tiering cannot %s, failed %d times in a row, next try in %d ms: %s",
                tip, task.value, count, wait_ms, error,
            )  # fmt: skip
        return wait_ms

    def _succeeded(self, archiver: PartitionArchiver, task: Task) -> None:
        if archiver.retries.succeeded(task):
            self._metrics.failing.pop((task, archiver.partition.tip), None)
            log.info("%s: tiering can %s again", archiver.partition.tip, task.value)

    def submit_rewrite(
        self, topic_id: UUID, partition: int, report: RewriteReport
    ) -> asyncio.Future[CatalogEntry]:
        """Have the partition's archiver publish a rewritten run, as `PartitionRewriting.submit`.

        Raises `Deposed` where this node does not archive the partition.
        """
        archiver = self._archivers.get((topic_id, partition))
        if archiver is None or archiver.term.is_deposed:
            raise Deposed(f"this node does not archive {topic_id}/{partition}")
        outcome = archiver.rewriting.submit(report)
        self._mark_dirty((topic_id, partition))
        return outcome

    def withdraw_rewrite(self, topic_id: UUID, partition: int, rewrite_id: UUID) -> None:
        """Take a report back, unless its proposal is under way."""
        archiver = self._archivers.get((topic_id, partition))
        if archiver is not None:
            archiver.rewriting.withdraw(rewrite_id)

    def store_pause_ms(self, now_ms: int) -> int:
        """Return how long the breaker still keeps calls from the store."""
        return self._breaker.wait_ms(now_ms) if self._breaker.refuses(now_ms) else 0

    def led(self) -> Iterator[TieredPartition]:
        """Yield the partitions that this node leads."""
        yield from self._partitions()

    async def quiet(self, topic_id: UUID, partition: int) -> bool:
        """Wait until the task of a partition that runs now has ended; return whether what was proposed until
        then is settled."""
        key = topic_id, partition
        running = self._running.get(key)
        if running is not None:
            await asyncio.wait({running})
        archiver = self._archivers.get(key)
        return archiver is not None and not archiver.is_unsettled

    def led_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the leader epoch in which this node archives the partition; None where it does not."""
        archiver = self._archivers.get((topic_id, partition))
        return None if archiver is None or archiver.term.is_deposed else archiver.partition.leader_epoch
