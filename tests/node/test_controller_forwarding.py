"""Changes of admins and of the catalog that a broker forwards to the active controller."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.controller_client import lifecycle_messages
from service.remote.catalog import (
    IN_BUCKET,
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    ErasedPlace,
    Erasure,
    RewriteAnswer,
    RewriteIntent,
    RewriteKind,
)
from service.wire.api import ApiKey, request_module
from tests.support.alter_partition import AlterIsr, alter_isr, isr_altered
from tests.support.controller_calls import call, fleet_and_broker, run
from tests.support.controllers import Broker, Fleet, new_topics
from tests.support.waiting import until


def test_a_broker_forwards_what_admins_change_to_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fleet_and_broker(tmp_path) as (fleet, broker):
            answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t", "u", partitions=2))
            assert {one.error_code for one in answer.topics} == {ErrorCode.none}
            await add_partitions(broker)
            await alter_configs(fleet, broker)
            await elect_leaders(broker)
            await delete_topic(broker)
            await propose_isr(fleet, broker)
            await assign_directories(fleet, broker)
            await allocate_producer_ids(fleet, broker)

    run(scenario())


async def add_partitions(broker: Broker) -> None:
    module = request_module(ApiKey.CREATE_PARTITIONS)
    more = module.CreatePartitionsTopic(name="t", count=4, assignments=None)
    request = module.CreatePartitionsRequest(
        topics=(more,), timeout=timedelta(seconds=5), validate_only=False
    )
    answer = await broker.forward(ApiKey.CREATE_PARTITIONS, 3, request)
    assert answer.results[0].error_code == ErrorCode.none
    assert len(broker.publisher.image.topics_by_name["t"].partitions) == 4


async def alter_configs(fleet: Fleet, broker: Broker) -> None:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    resources = tuple(
        module.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=(module.AlterableConfig(name=key, config_operation=0, value=value),),
        )
        for kind, name, key, value in (
            (2, "t", "retention.ms", "86400000"),
            (4, "7", "log.cleaner.threads", "2"),
            (2, "t-that-is-not", "retention.ms", "1"),
        )
    )
    request = module.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    answer = await broker.forward(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert [one.error_code for one in answer.responses][::2] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resource = module.DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=("retention.ms",)
    )
    request = module.DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    answer = await call(fleet, ApiKey.DESCRIBE_CONFIGS, request)
    assert [(one.name, one.value) for one in answer.results[0].configs] == [("retention.ms", "86400000")]


async def elect_leaders(broker: Broker) -> None:
    module = request_module(ApiKey.ELECT_LEADERS)
    named = module.TopicPartitions(topic="t", partitions=(0, 9))
    request = module.ElectLeadersRequest(
        election_type=0, topic_partitions=(named,), timeout=timedelta(seconds=5)
    )
    answer = await broker.forward(ApiKey.ELECT_LEADERS, 2, request)
    codes = {one.partition_id: one.error_code for one in answer.replica_election_results[0].partition_result}
    assert codes == {0: ErrorCode.election_not_needed, 9: ErrorCode.unknown_topic_or_partition}


async def delete_topic(broker: Broker) -> None:
    module = request_module(ApiKey.DELETE_TOPICS)
    named = module.DeleteTopicState(name="u", topic_id=None)
    request = module.DeleteTopicsRequest(topics=(named,), timeout=timedelta(seconds=5))
    answer = await broker.forward(ApiKey.DELETE_TOPICS, 6, request)
    assert answer.responses[0].error_code == ErrorCode.none
    assert "u" not in broker.publisher.image.topics_by_name


async def propose_isr(fleet: Fleet, broker: Broker) -> None:
    assert broker.membership is not None
    epoch = broker.membership.epoch
    topic = broker.publisher.image.topics_by_name["t"]
    proposals = [
        AlterIsr(topic.id, index, one.leader_epoch, one.partition_epoch, ((7, epoch),))
        for index, one in sorted(topic.partitions.items())
    ]
    proposals.append(AlterIsr(UUID(int=5), 3, 0, 0, ((7, epoch),)))
    answer = await call(fleet, ApiKey.ALTER_PARTITION, alter_isr(7, epoch, proposals))
    told = [(one.topic_id, one.partition, one.error) for one in isr_altered(answer)]
    assert told == [
        *((topic.id, index, ErrorCode.none) for index in range(4)),
        (UUID(int=5), 3, ErrorCode.unknown_topic_id),
    ]


async def assign_directories(fleet: Fleet, broker: Broker) -> None:
    topic = broker.publisher.image.topics_by_name["t"]
    module = request_module(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
    partitions = tuple(module.PartitionData(partition_index=index) for index in (0, 9))
    directory = module.DirectoryData(
        id_=UUID(int=7 << 70 | 5), topics=(module.TopicData(topic_id=topic.id, partitions=partitions),)
    )
    request = module.AssignReplicasToDirsRequest(
        broker_id=7, broker_epoch=broker.membership.epoch, directories=(directory, directory)
    )
    answer = await call(fleet, ApiKey.ASSIGN_REPLICAS_TO_DIRS, request)
    placed = [
        (one.id_, each.topic_id, [(of.partition_index, of.error_code) for of in each.partitions])
        for one in answer.directories
        for each in one.topics
    ]
    of_topic = [(0, ErrorCode.none), (9, ErrorCode.unknown_topic_or_partition)]
    assert [each for one in placed for each in one[2]] == of_topic * 2
    assert {one[:2] for one in placed} == {(UUID(int=7 << 70 | 5), topic.id)}


async def allocate_producer_ids(fleet: Fleet, broker: Broker) -> None:
    request = lifecycle_messages.producer_ids(7, broker.membership.epoch)
    answer = await call(fleet, ApiKey.ALLOCATE_PRODUCER_IDS, request)
    assert lifecycle_messages.producer_ids_allocated(answer).size == 1000


def test_the_catalog_goes_by_rpc_and_outlives_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t"))
        topic = broker.publisher.image.topics_by_name["t"]
        tip = TopicIdPartition(topic.id, "t", 0)
        entry = CatalogEntry(1, "m1", topic.partitions[0].leader_epoch, 0, 9, 1, 100)
        with pytest.raises(StorageError, match="unsupported_version"):  # the feature's level is 0 yet
            await broker.catalog.commit([CatalogCommit(tip, 0, entry)])
        active = await raise_catalog_level(fleet, broker, 1)
        assert await broker.catalog.commit([CatalogCommit(tip, 0, entry)]) == [CatalogResult.COMMITTED]
        assert broker.catalog.entry(topic.id, 0) == entry
        await fleet.kill(fleet.id_of(active))
        following = entry._replace(version=2, manifest_key="m2", end_offset=20)
        commits = [CatalogCommit(tip, 1, following)]
        assert await broker.catalog.commit(commits) == [CatalogResult.COMMITTED]
        stale = [CatalogCommit(tip, 1, following._replace(manifest_key="m3"))]
        assert await broker.catalog.commit(stale) == [CatalogResult.VERSION_CONFLICT]
        assert await broker.catalog.barrier() <= broker.publisher.image.offset
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


async def raise_catalog_level(fleet: Fleet, broker: Broker, level: int) -> Any:
    """Raise the level of the catalog; return the active controller."""
    module = request_module(ApiKey.UPDATE_FEATURES)
    update = module.FeatureUpdateKey(feature="firn.catalog.version", max_version_level=level, upgrade_type=1)
    request = module.UpdateFeaturesRequest(
        feature_updates=(update,), timeout=timedelta(seconds=5), validate_only=False
    )
    active = await fleet.led()
    await until(lambda: len(active.publisher.image.controllers) == 3)
    answer = await broker.forward(ApiKey.UPDATE_FEATURES, 2, request)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    return active


def test_rewrites_and_erasures_go_by_rpc_and_outlive_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        await raise_catalog_level(fleet, broker, 2)
        await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t", partitions=3))
        topic = broker.publisher.image.topics_by_name["t"]
        tip, epoch = TopicIdPartition(topic.id, "t", 0), topic.partitions[0].leader_epoch
        intent = RewriteIntent(UUID(int=31), 0, 8, RewriteKind.MERGE, epoch, 1)
        order_id = UUID(int=41)
        order = Erasure(order_id, f"erase/{order_id}.json.gz", 9, 9, 1, (topic.id,), 1)
        for asked in (broker.catalog.begin_rewrite(tip, intent), broker.catalog.start_erasure(order)):
            with pytest.raises(RequestError, match=r"level of firn\.catalog\.version is 2; .* need 3") as low:
                await asked
            assert low.value.code is ErrorCode.unsupported_version
        active = await raise_catalog_level(fleet, broker, 3)
        entry = CatalogEntry(1, "m1", epoch, 0, 9, 3, 100)
        assert await broker.catalog.commit([CatalogCommit(tip, 0, entry)]) == [CatalogResult.COMMITTED]
        assert await broker.catalog.begin_rewrite(tip, intent) is RewriteAnswer.BEGUN
        assert broker.catalog.rewrite(topic.id, 0) == intent
        await broker.catalog.start_erasure(order)
        other = intent._replace(rewrite_id=UUID(int=32))
        assert await broker.catalog.begin_rewrite(tip, other) is RewriteAnswer.BUSY
        places = [ErasedPlace(topic.id, number, epoch) for number in range(3)]
        await broker.catalog.note_erased(order_id, places, 7)
        await fleet.kill(fleet.id_of(active))
        merged = entry._replace(version=2, manifest_key="m2", segments=1)
        commits = [CatalogCommit(tip, 1, merged, intent.rewrite_id)]
        assert await broker.catalog.commit(commits) == [CatalogResult.COMMITTED]
        assert broker.catalog.rewrite(topic.id, 0) is None
        with pytest.raises(RequestError, match=r"at the bucket$"):
            await broker.catalog.finish_erasure(order_id, 5)
        await asyncio.gather(*(broker.catalog.note_erased(order_id, [one], IN_BUCKET) for one in places))
        assert set(broker.catalog.erased(order_id).values()) == {frozenset({7, IN_BUCKET})}
        await broker.catalog.finish_erasure(order_id, 5)
        assert broker.catalog.erasures()[order_id].done_ms == 5
        await broker.catalog.remove_erasure(order_id)
        assert not broker.catalog.erasures()
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())
