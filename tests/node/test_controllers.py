"""Three controllers over real sockets: they elect a leader, and brokers live through its death."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from kio.schema.errors import ErrorCode

from service.controller_client.broker_lifecycle import MoveAway, Recover, Serve
from service.metadata.controller.broker_sessions import SessionTimes
from service.wire.api import ApiKey
from tests.support.controller_calls import run
from tests.support.controllers import Broker, Fleet, new_topics
from tests.support.peers import Peer
from tests.support.waiting import until


def test_one_leads_and_all_are_registered(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        await fleet.led()
        await until(lambda: all(len(one.publisher.image.controllers) == 3 for one in fleet.running.values()))
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_metadata_counts_as_loaded_only_once_a_leader_has_said_what_is_committed(tmp_path: Path) -> None:
    """Until then an image of before a revocation may be the newest here: the authorizer answers nobody."""

    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        await fleet.led()
        running = [one.publisher for one in fleet.running.values()]
        await until(lambda: all(one.has_loaded for one in running))
        await fleet.stop()
        alone = (await fleet.start(2)).running[2].publisher
        assert alone.quorum.machine.core.log.end_offset > 0
        await asyncio.sleep(1.0)
        assert not alone.has_loaded
        await fleet.start(1, 3)
        await until(lambda: alone.has_loaded)
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_silent_voter_is_reconnected_after_the_request_timeout(tmp_path: Path) -> None:
    """The connection may lead nowhere any more: where packets were lost for a while, or another machine has
    the address now."""

    async def scenario() -> None:
        fleet = Fleet(tmp_path, 2)
        silent = await Peer().start(fleet.endpoints[2].host, fleet.endpoints[2].port)
        await fleet.start(1)
        await until(lambda: silent.accepted > 2, 60 * fleet.timing.request_timeout_ms / 1000)
        await fleet.stop()
        await silent.stop()
        assert not fleet.failures

    run(scenario())


def test_a_broker_lives_through_the_death_of_its_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        first = await fleet.led()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("before"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "before" in broker.publisher.image.topics_by_name
        epoch = broker.membership.epoch
        await fleet.kill(fleet.id_of(first))
        second = await fleet.led()
        assert second is not first
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("after"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "after" in broker.publisher.image.topics_by_name
        assert broker.membership.epoch == epoch
        exit_ = await broker.leaves()
        assert exit_.reason == "the controller has moved all leaderships away"
        assert [type(one) for one in broker.told[:3]] == [Recover, Serve, MoveAway]
        assert (
            second.publisher.image.brokers[7].in_controlled_shutdown
            or second.publisher.image.brokers[7].fenced
        )
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_topics_by_envelope_while_leaders_die(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        await fleet.led()
        answered: list[str] = []
        is_over = False

        async def create(writer: int) -> None:
            number = 0
            while not is_over:
                number += 1
                name = f"w{writer}-{number}"
                answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(name, timeout_ms=8_000))
                code = answer.topics[0].error_code
                if code == ErrorCode.none:
                    answered.append(name)
                else:
                    assert code in (ErrorCode.request_timed_out, ErrorCode.unknown_server_error), code

        async with asyncio.TaskGroup() as group:
            for writer in range(3):
                group.create_task(create(writer))
            for _ in range(3):
                active = await fleet.led()
                before = len(answered)
                await until(lambda before=before: len(answered) >= before + 5)  # type: ignore[misc]
                gone = fleet.id_of(active)
                await fleet.kill(gone)
                await fleet.led()
                await fleet.start(gone)
            before = len(answered)
            await until(lambda: len(answered) >= before + 5)
            is_over = True
        images = [one.publisher.image for one in fleet.running.values()]
        offset = max(image.offset for image in images)
        await until(lambda: all(one.publisher.image.offset >= offset for one in fleet.running.values()))
        for one in fleet.running.values():
            missing = [name for name in answered if name not in one.publisher.image.topics_by_name]
            assert not missing
        await broker.close()
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_a_follower_with_an_empty_directory_fetches_a_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path, snapshot_max_bytes=20_000).start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        for number in range(12):
            names = [f"topic-{number}-{one}" for one in range(20)]
            answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(*names, partitions=3))
            assert {one.error_code for one in answer.topics} == {ErrorCode.none}
        leader_id = fleet.id_of(active)
        metadata = tmp_path / str(leader_id) / "__cluster_metadata-0"
        await until(lambda: list(metadata.glob("*.checkpoint")))
        wiped = next(node_id for node_id in fleet.running if node_id != leader_id)
        await fleet.stop(wiped)
        shutil.rmtree(tmp_path / str(wiped))
        await fleet.start(wiped)
        node = fleet.running[wiped]
        await until(lambda: len(node.publisher.image.topics_by_name) == 240)
        assert list((tmp_path / str(wiped) / "__cluster_metadata-0").glob("*.checkpoint"))
        assert node.publisher.quorum.machine.core.log.start_offset > 0
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_broker_whose_process_is_gone_is_fenced_before_its_session_ends(tmp_path: Path) -> None:
    """Its heartbeats' connection breaks, and nobody listens at its address."""

    async def scenario() -> None:
        fleet = Fleet(tmp_path)
        fleet.sessions = SessionTimes(
            session_timeout_ms=60_000, heartbeat_interval_ms=300, least_unfenced_ms=0
        )
        await fleet.start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        assert not active.publisher.image.brokers[7].fenced
        await broker.close()
        await until(lambda: active.publisher.image.brokers[7].fenced, 10)
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_controller_alone_leads_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path, 1).start()
        broker = await Broker(fleet, 7).start()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t"))
        assert answer.topics[0].error_code == ErrorCode.none
        await fleet.stop(1)
        await fleet.start(1)
        active = await fleet.led()
        assert "t" in active.publisher.image.topics_by_name
        assert broker.membership is not None
        epoch = broker.membership.epoch
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("u"))
        assert (answer.topics[0].error_code, broker.membership.epoch) == (ErrorCode.none, epoch)
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())
