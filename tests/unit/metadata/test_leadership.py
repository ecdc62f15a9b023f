"""A controller that takes over, and one that leads no longer: what is written, who is answered what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import RequestError
from service.metadata.controller.activation import activate
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.controller.requests import BrokerHeartbeat, CatalogSender, CreateTopic
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION, ELR_VERSION, cluster_features
from service.metadata.image import BrokerImage, MetadataImage
from service.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RemoteLogRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogResult
from tests.support.waiting import until
from tests.support.world import make_world
from tests.unit.metadata.controllers import (
    LoneController,
    catalog_commit,
    create,
    join,
    make_controller,
    registration,
    running,
)
from tests.unit.metadata.test_controller import HeldExecutor

TOPIC_ID = UUID(int=1 << 99)


def image_of(*records: MetadataRecord) -> MetadataImage:
    return MetadataDelta(MetadataImage()).replay_all(records).build(9, 1, 0)


def written(decision: Any) -> list[MetadataRecord]:
    return [frame.record for frame in decision.frames]


def level(name: str, value: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=value)


METADATA_30 = level("metadata.version", 30)


def test_an_empty_log_gets_the_records_of_a_new_cluster_in_a_transaction() -> None:
    records = written(
        activate(MetadataImage(), [METADATA_30, level(ELR_VERSION, 1)], min_isr=2, supported=())
    )
    names = [type(record).__name__ for record in records]
    assert names == [
        "BeginTransactionRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "ConfigRecord",
        "EndTransactionRecord",
    ]
    (config,) = (record for record in records if isinstance(record, ConfigRecord))
    assert (config.resource_name, config.name, config.value) == ("", "min.insync.replicas", "2")


def test_an_open_bootstrap_transaction_is_aborted_and_restarted() -> None:
    image = image_of(BeginTransactionRecord(name="Bootstrap records"), METADATA_30)
    assert image.features == {}
    first, second, *_ = written(activate(image, [METADATA_30], min_isr=1, supported=()))
    assert first == AbortTransactionRecord(reason="Controller failover")
    assert isinstance(second, BeginTransactionRecord)
    known = image_of(METADATA_30, BeginTransactionRecord(name="x"), level("f", 1))
    assert written(activate(known, [METADATA_30], min_isr=1, supported=())) == [first]


def test_a_log_with_a_remote_catalog_gets_its_level_where_that_is_known() -> None:
    partition = PartitionRecord(
        partition_id=0, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), leader=1, leader_epoch=0, directories=()
    )
    entry = catalog_commit(TOPIC_ID, 0, 1, 0).entry
    image = image_of(
        METADATA_30,
        TopicRecord(name="t", topic_id=TOPIC_ID),
        partition,
        RemoteLogRecord(topic_id=TOPIC_ID, partition_id=0, **entry._asdict()),
    )
    assert written(activate(image, [], min_isr=1, supported=())) == []
    assert written(activate(image, [], min_isr=1, supported=cluster_features())) == [
        level(CATALOG_VERSION, 1)
    ]


def test_requests_that_wait_when_leadership_is_lost_fail_without_effect(tmp_path: Path) -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        async with running(tmp_path, log_io=executor) as controller:
            await join(controller)
            executor.held = []
            waiting = [
                asyncio.create_task(controller.create_topics([CreateTopic(f"t{i}")])) for i in range(5)
            ]
            await asyncio.sleep(0.02)
            controller.renounce()
            for answer in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(answer, RequestError)
                assert answer.code is ErrorCode.not_controller
            assert not controller.is_active
            with pytest.raises(RequestError) as refused:
                await controller.create_topics([CreateTopic("late")])
            assert refused.value.code is ErrorCode.not_controller
            assert not controller.image.topics_by_name
            executor.release()
        executor.shutdown()

    asyncio.run(scenario())


def test_a_controller_that_claims_again_decides_on_the_committed_image(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            await create(controller, "a")
            offset = controller.image.offset
            controller.renounce()
            await controller.claim(controller.epoch)
            assert controller.image.offset == offset, "nothing is written: all is in order"
            (result,) = await controller.create_topics([CreateTopic("a")])
            assert result.error is ErrorCode.topic_already_exists
            await controller.claim(controller.epoch + 1)
            with pytest.raises(RequestError) as refused:
                await controller.create_topics([CreateTopic("b")])
            assert refused.value.code is ErrorCode.not_controller, "that is another's epoch"

    asyncio.run(scenario())


def test_a_claim_schedules_the_probe_of_brokers_that_died_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, world=make_world(clock := ManualClock())) as controller:
            await join(controller, 2)
            controller.renounce()
            clock.advance(60_000)
            controller.told_ms = None
            await controller.claim(controller.epoch)
            assert controller.told_ms == controller.next_deadline_ms <= clock.monotonic_ms() + 1_000

    asyncio.run(scenario())


def test_a_request_that_times_out_in_the_queue_is_not_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock)) as controller:
            await join(controller)
            late = clock.monotonic_ms()
            with pytest.raises(RequestError) as refused:
                await controller.create_topics([CreateTopic("t")], deadline_ms=late)
            assert refused.value.code is ErrorCode.request_timed_out
            assert not controller.image.topics_by_name
            assert await controller.create_topics([CreateTopic("t")], deadline_ms=late + 1)

    asyncio.run(scenario())


async def ticking(controller: LoneController, clock: ManualClock, up_to_ms: int) -> int:
    """Give the controller its ticks; returns how many it asked for."""
    ticks = 0
    while (deadline_ms := controller.next_deadline_ms) <= up_to_ms:
        clock.advance(max(deadline_ms - clock.monotonic_ms(), 0))
        await controller.tick()
        await asyncio.sleep(0.01)
        ticks += 1
    clock.advance(max(up_to_ms - clock.monotonic_ms(), 0))
    return ticks


def test_an_idle_controller_keeps_the_log_moving_and_sleeps_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock)) as controller:
            offset = controller.image.offset
            assert await ticking(controller, clock, clock.monotonic_ms() + 2_100) == 4
            assert controller.image.offset == offset + 4
            controller.renounce()
            assert controller.next_deadline_ms > 1 << 60
            await controller.tick()
            assert controller.image.offset == offset + 4

    asyncio.run(scenario())


def beat(broker_id: int, epoch: int, offset: int, *, wants_shut_down: bool = False) -> BrokerHeartbeat:
    return BrokerHeartbeat(broker_id, epoch, offset, wants_shut_down=wants_shut_down)


def test_an_empty_list_of_cordoned_directories_is_recorded_once(tmp_path: Path) -> None:
    """As Kafka's controller does, in the batch of the unfencing or in one of its own."""

    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epoch = await controller.brokers.register(registration(2))
            await controller.brokers.heartbeat(beat(2, epoch, epoch - 1))
            assert controller.image.brokers[2].cordoned_log_dirs is None
            caught_up = beat(2, epoch, epoch)._replace(cordoned_log_dirs=())
            for _ in range(2):
                await controller.brokers.heartbeat(caught_up)
                assert controller.image.offset == epoch + 2  # unfenced, and that
                assert not controller.image.brokers[2].fenced
                assert controller.image.brokers[2].cordoned_log_dirs == ()

    asyncio.run(scenario())


