"""Apache Kafka's controller as the judge of ours: changes of voters and of kraft.version, one by one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.uuids import decode_uuid
from service.client.node_channel import Channels
from service.metadata.batches import ControlType, MetadataBatch, decode_batches
from service.metadata.endpoint import Endpoint
from service.metadata.records import NoOpRecord
from service.wire.api import ApiKey, request_module
from service.wire.features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.process.test_kafkas_controller import KafkasQuorum
from tests.support.controllers import CLUSTER_ID, Fleet
from tests.support.kafka_node import KafkaNode

pytestmark = pytest.mark.java

Asked = tuple[ApiKey, Any]
FIVE = UUID(int=5)
HERE = ("CONTROLLER", "127.0.0.1", 1)


def add(
    node_id: int = 5,
    directory: UUID | None = FIVE,
    *listeners: tuple[str, str, int],
    cluster_id: str | None = CLUSTER_ID,
) -> Asked:
    module = request_module(ApiKey.ADD_RAFT_VOTER)
    return ApiKey.ADD_RAFT_VOTER, module.AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout=timedelta(seconds=1),
        voter_id=node_id,
        voter_directory_id=directory,
        listeners=tuple(module.Listener(name=name, host=host, port=port) for name, host, port in listeners),
    )


def remove(node_id: int = 5, directory: UUID | None = FIVE, cluster_id: str | None = CLUSTER_ID) -> Asked:
    module = request_module(ApiKey.REMOVE_RAFT_VOTER)
    return ApiKey.REMOVE_RAFT_VOTER, module.RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory
    )


def update(
    node_id: int,
    directory: UUID | None,
    *listeners: tuple[str, str, int],
    epoch: int,
    versions: tuple[int, int] = (0, 1),
    cluster_id: str | None = CLUSTER_ID,
) -> Asked:
    module = request_module(ApiKey.UPDATE_RAFT_VOTER)
    return ApiKey.UPDATE_RAFT_VOTER, module.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=node_id,
        voter_directory_id=directory,
        listeners=tuple(module.Listener(name=name, host=host, port=port) for name, host, port in listeners),
        k_raft_version_feature=module.KRaftVersionFeature(
            min_supported_version=versions[0], max_supported_version=versions[1]
        ),
    )


def level(wanted: int, kind: int = 1, *, validate_only: bool = False) -> Asked:
    one = FeatureUpdateKey(
        feature="kraft.version", max_version_level=wanted, allow_downgrade=False, upgrade_type=kind
    )
    return ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(
        timeout=timedelta(seconds=5), feature_updates=(one,), validate_only=validate_only
    )


def course(directory: UUID, epoch: int) -> list[Asked]:
    """Nothing of it changes who votes. `directory`: of the only voter, node 1."""
    me, place = (1, directory), ("CONTROLLER", "127.0.0.1", 2)
    voters = [
        add(cluster_id="another"),
        add(-1, FIVE, HERE),
        add(5, None, HERE),
        add(5, FIVE),
        add(5, FIVE, ("PLAINTEXT", "127.0.0.1", 1)),
        add(*me, HERE),
        add(1, UUID(int=9), HERE),
        remove(cluster_id="another"),
        remove(-1),
        remove(1, None),
        remove(5),
        remove(1, UUID(int=9)),
        remove(*me),
        update(5, FIVE, place, epoch=epoch, cluster_id="another"),
        update(5, FIVE, place, epoch=epoch - 1),
        update(5, FIVE, place, epoch=epoch + 1),
        update(5, None, place, epoch=epoch),
        update(5, FIVE, epoch=epoch),
        update(5, FIVE, ("OTHER", "127.0.0.1", 2), epoch=epoch),
        update(5, FIVE, place, epoch=epoch, versions=(-1, 1)),
        update(5, FIVE, place, epoch=epoch, versions=(1, 0)),
        update(5, FIVE, place, epoch=epoch, versions=(2, 3)),
        update(5, FIVE, place, epoch=epoch),
    ]
    return [
        *voters,
        level(2),
        level(-1),
        level(0),
        level(1, 2),
        level(1, 9),
        level(1, validate_only=True),
        level(1),
        level(1),
        level(1, 3),
        level(0),
        level(0, 2),
        level(0, 3),
        *voters,
    ]


async def answers(place: Endpoint, asked: list[Asked]) -> list[tuple[Any, ...]]:
    """Codes; of UpdateFeatures, whose words are Kafka's, those too."""
    channels, found = Channels(), []
    for key, message in asked:
        answer = await channels.call(place, key, None, message, timeout_ms=10_000)
        said: tuple[Any, ...] = (key.name, answer.error_code)
        if key is ApiKey.UPDATE_FEATURES:
            said = (*said, answer.error_message)
        if key is ApiKey.UPDATE_RAFT_VOTER:
            leader = answer.current_leader
            said = (*said, leader.leader_id, leader.host, leader.port == place.port)
        found.append(said)
        await asyncio.sleep(0.02)  # what was written is committed
    await channels.close()
    return found


async def epoch_of(place: Endpoint) -> int:
    module, channels = request_module(ApiKey.DESCRIBE_QUORUM), Channels()
    topic = module.TopicData(
        topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
    )
    message = module.DescribeQuorumRequest(topics=(topic,))
    answer = await channels.call(place, ApiKey.DESCRIBE_QUORUM, None, message, timeout_ms=10_000)
    await channels.close()
    epoch: int = answer.topics[0].partitions[0].leader_epoch
    return epoch


def written(directory: Path) -> list[Any]:
    """The upgrade in the log: what is in its control batch, and that a record follows that waits for it."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    batches: list[MetadataBatch] = list(decode_batches(data))
    kinds = (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS)
    (at,) = [i for i, one in enumerate(batches) if any(each.control_type in kinds for each in one.control)]
    follows = next(one for one in batches[at + 1 :] if one.frames)
    return [
        *((each.control_type, _without_places(each.message)) for each in batches[at].control),
        type(follows.frames[0].record),
    ]


def _without_places(message: Any) -> Any:
    voters = getattr(message, "voters", ())
    return [(one.voter_id, one.k_raft_version_feature, len(one.endpoints)) for one in voters]


def test_voters_and_their_version_are_refused_and_raised_as_kafka_does(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "kafka", heap="512m")
    meta = dict(
        line.split("=", 1) for line in (node.data / "meta.properties").read_text().splitlines() if "=" in line
    )

    async def scenario() -> None:
        address = KafkasQuorum(node).address
        kafkas = Endpoint("CONTROLLER", address.host, address.port)
        asked = course(decode_uuid(meta["directory.id"]), await epoch_of(kafkas))
        theirs = await answers(kafkas, asked)

        fleet = await Fleet(tmp_path / "firn", 1).start()
        await fleet.led()
        place = fleet.endpoints[1]
        ours = await answers(place, course(UUID(int=1001), await epoch_of(place)))
        await fleet.stop()
        assert not fleet.failures
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            print(f"{number:>3} {their}" + ("" if their == our else f" but {our}"))
        assert ours == theirs
        assert {one[1] for one in ours} >= {ErrorCode.none, ErrorCode.voter_not_found}

    try:
        asyncio.run(scenario())
    finally:
        node.stop()
    theirs = written(node.data / "__cluster_metadata-0")
    assert written(tmp_path / "firn" / "1" / "__cluster_metadata-0") == theirs
    assert theirs[-1] is NoOpRecord
