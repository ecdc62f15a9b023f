"""Audit log of a node: who has changed what, from where; never a secret; one line however much changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until
from tests.support.transactional_client import TransactionalClient, settled
from tests.support.transactional_requests import write_markers

NONE = ErrorCode.none
WHO = "; by User:ANONYMOUS from 127.0.0.1, client id 'test'"


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "firn.audit")
    return caplog


def told(audit: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines since the last call."""
    lines = [one.getMessage() for one in audit.records if one.name == "firn.audit"]
    audit.clear()
    return lines


def alter(talk: Talk, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(module.AlterableConfig(name=key, config_operation=op, value=v) for key, op, v in changes)
    resource = module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    fields = {"validate_only": False, **more}
    answer = talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigsRequest", resources=(resource,), **fields
    )
    return answer.responses[0].error_code


def test_topics_and_partitions(talk: Talk, audit: pytest.LogCaptureFixture) -> None:
    talk.create("t", 2)
    talk.create("t", 2)  # it exists
    module = request_module(ApiKey.CREATE_PARTITIONS)
    more = module.CreatePartitionsTopic(name="t", count=5, assignments=None)
    for validate_only in (True, False):
        talk(
            ApiKey.CREATE_PARTITIONS,
            "CreatePartitionsRequest",
            topics=(more,),
            timeout=timedelta(seconds=20),
            validate_only=validate_only,
        )
    module = request_module(ApiKey.DELETE_TOPICS)
    talk(
        ApiKey.DELETE_TOPICS,
        "DeleteTopicsRequest",
        topics=tuple(module.DeleteTopicState(name=name, topic_id=None) for name in ("t", "nothing")),
        timeout=timedelta(seconds=20),
    )
    assert told(audit) == [
        f"topics created (1): t [partitions=2 replicas=1]{WHO}",
        f"partitions added (1): t [partitions=5]{WHO}",
        f"topics deleted (1): t{WHO}",
    ]


def test_settings_with_what_they_switch_and_without_secrets(
    talk: Talk, audit: pytest.LogCaptureFixture
) -> None:
    talk.create("t")
    told(audit)
    changes = (("retention.ms", 0, "1000"), ("segment.ms", 1, None), ("cleanup.policy", 2, "compact"))
    assert alter(talk, 2, "t", *changes, validate_only=True) == NONE
    assert told(audit) == []
    assert alter(talk, 2, "t", *changes) == NONE
    assert alter(talk, 2, "t", ("retention.ms", 0, "-5")) == ErrorCode.invalid_config
    assert alter(talk, 4, "1", ("log.cleaner.threads", 0, "2")) == NONE
    assert alter(talk, 4, "", ("log.retention.ms", 0, "86400000")) == NONE
    assert alter(talk, 8, "1", ("service.node.node", 0, "DEBUG")) == NONE
    assert alter(talk, 8, "1", ("service.node.node", 1, None)) == NONE
    assert alter(talk, 2, "t", ("remote.log.copy.disable", 0, "true")) == NONE
    assert told(audit) == [
        "settings changed (3): topic t: retention.ms=1000, topic t: segment.ms is default, "
        f"topic t: cleanup.policy+=compact{WHO}",
        f"settings changed (1): broker 1: log.cleaner.threads=2{WHO}",
        f"settings changed (1): all brokers: log.retention.ms=86400000{WHO}",
        f"settings changed (1): broker-logger 1: service.node.node=DEBUG{WHO}",
        f"settings changed (1): broker-logger 1: service.node.node is default{WHO}",
        f"settings changed (1): topic t: remote.log.copy.disable=true{WHO}",
        f"tiering switched (1): t [remote.log.copy.disable=true]{WHO}",
    ]


def test_a_hundred_topics_are_one_line_and_foreign_names_cannot_forge_one(
    start: Callable[..., NodeThread], audit: pytest.LogCaptureFixture
) -> None:
    node = start()
    module = request_module(ApiKey.CREATE_TOPICS)
    size: dict[str, Any] = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topics = tuple(module.CreatableTopic(name=f"t{n}", **size) for n in range(100))
    with BlockingClient(node.host, node.port, "me\nroot: all is lost", timeout_s=20) as client:
        Talk(client)(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=topics)
    record = audit.records[-1]
    (line,) = told(audit)
    assert line.startswith("topics created (100): t0 [partitions=1 replicas=1], t1 [")
    assert " and 80 more; by User:ANONYMOUS from 127.0.0.1" in line
    assert "\n" not in line
    fields = vars(record)["audit"]
    assert {name: fields[name] for name in ("event", "count", "principal", "host")} == {
        "event": "topics-created",
        "count": 100,
        "principal": "User:ANONYMOUS",
        "host": "127.0.0.1",
    }
    assert len(fields["items"]) == 20


