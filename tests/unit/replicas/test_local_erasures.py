"""The part of one broker's replicas in erasures: when each begins, what it tells, what is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, StorageError
from service.hot.cleaning.erasing import Erasing, LocalErasure
from service.hot.log import LocalLog
from service.hot.sealed_segments import SealedSegments
from service.metadata.image_frames import erased_records, erasure_record
from service.metadata.records import RemoveErasureRecord
from service.records.batch import stamp
from service.records.erasure import hash_key
from service.remote.catalog import IN_BUCKET, ErasedPlace, Erasure
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder
from service.remote.opened_order import Ends, NoDocuments, OpenOrder, OrderDocuments, opened
from service.replicas import local_erasures
from service.replicas.local_erasures import LocalErasures
from tests.support.compaction import START_MS, Pair, make_batch
from tests.support.one_of_three import (
    CLUSTER,
    ME,
    OTHER,
    TOPIC,
    OneOfThree,
    changed,
    moved,
    one_of_three,
    partition,
    topic,
)
from tests.support.waiting import until
from tests.unit.hot.cleanings import records_in
from tests.unit.hot.erasures import ORDER, SECRET

SECOND = UUID(int=40)


class Documents:
    """`OrderDocuments` in memory: ends of each order's only topic."""

    def __init__(self) -> None:
        self.orders: dict[UUID, OpenOrder] = {}
        self.failure: Exception | None = None
        self.opened = 0
        self.kept: Mapping[UUID, Erasure] = {}

    def has(self, order_id: UUID, *ends: int, key: bytes = b"gone", epochs: tuple[int, ...] = ()) -> None:
        hashes = hash_key(SECRET, key)
        topics = (ErasedTopic(TOPIC, "t", ends, epochs),)
        self.orders[order_id] = opened(
            ErasureOrder(CLUSTER, order_id, START_MS, -1, SECRET, hashes, b"f" * 8, topics)
        )

    async def open(self, erasure: Erasure) -> OpenOrder:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        return self.orders[erasure.id]

    async def ends(self, erasure: Erasure) -> Ends:
        return (await self.open(erasure)).ends

    def keep(self, erasures: Mapping[UUID, Erasure]) -> None:
        self.kept = erasures


class Catalog:
    """What broker 1 told its controller."""

    def __init__(self) -> None:
        self.told: list[tuple[UUID, ErasedPlace, int]] = []
        self.failure: Exception | None = None

    async def note_erased(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.told += [(erasure_id, one, broker_id) for one in places]


class Played:
    """Broker 1 with its erasures."""

    def __init__(self, node: OneOfThree, documents: OrderDocuments | None) -> None:
        self.node = node
        self.documents = Documents()
        self.catalog = Catalog()
        self.metrics = node.logs.metrics
        self.erasures = LocalErasures(
            ME, node.broker.replicas, node.logs.cleaner, documents or self.documents, lambda: node.image,
            cast("Any", self.catalog), node.broker.clock, self.metrics,
        )  # fmt: skip
        node.applier.watch(self.erasures)

    def later(self) -> None:
        """Let the longest pause after a failure go by."""
        cast("ManualClock", self.node.broker.clock).advance(60_000)

    def log(self, number: int = 0) -> LocalLog:
        found = self.node.broker.replicas.get(TOPIC, number)
        assert found is not None
        return found.log

    def put(self, *keys: bytes, number: int = 0, epoch: int = 0) -> None:
        """Append a batch of one record a key, as a follower gets it."""
        log = self.log(number)
        batch = bytearray(make_batch(log.log_end_offset, [Pair(key, b"v") for key in keys]))
        stamp(batch, 0, log.log_end_offset, epoch)
        log.appender.append_raw(memoryview(batch))

    def replicated(self, offset: int, number: int = 0) -> None:
        """Have the partition know that everything below `offset` is committed."""
        found = self.node.broker.replicas.get(TOPIC, number)
        assert found is not None
        found._set_high_watermark(offset)

    async def order(
        self,
        *ends: int,
        order_id: UUID = ORDER,
        is_restored: bool = False,
        epochs: tuple[int, ...] = (),
    ) -> None:
        self.documents.has(order_id, *ends, epochs=epochs)
        one = Erasure(order_id, f"erase/{order_id}.json.gz", 100, 1, 1, (TOPIC,), START_MS)
        await self.node.tell(erasure_record(one._replace(is_restored=is_restored)))

    async def erased(self, number: int = 0, *brokers: int, order_id: UUID = ORDER) -> None:
        """Have the metadata say who is clean."""
        await self.node.tell(*erased_records(order_id, [((TOPIC, number), brokers)]))

    async def done(self, order_id: UUID = ORDER) -> None:
        """Have the metadata say that an order is done."""
        order = self.node.image.erasures[order_id]
        await self.node.tell(erasure_record(order._replace(done_ms=START_MS + 9)))

    def keys(self, number: int = 0) -> list[bytes | None]:
        return [one.key for one in records_in(self.log(number))]

    def has_told(self, number: int = 0, order_id: UUID = ORDER, epoch: int = 0) -> bool:
        return (order_id, ErasedPlace(TOPIC, number, epoch), ME) in self.catalog.told


def play(
    folder: Path,
    scenario: Callable[[Played], Awaitable[None]],
    *,
    partitions: int = 1,
    leader: int = ME,
    documents: OrderDocuments | None = None,
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder) as node:
            played = Played(node, documents)
            await node.tell(
                topic(),
                *(partition(n, leader, replicas=(ME, OTHER)) for n in range(partitions)),
            )
            work = (played.erasures.run(), node.logs.run())
            running = [asyncio.create_task(one) for one in work]
            try:
                await scenario(played)
            finally:
                for one in running:
                    one.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_erasures, "_LOOK_S", 0.01)
    monkeypatch.setattr(local_erasures, "_SURVEY_MS", 0)
    monkeypatch.setattr(local_erasures, "_REST_S", 0.02)


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_leader_and_follower_carry_it_out_and_tell(tmp_path: Path, leader: int) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"a", b"gone")
        one.put(b"gone")
        one.put(b"gone")
        one.replicated(4)
        await one.order(3)
        await until(one.has_told)
        assert one.keys() == [b"a", b"gone"]
        assert one.metrics.unerased_replicas == 1, "the metadata does not say so yet"
        await one.erased(0, ME)
        await until(lambda: one.metrics.unerased_replicas == 0)
        assert one.metrics.erased_records == 2

    play(tmp_path, scenario, leader=leader)