def test_a_broker_is_unfenced_once_it_has_seen_its_registration_and_fenced_when_it_falls_silent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock)) as controller:
            epoch = await controller.brokers.register(registration(2))
            reply = await controller.brokers.heartbeat(beat(2, epoch, epoch - 1))
            assert (reply.is_caught_up, reply.is_fenced) == (False, True)
            reply = await controller.brokers.heartbeat(beat(2, epoch, epoch))
            assert (reply.is_caught_up, reply.is_fenced) == (True, False)
            with pytest.raises(RequestError) as refused:
                await controller.brokers.register(registration(2))
            assert refused.value.code is ErrorCode.duplicate_broker_registration
            with pytest.raises(RequestError) as refused:
                await controller.brokers.heartbeat(beat(2, epoch - 1, epoch))
            assert refused.value.code is ErrorCode.stale_broker_epoch
            await ticking(controller, clock, clock.monotonic_ms() + 8_900)
            assert not controller.image.brokers[2].fenced
            await ticking(controller, clock, clock.monotonic_ms() + 1_300)
            assert controller.image.brokers[2].fenced
            assert await controller.brokers.register(registration(2)) > epoch

    asyncio.run(scenario())


def test_a_broker_that_shuts_down_moves_its_leaders_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epochs = [await join(controller, broker_id) for broker_id in (2, 3)]
            assignment = ((0, (2, 3)),)
            (result,) = await controller.create_topics([CreateTopic("t", assignments=assignment)])
            for broker_id, epoch in zip((2, 3), epochs, strict=True):
                await controller.brokers.heartbeat(beat(broker_id, epoch, controller.image.offset))
            reply = await controller.brokers.heartbeat(beat(2, epochs[0], 0, wants_shut_down=True))
            assert (reply.should_shut_down, reply.is_fenced) == (False, False)
            state = controller.image.partition(result.topic_id, 0)
            assert state is not None
            assert (state.leader, state.isr) == (3, (3,))
            moved = controller.image.offset
            reply = await controller.brokers.heartbeat(beat(2, epochs[0], moved, wants_shut_down=True))
            assert not reply.should_shut_down, "the other broker has not seen it yet"
            await controller.brokers.heartbeat(beat(3, epochs[1], moved))
            reply = await controller.brokers.heartbeat(beat(2, epochs[0], moved, wants_shut_down=True))
            assert (reply.should_shut_down, reply.is_fenced) == (True, True)
            assert await controller.brokers.register(registration(2, previous_epoch=epochs[0])) > moved

    asyncio.run(scenario())


