"""The part of a node's replicas in erasures: each carries out each order of the metadata, then tells it.

Leader or follower, an order waits in a log until its end is below the high watermark and the last stable
offset; `hot/cleaning/erasing` does the rest. Where an unclean election has lost records the order ends
earlier: where the log has a leader epoch that is later than the order's, or, without a record of it yet, at
the log's end, once the replica is in sync with its leader. A replica tells only while it is in sync: before,
its leader may have records for it that are still to go.

Whether an order was carried out is in a file beside the log, so a disk that comes back from before the order
does it again, whatever the metadata says, as long as the metadata has the order. What keeps an order open
here is named (`HotMetrics.erasure_problems`). Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.backoff import doubled
from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.base.types import NO_LEADER_EPOCH, TopicIdPartition
from service.hot.cleaning.erasing import Erasing, LocalErasure
from service.hot.cleaning.log_rewrite import Aborted
from service.hot.log import LocalLog
from service.hot.metrics import HotMetrics
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, PartitionImage
from service.partition.partition import Partition
from service.remote.catalog import ErasedPlace, Erasure, NodeCatalog
from service.remote.format.cut_codec import Place
from service.remote.opened_order import OrderDocuments, end_of
from service.remote.order_end import OrderEnd
from service.replicas.partition_registry import Replicas

_log = logging.getLogger(__name__)

AT_ONCE: Final = 2
"""Logs at a time; the cleaner's threads may be fewer."""
PATIENT_MS: Final = 600_000
"""How long a replica may wait for offsets to be stable and replicated before it is named."""
_LOOK_S: Final = 1.0
_SURVEY_MS: Final = 5_000
"""Interval at which assignments are read anew, while an order is open here."""
_REST_S: Final = 30.0
"""Interval at which replicas that are done are looked at: a log that was truncated is not done any more."""
_FIRST_RETRY_S: Final = 2.0
_LAST_RETRY_S: Final = 60.0
_TOLD_AT_ONCE: Final = 1_000


class ErasingCleaner(Protocol):
    """Interface of `hot.cleaning.cleaner.Cleaner` to this module."""

    async def erase(
        self, log: LocalLog, order: LocalErasure, orders: Callable[[], Collection[UUID]], /
    ) -> Erasing: ...


class _Key(NamedTuple):
    """An order in one replica."""

    order_id: UUID
    place: Place


