"""Metadata and DescribeCluster of one broker of three, by the client's listener."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import FirnError, RequestError, StorageError
from service.metadata.records import FenceBrokerRecord, UnregisterBrokerRecord
from service.serving import internal_topics
from service.serving.handlers import metadata as metadata_handler
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, request_module
from tests.support.one_of_three import (
    HIDDEN,
    INSIDE,
    ME,
    OTHER,
    OUTSIDE,
    OneOfThree,
    changed,
    directory,
    fenced,
    one_of_three,
    partition,
    registered,
    topic,
)

NONE, NO_LEADER = ErrorCode.none, ErrorCode.leader_not_available
MISMATCHED = (
    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
)
SPREAD = (topic(), partition(0, ME), partition(1, OTHER), partition(2, HIDDEN))


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]], *records: Any, **how: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *records, **how) as node:
            await scenario(node)

    asyncio.run(whole())


async def metadata(node: OneOfThree, listener: str = OUTSIDE, version: int = 12) -> Any:
    fields = {"topics": None, "allow_auto_topic_creation": version < 4}
    return await node.call(
        ApiKey.METADATA, "MetadataRequest", version, listener, **fields,
        include_topic_authorized_operations=False,
    )  # fmt: skip


async def cluster(node: OneOfThree, listener: str = OUTSIDE, version: int = 2, **fields: Any) -> Any:
    asked = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False, **fields}
    return await node.call(ApiKey.DESCRIBE_CLUSTER, "DescribeClusterRequest", version, listener, **asked)


async def described(node: OneOfThree, listener: str = OUTSIDE) -> Any:
    answer = await node.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitionsRequest", 0, listener, topics=()
    )
    return answer.topics[0].partitions


def told(answer: Any) -> list[tuple[int, str, int, str | None]]:
    field = "node_id" if hasattr(answer, "topics") else "broker_id"
    return [(getattr(one, field), one.host, one.port, one.rack) for one in answer.brokers]


def leaders(answer: Any) -> list[tuple[int, ErrorCode]]:
    return [(one.leader_id, one.error_code) for one in answer.topics[0].partitions]


def test_metadata_names_endpoints_of_the_clients_listener(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        outside, inside = await metadata(node), await metadata(node, INSIDE)
        assert told(outside) == [(1, "outside-1", 9091, "rack-1"), (2, "outside-2", 9092, "rack-2")]
        assert told(inside) == [(n, f"inside-{n}", 9090 + n, f"rack-{n}") for n in (1, 2, 3)]
        assert leaders(outside) == [(ME, NONE), (OTHER, NONE), (-1, ErrorCode.listener_not_found)]
        assert leaders(inside) == [(ME, NONE), (OTHER, NONE), (HIDDEN, NONE)]
        assert [one.offline_replicas for one in outside.topics[0].partitions] == [(), (), (HIDDEN,)]
        assert told(await cluster(node)) == told(outside)
        assert told(await cluster(node, INSIDE)) == told(inside)
        pages = await described(node), await described(node, INSIDE)
        assert [[one.leader_id for one in page] for page in pages] == [[ME, OTHER, -1], [ME, OTHER, HIDDEN]]
        assert {one.error_code for page in pages for one in page} == {NONE}

    run(tmp_path, scenario, *SPREAD)


@pytest.mark.parametrize(("version", "error"), [(5, NO_LEADER), (6, ErrorCode.listener_not_found)])
def test_versions_before_6_do_not_know_a_listener_that_is_not_found(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert leaders(await metadata(node, version=version))[2] == (-1, error)

    run(tmp_path, scenario, *SPREAD)


def test_version_0_names_only_replicas_that_can_be_reached(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        two, hidden = (await metadata(node, version=0)).topics[0].partitions
        assert (two.leader_id, two.error_code) == (ME, ErrorCode.replica_not_available)
        assert (two.replica_nodes, two.isr_nodes) == ((ME,), (ME,))
        assert (hidden.leader_id, hidden.error_code, hidden.replica_nodes) == (-1, NO_LEADER, ())

    run(tmp_path, scenario, topic(), partition(0, ME, replicas=(ME, HIDDEN)), partition(1, HIDDEN))


def test_describe_cluster_returns_fenced_brokers_on_request(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.tell(fenced(OTHER), changed(1, leader=-1, eligible_leader_replicas=(OTHER,), isr=()))
        answer = await metadata(node)
        assert [one[0] for one in told(answer)] == [ME]
        lost = answer.topics[0].partitions[1]
        assert (lost.leader_id, lost.error_code, lost.offline_replicas) == (-1, NO_LEADER, (OTHER,))
        page = (await described(node))[1]
        assert (page.leader_id, page.eligible_leader_replicas, page.last_known_elr) == (-1, (OTHER,), ())
        assert page.offline_replicas == (OTHER,)
        assert [one.broker_id for one in (await cluster(node)).brokers] == [ME]
        everybody = (await cluster(node, include_fenced_brokers=True)).brokers
        assert [(one.broker_id, one.is_fenced) for one in everybody] == [(ME, False), (OTHER, True)]
        assert [one.broker_id for one in (await cluster(node, version=1)).brokers] == [ME]

    run(tmp_path, scenario, *SPREAD)


def test_a_leader_that_is_not_alive_is_not_available(tmp_path: Path) -> None:
    """What a controller never writes in one piece may be seen all the same."""

    async def scenario(node: OneOfThree) -> None:
        await node.tell(fenced(OTHER), UnregisterBrokerRecord(broker_id=HIDDEN, broker_epoch=30))
        assert leaders(await metadata(node)) == [(ME, NONE), (-1, NO_LEADER), (-1, NO_LEADER)]
        offline = [one.offline_replicas for one in (await metadata(node, INSIDE)).topics[0].partitions]
        assert offline == [(), (OTHER,), (HIDDEN,)]

    run(tmp_path, scenario, *SPREAD)


def test_a_replica_in_a_directory_that_its_broker_has_not_online_is_offline(tmp_path: Path) -> None:
    places = {OTHER: directory(OTHER), HIDDEN: UUID(int=77)}
    unknown = (UUID(int=0), UUID(int=1), UUID(int=2))  # migrating, unassigned, lost

    async def scenario(node: OneOfThree) -> None:
        partitions = (await metadata(node, INSIDE)).topics[0].partitions
        assert [one.offline_replicas for one in partitions] == [(HIDDEN,), (), (), (OTHER,)]

    run(
        tmp_path,
        scenario,
        topic(),
        partition(0, OTHER, replicas=(OTHER, HIDDEN), directories=tuple(places.values())),
        *(partition(n + 1, OTHER, directories=(one,)) for n, one in enumerate(unknown)),
    )


def test_a_node_reports_its_own_offline_replicas(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        first = node.broker.replicas.get_by("t", 0)
        assert first is not None
        assert (await metadata(node)).topics[0].partitions[0].offline_replicas == ()
        node.broker.replicas.take_offline(first.tip, "the disk is gone")
        for _ in range(2):
            assert (await metadata(node)).topics[0].partitions[0].offline_replicas == (ME,)
        assert (await described(node))[0].offline_replicas == (ME,)

    run(tmp_path, scenario, *SPREAD)


class Maker:
    """Creator of topics; it ends as configured, or never."""

    def __init__(self, error: FirnError | None) -> None:
        self._error = error

    async def create_topics(self, requests: Any) -> Any:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "error",
    [
        RequestError(ErrorCode.request_timed_out, "no controller has answered"),
        RequestError(ErrorCode.policy_violation, "excessively large"),
        StorageError("the metadata log has failed"),
        None,
    ],
)
def test_metadata_of_existing_topics_does_not_wait_for_auto_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnError | None
) -> None:
    """Clients name all their topics in one request: those there are must not wait for a controller."""
    monkeypatch.setattr(metadata_handler, "CREATED_WITHIN_S", 0.05)
    module = request_module(ApiKey.METADATA)
    names = tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in ("t", "missing"))

    async def scenario(node: OneOfThree) -> None:
        node.broker.admin = cast("Any", Maker(error))
        answer = await node.call(
            ApiKey.METADATA, "MetadataRequest", 12, topics=names, allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        there, missing = answer.topics
        assert (there.name, there.error_code, len(there.partitions)) == ("t", NONE, 3)
        assert (missing.name, missing.error_code) == ("missing", ErrorCode.unknown_topic_or_partition)
        assert [one[0] for one in told(answer)] == [ME, OTHER]

    run(tmp_path, scenario, *SPREAD)


def test_more_topics_than_a_controller_makes_at_a_time_are_not_asked_for(tmp_path: Path) -> None:
    module = request_module(ApiKey.METADATA)
    names = tuple(module.MetadataRequestTopic(topic_id=None, name=f"t{n}") for n in range(10_001))
    made: list[int] = []

    class Counts:
        async def create_topics(self, requests: Any) -> Any:
            made.append(len(requests))
            return ()

    async def scenario(node: OneOfThree) -> None:
        node.broker.admin = cast("Any", Counts())
        for most in (10_000, 10_001):
            answer = await node.call(
                ApiKey.METADATA, "MetadataRequest", 12, topics=names[:most], allow_auto_topic_creation=True,
                include_topic_authorized_operations=False,
            )  # fmt: skip
            unknown = ErrorCode.unknown_topic_or_partition
            assert [one.error_code for one in answer.topics] == [unknown] * most
        assert made == [10_000]

    run(tmp_path, scenario)


def test_the_controller_is_the_broker_that_is_asked_as_it_lives(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        seen = [(await metadata(node)).controller_id for _ in range(8)]
        seen += [(await cluster(node)).controller_id for _ in range(8)]
        assert set(seen) == {ME}
        await node.tell(fenced(OTHER))
        assert {(await metadata(node)).controller_id for _ in range(8)} == {ME}

    run(tmp_path, scenario, *SPREAD)


def test_a_node_is_known_before_its_registration_is(tmp_path: Path) -> None:
    """Nobody registered it, or an earlier process of it: whose fencing says nothing of this one."""
    me = [(ME, "outside-1", 9091, "rack-1")]

    async def scenario(node: OneOfThree) -> None:
        answer = await metadata(node)
        assert (told(answer), answer.controller_id) == (me, ME)
        assert told(await cluster(node)) == me
        await node.tell(registered(ME, fenced=True))
        assert told(await metadata(node)) == me
        plane: Any = node.broker.plane
        plane.epoch = 10 * ME
        answer = await metadata(node)
        assert (told(answer), answer.controller_id) == ([], -1)
        await node.tell(fenced(ME, back=True))
        assert told(await metadata(node)) == me

    run(tmp_path, scenario, registers=False)


def test_cached_topics_are_invalidated_only_by_broker_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    described = metadata_handler._partition

    def counted(seen: Any, index: int, *rest: Any) -> Any:
        made.append(("inside" if HIDDEN in seen.by_id else "outside", index))
        return described(seen, index, *rest)

    monkeypatch.setattr(metadata_handler, "_partition", counted)

    async def made_by(node: OneOfThree, *listeners: str) -> list[tuple[str, int]]:
        made.clear()
        for listener in listeners or (OUTSIDE, INSIDE):
            await metadata(node, listener)
        return list(made)

    async def scenario(node: OneOfThree) -> None:
        first = await made_by(node)
        assert len(first) == 6
        assert {where for where, _ in first} == {"outside", "inside"}
        assert await made_by(node) == []
        # Another registration that stands as the one before did: a restart that nobody noticed.
        await node.tell(registered(OTHER, epoch=99))
        assert await made_by(node) == []
        assert told(await metadata(node))[1] == (OTHER, "outside-2", 9092, "rack-2")
        await node.tell(FenceBrokerRecord(id=OTHER, epoch=99))
        assert len(await made_by(node)) == 6
        await node.tell(registered(OTHER))
        assert len(await made_by(node)) == 6
        await node.tell(UnregisterBrokerRecord(broker_id=HIDDEN, broker_epoch=30))
        assert len(await made_by(node)) == 6
        await node.tell(changed(0, leader_recovery_state=1))
        assert len(await made_by(node, OUTSIDE, OUTSIDE)) == 3

    run(tmp_path, scenario, *SPREAD)


def test_a_broker_that_moves_is_found_where_it_is(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert told(await metadata(node))[1][2] == 9092
        await node.tell(registered(OTHER, epoch=99, suffix=".new"))
        assert told(await metadata(node))[1] == (OTHER, "outside-2.new", 9092, "rack-2")

    run(tmp_path, scenario, *SPREAD)


def test_a_groups_coordinator_is_found_where_its_partition_leads(tmp_path: Path) -> None:
    offsets = UUID(int=200)

    async def found(node: OneOfThree, listener: str = OUTSIDE) -> Any:
        (one,) = (
            await node.call(
                ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", 6, listener, coordinator_keys=("group",)
            )
        ).coordinators
        return (one.node_id, one.host, one.port), one.error_code

    nobody = ((-1, "", -1), ErrorCode.coordinator_not_available)

    async def scenario(node: OneOfThree) -> None:
        assert await found(node) == ((OTHER, "outside-2", 9092), NONE)
        assert await found(node, INSIDE) == ((OTHER, "inside-2", 9092), NONE)
        await node.tell(changed(0, offsets, leader=HIDDEN, replicas=(HIDDEN,), isr=(HIDDEN,)))
        assert await found(node) == nobody
        assert await found(node, INSIDE) == ((HIDDEN, "inside-3", 9093), NONE)
        await node.tell(fenced(HIDDEN), changed(0, offsets, leader=-1))
        assert await found(node, INSIDE) == nobody

    run(tmp_path, scenario, topic(OFFSETS, offsets), partition(0, OTHER, topic_id=offsets))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (2, ErrorCode.mismatched_endpoint_type, MISMATCHED),
        (3, ErrorCode.unsupported_endpoint_type, "Unsupported endpoint type 3"),
    ],
)
def test_other_types_of_endpoints_are_not_told_here(
    tmp_path: Path, kind: int, error: ErrorCode, message: str
) -> None:
    async def scenario(node: OneOfThree) -> None:
        answer = await cluster(node, endpoint_type=kind)
        assert (answer.error_code, answer.error_message, answer.brokers) == (error, message, ())

    run(tmp_path, scenario)


BROKER, LOGGER = 4, 8


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (BROKER, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (LOGGER, "Unexpected broker id, expected 1 but received 2"),
    ],
)
def test_another_brokers_settings_are_asked_of_that_one(tmp_path: Path, kind: int, message: str) -> None:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    asked = module.DescribeConfigsResource(resource_type=kind, resource_name="2", configuration_keys=None)

    async def scenario(node: OneOfThree) -> None:
        answer = await node.call(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", 4, resources=(asked,))
        (result,) = answer.results
        assert (result.error_code, result.error_message) == (ErrorCode.invalid_request, message)
        assert result.configs == ()

    run(tmp_path, scenario)


def test_another_brokers_loggers_are_altered_by_that_one(tmp_path: Path) -> None:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    change = module.AlterableConfig(name="root", config_operation=0, value="DEBUG")
    asked = module.AlterConfigsResource(resource_type=LOGGER, resource_name="2", configs=(change,))

    async def scenario(node: OneOfThree) -> None:
        answer = await node.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigsRequest", 1,
            resources=(asked,), validate_only=False,
        )  # fmt: skip
        (result,) = answer.responses
        assert result.error_code == ErrorCode.invalid_request
        assert result.error_message == "Unexpected node id. Expected 1, but received 2"

    run(tmp_path, scenario)


def test_find_coordinator_without_its_topic_is_retriable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no controller; what else was asked on the connection waits behind."""
    monkeypatch.setattr(internal_topics, "CREATED_WITHIN_S", 0.05)
    may_fail, asked = asyncio.Event(), 0

    class Late:
        async def create_topics(self, _: object) -> Any:
            nonlocal asked
            asked += 1
            await may_fail.wait()
            raise RequestError(ErrorCode.request_timed_out, "no controller has answered")

    async def scenario(node: OneOfThree) -> None:
        unheard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        node.broker.groups.internal._admin = cast("Any", Late())
        for _ in range(2):
            answer = await node.call(
                ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", 4, key_type=0, coordinator_keys=("a", "b")
            )
            assert [one.error_code for one in answer.coordinators] == [
                ErrorCode.coordinator_not_available
            ] * 2
        assert asked == 1
        may_fail.set()
        while node.broker.groups.internal._creating:
            await asyncio.sleep(0)
        gc.collect()
        assert not unheard

    run(tmp_path, scenario, *SPREAD)