def test_a_broker_whose_address_refuses_is_fenced_long_before_its_session_ends(tmp_path: Path) -> None:
    probed: list[int] = []

    async def scenario(outcome: ProbeOutcome) -> bool:
        async def probe(broker: BrokerImage) -> tuple[ProbeOutcome, str]:
            probed.append(broker.id)
            return outcome, "its address h:1"

        clock = ManualClock()
        controller = make_controller(tmp_path / outcome.value, world=make_world(clock))
        controller._overseer._probe = probe
        await controller.start()
        try:
            epoch = await join(controller, 2)
            clock.advance(5_000)
            await controller.brokers.heartbeat(beat(2, epoch, controller.image.offset))
            controller.brokers.connection_lost(2, epoch)
            await asyncio.sleep(0.01)
            await ticking(controller, clock, clock.monotonic_ms() + 1_000)
            return controller.image.brokers[2].fenced
        finally:
            await controller.close()

    assert asyncio.run(scenario(ProbeOutcome.REFUSED))
    assert probed == [2] * 5
    assert not asyncio.run(scenario(ProbeOutcome.UNKNOWN))
    assert probed == [2] * 8, "at once, and twice a little later: it proves nothing"


@pytest.mark.parametrize("successor", ["the same controller", "the next controller"])
def test_a_refusal_never_leads_to_an_unclean_election_and_the_end_of_the_session_does(
    tmp_path: Path, successor: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(broker: BrokerImage) -> tuple[ProbeOutcome, str]:
        return ProbeOutcome.REFUSED, f"its address h:{broker.id}"

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock)) as controller:
            controller._overseer._probe = refused
            epochs = {broker_id: await join(controller, broker_id) for broker_id in (2, 3)}
            unclean = (("unclean.leader.election.enable", "true"),)
            request = CreateTopic("t", assignments=((0, (2, 3)),), configs=unclean)
            (result,) = await controller.create_topics([request])

            def state() -> tuple[int, tuple[int, ...]]:
                placed = controller.image.partition(result.topic_id, 0)
                assert placed is not None
                return placed.leader, placed.isr

            async def beats() -> None:
                await controller.brokers.heartbeat(beat(3, epochs[3], controller.image.offset))

            await controller.brokers.heartbeat(beat(3, epochs[3], 0, wants_shut_down=True))
            await controller.brokers.heartbeat(beat(3, epochs[3], 1 << 40, wants_shut_down=True))
            assert state() == (2, (2,))
            began_ms = clock.monotonic_ms() + 2_000
            clock.advance(2_000)
            await controller.brokers.heartbeat(beat(2, epochs[2], controller.image.offset))
            controller.brokers.connection_lost(2, epochs[2])
            await asyncio.sleep(0.01)
            await ticking(controller, clock, began_ms + 200)
            await until(lambda: controller.image.brokers[2].fenced)
            assert "broker 2 of epoch" in caplog.text
            assert "its address h:2 refuses connections, was open before, and no heartbeat" in caplog.text
            if successor == "the next controller":
                controller.renounce()
                await controller.claim(controller.epoch)
                began_ms = clock.monotonic_ms()
            epochs[3] = await controller.brokers.register(registration(3, previous_epoch=epochs[3]))
            await beats()
            assert not controller.image.brokers[3].fenced
            assert state() == (-1, (2,)), "its session is not over"
            while clock.monotonic_ms() < began_ms + 8_000:
                await ticking(controller, clock, clock.monotonic_ms() + 1_000)
                await beats()
            assert state() == (-1, (2,)), "its session is not over"
            await ticking(controller, clock, began_ms + 9_100)
            await until(lambda: state() == (3, (3,)))

    asyncio.run(scenario())


