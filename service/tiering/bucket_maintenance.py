"""Maintenance that one broker of a cluster does for the bucket that all share.

The keeper (`keeper_election`) deletes topics, sweeps, and writes `topics.json` and the metadata's copy. Each
broker deletes what it knows to be dead itself. One asyncio task, woken when something has changed or is due.
Each task (`tasks.Task`) that fails is retried on its own and delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import ClusterFile
from service.tiering.archive_attempt import TieringContext
from service.tiering.chain import SeenHead, verdict_on
from service.tiering.copier import CallProgress
from service.tiering.deleting import FailureRun
from service.tiering.head_check import MAY_GO_ON
from service.tiering.keeper_election import KeeperElection
from service.tiering.metadata_copy import MetadataCopies
from service.tiering.ports import PrefixOwner
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.shared_objects import (
    TopicsComparison,
    TopicsSnapshot,
    compare_topics,
    etag_of_topics,
    write_topics,
)
from service.tiering.sweeper import Sweeper
from service.tiering.task_scheduler import TaskScheduler
from service.tiering.tasks import KEEPER_TASKS, Retries, Task, is_worth_a_line, lasts

log = logging.getLogger(__name__)

_HEADS_AT_A_TIME: Final = 50
"""HEADs of other brokers that one call on a thread compares."""


class BucketMaintenance:
    """Maintenance by one node. Owned by the event loop."""

    def __init__(
        self,
        context: TieringContext,
        owner: PrefixOwner,
        topics: Callable[[], TopicsSnapshot | None],
        scheduler: TaskScheduler,
        own: UUID,
        metadata: MetadataCopies,
        sweeper: Sweeper,
    ) -> None:
        """`own` is the incarnation of this process."""
        self._context = context
        self._owner = owner
        self._topics = topics
        self._metadata = metadata
        self._sweeper = sweeper
        self._scheduler = scheduler
        self._fence = context.fence
        self._wake_event = asyncio.Event()
        now_ms = context.clock.monotonic_ms()
        self._topics_due_ms: int | None = now_ms
        self._topics_latest_ms = now_ms
        """`_topics_due_ms` is never delayed beyond this"""
        self._topics_etag = ""
        """of the file that this process wrote, empty for none: any other file is overwritten"""
        self._topics_check_due_ms = now_ms
        self._listed: frozenset[UUID] | None = None
        """topics in the file, since this process wrote it as keeper"""
        self._sweep_due_ms = now_ms + context.settings.sweep_interval_ms
        self._logged: dict[str, str] = {}
        self._retries = Retries()
        self._was_keeper = False
        self.election = KeeperElection(context, owner, own, self._take_over, self._may_write_changed)
        owner.watch(self.election.wake)

    def wake(self) -> None:
        """Run again: there may be something to do."""
        self._wake_event.set()

    def _may_write_changed(self) -> None:
        """Have all partitions assessed and the tasks run: `may_write` of this process has changed."""
        self._scheduler.wake()
        self._wake_event.set()

    def topics_changed(self) -> None:
        """Schedule `topics.json` and the metadata's copy: the image has other topics or settings.

        The write waits until there was no change for a moment. The copy goes along, because it alone has
        settings of brokers.
        """
        settings, now_ms = self._context.settings, self._context.clock.monotonic_ms()
        if self._topics_due_ms is None:
            self._topics_latest_ms = now_ms + settings.topics_latest_ms
        self._topics_due_ms = min(now_ms + settings.topics_debounce_ms, self._topics_latest_ms)
        self._metadata.changed(settings.topics_debounce_ms)
        self._wake_event.set()

    def access_changed(self) -> None:
        """Schedule the metadata's copy: no other document has ACLs, credentials and quotas."""
        self._metadata.changed(self._context.settings.topics_debounce_ms)
        self._wake_event.set()

    def topics_deleted(self) -> None:
        """Schedule the topics of new tombstones for deletion after the grace period."""
        self._context.eraser.schedule_deleted(self._context.catalog.tombstones())
        self._wake_event.set()

    async def run(self) -> None:
        """Run the tasks when they are due, until cancelled."""
        while True:
            self._wake_event.clear()
            await self.run_once()
            now_ms = self._context.clock.monotonic_ms()
            until_ms = max(self._due_ms(now_ms), now_ms + self._scheduler.store_pause_ms(now_ms))
            try:
                async with asyncio.timeout(max(0, until_ms - now_ms) / 1000):
                    await self._wake_event.wait()
            except TimeoutError:
                continue

    def _due_ms(self, now_ms: int) -> int:
        """Return when to run next if nothing happens before."""
        fence, eraser = self._fence, self._context.eraser
        due = [now_ms + self._context.settings.heads_interval_ms]

        def add(task: Task, due_ms: int | None) -> None:
            if due_ms is not None:
                due.append(max(due_ms, self._retries.waits_until(task, now_ms) or due_ms))

        if fence.may_write:
            add(Task.DELETE, eraser.next_due_ms)
        if fence.is_ours:
            add(Task.SWEEP, self._sweep_due_ms)
            add(Task.WRITE_TOPICS, self._topics_due_ms)
            add(Task.COMPARE_TOPICS, self._topics_check_due_ms)
            if self._listed is not None:
                add(Task.DELETE_TOPICS, eraser.next_topic_due_ms(self._listed))
            add(Task.COPY_METADATA, self._metadata.due_ms)
        return min(due)

    async def run_once(self) -> None:
        """Run every task that is due; each failure is logged, counted and retried later."""
        now_ms = self._context.clock.monotonic_ms()
        if self._scheduler.store_pause_ms(now_ms):
            return
        failures: dict[Task, FirnError] = {}
        if not self._fence.is_ours:
            self._topics_etag, self._listed = "", None
            if self._was_keeper:
                self._forget_tasks(KEEPER_TASKS)
        self._was_keeper = self._fence.is_ours
        if self._fence.may_write:
            await self._try(Task.DELETE, partial(self._context.eraser.run_due, now_ms), failures)
        if self._fence.is_ours:
            await self._run_keeper_tasks(now_ms, failures)
        self._report_failures(failures)

    def _forget_tasks(self, tasks: Iterable[Task]) -> None:
        """Forget the failures of `tasks`, which other brokers run now."""
        for task in tasks:
            self._retries.succeeded(task)
            self._context.metrics.forget(task)

    async def _run_keeper_tasks(self, now_ms: int, failures: dict[Task, FirnError]) -> None:
        """Run the tasks that only the keeper runs."""
        eraser = self._context.eraser
        if now_ms >= self._topics_check_due_ms:
            await self._try(Task.COMPARE_TOPICS, partial(self._check_topics_file, now_ms), failures)
        if self._topics_due_ms is not None and now_ms >= min(self._topics_due_ms, self._metadata.due_ms):
            # Before the copy: a reader that finds a topic in the copy then finds its name, too.
            await self._try(Task.WRITE_TOPICS, self._write_topics, failures)
        await self._try(Task.COPY_METADATA, partial(self._metadata.run_due, now_ms), failures)
        if (listed := self._listed) is not None:
            await self._try(Task.DELETE_TOPICS, partial(eraser.delete_topics, now_ms, listed), failures)
        if now_ms >= self._sweep_due_ms:
            await self._try(Task.SWEEP, self.sweep, failures)

    async def _try(
        self, task: Task, work: Callable[[], Awaitable[object]], failures: dict[Task, FirnError]
    ) -> None:
        """Run `task`, unless it waits after a failure."""
        clock = self._context.clock
        if self._retries.waits_until(task, clock.monotonic_ms()) is not None:
            return
        try:
            await work()
        except Displaced as e:
            self.election.note_displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            self._retries.failed(
                task,
                str(e),
                now_ms=clock.monotonic_ms(),
                wait_ms=self._context.backoff_ms(self._retries.count(task) + 1),
                wall_ms=clock.now_ms(),
            )
            if not isinstance(e, NotNamed):  # not a failure: the task waits
                failures[task] = e
        else:
            self._retries.succeeded(task)
            self._context.metrics.failing.pop((task, None), None)

    def _report_failures(self, failures: dict[Task, FirnError]) -> None:
        """Count the failures of a run, and log those that are worth a line: one for each error, as several
        tasks meet the same one."""
        metrics = self._context.metrics
        by_error: dict[str, list[Task]] = {}
        for task, error in failures.items():
            metrics.task_errors[task] += 1
            metrics.failing[task, None] = str(error)
            by_error.setdefault(str(error), []).append(task)
        for why, tasks in by_error.items():
            in_a_row = min(map(self._retries.count, tasks))
            if is_worth_a_line(in_a_row):
                names = ", ".join(task.value for task in tasks)
                is_damaged = any(isinstance(failures[task], CorruptionError) for task in tasks)
                log.log(
                    logging.WARNING if lasts(in_a_row) or is_damaged else logging.INFO,
                    "tiering cannot %s, failed %d times in a row, will retry: %s", names, in_a_row, why,
                )  # fmt: skip

    # -- who writes ------------------------------------------------------------------------------------------

    async def _take_over(self, after: ClusterFile | None) -> None:
        """Become the keeper, once every HEAD was compared and none is ahead of our metadata.

        `after` is `cluster.json` as it was read, None where this node shares the prefix with no other.

        A node whose past is older than the bucket does not displace the one that wrote it. A successor of a
        keeper of its own cluster has the same past, and compares nothing but `topics.json`.
        """
        # A HEAD that cannot be read holds up no other; it is compared before its partition is written.
        if not self._scheduler.has_compared_all():
            return
        is_shared = bool(self._owner.members())
        if is_shared:
            await self._owner.barrier()
            if not self._owner.is_unfenced():
                return
            if not self._fence.is_conditional and len(self._owner.members()) > 1:
                self._log_once("take-over", "several brokers cannot share a store without conditional writes")
                return
        if after is None or not self._fence.is_successor(after):
            ahead = [str(tip) for tip in self._context.metrics.stopped]
            if is_shared:
                ahead += await self._others_ahead()
            if ahead:
                self._log_once(
                    "take-over",
                    f"the bucket is ahead of this node's metadata in {len(ahead)} partitions "
                    f"({', '.join(ahead[:5])}): nothing is copied, expired or swept by this node",
                )
                return
        known = after or await self._fence.read_or_none()
        self._fence.ancestors = known.ancestors
        snapshot = self._topics()
        if snapshot is not None:
            compared = await self._context.pool.run(
                compare_topics,
                self._context.store,
                self._context.cluster_id,
                snapshot,
                self._deleted(),
                known.ancestors,
            )
            if compared.damage is not None:
                compared = compared._replace(refusal=await self._why_behind_copy(snapshot))
            self._note_topics(compared)
            if compared.refusal is not None:
                return
        await self._fence.take_over(after)
        if self._topics_due_ms is None:  # another process wrote the file
            self._topics_due_ms = self._context.clock.monotonic_ms()
        self._logged.pop("take-over", None)
        self._context.metrics.take_over_refused = None
        self._context.eraser.schedule_deleted(self._context.catalog.tombstones())
        self.wake()

    async def _others_ahead(self) -> list[str]:
        """Return partitions that this node does not lead and of which the bucket has more than our metadata.

        Brokers of ours that the previous keeper named may write to them meanwhile. So a HEAD that reads ahead
        is compared again with the metadata as of after it was read.
        """
        doubtful: list[tuple[TopicIdPartition, SeenHead]] = []
        others = iter(self._owner.others())
        while True:
            rounds = [
                [(tip, self._entry(tip)) for tip in islice(others, _HEADS_AT_A_TIME)]
                for _ in range(self._context.settings.copier_threads)
            ]
            reads = [self._context.pool.watch(partial(self._doubtful_heads, some)) for some in rounds if some]
            if not reads:
                break
            for found in await asyncio.gather(*reads):
                doubtful += found
        if not doubtful:
            return []
        await self._owner.barrier()
        return [str(tip) for tip, seen in doubtful if verdict_on(self._entry(tip), seen) not in MAY_GO_ON]

    def _entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        return self._context.catalog.entry(tip.topic_id, tip.partition)

    def _doubtful_heads(
        self, some: list[tuple[TopicIdPartition, CatalogEntry | None]], progress: CallProgress
    ) -> list[tuple[TopicIdPartition, SeenHead]]:
        """Return the partitions of `some` whose HEAD is not what their entry implies. Runs on an offload
        thread.

        A HEAD that cannot be read holds up no other. Raises what a store raises that does not answer.
        """
        doubtful = []
        failures = FailureRun()
        for tip, entry in some:
            progress.advance(1)
            try:
                seen = self._context.chains.read_head(tip)
            except (CorruptionError, StorageError) as e:
                log.warning("HEAD of %s cannot be read, skipping its comparison: %s", tip, e)
                failures.note(e)
                continue
            failures.note(None)
            if verdict_on(entry, seen) not in MAY_GO_ON:
                doubtful.append((tip, seen))
        return doubtful

    def _deleted(self) -> frozenset[UUID]:
        return frozenset(self._context.catalog.tombstones())

    def _log_once(self, about: str, what: str) -> None:
        if about == "take-over":
            self._context.metrics.take_over_refused = what
        if self._logged.get(about) != what:
            self._logged[about] = what
            log.error("%s", what)

    def _note_topics(self, compared: TopicsComparison) -> None:
        """Report what is wrong with `topics.json`, in the log and in the node's health."""
        said = None
        if compared.refusal is not None:
            said = f"topics.json is not overwritten: {compared.refusal}"
        elif compared.foreign:
            named = ", ".join(f"{row.name} ({row.topic_id})" for row in compared.foreign[:5])
            said = (
                f"topics.json lists {len(compared.foreign)} topics that have objects in the bucket and that "
                f"this node's metadata lacks: {named}. They are left alone (firn.remote.recover brings them "
                f"back, firn sweep --topic deletes them)"
            )
        self._context.metrics.topics_file = said
        if said is None:
            self._logged.pop("topics.json", None)
        else:
            self._log_once("topics.json", said)

    async def _why_behind_copy(self, snapshot: TopicsSnapshot) -> str | None:
        """Return why our metadata is older than the copy that `cluster.json` names; None where it is not.

        For a `topics.json` that cannot be read.
        """
        named = (await self._fence.read()).metadata
        if named is None or (named.life, named.end_offset) <= (snapshot.life, snapshot.metadata_offset + 1):
            return None
        return (
            f"it cannot be read, and cluster.json names metadata up to offset {named.end_offset}, this "
            f"node's ends at {snapshot.metadata_offset} (firn.remote.recover)"
        )

    # -- what is due -----------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Search for orphans now; return how many were deleted."""
        now_ms = self._context.clock.monotonic_ms()
        self._sweep_due_ms = now_ms + self._context.settings.sweep_interval_ms
        try:
            return await self._sweeper.sweep(now_ms)
        except (StorageError, CorruptionError, RequestError):
            self._sweep_due_ms = now_ms
            raise

    async def _check_topics_file(self, now_ms: int) -> None:
        """Schedule a write of `topics.json` where it is not the one that this process wrote.

        It was damaged then, or replaced by an old one.
        """
        self._topics_check_due_ms = now_ms + self._context.settings.heads_interval_ms
        if self._topics_etag and self._topics_due_ms is None:
            etag = await self._context.pool.run(etag_of_topics, self._context.store)
            if etag != self._topics_etag:
                log.warning("topics.json is not the one that this node wrote, rewriting it")
                self._topics_due_ms = now_ms

    async def _write_topics(self) -> None:
        due_ms, self._topics_due_ms = self._topics_due_ms, None
        try:
            snapshot = self._topics()
            if snapshot is None:
                return
            await self._fence.check(self._context.settings.fence_age_ms)
            behind = await self._why_behind_copy(snapshot)
            written = await self._context.pool.run(
                write_topics,
                self._context.store,
                self._context.cluster_id,
                snapshot,
                self._context.stamps(),
                self._deleted(),
                behind=behind,
                is_conditional=self._fence.is_conditional,
                ancestors=self._fence.ancestors,
            )
        except (StorageError, CorruptionError, RequestError):
            self._topics_due_ms = due_ms
            raise
        self._note_topics(written.compared)
        if written.compared.refusal is None:
            # The metadata of `topics.json` must not be later than the copy: a recovery would doubt all
            # settings.
            self._metadata.changed(0)
            self._topics_etag, self._listed = written.etag, frozenset(snapshot.ids)
        else:  # the file may have changed by then
            self._topics_due_ms = (
                self._context.clock.monotonic_ms() + self._context.settings.heads_interval_ms
            )
