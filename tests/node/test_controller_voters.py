"""Voters of a running quorum: static, made dynamic, added and removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.raft.keys import ReplicaKey
from service.wire.api import ApiKey, request_module
from tests.support.controller_calls import call, run
from tests.support.controllers import CLUSTER_ID, Broker, Fleet, new_topics
from tests.support.waiting import until


def test_voters_stay_as_they_are_under_a_static_quorum(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        follower = next(one for one in fleet.running if one != fleet.id_of(active))
        module = request_module(ApiKey.REMOVE_RAFT_VOTER)
        message = module.RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=follower, voter_directory_id=UUID(int=1000 + follower)
        )
        answer = await call(fleet, ApiKey.REMOVE_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.unsupported_version
        message = replace(message, cluster_id="another")
        answer = await call(fleet, ApiKey.REMOVE_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.inconsistent_cluster_id
        module = request_module(ApiKey.ADD_RAFT_VOTER)
        message = module.AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout=timedelta(seconds=1),
            voter_id=9,
            voter_directory_id=UUID(int=9),
            listeners=(module.Listener(name="CONTROLLER", host="127.0.0.1", port=1),),
        )
        answer = await call(fleet, ApiKey.ADD_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.unsupported_version
        answer = await call(fleet, ApiKey.ADD_RAFT_VOTER, message, node_id=follower)
        assert answer.error_code == ErrorCode.not_leader_or_follower
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_static_quorum_becomes_dynamic_by_update_features(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        await until(lambda: len(active.publisher.image.controllers) == 3)
        module = request_module(ApiKey.UPDATE_FEATURES)
        update = module.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        message = module.UpdateFeaturesRequest(
            feature_updates=(update,), timeout=timedelta(seconds=5), validate_only=False
        )
        for _ in range(200):
            answer = await call(fleet, ApiKey.UPDATE_FEATURES, message)
            if answer.error_code == ErrorCode.none:
                break
            assert answer.error_code == ErrorCode.invalid_update_version
            assert "that they speak kraft.version 1" in answer.error_message
            await asyncio.sleep(0.05)
        assert answer.error_code == ErrorCode.none
        assert active.publisher.image.kraft_version == 1, "what is answered is committed"
        everybody = fleet.running.values()
        await until(lambda: all(one.publisher.image.kraft_version == 1 for one in everybody))
        keys = tuple(ReplicaKey(one, UUID(int=1000 + one)) for one in fleet.endpoints)
        assert all(tuple(v.key for v in one.publisher.quorum.machine.voters) == keys for one in everybody)
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


class TopicWriter:
    """Creates topics through a broker, one after the other, until `is_over`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.answered: list[str] = []
        self.is_over = False

    async def create(self, writer: int) -> None:
        while not self.is_over:
            name = f"w{writer}-{len(self.answered)}"
            answer = await self.broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(name))
            if answer.topics[0].error_code == ErrorCode.none:
                self.answered.append(name)

    async def some_more(self) -> None:
        before = len(self.answered)
        await until(lambda: len(self.answered) >= before + 5)


async def change(fleet: Fleet, key: ApiKey, message: Any) -> None:
    """Send it to the active controller until it is accepted."""
    errors = []
    for _ in range(200):
        answer = await call(fleet, key, message)
        if answer.error_code == ErrorCode.none:
            return
        errors.append((answer.error_code, answer.error_message))
        await asyncio.sleep(0.05)
    raise AssertionError(errors[-3:])


def add_voter(fleet: Fleet, node_id: int) -> Any:
    module = request_module(ApiKey.ADD_RAFT_VOTER)
    place = fleet.endpoints[node_id]
    return module.AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout=timedelta(seconds=5),
        voter_id=node_id,
        voter_directory_id=UUID(int=1000 + node_id),
        listeners=(module.Listener(name=place.name, host=place.host, port=place.port),),
    )


def remove_voter(node_id: int) -> Any:
    return request_module(ApiKey.REMOVE_RAFT_VOTER).RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=UUID(int=1000 + node_id)
    )


def test_voters_are_added_and_removed_while_topics_are_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One controller becomes three, and the first one is removed, by requests to the active controller."""
    caplog.set_level("INFO", "firn.audit")

    async def scenario() -> None:
        fleet = await Fleet(tmp_path, is_dynamic=True).start()
        broker = await Broker(fleet, 7).start()
        writer = TopicWriter(broker)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(writer.create(number))
            for node_id in (2, 3):
                await change(fleet, ApiKey.ADD_RAFT_VOTER, add_voter(fleet, node_id))
            await writer.some_more()
            await change(fleet, ApiKey.REMOVE_RAFT_VOTER, remove_voter(1))
            await until(lambda: (active := fleet.active()) is not None and fleet.id_of(active) != 1)
            await writer.some_more()
            writer.is_over = True

        active = await fleet.led()
        assert active.publisher.quorum.machine.voters.ids == (2, 3)
        await assert_all_have(fleet, writer.answered)
        module = request_module(ApiKey.API_VERSIONS)
        asked = module.ApiVersionsRequest(client_software_name="x", client_software_version="1")
        told = await call(fleet, ApiKey.API_VERSIONS, asked)
        assert ("kraft.version", 1) in {(one.name, one.max_version_level) for one in told.finalized_features}
        await broker.close()
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())
    lines = [one.getMessage() for one in caplog.records if one.name == "firn.audit"]
    assert [line.partition(";")[0] for line in lines if "voter" in line] == [
        "voters added (1): 2 [directory AAAAAAAAAAAAAAAAAAAD6g]",
        "voters added (1): 3 [directory AAAAAAAAAAAAAAAAAAAD6w]",
        "voters removed (1): 1 [directory AAAAAAAAAAAAAAAAAAAD6Q]",
    ]


async def assert_all_have(fleet: Fleet, names: list[str]) -> None:
    offset = (await fleet.led()).publisher.image.offset
    await until(lambda: all(one.publisher.image.offset >= offset for one in fleet.running.values()))
    for one in fleet.running.values():
        assert not [name for name in names if name not in one.publisher.image.topics_by_name]