def test_an_order_waits_until_its_end_is_replicated_and_stable(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        await one.order(3)
        await until(lambda: one.metrics.unerased_replicas == 1)
        one.put(b"gone", b"gone", b"a")
        one.replicated(2)
        await asyncio.sleep(0.1)
        assert one.keys() == [b"gone", b"gone", b"a"]
        assert not one.metrics.erasure_problems, "it has not waited for long"
        assert one.metrics.erasure_waits == {
            (ORDER, (TOPIC, 0)): "the high watermark is 2, the order goes up to 3"
        }, "status says so"
        one.replicated(3)
        await until(one.has_told)
        assert one.keys() == [b"a"]

    play(tmp_path, scenario)


def test_a_leader_without_the_last_records_of_an_order_keeps_younger_ones(tmp_path: Path) -> None:
    """An unclean election: the log ended at 2 where the order goes up to 4, and went on in another epoch."""

    async def scenario(one: Played) -> None:
        one.put(b"gone", b"a")
        one.replicated(2)
        await one.node.tell(changed(0, isr=(ME,), leader=ME, leader_recovery_state=1))
        one.put(b"gone", b"gone", b"gone", epoch=1)
        one.replicated(5)
        await one.order(4, epochs=(0,))
        await until(lambda: one.has_told(epoch=1))
        assert one.keys() == [b"a", b"gone", b"gone", b"gone"]

    play(tmp_path, scenario)


def test_a_leader_of_an_idle_partition_without_the_last_records_of_an_order_tells(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"gone", b"a")
        one.replicated(2)
        await one.order(4, epochs=(0,))
        await until(lambda: one.metrics.erasure_waits)
        assert one.metrics.erasure_waits == {
            (ORDER, (TOPIC, 0)): "the log ends at 2, the order goes up to 4"
        }, "it leads in the epoch of the order"
        await one.node.tell(changed(0, isr=(ME,), leader=ME, leader_recovery_state=1))
        await until(lambda: one.has_told(epoch=1))
        assert one.keys() == [b"a"]

    play(tmp_path, scenario)


def test_a_follower_without_the_last_records_of_an_order_tells_once_it_is_in_sync(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"gone", b"a")
        one.replicated(2)
        await one.node.tell(changed(0, isr=(OTHER,), leader=OTHER, leader_recovery_state=1))
        await one.order(4, epochs=(0,))
        await until(lambda: one.metrics.erasure_waits)
        assert one.metrics.erasure_waits == {
            (ORDER, (TOPIC, 0)): "the log ends at 2, the order goes up to 4"
        }, "its leader may have more of them"
        await one.node.tell(changed(0, isr=(OTHER, ME)))
        await until(lambda: one.has_told(epoch=1))
        assert one.keys() == [b"a"]
        one.put(b"gone", b"b")  # of another unclean leader, which has them
        one.replicated(4)
        assert not one.log().state.has_erased(ORDER)
        await until(lambda: one.keys() == [b"a", b"b"])
        await until(lambda: one.log().state.has_erased(ORDER))

    play(tmp_path, scenario, leader=OTHER)


def test_a_replica_tells_only_while_it_is_in_sync(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"gone", b"a")
        one.replicated(2)
        await one.node.tell(changed(0, isr=(OTHER,)))
        await one.order(2)
        await until(lambda: one.log().state.has_erased(ORDER))
        await until(lambda: "in sync" in str(one.metrics.erasure_waits))
        assert not one.catalog.told
        await one.node.tell(changed(0, isr=(OTHER, ME)))
        await until(one.has_told)

    play(tmp_path, scenario, leader=OTHER)


def test_a_partition_that_is_younger_than_the_order_has_nothing_to_do(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"gone", number=1)
        one.replicated(1, 1)
        await one.order(0)
        await until(lambda: one.has_told(0) and one.has_told(1))
        assert one.keys(1) == [b"gone"]

    play(tmp_path, scenario, partitions=2)


def test_a_replica_that_waits_for_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_erasures, "PATIENT_MS", 0)

    async def scenario(one: Played) -> None:
        one.put(b"gone")
        await one.order(3)
        subject = f"{ORDER} in t-0"
        problems = one.metrics
        await until(lambda: problems.erasure_problems)
        assert problems.erasure_problems == {subject: "the log ends at 1, the order goes up to 3"}
        one.put(b"a", b"a")
        one.replicated(1)
        text = "the high watermark is 1, the order goes up to 3"
        await until(lambda: problems.erasure_problems == {subject: text})
        one.replicated(3)
        await until(lambda: not problems.erasure_problems)

    play(tmp_path, scenario)


