"""Answers of one broker to TakeCut, step by step, with gates and partitions that are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, MetadataImage, RestoredTail
from service.metadata.persistent import PersistentMap
from service.metadata.records import PartitionRecord, TopicRecord
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import Place, TailRef
from service.replicas.cut_answers import CutAnswers
from service.replicas.partition_registry import Replicas
from service.tiering.cuts.cut_metrics import CutMetrics
from service.tiering.cuts.round import CutStep
from service.tiering.cuts.saving import LostTails, SavedTails, Standing, TakenEnd
from service.tiering.cuts.saving_plan import Saved
from service.wire.cuts import (
    CutEnd,
    CutLoss,
    CutLosses,
    CutTail,
    OfflinePartition,
    OfflinePartitions,
    TakeCutRequest,
    TakeCutResponse,
)
from tests.support.virtual_loop import VirtualLoop
from tests.unit.hot.logs import TIP
from tests.unit.partition.leading import EPOCH, Led

KEEPER, OWN, OTHER = 1, 2, 3
BROKER_EPOCH = 40
PLACE = TIP.topic_id, 0
A, B, NEWEST = UUID(int=0xA), UUID(int=0xB), UUID(int=0xC)
TAIL = TailRef("tail/x", 9, 8, 7)


def broker(broker_id: int, *, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id, BROKER_EPOCH + broker_id, UUID(int=broker_id), (), (), None, fenced, False, ()
    )


CLUSTER = MetadataImage(offset=99, brokers={one: broker(one) for one in (KEEPER, OWN, OTHER)})


class Metadata:
    def __init__(self) -> None:
        self.image = CLUSTER
        self.is_held = False

    def hold(self) -> None:
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        self.is_held = False


class Saver:
    """Saves everything, or fails; `started` counts."""

    def __init__(self) -> None:
        self.known: Standing | None = None
        self.asked: list[tuple[UUID, UUID | None, int]] = []
        self.lost: list[LostTails] = []
        self.error: Exception | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def standing(self, place: Place, leader_epoch: int) -> Standing | None:
        return self.known if leader_epoch == EPOCH else None

    async def save(
        self,
        attempt_id: UUID,
        newest_id: UUID | None,
        cut: int,
        taken: Mapping[Place, TakenEnd],
        lost: Iterable[LostTails],
    ) -> SavedTails:
        self.lost += lost
        self.asked.append((attempt_id, newest_id, cut))
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        stands = {
            place: Standing(Saved(one.end, 0, EPOCH), waits=False, is_tailed=True)
            for place, one in taken.items()
        }
        return SavedTails((TAIL,), stands)


class Fence:
    keeper: UUID | None = None
    may_write = True


class Asked:
    """A broker that leads one partition of five records."""

    def __init__(self, folder: Path, loop: VirtualLoop) -> None:
        self.led = Led(folder)
        self.grow(5)
        self.replicas = Replicas()
        self.replicas.add(self.led.partition)
        self.metadata, self.saver, self.fence, self.metrics = Metadata(), Saver(), Fence(), CutMetrics()
        self.answers = CutAnswers(
            OWN, self.replicas, self.metadata, loop, self.saver, self.fence, self.metrics
        )
        self.gate = self.replicas.gate

    @property
    def partition(self) -> Partition:
        return self.led.partition

    def grow(self, records: int) -> None:
        self.led.append(records)
        for one in (2, 3):
            self.led.fetch(one, self.led.log.log_end_offset)

    async def ask(self, step: CutStep | int, attempt: UUID | None = A, **fields: Any) -> TakeCutResponse:
        known: dict[str, Any] = {
            "broker_id": KEEPER, "broker_epoch": BROKER_EPOCH + KEEPER, "newest_id": NEWEST, "cut": 7,
            "hold_ms": 20,
        }  # fmt: skip
        return await self.answers.answer(
            TakeCutRequest(**{**known, "attempt_id": attempt, "step": int(step), **fields})
        )


Scenario = Callable[[Asked], Coroutine[Any, Any, None]]


def play(tmp_path: Path, scenario: Scenario) -> Asked:
    """Run it on a loop whose time jumps; at the end nothing is held back."""
    loop = VirtualLoop()
    try:

        async def run() -> Asked:
            asked = Asked(tmp_path, loop)
            await scenario(asked)
            await asked.answers.close()
            assert asked.gate.is_open
            assert not asked.metadata.is_held
            return asked

        return loop.run_until_complete(run())
    finally:
        loop.close()


def test_partitions_whose_tails_are_lost_are_told_to_who_saves(tmp_path: Path) -> None:
    loss = CutLoss(partition=3, leader_epoch=5, reaches=17)

    async def scenario(asked: Asked) -> None:
        for step in (CutStep.BEGIN, CutStep.TAKE):
            await asked.ask(step)
        topics = (
            CutLosses(topic_id=TIP.topic_id, partitions=(loss,)),
            CutLosses(topic_id=None, partitions=(loss,)),
        )
        saved = await asked.ask(CutStep.SAVE, lost=topics)
        assert saved.error_code is ErrorCode.none
        assert asked.saver.lost == [LostTails((TIP.topic_id, 3), 5, 17)]

    play(tmp_path, scenario)


def test_a_partition_that_cannot_be_read_is_told_and_awaited_by_nobody(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        topic = TopicRecord(name=TIP.topic, topic_id=TIP.topic_id)
        partition = PartitionRecord(
            partition_id=TIP.partition, topic_id=TIP.topic_id, replicas=(OWN,), isr=(OWN,), leader=OWN,
            leader_epoch=EPOCH, partition_epoch=0, directories=(None,),
        )  # fmt: skip
        known = MetadataDelta(MetadataImage()).replay_all([topic, partition]).build(99, 1, 0)
        asked.metadata.image = replace(asked.metadata.image, topics_by_id=known.topics_by_id)
        asked.gate.doubt(asked.partition)
        asked.partition.log.fail(OSError(5, "broken"))
        asked.replicas.note_failure(asked.partition)
        expected = (
            OfflinePartitions(
                topic_id=TIP.topic_id,
                partitions=(OfflinePartition(partition=TIP.partition, leader_epoch=EPOCH),),
            ),
        )
        begun = await asked.ask(CutStep.BEGIN)
        assert (begun.error_code, begun.offline) == (ErrorCode.none, expected)
        taken = await asked.ask(CutStep.TAKE)
        assert (taken.ends, taken.offline) == ((), expected)

    play(tmp_path, scenario)


def end(answer: TakeCutResponse) -> CutEnd:
    assert answer.error_code is ErrorCode.none, answer.error_message
    ((topic,),) = (answer.ends,)
    assert topic.topic_id == TIP.topic_id
    return topic.partitions[0]


def test_a_cut_goes_from_a_closed_gate_to_ends_to_tails(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        begun = await asked.ask(CutStep.BEGIN)
        assert (begun.error_code, begun.image_offset) == (ErrorCode.none, 100)
        assert asked.gate.is_closed
        assert asked.metadata.is_held
        asked.grow(3)
        assert asked.partition.high_watermark == 5
        await asyncio.sleep(0.010)
        found = end(await asked.ask(CutStep.TAKE))
        assert (found.leader_epoch, found.start, found.end, found.stable) == (EPOCH, 0, 5, 5)
        assert (found.saved, found.saved_high, found.last_epoch, found.version) == (0, 0, -1, 0)
        assert asked.gate.is_open
        assert not asked.metadata.is_held
        assert asked.partition.high_watermark == 8
        saved = await asked.ask(CutStep.SAVE)
        assert saved.tails == (CutTail(key="tail/x", size=9, footer_position=8, footer_crc=7),)
        assert (end(saved).saved, end(saved).last_epoch, end(saved).end) == (5, EPOCH, 5)
        assert asked.saver.asked == [(A, NEWEST, 7)]
        assert asked.metrics.hold.snapshot().observed == 1
        assert 0.010 <= asked.metrics.hold.snapshot().total < 0.020

    play(tmp_path, scenario)


def test_a_gate_that_is_not_taken_in_time_opens_by_itself(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        asked.grow(3)
        await asyncio.sleep(0.019)
        assert asked.gate.is_closed
        await asyncio.sleep(0.002)
        assert asked.gate.is_open
        assert asked.partition.high_watermark == 8
        assert not asked.metadata.is_held
        for step in (CutStep.TAKE, CutStep.SAVE):
            assert (await asked.ask(step)).error_code is ErrorCode.request_timed_out
        assert asked.saver.asked == []
        assert asked.metrics.hold.snapshot().observed == 1

    play(tmp_path, scenario)


def test_void_opens_the_gate_at_once(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        asked.grow(1)
        assert (await asked.ask(CutStep.VOID, B)).error_code is ErrorCode.none
        assert asked.gate.is_closed, "it was another's"
        assert (await asked.ask(CutStep.VOID)).error_code is ErrorCode.none
        assert asked.gate.is_open
        assert asked.partition.high_watermark == 6
        assert (await asked.ask(CutStep.TAKE)).error_code is ErrorCode.request_timed_out
        assert (await asked.ask(CutStep.BEGIN, B)).error_code is ErrorCode.none
        assert (await asked.ask(CutStep.VOID)).error_code is ErrorCode.none
        assert asked.gate.is_closed, "late"

    play(tmp_path, scenario)


def test_each_step_asked_again_has_the_same_answer_and_no_other_effect(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        for step in (CutStep.BEGIN, CutStep.TAKE, CutStep.SAVE):
            once, twice = await asyncio.gather(asked.ask(step), asked.ask(step))
            asked.grow(1)
            assert once == twice == await asked.ask(step)
            assert once.error_code is ErrorCode.none
        assert len(asked.saver.asked) == 1
        assert asked.gate.is_open

    play(tmp_path, scenario)


def test_a_save_that_failed_may_be_asked_again(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        await asked.ask(CutStep.TAKE)
        asked.saver.error = StorageError("the store is away")
        failed = await asked.ask(CutStep.SAVE)
        assert (failed.error_code, failed.error_message) == (
            ErrorCode.kafka_storage_error,
            "the store is away",
        )
        asked.saver.error = None
        assert (await asked.ask(CutStep.SAVE)).error_code is ErrorCode.none

    play(tmp_path, scenario)


def test_two_attempts_do_not_hold_the_gate_at_once(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        refused = await asked.ask(CutStep.BEGIN, B)
        assert refused.error_code is ErrorCode.operation_not_attempted
        assert (await asked.ask(CutStep.TAKE, B)).error_code is ErrorCode.request_timed_out
        loose = await asked.ask(CutStep.TAKE, UUID(int=0xD), hold_ms=0)
        assert loose.error_code is ErrorCode.operation_not_attempted
        assert end(await asked.ask(CutStep.TAKE)).end == 5

    play(tmp_path, scenario)


def test_attempts_that_many_others_followed_are_over(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        for one in range(1, 6):
            await asked.ask(CutStep.BEGIN, UUID(int=one))
            await asked.ask(CutStep.TAKE, UUID(int=one))
        for step in (CutStep.BEGIN, CutStep.TAKE, CutStep.SAVE):
            assert (await asked.ask(step, UUID(int=1))).error_code is ErrorCode.request_timed_out
        assert (await asked.ask(CutStep.SAVE, UUID(int=5))).error_code is ErrorCode.none

    play(tmp_path, scenario)


def test_a_loose_cut_is_taken_without_a_gate(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        answer = await asked.ask(CutStep.TAKE, hold_ms=0)
        assert (end(answer).end, answer.image_offset) == (5, 100)
        assert (await asked.ask(CutStep.SAVE, hold_ms=0)).error_code is ErrorCode.none
        assert asked.metrics.hold.snapshot().observed == 0
        assert (await asked.ask(CutStep.BEGIN, B, hold_ms=0)).error_code is ErrorCode.request_timed_out

    play(tmp_path, scenario)


def test_a_node_that_is_its_whole_cluster_holds_nothing(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        asked.metadata.image = replace(CLUSTER, brokers={OWN: broker(OWN)})
        own: dict[str, Any] = {"broker_id": OWN, "broker_epoch": BROKER_EPOCH + OWN}
        assert (await asked.ask(CutStep.BEGIN, **own)).image_offset == 100
        assert asked.gate.is_open
        asked.grow(3)
        assert asked.partition.high_watermark == 8
        asked.metadata.image = replace(asked.metadata.image, offset=120)
        answer = await asked.ask(CutStep.TAKE, **own)
        assert (end(answer).end, answer.image_offset) == (5, 100), "of one moment"
        assert (await asked.ask(CutStep.SAVE, **own)).error_code is ErrorCode.none

    play(tmp_path, scenario)


def test_the_chains_entry_of_the_same_moment_is_told(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        entry = CatalogEntry(6, "m", 1, 0, 3, 1, 100)
        asked.metadata.image = replace(CLUSTER, remote=PersistentMap({PLACE: entry}))
        asked.saver.known = Standing(Saved(2, 1, 0), waits=False, is_tailed=True)
        await asked.ask(CutStep.BEGIN)
        found = end(await asked.ask(CutStep.TAKE))
        assert (found.version, found.saved, found.saved_high, found.last_epoch) == (6, 3, 3, 0)

    play(tmp_path, scenario)


def test_a_leader_that_may_not_know_what_the_one_before_has_shown_refuses(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        led = asked.led
        led.append(2)
        led.shape = led.shape._replace(leader_epoch=EPOCH + 1)
        led.leading = led.made(led.shape)
        led.partition.lead(EPOCH + 1, led.leading)
        refused = await asked.ask(CutStep.BEGIN)
        assert refused.error_code is ErrorCode.operation_not_attempted
        assert str(TIP) in (refused.error_message or "")
        assert asked.gate.is_open
        loose = await asked.ask(CutStep.TAKE, UUID(int=0xD), hold_ms=0)
        assert (loose.error_code, loose.ends) == (ErrorCode.none, ())
        for one in (2, 3):
            led.fetch(one, 7)
        assert (await asked.ask(CutStep.BEGIN, B)).error_code is ErrorCode.none
        assert end(await asked.ask(CutStep.TAKE, B)).leader_epoch == EPOCH + 1

    play(tmp_path, scenario)


def test_a_broker_that_may_not_write_to_the_bucket_has_no_part(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        asked.fence.may_write = False
        assert (await asked.ask(CutStep.BEGIN)).error_code is ErrorCode.operation_not_attempted
        loose = await asked.ask(CutStep.TAKE, B, hold_ms=0)
        assert loose.error_code is ErrorCode.operation_not_attempted

    play(tmp_path, scenario)


def test_no_exact_cut_is_taken_while_tails_of_a_restore_are_loading(tmp_path: Path) -> None:
    """A cut would take where chains end for where logs end."""

    async def scenario(asked: Asked) -> None:
        tail = RestoredTail(3, 9, 1009, "cut/x", "")
        asked.metadata.image = replace(CLUSTER, restored_tails=PersistentMap({PLACE: tail}))
        assert (await asked.ask(CutStep.BEGIN)).error_code is ErrorCode.operation_not_attempted
        loose = await asked.ask(CutStep.TAKE, UUID(int=0xD), hold_ms=0)
        assert (loose.error_code, loose.ends) == (ErrorCode.none, ()), "it is in the cut of its tail"
        assert asked.gate.is_open
        asked.metadata.image = CLUSTER
        assert (await asked.ask(CutStep.BEGIN, B)).error_code is ErrorCode.none

    play(tmp_path, scenario)


def test_a_partition_that_another_leads_by_then_has_no_end(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        asked.partition.follow(EPOCH + 1)
        answer = await asked.ask(CutStep.TAKE)
        assert (answer.error_code, answer.ends) == (ErrorCode.none, ())

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"broker_id": OTHER, "broker_epoch": BROKER_EPOCH + OTHER},
        {"broker_id": OWN, "broker_epoch": BROKER_EPOCH + OWN},
        {"broker_id": 99},
        {"broker_id": -1},
        {"broker_epoch": BROKER_EPOCH},
        {"broker_epoch": -1},
        {"cut": 0},
        {"cut": -(1 << 63)},
        {"hold_ms": -1},
        {"hold_ms": 10_001},
        {"step": 4},
        {"step": -1},
        {"attempt_id": None},
    ],
    ids=str,
)
def test_requests_that_no_keeper_sends_are_invalid_and_change_nothing(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async def scenario(asked: Asked) -> None:
        for step in CutStep:
            answer = await asked.ask(**{"step": step, **fields})
            assert answer.error_code is ErrorCode.invalid_request, step
            assert asked.gate.is_open
        assert asked.saver.asked == []

    play(tmp_path, scenario)


def test_an_attempt_does_not_change_on_its_way(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        for change in ({"cut": 8}, {"newest_id": None}, {"hold_ms": 0}):
            assert (await asked.ask(CutStep.TAKE, **change)).error_code is ErrorCode.invalid_request
        assert end(await asked.ask(CutStep.TAKE)).end == 5

    play(tmp_path, scenario)


def test_the_keeper_that_the_bucket_names_may_ask_although_it_is_not_the_first(tmp_path: Path) -> None:
    """The first broker does not reach the store, say."""

    async def scenario(asked: Asked) -> None:
        third: dict[str, Any] = {"broker_id": OTHER, "broker_epoch": BROKER_EPOCH + OTHER}
        asked.fence.keeper = UUID(int=OTHER)
        assert (await asked.ask(CutStep.BEGIN, **third)).error_code is ErrorCode.none
        asked.metadata.image = replace(
            CLUSTER, brokers={**CLUSTER.brokers, OTHER: broker(OTHER, fenced=True)}
        )
        assert (await asked.ask(CutStep.TAKE, **third)).error_code is ErrorCode.invalid_request

    play(tmp_path, scenario)


def test_a_connection_that_breaks_ends_no_step(tmp_path: Path) -> None:
    """The connection ends while the tails go up: the attempt is void, and the bytes are not lost."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        await asked.ask(CutStep.TAKE)
        asked.saver.goes_on.clear()
        asking = asyncio.ensure_future(asked.ask(CutStep.SAVE))
        while not asked.saver.asked:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        asked.saver.goes_on.set()
        assert (await asked.ask(CutStep.SAVE)).tails
        assert len(asked.saver.asked) == 1

    play(tmp_path, scenario)


def test_a_node_that_ends_leaves_nothing_held_back(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.ask(CutStep.BEGIN)
        asked.grow(2)
        await asked.answers.close()
        assert asked.partition.high_watermark == 7

    play(tmp_path, scenario)