def test_another_nodes_broker_commits_for_what_it_leads_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epochs = {broker_id: await join(controller, broker_id) for broker_id in (2, 3)}
            request = CreateTopic("t", assignments=((0, (2, 3)), (1, (3, 2))))
            (result,) = await controller.create_topics([request])
            commits = [catalog_commit(result.topic_id, partition, 1, 0) for partition in (0, 1)]
            sender = CatalogSender(2, epochs[2])
            answers, offset = await controller.catalog.commit_from(sender, commits)
            assert answers == [CatalogResult.COMMITTED, CatalogResult.FENCED]
            assert offset == controller.image.offset
            nothing, barrier = await controller.catalog.commit_from(sender, [])
            assert (nothing, barrier) == ([], offset + 1)
            with pytest.raises(RequestError) as refused:
                await controller.catalog.commit_from(CatalogSender(2, epochs[2] + 1), [])
            assert refused.value.code is ErrorCode.stale_broker_epoch
            with pytest.raises(RequestError) as refused:
                await controller.catalog.forget_topics([], sender=CatalogSender(9, 1))
            assert refused.value.code is ErrorCode.stale_broker_epoch

    asyncio.run(scenario())


def test_the_remote_catalog_needs_its_level_where_that_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = make_controller(tmp_path, supported=cluster_features())
        await controller.start()
        try:
            await join(controller, 2)
            topic_id = await create(controller, "t")
            with pytest.raises(RequestError) as refused:
                await controller.catalog.commit([catalog_commit(topic_id, 0, 1, 0)])
            assert refused.value.code is ErrorCode.unsupported_version
            assert not controller.image.remote
        finally:
            await controller.close()

    asyncio.run(scenario())


def test_unregistering_frees_the_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller, 2)
            await controller.brokers.unregister(2)
            assert not controller.image.brokers
            with pytest.raises(RequestError) as refused:
                await controller.brokers.unregister(2)
            assert refused.value.code is ErrorCode.broker_id_not_registered
            assert await join(controller, 2) > 0

    asyncio.run(scenario())
