"""The tails of a restored cluster: what a leader loads, in which order, and what it answers until then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.hot.log import LocalLog
from service.metadata.image import RestoredTail
from service.metadata.image_frames import restored_tail_record
from service.metadata.records import MetadataRecord, RemoteLogRecord, RemoveRestoredTailRecord
from service.partition.partition import Partition
from service.records.batch import iter_headers
from service.records.scan import scan_batches
from service.remote.catalog import CatalogEntry, LoadedTail
from service.remote.metrics import TailLoadMetrics
from service.remote.order_end import OrderEnd
from service.remote.reading.reader import ArchiveEnd
from service.remote.stores.obstore_store import open_store
from service.remote.stores.store import ObjectStore
from service.replicas import tail_loading
from service.replicas.erased_runs import TailErasure
from service.replicas.tail_loading import TailLoader
from service.wire.api import ApiKey, request_module
from tests.support.compaction import Pair, make_batch
from tests.support.hand_made_cuts import HandMadeCut, Place, batch
from tests.support.one_of_three import CLUSTER, ME, OTHER, TOPIC, OneOfThree, changed, one_of_three, topic
from tests.support.one_of_three import partition as partition_record
from tests.support.waiting import until
from tests.support.world import WORLD
from tests.unit.hot.cleanings import records_in
from tests.unit.hot.erasures import keys_of
from tests.unit.remote.archive import plan_segment

NONE = ErrorCode.none
EPOCH: Final = 1005
"""of the heir's leader; the source's were 3 and 4"""
OFFSETS: Final = UUID(int=101)


def tail(cut_key: str, *, start: int = 0, end: int = 6, go_on: int = 1006, segment: str = "") -> RestoredTail:
    return RestoredTail(start, end, go_on, cut_key, segment)


class Restored:
    """Broker 1 as it comes up in a restored cluster: `tell` is the metadata log, `told` its controller."""

    def __init__(self, node: OneOfThree, store: ObjectStore) -> None:
        self.node = node
        self.store = store
        self.cut = HandMadeCut(store, CLUSTER)
        self.cut.own_the_prefix()
        self.told: list[LoadedTail] = []
        self.metrics = TailLoadMetrics()
        self.orders: list[TailErasure] = []
        """orders of erasure of each partition"""
        self.orders_fail: StorageError | None = None
        opener = node.applier.opener
        self.loader = opener.tails = TailLoader(
            store, opener, node.logs, lambda: node.image, self._tell, WORLD, self.metrics, self._orders_of
        )
        opener.archives._reader = cast("Any", object())  # no archive is read here

    async def _orders_of(self, place: Place) -> list[TailErasure]:
        if self.orders_fail is not None:
            raise self.orders_fail
        return self.orders

    async def _tell(self, loaded: Collection[LoadedTail]) -> None:
        self.told += loaded

    async def restore(
        self, *tails: RestoredTail, topic_id: UUID = TOPIC, name: str = "t", leader: int = ME, **more: Any
    ) -> None:
        """Begin with a topic whose partitions have these tails."""
        records: list[MetadataRecord] = [topic(name, topic_id)]
        for number, one in enumerate(tails):
            records.append(partition_record(number, leader, topic_id=topic_id, leader_epoch=EPOCH, **more))
            records.append(restored_tail_record((topic_id, number), one))
        await self.node.tell(*records)
        await self.node.applier.opener.archives.run_once()

    def partition(self, number: int = 0, topic_id: UUID = TOPIC) -> Partition:
        found = self.node.broker.replicas.get(topic_id, number)
        assert found is not None, self.node.broker.replicas.why_offline(topic_id, number)
        return found

    async def loaded(self, number: int = 0, topic_id: UUID = TOPIC) -> None:
        """Wait until the controller is told of the partition, and have the metadata say so."""
        await until(lambda: any(one[:2] == (topic_id, number) for one in self.told))
        await self.node.tell(RemoveRestoredTailRecord(topic_id=topic_id, partition_id=number))

    async def fetched(self, offset: int, **fields: Any) -> tuple[ErrorCode, int, list[tuple[int, int]]]:
        """Return the error, the high watermark, and the offsets of the batches."""
        module = request_module(ApiKey.FETCH)
        asked = module.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = (module.FetchTopic(topic_id=TOPIC, partitions=(asked,)),)
        answer = await self.node.fetch(0, topics=topics, **fields)
        one = answer.responses[0].partitions[0]
        batches = [(h.base_offset, h.last_offset) for h in iter_headers(one.records or b"")]
        return ErrorCode(one.error_code), one.high_watermark, batches

    async def listed(self, timestamp: int, isolation: int = 0) -> tuple[ErrorCode, int]:
        module = request_module(ApiKey.LIST_OFFSETS)
        one = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        answer = await self.node.call(
            ApiKey.LIST_OFFSETS,
            "ListOffsetsRequest",
            10,
            replica_id=-1,
            isolation_level=isolation,
            topics=(module.ListOffsetsTopic(name="t", partitions=(one,)),),
            timeout=timedelta(seconds=1),
        )
        found = answer.topics[0].partitions[0]
        return ErrorCode(found.error_code), found.offset

    async def produced(self, number: int = 0) -> tuple[ErrorCode, int]:
        answer = await self.node.produce(number)
        one = answer.responses[0].partition_responses[0]
        return ErrorCode(one.error_code), one.base_offset


def play(folder: Path, scenario: Callable[[Restored], Awaitable[None]], *, runs: bool = True) -> None:
    """Play a scenario; without `runs` nothing is loaded unless the scenario lets it."""

    async def whole() -> None:
        (folder / "bucket").mkdir(exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        store = open_store(f"file://{folder}/bucket", world=WORLD)
        async with asyncio.timeout(30), one_of_three(folder / "logs") as node:
            restored = Restored(node, store)
            running = asyncio.create_task(restored.loader.run()) if runs else None
            try:
                await scenario(restored)
            finally:
                if running is not None:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)

    asyncio.run(whole())


SIX: Final = batch(0, [b"a", b"b"], 3) + batch(2, [b"c", b"d", b"e"], 4) + batch(5, [b"f"], 4)


def test_a_leader_takes_records_once_its_tail_is_loaded(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        await node.restore(tail(node.cut.write()))
        log = node.partition().log
        await until(lambda: bool(node.told))
        assert node.told[0] == LoadedTail(TOPIC, 0, EPOCH)
        assert log.log_end_offset == 1006
        assert await node.fetched(0) == (NONE, 0, []), "not before the metadata says it"
        assert (await node.produced())[0] is ErrorCode.kafka_storage_error
        await node.loaded()
        assert await node.fetched(0) == (NONE, 1006, [(0, 1), (2, 4), (5, 5), (6, 1005)])
        assert await node.produced() == (NONE, 1006)
        assert log.epochs.entries == ((3, 0), (4, 2), (EPOCH, 1006))
        assert await node.listed(-1) == (NONE, 1007)
        assert log.recovery_point >= 1006, "synced before the controller was told"

    play(tmp_path, scenario)


def test_records_of_an_order_of_erasure_are_not_loaded(tmp_path: Path) -> None:
    data = (
        make_batch(0, [Pair(b"gone", b"1"), Pair(b"a", b"1")])
        + make_batch(2, [Pair(b"gone", b"2"), Pair(b"gone", b"3")])
        + make_batch(4, [Pair(b"gone", b"4"), Pair(b"b", b"1")])
    )

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): data})
        gone, a = keys_of([b"gone"]), keys_of([b"a"])
        node.orders = [TailErasure(gone, OrderEnd(4)), TailErasure(a, OrderEnd(2))]
        await node.restore(tail(node.cut.write()))
        await node.loaded()
        log = node.partition().log
        assert [(one.offset, one.key) for one in records_in(log)] == [(4, b"gone"), (5, b"b")]
        assert await node.fetched(0) == (NONE, 1006, [(0, 1), (2, 3), (4, 5), (6, 1005)])

    play(tmp_path, scenario)


def test_a_tail_waits_for_an_order_that_cannot_be_read(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): make_batch(0, [Pair(b"gone", b"1"), *5 * [Pair(b"a", b"1")]])})
        node.orders_fail = StorageError("no bucket")
        await node.restore(tail(node.cut.write()))
        await until(lambda: node.metrics.problems)
        assert [*node.metrics.problems.values()] == ["no bucket"]
        assert node.partition().log.log_end_offset == 0
        node.orders_fail, node.orders = None, [TailErasure(keys_of([b"gone"]), OrderEnd(6))]
        await node.loaded()
        assert [one.offset for one in records_in(node.partition().log)] == [1, 2, 3, 4, 5]

    play(tmp_path, scenario)


def test_clients_hear_of_a_tail_that_is_loading(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        await node.restore(tail(node.cut.write()))
        for offset in (0, 3, 6, 700, 1006):
            assert await node.fetched(offset) == (NONE, 0, []), offset
            assert await node.fetched(offset, isolation_level=1) == (NONE, 0, []), offset
        assert (await node.fetched(1007))[0] is ErrorCode.offset_out_of_range
        assert await node.listed(-1) == (NONE, 1006)
        assert await node.listed(-2) == (NONE, 0)
        for timestamp, isolation in ((-1, 1), (-3, 0), (1, 0)):
            assert (await node.listed(timestamp, isolation))[0] is ErrorCode.offset_not_available
        error, _ = await node.produced()
        assert error is ErrorCode.kafka_storage_error
        assert node.partition().note_end() is None, "no cut is taken of what is not there"
        module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        one = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=4)
        asked = module.OffsetForLeaderTopic(topic="t", partitions=(one,))
        for replica_id, code in ((-1, ErrorCode.offset_not_available), (-2, ErrorCode.offset_not_available)):
            answer = await node.node.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                "OffsetForLeaderEpochRequest",
                4,
                replica_id=replica_id,
                topics=(asked,),
            )
            assert answer.topics[0].partitions[0].error_code is code

    play(tmp_path, scenario, runs=False)


def test_a_waiting_fetch_is_answered_when_the_tail_is_there(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        await node.restore(tail(node.cut.write()))
        waiting = asyncio.create_task(node.fetched(0, max_wait=timedelta(seconds=20)))
        await node.loaded()
        assert (await waiting)[2][:1] == [(0, 1)]

    play(tmp_path, scenario)


def test_compacted_records_leave_holes_and_the_end_is_filled(tmp_path: Path) -> None:
    """Offsets 2 to 4 and 6 to 9 were compacted away; the cut ends at 10."""

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): batch(0, [b"a", b"b"], 3)}, ends={(TOPIC, 0): 5})
        node.cut.tail({(TOPIC, 0): batch(5, [b"f"], 4)}, ends={(TOPIC, 0): 10})
        await node.restore(tail(node.cut.write(), end=10, go_on=10))
        await node.loaded()
        assert await node.fetched(0) == (NONE, 10, [(0, 1), (5, 5), (6, 9)])
        assert await node.produced() == (NONE, 10)

    play(tmp_path, scenario)


def test_a_tail_of_nothing_still_leaves_the_offsets_that_may_have_been_given_out(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        await node.restore(tail("", start=40, end=40, go_on=100))
        await node.loaded()
        assert node.partition().start_offset == 40
        assert await node.fetched(40) == (NONE, 100, [(40, 99)])
        assert await node.produced() == (NONE, 100)
        assert node.partition().log.epochs.entries == ((EPOCH, 40),)

    play(tmp_path, scenario)


def test_producers_go_on_where_the_cut_has_them(tmp_path: Path) -> None:
    """An idempotent batch is a duplicate, and a transaction that was open holds back who reads committed."""

    async def scenario(node: Restored) -> None:
        idempotent = batch(0, [b"a", b"b"], 3, producer_id=7, producer_epoch=0, base_sequence=0)
        open_one = batch(
            2, [b"c"], 3, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        node.cut.tail({(TOPIC, 0): idempotent + open_one + batch(3, [b"d"], 3)})
        await node.restore(tail(node.cut.write(), end=4))
        await node.loaded()
        partition = node.partition()
        assert (partition.high_watermark, partition.last_stable_offset) == (1006, 2)
        assert (await node.fetched(0, isolation_level=1))[2] == [(0, 1)]
        assert await node.listed(-1, isolation=1) == (NONE, 2)
        assert set(partition.log.producers.ids()) == {7, 8}

    play(tmp_path, scenario)


def test_a_log_that_had_a_part_of_it_begins_anew(tmp_path: Path) -> None:
    """As after a crash in the middle of the load, or where another leader has loaded meanwhile."""

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        wanted = tail(node.cut.write())
        await node.restore(wanted, leader=OTHER, replicas=(OTHER, ME))
        log = node.partition().log
        foreign = memoryview(batch(0, [b"x", b"y", b"z"], 3))
        log.appender.append_fetched(foreign, scan_batches(foreign))
        await node.node.tell(changed(0, leader=ME))
        assert node.node.broker.replicas.get(TOPIC, 0) is None
        await node.node.applier.opener.archives.run_once()
        await node.loaded()
        assert (await node.fetched(0))[2] == [(0, 1), (2, 4), (5, 5), (6, 1005)]

    play(tmp_path, scenario)


def test_a_leader_that_is_deposed_stops_and_tells_nothing(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        await node.restore(tail(node.cut.write()), replicas=(ME, OTHER))
        await node.node.tell(changed(0, leader=OTHER))
        running = asyncio.create_task(node.loader.run())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not node.told
        assert node.partition().log.log_end_offset == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(tmp_path, scenario, runs=False)


def test_damage_is_named_and_keeps_only_its_partition_from_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_loading, "_FIRST_RETRY_S", 0.05)

    async def scenario(node: Restored) -> None:
        bad = node.cut.tail({(TOPIC, 0): SIX})
        node.cut.tail({(TOPIC, 1): SIX})
        key = node.cut.write()
        whole = node.store.get(bad, max_size=1 << 20)
        torn = bytearray(whole)
        torn[len(SIX) - 1] ^= 1  # a bit of the last record
        node.store.put(bad, bytes(torn))
        await node.restore(tail(key), tail(key))
        await node.loaded(1)
        await until(lambda: bool(node.metrics.problems))
        assert list(node.metrics.problems) == ["t-0"]
        assert bad in node.metrics.problems["t-0"]
        assert await node.produced(1) == (NONE, 1006)
        assert [one.partition for one in node.told] == [1]
        node.store.put(bad, whole)

        async def opened() -> bool:
            await node.node.applier.opener.archives.run_once()
            return any(one.partition == 0 for one in node.told)

        while not await opened():
            await asyncio.sleep(0.02)
        assert not node.metrics.problems
        await node.loaded(0)
        assert (await node.fetched(0))[2] == [(0, 1), (2, 4), (5, 5), (6, 1005)]

    play(tmp_path, scenario)


def test_a_tail_whose_footer_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_loading, "_FIRST_RETRY_S", 0.05)

    async def scenario(node: Restored) -> None:
        bad = node.cut.tail({(TOPIC, 0): SIX})
        node.cut.tail({(TOPIC, 1): SIX})
        key = node.cut.write()
        data = node.store.get(bad, max_size=1 << 20)
        node.store.put(bad, data[:-1] + b"!")
        await node.restore(tail(key), tail(key))
        await node.loaded(1)
        await until(lambda: node.metrics.failures > 1)
        assert bad in node.metrics.problems["t-0"]
        assert node.partition().log.log_end_offset == 0, "what is in the bucket is served"
        node.store.put(bad, data)
        await node.loaded(0)

    play(tmp_path, scenario)


def test_internal_topics_come_first_then_what_clients_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_loading, "AT_ONCE", 1)
    monkeypatch.setattr(tail_loading, "_TELL_AGAIN_S", 0.01)

    async def scenario(node: Restored) -> None:
        await node.restore(*[tail("", end=0, go_on=5) for _ in range(4)])
        await node.restore(tail("", end=0, go_on=5), topic_id=OFFSETS, name="__consumer_offsets")
        assert (await node.produced(2))[0] is ErrorCode.kafka_storage_error
        order: list[Place] = []
        flush = node.node.logs.flush

        async def flushed(log: LocalLog) -> None:
            order.append((log.tip.topic_id, log.tip.partition))
            await flush(log)

        monkeypatch.setattr(node.node.logs, "flush", flushed)
        running = asyncio.create_task(node.loader.run())
        await until(lambda: len({one[:2] for one in node.told}) == 5)
        assert order == [(OFFSETS, 0), (TOPIC, 2), (TOPIC, 0), (TOPIC, 1), (TOPIC, 3)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(tmp_path, scenario, runs=False)


def test_coordinators_wait_for_their_log(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        await node.restore(tail("", end=0, go_on=5), topic_id=OFFSETS, name="__consumer_offsets")
        states = node.node.broker.groups.partition_states
        assert (states()["active"], states()["failed"]) == (0, 0)
        runtime = node.node.broker.groups.runtime
        with pytest.raises(Exception, match="loading") as refused:
            runtime.read(0, lambda shard, now_ms: None)
        assert refused.value.code is ErrorCode.coordinator_load_in_progress  # type: ignore[attr-defined]
        running = asyncio.create_task(node.loader.run())
        await node.loaded(0, OFFSETS)
        await until(lambda: states()["active"] == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(tmp_path, scenario, runs=False)


def segment(store: ObjectStore, log: bytes, base: int, last: int, *, number: int = 0) -> str:
    """Write a segment in small blocks; return its key."""
    planned = plan_segment(
        log,
        base_offset=base,
        last_offset=last,
        epochs=((3, base), (4, 2)),
        uuid=UUID(int=55),
        block_bytes=60,
        tip=TopicIdPartition(TOPIC, "t", number),
    )
    key = planned.key
    store.put(key, b"".join(planned.parts()))
    return key


def test_records_of_a_segment_that_reaches_beyond_the_cut_are_loaded_up_to_its_end(tmp_path: Path) -> None:
    async def scenario(node: Restored) -> None:
        key = segment(node.store, SIX + batch(6, [b"lost", b"lost"], 4), 0, 7)
        await node.restore(tail(node.cut.write(), segment=key))
        await node.loaded()
        assert await node.fetched(0) == (NONE, 1006, [(0, 1), (2, 4), (5, 5), (6, 1005)])

    play(tmp_path, scenario)


def test_a_log_may_start_within_its_first_batch(tmp_path: Path) -> None:
    """Records were deleted up to offset 3, of a batch that has 2 to 4; from a tail, and from a segment."""

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): SIX})
        key = segment(node.store, SIX, 0, 5, number=1)
        cut = node.cut.write()
        await node.restore(tail(cut, start=3), tail(cut, start=3, segment=key))
        await node.loaded(0)
        await node.loaded(1)
        for number in (0, 1):
            assert node.partition(number).start_offset == 3
            assert await node.produced(number) == (NONE, 1006)
        assert await node.fetched(3) == (NONE, 1007, [(2, 4), (5, 5), (6, 1005), (1006, 1006)])
        assert (await node.fetched(2))[0] is ErrorCode.offset_out_of_range

    play(tmp_path, scenario)


def test_a_log_may_begin_behind_an_archive_of_which_nothing_is_left(tmp_path: Path) -> None:
    """Retention has taken all segments, and records behind them were deleted, too."""
    entry = CatalogEntry(7, "manifest", 3, 2, 2, 0, 0)

    class Reader:
        def archive_end(self, tip: TopicIdPartition, key: str) -> Future[ArchiveEnd]:
            found: Future[ArchiveEnd] = Future()
            found.set_result(ArchiveEnd((), b"", entry))
            return found

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): batch(5, [b"f"], 4)})
        archives = node.node.applier.opener.archives
        archives._reader = cast("Any", Reader())
        await node.node.tell(
            topic("t", TOPIC),
            partition_record(0, ME, topic_id=TOPIC, leader_epoch=EPOCH),
            RemoteLogRecord(topic_id=TOPIC, partition_id=0, **entry._asdict()),
            restored_tail_record((TOPIC, 0), tail(node.cut.write(), start=5)),
        )
        await archives.run_once()
        await node.loaded()
        assert node.partition().start_offset == 5
        assert await node.fetched(5) == (NONE, 1006, [(5, 5), (6, 1005)])

    play(tmp_path, scenario)


def test_a_day_of_failures_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_loading, "_LAST_RETRY_S", 0.05)

    async def scenario(node: Restored) -> None:
        missing = node.cut.tail({(TOPIC, 0): SIX})
        key = node.cut.write()
        data = node.store.get(missing, max_size=1 << 20)
        node.store.delete([missing])
        node.loader._failures = {TopicIdPartition(TOPIC, "t", 0): 2_000}
        await node.restore(tail(key))
        await until(lambda: node.metrics.failures > 1)
        node.store.put(missing, data)
        await node.loaded()

    play(tmp_path, scenario)


def test_a_segment_of_other_offsets_or_with_a_damaged_block_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_loading, "_FIRST_RETRY_S", 60)

    async def scenario(node: Restored) -> None:
        short = segment(node.store, SIX[: len(SIX) - len(batch(5, [b"f"], 4))], 0, 4)
        torn = segment(node.store, SIX, 0, 5, number=1)
        data = bytearray(node.store.get(torn, max_size=1 << 20))
        data[8 * 4] ^= 1
        node.store.put(torn, bytes(data))
        key = node.cut.write()
        await node.restore(tail(key, segment=short), tail(key, segment=torn))
        await until(lambda: len(node.metrics.problems) == 2)
        assert "of other offsets" in node.metrics.problems["t-0"]
        assert "wrong checksum" in node.metrics.problems["t-1"]
        assert torn in node.metrics.problems["t-1"]
        assert not node.told

    play(tmp_path, scenario)