class _Wait:
    """A replica in which an order is not carried out yet."""

    __slots__ = ("again_ms", "failures", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.again_ms = 0
        self.failures = 0

    def failed(self, now_ms: int) -> None:
        """Note a failure: the next attempt comes later."""
        self.failures += 1
        self.again_ms = now_ms + int(1000 * doubled(self.failures, _FIRST_RETRY_S, _LAST_RETRY_S))


class LocalErasures:
    """Carries out orders in the logs of this node. An `ApplierListener`."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        cleaner: ErasingCleaner,
        documents: OrderDocuments,
        image: Callable[[], MetadataImage],
        catalog: NodeCatalog,
        clock: Clock,
        metrics: HotMetrics,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._cleaner = cleaner
        self._documents = documents
        self._image = image
        self._catalog = catalog
        self._clock = clock
        self.metrics = metrics
        self._news = asyncio.Event()
        self._waits: dict[_Key, _Wait] = {}
        self._unread: dict[UUID, _Wait] = {}
        """orders whose documents could not be read"""
        self._running: dict[_Key, asyncio.Task[None]] = {}
        self._surveyed_ms: int | None = None
        self._topics: set[UUID] = set()
        """those of the orders of the last survey, and of orders that have changed since"""

    # -- `ApplierListener`

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Look again where orders have changed."""
        if delta.erasures:
            changed = (before.erasures.get(one) for one in delta.erasures)
            self._topics.update(topic_id for one in changed if one is not None for topic_id in one.topics)
            self._surveyed_ms = None
            self._news.set()

    def came_online(self, image: MetadataImage, tips: Sequence[TopicIdPartition]) -> None:
        """Look again, as these may lack an order."""
        if image.erasures:
            self._surveyed_ms = None
            self._news.set()

    # -- life

    async def run(self) -> None:
        """Carry out orders until cancelled."""
        try:
            while True:
                self._news.clear()
                await self._look()
                await self._pause()
        finally:
            for task in self._running.values():
                task.cancel()

    async def _pause(self) -> None:
        if not self._image().erasures and not self._waits:
            await self._news.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S if self._waits else _REST_S):
                await self._news.wait()

    async def _look(self) -> None:
        piece = Slice()
        for key, task in [one for one in self._running.items() if one[1].done()]:
            del self._running[key]
            task.result()  # a defect ends the node, as one of the cleaner does
        now_ms = self._clock.monotonic_ms()
        if self._surveyed_ms is None or now_ms - self._surveyed_ms >= _SURVEY_MS:
            self._surveyed_ms = now_ms
            await self._survey(piece)
        problems, reasons = dict[str, str](), dict[tuple[UUID, Place], str]()
        for key in tuple(self._waits):
            if piece.is_over():
                await piece.next_turn()
            why = await self._step(key, problems)
            if why is not None:
                reasons[key] = why
        self.metrics.unerased_replicas, self.metrics.erasure_problems = len(self._waits), problems
        self.metrics.erasure_waits = reasons

    # -- what is to be done

    async def _survey(self, piece: Slice) -> None:
        """Find the replicas here that lack an order, and tell of those that do not."""
        image, waits = self._image(), dict[_Key, _Wait]()
        now_ms = self._clock.monotonic_ms()
        for order in sorted(image.erasures.values(), key=lambda one: (one.started_ms, one.id)):
            untold: list[ErasedPlace] = []
            told = image.erased.get(order.id)
            for place, replica in self._places(image, order):
                if piece.is_over():
                    await piece.next_turn()
                key = _Key(order.id, place)
                is_clean = self._is_clean(key)
                is_told = told is not None and self._node_id in told.get(place, ())
                if is_clean and not is_told and self._node_id in replica.isr:
                    untold.append(ErasedPlace(*place, replica.leader_epoch))
                if not is_clean or not is_told:
                    waits[key] = self._waits.get(key) or _Wait(now_ms)
            if untold:
                await self._tell(order.id, untold)
        self._waits = waits
        await self._let_copy(image, piece)
        self._unread = {one: wait for one, wait in self._unread.items() if one in image.erasures}
        self._documents.keep(image.erasures)

    async def _let_copy(self, image: MetadataImage, piece: Slice) -> None:
        """Have segments copied that waited for an order that is carried out now, or gone: no flush need come
        in a log that nobody writes to."""
        topics = {topic_id for order in image.erasures.values() for topic_id in order.topics}
        concerned, self._topics = topics | self._topics, topics
        for topic_id in sorted(concerned):
            topic = image.topics_by_id.get(topic_id)
            for index in () if topic is None else topic.partitions:
                if piece.is_over():
                    await piece.next_turn()
                if (partition := self._replicas.get(topic_id, index)) is not None:
                    partition.log.sealed.look_again()

    def _places(self, image: MetadataImage, order: Erasure) -> Iterator[tuple[Place, PartitionImage]]:
        """Yield the partitions of an order that have a replica here."""
        for topic_id in order.topics:
            topic = image.topics_by_id.get(topic_id)
            for index, replica in () if topic is None else topic.partitions.items():
                if self._node_id in replica.replicas:
                    yield (topic_id, index), replica

    def _is_clean(self, key: _Key) -> bool:
        """Return whether the file beside the log has the order."""
        partition = self._replicas.get(*key.place)
        return partition is not None and partition.log.state.has_erased(key.order_id)

    async def _tell(self, order_id: UUID, places: Sequence[ErasedPlace]) -> None:
        for low in range(0, len(places), _TOLD_AT_ONCE):
            some = places[low : low + _TOLD_AT_ONCE]
            try:
                await self._catalog.note_erased(order_id, some, self._node_id)
            except (StorageError, RequestError) as e:
                _log.warning("telling the controller of %d erased replicas failed: %s", len(some), e)
                return

    # -- one replica

    async def _step(self, key: _Key, problems: dict[str, str]) -> str | None:
        """Begin the erasure in one replica, or return why it does not begin; what is no usual wait goes to
        `problems`."""
        image, wait = self._image(), self._waits[key]
        erasure = image.erasures.get(key.order_id)
        if erasure is None:
            return None
        if key in self._running:
            return "it is being erased"
        now_ms, order = self._clock.monotonic_ms(), str(key.order_id)
        unread = self._unread.get(key.order_id)
        if unread is not None and now_ms < unread.again_ms:
            problems[order] = self.metrics.erasure_problems.get(order, _UNREAD)
            return problems[order]
        if self._is_clean(key):
            return None if self._is_in_sync(image, key.place) else _NOT_IN_SYNC  # it waits to be told
        try:
            order_end = end_of(await self._documents.ends(erasure), *key.place)
            self._unread.pop(key.order_id, None)
        except (StorageError, CorruptionError) as e:
            problems[order] = self._not_read(key.order_id, e)
            return problems[order]
        subject, partition = self._subject(image, key), self._replicas.get(*key.place)
        end = order_end.offset if partition is None else self._end(image, key.place, partition, order_end)
        why = self._why_not(key, partition, end)
        if why is not None:
            if partition is None or now_ms - wait.since_ms >= PATIENT_MS:
                problems[subject] = why
        elif now_ms < wait.again_ms:
            why = problems[subject] = self.metrics.erasure_problems.get(subject, "the last attempt failed")
        elif partition is not None and len(self._running) < AT_ONCE:
            epoch = order_end.leader_epoch if end < order_end.offset else NO_LEADER_EPOCH
            work = self._erase(key, partition, erasure, OrderEnd(end, epoch), subject)
            self._running[key] = asyncio.get_running_loop().create_task(work, name="erasure")
        else:
            why = "others are erased first"
        return why

    def _is_in_sync(self, image: MetadataImage, place: Place) -> bool:
        state = image.partition(*place)
        return state is not None and self._node_id in state.isr

    def _end(self, image: MetadataImage, place: Place, partition: Partition, end: OrderEnd) -> int:
        """Return the offset at which an order ends in a log.

        A replica in sync with a leader of a later epoch has all that is left of the epochs before.
        """
        log, state = partition.log, image.partition(*place)
        offset = end.within(log.epochs.entries)
        is_later = state is not None and 0 <= end.leader_epoch < state.leader_epoch
        if is_later and self._is_in_sync(image, place):
            return min(offset, log.log_end_offset)
        return offset

    def _why_not(self, key: _Key, partition: Partition | None, end: int) -> str | None:
        """Return why the order cannot be carried out yet; None if it can."""
        if partition is None:
            return self._replicas.why_offline(*key.place) or "the replica is not open yet"
        log = partition.log
        if log.failure is not None:
            return str(log.failure)
        if partition.archive.loads_to is not None:
            return "its tail is loading"
        if log.log_end_offset < end:
            return f"the log ends at {log.log_end_offset}, the order goes up to {end}"
        if partition.high_watermark < end:
            return f"the high watermark is {partition.high_watermark}, the order goes up to {end}"
        if partition.last_stable_offset < end:
            return f"a transaction is open from offset {partition.last_stable_offset} on"
        return None

    async def _erase(
        self, key: _Key, partition: Partition, erasure: Erasure, end: OrderEnd, subject: str
    ) -> None:
        log, began_ms = partition.log, self._clock.monotonic_ms()
        try:
            keys = (await self._documents.open(erasure)).keys
            order = LocalErasure(key.order_id, keys, *end)
            done = await self._cleaner.erase(log, order, lambda: self._image().erasures)
        except Aborted:
            _log.info("erasure %s: %s has changed, or the order is cancelled", key.order_id, log.tip)
        except (StorageError, CorruptionError) as e:
            self.metrics.erasure_failures += 1
            if (wait := self._waits.get(key)) is not None:
                wait.failed(self._clock.monotonic_ms())
            if self.metrics.erasure_problems.get(subject) != str(e):
                _log.error("erasure %s: %s keeps it open: %s", key.order_id, log.tip, e)
            self.metrics.erasure_problems = {**self.metrics.erasure_problems, subject: str(e)}
        else:
            gone = done.counts.records_read - done.counts.records_kept
            _log.info(
                "erasure %s: %s has no record of its keys below offset %d: %d records of %d segments went, in"
                " %.1f s", key.order_id, log.tip, end.offset, gone, done.segments,
                (self._clock.monotonic_ms() - began_ms) / 1000,
            )  # fmt: skip
            self._surveyed_ms = None
            self._news.set()

    def _not_read(self, order_id: UUID, error: Exception) -> str:
        """Note that an order's document cannot be read; return that in words."""
        wait = self._unread.setdefault(order_id, _Wait(self._clock.monotonic_ms()))
        if self._clock.monotonic_ms() >= wait.again_ms:
            wait.failed(self._clock.monotonic_ms())
            self.metrics.erasure_failures += 1
        why = f"{_UNREAD}: {error}"
        if self.metrics.erasure_problems.get(str(order_id)) != why:
            _log.error("erasure %s: %s", order_id, why)
        self.metrics.erasure_problems = {**self.metrics.erasure_problems, str(order_id): why}
        return why

    def _subject(self, image: MetadataImage, key: _Key) -> str:
        topic = image.topics_by_id.get(key.place[0])
        name = str(key.place[0]) if topic is None else topic.name
        return f"{key.order_id} in {name}-{key.place[1]}"


_UNREAD: Final = "its document cannot be read"
_NOT_IN_SYNC: Final = "it is erased, and told once the replica is in sync with its leader"
