"""What one broker of a cluster does for the bucket that all share.

The keeper (`office`) deletes topics, sweeps, and writes `topics.json` and the metadata's copy. Each deletes
what it knows to be dead itself. One asyncio task, woken when something has changed or is due. Each of its
tasks (`tasks.Task`) that fails is tried again by itself, and keeps no other from its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import ClusterFile
from service.tiering.archive_attempt import Tools
from service.tiering.chain import SeenHead, verdict_on
from service.tiering.copier import Progress
from service.tiering.deleting import FailureRun
from service.tiering.fence import Displaced, NotNamed
from service.tiering.head_check import MAY_GO_ON
from service.tiering.keeper_election import Office
from service.tiering.metadata_copy import MetadataCopies
from service.tiering.ports import House
from service.tiering.shared_objects import (
    Compared,
    TopicsSnapshot,
    compare_topics,
    etag_of_topics,
    write_topics,
)
from service.tiering.sweeper import Sweeper
from service.tiering.tasks import OF_THE_KEEPER, Retries, Task

log = logging.getLogger(__name__)

_HEADS_AT_A_TIME: Final = 50
"""So many HEADs of others are looked at by one call on a thread."""


class Host(NamedTuple):
    """What housekeeping asks of the tiering that it is part of."""

    has_looked: Callable[[], bool]
    """whether every HEAD of what this node leads was looked at"""
    store_pause_ms: Callable[[int], int]
    """for how long the store is left alone yet"""
    backoff_ms: Callable[[int], int]
    """how long to wait after so many failures"""
    wake: Callable[[], None]
    """this process may write now, or may not: all partitions are to be assessed"""


class Housekeeping:
    """The housekeeping of one node. Owned by the event loop."""

    def __init__(
        self,
        tools: Tools,
        house: House,
        topics: Callable[[], TopicsSnapshot | None],
        metadata: MetadataCopies,
        sweeper: Sweeper,
        host: Host,
        own: UUID,
    ) -> None:
        """`own` is the incarnation of this process."""
        self._tools = tools
        self._house = house
        self._topics = topics
        self._metadata = metadata
        self._sweeper = sweeper
        self._host = host
        self._fence = tools.fence
        self._news = asyncio.Event()
        now_ms = tools.clock.monotonic_ms()
        self._topics_due_ms: int | None = now_ms
        self._topics_latest_ms = now_ms
        """`_topics_due_ms` is put off no longer than this"""
        self._topics_etag = ""
        """of the one that this process wrote, empty for none: another one is written over"""
        self._topics_look_due_ms = now_ms
        self._listed: frozenset[UUID] | None = None
        """topics in it, since this process has written it as the keeper"""
        self._sweep_due_ms = now_ms + tools.settings.sweep_interval_ms
        self._told: dict[str, str] = {}
        self._retries = Retries()
        self._was_keeper = False
        self.office = Office(
            tools.store, tools.fence, house, tools.pool, tools.clock, own, tools.metrics,
            self._take_over, self._office_changed,
        )  # fmt: skip
        house.watch(self.office.go_on)

    def go_on(self) -> None:
        """There may be something to do."""
        self._news.set()

    def _office_changed(self) -> None:
        """This process may write now, or may not any more."""
        self._host.wake()
        self._news.set()

    def topics_changed(self) -> None:
        """The image has other topics or settings: `topics.json` is written when it has been quiet for a
        moment, and the metadata is copied with it: nothing but the copy has settings of brokers."""
        settings, now_ms = self._tools.settings, self._tools.clock.monotonic_ms()
        if self._topics_due_ms is None:
            self._topics_latest_ms = now_ms + settings.topics_latest_ms
        self._topics_due_ms = min(now_ms + settings.topics_debounce_ms, self._topics_latest_ms)
        self._metadata.changed(settings.topics_debounce_ms)
        self._news.set()

    def topics_deleted(self) -> None:
        """The image has other tombstones: what they name is deleted after the grace period."""
        self._tools.eraser.schedule_deleted(self._tools.catalog.tombstones())
        self._news.set()

    async def run(self) -> None:
        """Keep house until cancelled."""
        while True:
            self._news.clear()
            await self.round()
            now_ms = self._tools.clock.monotonic_ms()
            until_ms = max(self._due_ms(now_ms), now_ms + self._host.store_pause_ms(now_ms))
            try:
                async with asyncio.timeout(max(0, until_ms - now_ms) / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _due_ms(self, now_ms: int) -> int:
        """When there is something to do although nothing happens."""
        fence, eraser = self._fence, self._tools.eraser
        due = [now_ms + self._tools.settings.heads_interval_ms]

        def add(task: Task, due_ms: int | None) -> None:
            if due_ms is not None:
                due.append(max(due_ms, self._retries.waits_until(task, now_ms) or due_ms))

        if fence.may_write:
            add(Task.DELETE, eraser.next_due_ms)
        if fence.is_ours:
            add(Task.SWEEP, self._sweep_due_ms)
            add(Task.WRITE_TOPICS, self._topics_due_ms)
            add(Task.COMPARE_TOPICS, self._topics_look_due_ms)
            if self._listed is not None:
                add(Task.DELETE_TOPICS, eraser.next_topic_due_ms(self._listed))
            add(Task.COPY_METADATA, self._metadata.due_ms)
        return min(due)

    async def round(self) -> None:
        """Whatever is due, each by itself; a failure is logged, counted and tried again later."""
        now_ms = self._tools.clock.monotonic_ms()
        if self._host.store_pause_ms(now_ms):
            return
        failures: dict[Task, FirnError] = {}
        if not self._fence.is_ours:
            self._topics_etag, self._listed = "", None
            if self._was_keeper:
                self._forget(OF_THE_KEEPER)
        self._was_keeper = self._fence.is_ours
        if self._fence.may_write:
            await self._attempt(Task.DELETE, partial(self._tools.eraser.run_due, now_ms), failures)
        if self._fence.is_ours:
            await self._keep(now_ms, failures)
        self._tell(failures)

    def _forget(self, tasks: Iterable[Task]) -> None:
        """These are for others to do now."""
        for task in tasks:
            self._retries.succeeded(task)
            self._tools.metrics.forget(task)

    async def _keep(self, now_ms: int, failures: dict[Task, FirnError]) -> None:
        """What the keeper alone does."""
        eraser = self._tools.eraser
        if now_ms >= self._topics_look_due_ms:
            await self._attempt(Task.COMPARE_TOPICS, partial(self._look_at_topics, now_ms), failures)
        if self._topics_due_ms is not None and now_ms >= min(self._topics_due_ms, self._metadata.due_ms):
            # Before the copy: a reader that finds the copy of a topic finds its name, too.
            await self._attempt(Task.WRITE_TOPICS, self._write_topics, failures)
        await self._attempt(Task.COPY_METADATA, partial(self._metadata.run_due, now_ms), failures)
        if (listed := self._listed) is not None:
            await self._attempt(Task.DELETE_TOPICS, partial(eraser.delete_topics, now_ms, listed), failures)
        if now_ms >= self._sweep_due_ms:
            await self._attempt(Task.SWEEP, self.sweep, failures)

    async def _attempt(
        self, task: Task, work: Callable[[], Awaitable[object]], failures: dict[Task, FirnError]
    ) -> None:
        """Do `task`, unless it waits after a failure."""
        clock = self._tools.clock
        if self._retries.waits_until(task, clock.monotonic_ms()) is not None:
            return
        try:
            await work()
        except Displaced as e:
            self.office.displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            self._retries.failed(
                task,
                str(e),
                now_ms=clock.monotonic_ms(),
                wait_ms=self._host.backoff_ms(self._retries.count(task) + 1),
                wall_ms=clock.now_ms(),
            )
            if not isinstance(e, NotNamed):  # that is no failure: it waits
                failures[task] = e
        else:
            self._retries.succeeded(task)
            self._tools.metrics.failing.pop((task, None), None)

    def _tell(self, failures: dict[Task, FirnError]) -> None:
        """Count the failures of a round, and log the first one and every doubling: one line for each error,
        as several tasks meet the same one."""
        metrics = self._tools.metrics
        by_error: dict[str, list[Task]] = {}
        for task, error in failures.items():
            metrics.task_errors[task] += 1
            metrics.failing[task, None] = str(error)
            by_error.setdefault(str(error), []).append(task)
        for why, tasks in by_error.items():
            in_a_row = min(map(self._retries.count, tasks))
            if in_a_row & (in_a_row - 1) == 0:
                names = ", ".join(task.value for task in tasks)
                log.warning(
                    "tiering cannot %s, failed %d times in a row, is tried again: %s", names, in_a_row, why
                )

    # -- who writes ------------------------------------------------------------------------------------------

    async def _take_over(self, after: ClusterFile | None) -> None:
        """Become the keeper, once every HEAD was looked at and none is ahead of our metadata.

        `after` is `cluster.json` as it was read, None where this node shares the prefix with nobody.

        A node whose past is older than the bucket does not displace the one that wrote it. Who follows a
        keeper of its own cluster is of the same past, and looks at nothing but `topics.json`.
        """
        # One whose HEAD cannot be read holds up no other; it is looked at before anything of it is written.
        if not self._host.has_looked():
            return
        is_shared = bool(self._house.members())
        if is_shared:
            await self._house.barrier()
            if not self._house.is_unfenced():
                return
            if not self._fence.is_conditional and len(self._house.members()) > 1:
                self._tell_once(
                    "take-over", "several brokers cannot share a store without conditional writes"
                )
                return
        if after is None or not self._fence.is_successor(after):
            ahead = [str(tip) for tip in self._tools.metrics.stopped]
            if is_shared:
                ahead += await self._others_ahead()
            if ahead:
                self._tell_once(
                    "take-over",
                    f"the bucket is ahead of this node's metadata in {len(ahead)} partitions "
                    f"({', '.join(ahead[:5])}): nothing is copied, expired or swept by this node",
                )
                return
        snapshot = self._topics()
        if snapshot is not None:
            compared = await self._tools.pool.run(
                compare_topics, self._tools.store, self._tools.cluster_id, snapshot, self._deleted()
            )
            if compared.damage is not None:
                compared = compared._replace(refusal=await self._why_behind_copy(snapshot))
            self._note_topics(compared)
            if compared.refusal is not None:
                return
        await self._fence.take_over(after)
        if self._topics_due_ms is None:  # what it lists was written by another one
            self._topics_due_ms = self._tools.clock.monotonic_ms()
        self._told.pop("take-over", None)
        self._tools.metrics.take_over_refused = None
        self._tools.eraser.schedule_deleted(self._tools.catalog.tombstones())
        self.go_on()

    async def _others_ahead(self) -> list[str]:
        """Partitions that this node does not lead, and of which the bucket has more than our metadata.

        They may be written to meanwhile, by brokers of ours that the keeper before us has named: what looks
        ahead is held against the metadata as it is after it was seen.
        """
        doubtful: list[tuple[TopicIdPartition, SeenHead]] = []
        others = iter(self._house.others())
        while True:
            rounds = [
                [(tip, self._entry(tip)) for tip in islice(others, _HEADS_AT_A_TIME)]
                for _ in range(self._tools.settings.copier_threads)
            ]
            looks = [self._tools.pool.watch(partial(self._look, some)) for some in rounds if some]
            if not looks:
                break
            for found in await asyncio.gather(*looks):
                doubtful += found
        if not doubtful:
            return []
        await self._house.barrier()
        return [str(tip) for tip, seen in doubtful if verdict_on(self._entry(tip), seen) not in MAY_GO_ON]

    def _entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        return self._tools.catalog.entry(tip.topic_id, tip.partition)

    def _look(
        self, some: list[tuple[TopicIdPartition, CatalogEntry | None]], progress: Progress
    ) -> list[tuple[TopicIdPartition, SeenHead]]:
        """On an offload thread: those of `some` whose HEAD is not what their entry lets one expect.

        One that cannot be read holds up no other. Raises what a store raises that does not answer.
        """
        doubtful = []
        failures = FailureRun()
        for tip, entry in some:
            progress.advance(1)
            try:
                seen = self._tools.chains.look(tip)
            except (CorruptionError, StorageError) as e:
                log.warning("HEAD of %s cannot be looked at: %s", tip, e)
                failures.note(e)
                continue
            failures.note(None)
            if verdict_on(entry, seen) not in MAY_GO_ON:
                doubtful.append((tip, seen))
        return doubtful

    def _deleted(self) -> frozenset[UUID]:
        return frozenset(self._tools.catalog.tombstones())

    def _tell_once(self, about: str, what: str) -> None:
        if about == "take-over":
            self._tools.metrics.take_over_refused = what
        if self._told.get(about) != what:
            self._told[about] = what
            log.error("%s", what)

    def _note_topics(self, compared: Compared) -> None:
        """Say what is wrong with `topics.json`, in the log and to whoever asks for this node's health."""
        said = None
        if compared.refusal is not None:
            said = f"topics.json is left as it is: {compared.refusal}"
        elif compared.foreign:
            named = ", ".join(f"{row.name} ({row.topic_id})" for row in compared.foreign[:5])
            said = (
                f"topics.json lists {len(compared.foreign)} topics that have objects in the bucket and that "
                f"this node's metadata lacks: {named}. They are left alone (firn.remote.recover brings them "
                f"back, firn sweep --topic deletes them)"
            )
        self._tools.metrics.topics_file = said
        if said is None:
            self._told.pop("topics.json", None)
        else:
            self._tell_once("topics.json", said)

    async def _why_behind_copy(self, snapshot: TopicsSnapshot) -> str | None:
        """Where `topics.json` cannot be read: why our metadata is older than what `cluster.json` names."""
        named = (await self._fence.read()).metadata
        if named is None or (named.life, named.end_offset) <= (snapshot.life, snapshot.metadata_offset + 1):
            return None
        return (
            f"it cannot be read, and cluster.json names metadata up to offset {named.end_offset}, this "
            f"node's ends at {snapshot.metadata_offset} (firn.remote.recover)"
        )

    # -- what is due -----------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Look for orphans now; how many were deleted."""
        now_ms = self._tools.clock.monotonic_ms()
        self._sweep_due_ms = now_ms + self._tools.settings.sweep_interval_ms
        try:
            return await self._sweeper.sweep(now_ms)
        except (StorageError, CorruptionError, RequestError):
            self._sweep_due_ms = now_ms
            raise

    async def _look_at_topics(self, now_ms: int) -> None:
        """Have `topics.json` written again where it is not the one that this process wrote: somebody damaged
        it, or put an old one back."""
        self._topics_look_due_ms = now_ms + self._tools.settings.heads_interval_ms
        if self._topics_etag and self._topics_due_ms is None:
            etag = await self._tools.pool.run(etag_of_topics, self._tools.store)
            if etag != self._topics_etag:
                log.warning("topics.json is not the one that this node wrote: it is written again")
                self._topics_due_ms = now_ms

    async def _write_topics(self) -> None:
        due_ms, self._topics_due_ms = self._topics_due_ms, None
        try:
            snapshot = self._topics()
            if snapshot is None:
                return
            await self._fence.check(self._tools.settings.fence_age_ms)
            behind = await self._why_behind_copy(snapshot)
            written = await self._tools.pool.run(
                write_topics,
                self._tools.store,
                self._tools.cluster_id,
                snapshot,
                self._tools.stamps(),
                self._deleted(),
                behind=behind,
                is_conditional=self._fence.is_conditional,
            )
        except (StorageError, CorruptionError, RequestError):
            self._topics_due_ms = due_ms
            raise
        self._note_topics(written.compared)
        if written.compared.refusal is None:
            # What it was made of must not be later than the copy: a recovery would doubt all settings.
            self._metadata.changed(0)
            self._topics_etag, self._listed = written.etag, frozenset(snapshot.ids)
        else:  # it may be another one by then
            self._topics_due_ms = self._tools.clock.monotonic_ms() + self._tools.settings.heads_interval_ms
