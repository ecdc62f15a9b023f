"""Requests of groups to a whole node: large ones, waiting ones at a shutdown, durability of commits."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import commit
from tests.support.processes import PYTHON, REPOSITORY, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    node = NodeThread(
        tmp_path / "data",
        offsets_topic_num_partitions="2",
        group_initial_rebalance_delay_ms="60000",
        log_flush_interval_messages="1",
    ).start()
    yield node
    node.stop()
    assert node.failure is None


@pytest.fixture
def talk(node: NodeThread) -> Iterator[Talk]:
    with node.client() as client:
        talk = Talk(client)
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("a",))
        wait_until("both partitions to be loaded", lambda: is_loaded(talk))
        yield talk


def is_loaded(talk: Talk) -> bool:
    """Return whether each partition of the offsets topic answers that there is no such group."""
    described = talk(
        ApiKey.DESCRIBE_GROUPS,
        "DescribeGroupsRequest",
        groups=tuple("abcdefgh"),
        include_authorized_operations=False,
    ).groups
    return {one.error_code for one in described} == {ErrorCode.group_id_not_found}


def fetch(
    talk: Talk, group: str = "g", *, stable: bool = False, asked: dict[Any, range] | None = None
) -> dict[Any, dict[int, int]]:
    """Fetch offsets of `asked` topics, by id, or of all."""
    module = request_module(ApiKey.OFFSET_FETCH)
    topics = None
    if asked is not None:
        topics = tuple(
            module.OffsetFetchRequestTopics(topic_id=topic, partition_indexes=tuple(indexes))
            for topic, indexes in asked.items()
        )
    [found] = talk(
        ApiKey.OFFSET_FETCH,
        "OffsetFetchRequest",
        groups=(module.OffsetFetchRequestGroup(group_id=group, topics=topics),),
        require_stable=stable,
    ).groups
    assert found.error_code is ErrorCode.none
    return {
        topic.topic_id: {one.partition_index: one.committed_offset for one in topic.partitions}
        for topic in found.topics
    }


def test_a_commit_of_very_many_positions_is_taken_in_pieces(talk: Talk) -> None:
    assert talk.create("wide", 1000).error_code is ErrorCode.none
    assert talk.create("other", 1).error_code is ErrorCode.none
    wide, other = talk.topic_id("wide"), talk.topic_id("other")
    answer = commit(talk, {other: range(1), wide: range(1002)})
    assert answer[other] == {0: ErrorCode.none}
    assert [answer[wide][n] for n in (0, 248, 249, 250, 999)] == [ErrorCode.none] * 5
    assert answer[wide][1000] is answer[wide][1001] is ErrorCode.unknown_topic_or_partition
    assert len(answer[wide]) == 1002
    for stable in (False, True):
        found = fetch(talk, stable=stable)
        assert found[wide] == dict.fromkeys(range(1000), 7)
        assert found[other] == {0: 7}
        found = fetch(talk, stable=stable, asked={wide: range(1200), other: range(2)})
        assert found[wide] == {n: 7 if n < 1000 else -1 for n in range(1200)}
        assert found[other] == {0: 7, 1: -1}


def test_very_many_positions_groups_and_members_go_in_pieces(talk: Talk) -> None:
    assert talk.create("wide", 1000).error_code is ErrorCode.none
    wide = talk.topic_id("wide")
    groups = [f"g{n}" for n in range(3)]
    for group in groups:
        commit(talk, {wide: range(1000)}, group)
    module = request_module(ApiKey.OFFSET_DELETE)
    topics = [
        module.OffsetDeleteRequestTopic(
            name=name,
            partitions=tuple(module.OffsetDeleteRequestPartition(partition_index=n) for n in range(count)),
        )
        for name, count in (("none", 2), ("wide", 701), ("wide", 400))
    ]
    answer = talk(ApiKey.OFFSET_DELETE, "OffsetDeleteRequest", group_id="g0", topics=tuple(topics))
    assert answer.error_code is ErrorCode.none
    told = {topic.name: [one.error_code for one in topic.partitions] for topic in answer.topics}
    assert told == {"none": [ErrorCode.unknown_topic_or_partition] * 2, "wide": [ErrorCode.none] * 1101}
    assert fetch(talk, "g0")[wide] == dict.fromkeys(range(701, 1000), 7)
    answer = talk(ApiKey.OFFSET_DELETE, "OffsetDeleteRequest", group_id="gone", topics=tuple(topics))
    assert (answer.error_code, answer.topics) == (ErrorCode.group_id_not_found, ())

    listed = talk(ApiKey.LIST_GROUPS, "ListGroupsRequest", states_filter=(), types_filter=()).groups
    assert {one.group_id for one in listed} == set(groups)
    asked = (*groups, *(f"none{n}" for n in range(600)), "g0")
    results = talk(ApiKey.DELETE_GROUPS, "DeleteGroupsRequest", groups_names=asked).results
    errors = {one.group_id: one.error_code for one in results}
    assert len(results) == len(errors) == 603
    assert [errors[one] for one in groups] == [ErrorCode.none] * 3
    assert {errors[one] for one in asked[3:-1]} == {ErrorCode.group_id_not_found}
    assert fetch(talk, "g1") == {}

    keys = tuple(f"t{n}" for n in range(3000))
    found = talk(
        ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=1, coordinator_keys=keys
    ).coordinators
    assert [one.key for one in found] == list(keys)
    assert {one.error_code for one in found} == {ErrorCode.none}

    module = request_module(ApiKey.LEAVE_GROUP)
    members = tuple(
        module.MemberIdentity(member_id=f"m{n}", group_instance_id=None, reason=None) for n in range(1201)
    )
    left = talk(ApiKey.LEAVE_GROUP, "LeaveGroupRequest", group_id="g", members=members).members
    assert [one.member_id for one in left] == [one.member_id for one in members]
    assert {one.error_code for one in left} == {ErrorCode.unknown_member_id}


def test_without_the_feature_there_are_no_consumer_groups(talk: Talk) -> None:
    def heartbeat() -> ErrorCode:
        answer = talk(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            "ConsumerGroupHeartbeatRequest",
            group_id="modern",
            member_id="m",
            member_epoch=0,
            rebalance_timeout=30_000,
            subscribed_topic_names=("t",),
            topic_partitions=(),
        )
        error: ErrorCode = answer.error_code
        return error

    def update(level: int, kind: int) -> ErrorCode:
        module = request_module(ApiKey.UPDATE_FEATURES)
        key = module.FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=kind)
        error: ErrorCode = talk(
            ApiKey.UPDATE_FEATURES, "UpdateFeaturesRequest", feature_updates=(key,)
        ).error_code
        return error

    assert heartbeat() is ErrorCode.none
    assert update(0, 1) is ErrorCode.invalid_update_version
    assert update(0, 2) is ErrorCode.none
    assert heartbeat() is ErrorCode.unsupported_version
    assert update(1, 1) is ErrorCode.none
    assert heartbeat() is ErrorCode.none


def test_a_member_s_metadata_is_bounded_by_what_the_topic_takes(talk: Talk) -> None:
    """What could never be written is not kept for a session of half an hour."""
    join = request_module(ApiKey.JOIN_GROUP)
    alter = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)

    def answer(*sizes: int) -> ErrorCode:
        error: ErrorCode = talk(
            ApiKey.JOIN_GROUP, "JoinGroupRequest", group_id="g", session_timeout=30_000,
            rebalance_timeout=30_000, member_id="", protocol_type="consumer",
            protocols=tuple(
                join.JoinGroupRequestProtocol(name=f"range-{size}", metadata=bytes(size)) for size in sizes
            ),
        ).error_code  # fmt: skip
        return error

    assert answer(1_048_588) is ErrorCode.member_id_required
    assert answer(1_048_589) is ErrorCode.invalid_request
    assert answer(600_000, 600_001) is ErrorCode.invalid_request
    config = alter.AlterableConfig(name="max.message.bytes", config_operation=0, value="1200001")
    resource = alter.AlterConfigsResource(
        resource_type=2, resource_name="__consumer_offsets", configs=(config,)
    )
    talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=(resource,),
        validate_only=False,
    )
    wait_until("the topic to take more", lambda: answer(600_000, 600_001) is ErrorCode.member_id_required)
    assert answer(600_000, 600_002) is ErrorCode.invalid_request


def test_waiting_joins_do_not_delay_a_shutdown(node: NodeThread, talk: Talk) -> None:
    module = request_module(ApiKey.JOIN_GROUP)
    answers: list[Any] = []

    def join() -> None:
        with node.client() as client:
            mine = Talk(client)
            member = ""
            while not answers or answers[-1].error_code is ErrorCode.member_id_required:
                answers.append(
                    mine(
                        ApiKey.JOIN_GROUP,
                        "JoinGroupRequest",
                        group_id="g",
                        session_timeout=30_000,
                        rebalance_timeout=30_000,
                        member_id=member,
                        protocol_type="consumer",
                        protocols=(module.JoinGroupRequestProtocol(name="range", metadata=b""),),
                    )
                )
                member = answers[-1].member_id

    joining = threading.Thread(target=join)
    joining.start()
    listed: list[str] = []

    def waits() -> bool:
        found = talk(ApiKey.LIST_GROUPS, "ListGroupsRequest", states_filter=(), types_filter=()).groups
        listed[:] = [one.group_state for one in found]
        return listed == ["PreparingRebalance"]

    wait_until("the member waits", waits)
    node.stop()
    joining.join()
    # Who is cut off, as what does not finish in time is, has no answer.
    assert [one.error_code.name for one in answers] == ["member_id_required", "not_coordinator"]


def test_a_node_without_groups_does_not_load_their_code() -> None:
    code = (
        "import sys; import service.cli.server, service.node.node; "
        "rooms = ('service.groups.shard', 'service.groups.records', 'service.wire.offsets', "
        "'kio.schema.join_group', 'kio.schema.offset_commit', 'kio.schema.consumer_group_heartbeat'); "
        "print([name for name in rooms if name in sys.modules])"
    )
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "[]"