def test_a_document_that_cannot_be_read_keeps_the_order_open(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"gone")
        one.replicated(1)
        one.documents.failure = CorruptionError("other bytes")
        await one.order(1)
        await until(lambda: one.metrics.erasure_problems)
        text = "its document cannot be read: other bytes"
        assert one.metrics.erasure_problems == {str(ORDER): text}
        await asyncio.sleep(0.1)
        assert one.documents.opened == 1, "it is not asked for all the time"
        one.documents.failure = StorageError("a slow bucket")
        one.later()
        await until(lambda: "slow" in str(one.metrics.erasure_problems))
        assert one.metrics.erasure_failures == 2
        one.documents.failure = None
        one.later()
        await until(one.has_told)
        await until(lambda: not one.metrics.erasure_problems)
        assert one.keys() == []

    play(tmp_path, scenario)


def test_a_node_without_a_bucket_says_so(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        await one.order(0)
        await until(lambda: one.metrics.erasure_problems)
        assert "firn.remote.url is not set" in one.metrics.erasure_problems[str(ORDER)]
        assert not one.catalog.told

    play(tmp_path, scenario, documents=NoDocuments())


def test_a_node_tells_again_until_the_metadata_has_it(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.catalog.failure = StorageError("no controller")
        await one.order(0)
        await until(lambda: one.log().state.has_erased(ORDER))
        one.catalog.failure = None
        await until(lambda: len(one.catalog.told) > 2)
        await one.erased(0, ME)
        await until(lambda: not one.metrics.unerased_replicas)

    play(tmp_path, scenario)


def test_a_log_that_was_cut_does_it_again_whatever_the_metadata_says(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"a", b"gone")
        one.put(b"gone")
        one.replicated(3)
        await one.order(3)
        await until(one.has_told)
        await one.erased(0, ME, OTHER, IN_BUCKET)
        await until(lambda: not one.metrics.unerased_replicas)
        found = one.node.broker.replicas.get(TOPIC, 0)
        assert found is not None
        assert found.log.sealed.may_copy()
        found.log.truncation.truncate_to(2)
        found.high_watermark = 2
        assert not found.log.sealed.may_copy(), "the bucket part is over: it would bring the key back"
        await one.done()
        assert not found.log.has_erased_records(), "what is left of it is clean"
        one.put(b"gone")
        one.put(b"gone")
        one.replicated(4)
        await until(lambda: found.log.state.has_erased(ORDER))
        assert one.keys() == [b"a", b"gone"]
        assert found.log.sealed.may_copy()

    play(tmp_path, scenario)


def test_a_log_from_before_an_order_that_is_done_shows_nothing_until_it_is_carried_out_again(
    tmp_path: Path,
) -> None:
    """Its disk came back from a backup: the metadata has its note, and the log does not know of the order."""

    async def scenario(one: Played) -> None:
        cleaner = one.erasures._cleaner
        one.erasures._cleaner = SlowCleaner()
        one.put(b"a", b"gone")
        one.replicated(2)
        found = one.log().has_erased_records
        await one.order(2)
        await one.erased(0, OTHER, IN_BUCKET)
        await one.done()
        assert not found(), "a replica that was assigned since has what clean logs have"
        await one.order(2)
        await one.erased(0, ME)
        assert not found(), "the order is not done"
        await one.done()
        assert found()
        one.erasures._running.clear()
        one.erasures._cleaner = cleaner
        await until(lambda: one.log().state.has_erased(ORDER))
        assert not found()
        assert one.keys() == [b"a"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("is_gone", [False, True])
def test_segments_that_waited_for_an_order_are_copied_once_nothing_is_in_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    """Nobody writes to the log, so no flush says that its segments may be copied."""
    monkeypatch.setattr(SealedSegments, "flushed", lambda self: None)

    async def scenario(one: Played) -> None:
        one.documents.failure = StorageError("the store is away")
        one.put(b"a", b"gone")
        one.replicated(2)
        one.log().appender.roll()
        one.log().durability.flush()
        sealed, news = one.log().sealed, list[bool]()
        assert sealed.spans(0, 9)
        await one.order(2)
        await one.erased(0, OTHER, IN_BUCKET)
        assert not sealed.spans(0, 9), "the bucket part is over: it would bring the key back"
        sealed.watch(lambda: news.append(sealed.may_copy()))
        if is_gone:
            await one.node.tell(RemoveErasureRecord(id=ORDER))
        else:
            one.documents.failure = None
            one.later()
        await until(lambda: any(news))
        assert sealed.spans(0, 9)

    play(tmp_path, scenario)


def test_orders_are_carried_out_one_after_the_other_in_a_log(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.put(b"a", b"gone", b"b")
        one.replicated(3)
        await one.order(3)
        one.documents.has(SECOND, 3, key=b"b")
        await one.node.tell(erasure_record(Erasure(SECOND, "erase/x", 100, 1, 1, (TOPIC,), START_MS + 1)))
        await until(lambda: one.has_told() and one.has_told(order_id=SECOND))
        assert one.keys() == [b"a"]

    play(tmp_path, scenario)


class SlowCleaner:
    """Holds each erasure back until it may go on."""

    def __init__(self) -> None:
        self.begun: list[LocalErasure] = []
        self.may_go = asyncio.Event()
        self.failures: list[Exception] = []

    async def erase(
        self, log: LocalLog, order: LocalErasure, orders: Callable[[], Collection[UUID]]
    ) -> Erasing:
        self.begun.append(order)
        if self.failures:
            raise self.failures.pop()
        await self.may_go.wait()
        raise AssertionError("no scenario lets it go on")


def test_a_partition_that_leaves_and_an_order_that_ends_are_forgotten(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        one.erasures._cleaner = slow = SlowCleaner()
        await one.order(0)
        await until(lambda: slow.begun)
        await one.node.tell(moved(0, OTHER))
        await until(lambda: not one.metrics.unerased_replicas)
        await one.node.tell(RemoveErasureRecord(id=ORDER))
        await until(lambda: not one.erasures._waits)

    play(tmp_path, scenario)


def test_a_log_that_refuses_is_named_and_tried_again(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        cleaner = one.erasures._cleaner
        one.erasures._cleaner = slow = SlowCleaner()
        slow.failures = [StorageError("disk full")]
        await one.order(0)
        await until(lambda: one.metrics.erasure_problems == {f"{ORDER} in t-0": "disk full"})
        await until(lambda: one.metrics.erasure_waits == {(ORDER, (TOPIC, 0)): "disk full"})
        one.erasures._cleaner = cleaner
        one.later()
        await until(one.has_told)
        await until(lambda: not one.metrics.erasure_problems and not one.metrics.erasure_waits)
        assert one.metrics.erasure_failures == 1

    play(tmp_path, scenario)


def test_an_archive_is_hidden_until_the_bucket_part_of_a_restored_order_is_over(tmp_path: Path) -> None:
    async def scenario(one: Played) -> None:
        found = one.node.broker.replicas.get(TOPIC, 0)
        assert found is not None
        hides = found.unified.hides_archive
        await one.order(0, order_id=SECOND)
        assert not hides(), "its records were served before, and are until they are gone"
        await one.order(0, is_restored=True)
        assert hides()
        await one.erased(0, ME, OTHER)
        assert hides()
        await one.erased(0, ME, OTHER, IN_BUCKET)
        assert not hides()

    play(tmp_path, scenario)
