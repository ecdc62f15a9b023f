"""A static quorum becomes a dynamic one: by UpdateFeatures, through a broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.batches import ControlType, decode_batches
from service.wire.api import ApiKey, request_module
from service.wire.features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.controller_calls import call
from tests.support.controllers import CLUSTER_ID, Broker, Fleet, new_topics
from tests.support.waiting import until


def to_level(level: int, upgrade_type: int = 1, *, validate_only: bool = False) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(
        feature="kraft.version", max_version_level=level, allow_downgrade=False, upgrade_type=upgrade_type
    )
    return UpdateFeaturesRequest(
        timeout=timedelta(seconds=5), feature_updates=(update,), validate_only=validate_only
    )


async def finalized(fleet: Fleet) -> dict[str, int]:
    module = request_module(ApiKey.API_VERSIONS)
    message = module.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    told = await call(fleet, ApiKey.API_VERSIONS, message)
    return {one.name: one.max_version_level for one in told.finalized_features}


async def update(broker: Broker, *level: int, **more: Any) -> tuple[ErrorCode, str]:
    answer = await broker.forward(ApiKey.UPDATE_FEATURES, 2, to_level(*level, **more))
    return answer.error_code, answer.error_message or ""


def test_static_voters_become_dynamic_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        await until(lambda: len(active.publisher.image.controllers) == 3)

        await refuse_until_voters_registered(fleet, broker)
        before = active.publisher.quorum.next_offset
        await await_voters_and_validate(fleet, broker)
        await raise_level(fleet, broker)
        await remove_and_add_voter(fleet, broker)

        await broker.close()
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0
        assert_records_written(fleet, before)

        await fleet.start()  # the level is in their logs
        assert (await finalized(fleet))["kraft.version"] == 1
        await fleet.stop()
        assert not fleet.failures

    asyncio.run(scenario())


async def refuse_until_voters_registered(fleet: Fleet, broker: Broker) -> None:
    error, why = await update(broker, 1)
    assert error is ErrorCode.invalid_update_version
    assert "have not said where they are, or that they speak kraft.version 1" in why
    assert (await update(broker, 2))[0] is ErrorCode.invalid_update_version


async def await_voters_and_validate(fleet: Fleet, broker: Broker) -> None:
    state: Any = (await fleet.led()).publisher.quorum.machine.core.state
    await until(lambda: len(state.updates) == 2, 10)  # each voter updates its leader every 2.4 s
    assert await update(broker, 1, validate_only=True) == (ErrorCode.none, "")
    assert "kraft.version" not in await finalized(fleet)


async def raise_level(fleet: Fleet, broker: Broker) -> None:
    """Raise it while topics are created; it cannot be lowered again."""
    answers = await asyncio.gather(
        update(broker, 1),
        *(broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(f"beside-{i}")) for i in range(10)),
    )
    assert answers[0] == (ErrorCode.none, "")
    assert {one.topics[0].error_code for one in answers[1:]} == {ErrorCode.none}
    assert (await finalized(fleet))["kraft.version"] == 1
    assert await update(broker, 1) == (ErrorCode.none, ""), "as it is"
    error, why = await update(broker, 0, 2)
    assert error is ErrorCode.invalid_update_version
    assert why.endswith("Can't downgrade the version of this feature.")


async def remove_and_add_voter(fleet: Fleet, broker: Broker) -> None:
    active = await fleet.led()
    gone = next(one for one in fleet.running if one != fleet.id_of(active))
    directory = UUID(int=1000 + gone)
    removing = request_module(ApiKey.REMOVE_RAFT_VOTER).RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID, voter_id=gone, voter_directory_id=directory
    )
    answer = await broker.forward(ApiKey.REMOVE_RAFT_VOTER, 0, removing)
    assert answer.error_code is ErrorCode.none, answer.error_message
    assert gone not in active.publisher.quorum.machine.voters.ids
    module = request_module(ApiKey.ADD_RAFT_VOTER)
    place = fleet.endpoints[gone]

    def adding(name: str) -> Any:
        return module.AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout=timedelta(seconds=5),
            voter_id=gone,
            voter_directory_id=directory,
            listeners=(module.Listener(name=name, host=place.host, port=place.port),),
        )

    answer = await broker.forward(ApiKey.ADD_RAFT_VOTER, 1, adding("PLAINTEXT"))
    assert answer.error_code is ErrorCode.invalid_request
    answer = await broker.forward(ApiKey.ADD_RAFT_VOTER, 1, adding("controller"))
    assert answer.error_code is ErrorCode.none, answer.error_message
    assert active.publisher.quorum.machine.voters.ids == (1, 2, 3)


def assert_records_written(fleet: Fleet, before: int) -> None:
    written = [
        (one.control_type, batch.base_offset)
        for batch in decode_batches(fleet.log_of(1))
        if batch.base_offset >= before
        for one in batch.control
        if one.control_type in (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS)
    ]
    types = [one for one, _ in written]
    assert types == [ControlType.KRAFT_VERSION] + [ControlType.KRAFT_VOTERS] * 3
    assert written[0][1] == written[1][1], "the level and the voters' directories in one batch"