def test_groups_and_records(talk: Talk, audit: pytest.LogCaptureFixture) -> None:
    talk.create("t")
    topic_id = talk.topic_id("t")
    talk.produce(topic_id, [b"a", b"b", b"c"], 1_000)
    commit(talk, "g", topic_id)
    told(audit)
    module = request_module(ApiKey.DELETE_RECORDS)
    at = module.DeleteRecordsPartition(partition_index=0, offset=2)
    talk(
        ApiKey.DELETE_RECORDS,
        "DeleteRecordsRequest",
        topics=(module.DeleteRecordsTopic(name="t", partitions=(at,)),),
        timeout=timedelta(seconds=20),
    )
    module = request_module(ApiKey.OFFSET_DELETE)
    of = module.OffsetDeleteRequestTopic(
        name="t", partitions=(module.OffsetDeleteRequestPartition(partition_index=0),)
    )
    talk(ApiKey.OFFSET_DELETE, "OffsetDeleteRequest", group_id="g", topics=(of,))
    commit(talk, "g", topic_id)
    talk(ApiKey.DELETE_GROUPS, "DeleteGroupsRequest", groups_names=("g", "nothing"))
    assert told(audit) == [
        f"records deleted (1): t-0 below offset 2{WHO}",
        f"offsets of group g deleted (1): t-0{WHO}",
        f"groups deleted (1): g{WHO}",
    ]


def test_a_transaction_that_somebody_ends_for_another(
    start: Callable[..., NodeThread], audit: pytest.LogCaptureFixture
) -> None:
    """By its id, and in a partition; not the ends that its producer and the coordinators make."""
    node = start(transaction_state_log_num_partitions="1")
    place = f"{node.host}:{node.port}"
    with node.client() as client, TransactionalClient(place, "pay") as one:
        talk = Talk(client)
        talk.create("t")
        told(audit)
        assert settled(one, one.init) == NONE
        for _ in range(2):
            assert settled(one, lambda: one.produce("t", 0, [b"a"])).error_code == NONE
            assert settled(one, lambda: one.end(commit=True)) == NONE
        assert settled(one, lambda: one.produce("t", 0, [b"a"])).error_code == NONE
        before = one.producer_id, one.epoch
        assert settled(one, lambda: one.init(again=True)) == NONE
        assert [line for line in told(audit) if "transaction" in line and "__" not in line] == []
        assert settled(one, lambda: one.produce("t", 0, [b"a"])).error_code == NONE
        before = one.producer_id, one.epoch
        with TransactionalClient(place, "pay") as another:
            assert settled(another, another.init) == NONE
        (line,) = told(audit)
        assert line.startswith(
            f"transactions terminated (1): pay [aborted, producer {before[0]} of epoch {before[1]} fenced];"
            " by User:ANONYMOUS from 127.0.0.1, client id "
        )
        write_markers(talk, (99, 4, False, {"t": (0, 7)}))
        assert told(audit) == [f"transactions ended in partitions (1): t-0 [producer 99, aborted]{WHO}"]


def commit(talk: Talk, group: str, topic_id: Any) -> None:
    module = request_module(ApiKey.OFFSET_COMMIT)
    partition = module.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    find = request_module(ApiKey.FIND_COORDINATOR)
    talk.client.request(
        ApiKey.FIND_COORDINATOR, find.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
    )
    topics = (module.OffsetCommitRequestTopic(topic_id=topic_id, partitions=(partition,)),)

    def is_committed() -> bool:
        answer = talk(
            ApiKey.OFFSET_COMMIT,
            "OffsetCommitRequest",
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=topics,
        )
        return bool(answer.topics[0].partitions[0].error_code == NONE)

    wait_until("the coordinator to be loaded", is_committed)
