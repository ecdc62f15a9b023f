"""`firn erase` at one node with a bucket: an order from its start to its end, what is refused before anything
is written, how far it is told to be, and what the audit log has of it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.cli.main import main
from service.client.admin import ChangingCluster, Cluster
from service.client.all_brokers import CommandDeadline
from service.client.erasures import OrderIdentity, make_order, start_order
from service.records.builder import BatchBuilder
from service.remote.format.erase_codec import encode_erasure
from service.wire.api import ApiKey, request_module
from service.wire.erasures import ErasureOp, ErasureScope, ErasuresRequest
from tests.node.conftest import NodeThread, Talk
from tests.node.test_open_sessions import CLOSED, admin, client, login
from tests.support.processes import wait_until
from tests.support.world import WORLD

Start = Callable[..., NodeThread]
SETTINGS = {"firn_cut_interval_ms": "1000", "firn_remote_object_grace_ms": "1000", "firn_tail_wait_ms": "0"}
GONE, KEPT = b"somebody", b"nobody"
READ, ALTER, DESCRIBE = 3, 7, 8


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def talk_to() -> Iterator[Callable[[NodeThread], Talk]]:
    clients = []

    def talk(node: NodeThread) -> Talk:
        clients.append(node.client())
        return Talk(clients[-1])

    yield talk
    for one in clients:
        one.close()


def produce(talk: Talk, topic_id: Any, count: int) -> None:
    """Batches of two records, one of each key."""
    module = request_module(ApiKey.PRODUCE)
    for number in range(count):
        builder = BatchBuilder()
        builder.add(1_600_000_000_000 + number, GONE, b"v" * 400)
        builder.add(1_600_000_000_000 + number, KEPT, b"v" * 400)
        data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
        answer = talk(
            ApiKey.PRODUCE, "ProduceRequest", transactional_id=None, acks=-1, timeout=1000,
            topic_data=(module.TopicProduceData(topic_id=topic_id, partition_data=(data,)),),
        )  # fmt: skip
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none


def firn(capsys: pytest.CaptureFixture[str], node: NodeThread, *words: str) -> tuple[int, Any, str]:
    """Exit code, document and standard error of `firn erase`."""
    code = main(["erase", *words, "--bootstrap-server", f"{node.host}:{node.port}", "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def given(keys: bytes) -> tuple[str, ...]:
    return ("--topics", "events", "--key-base64", base64.b64encode(keys).decode())


def files_with(folder: Path, needle: bytes) -> list[str]:
    return [str(one) for one in folder.rglob("*") if one.is_file() and needle in one.read_bytes()]


@pytest.mark.thorough
def test_an_order_from_its_start_until_it_is_gone(
    start: Start,
    bucket: Path,
    talk_to: Callable[[NodeThread], Talk],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "firn.audit")
    node = start(firn_remote_url=f"file://{bucket}", **SETTINGS)
    talk = talk_to(node)
    made = talk.create(
        "events", remote_storage_enable="true", internal_segment_bytes="4000", file_delete_delay_ms="3600000"
    )
    produce(talk, made.topic_id, 20)
    wait_until("segments in the bucket", lambda: len([*bucket.rglob("*.seg")]) >= 3)
    code, plan, _ = firn(capsys, node, "plan", *given(GONE))
    assert code == 0
    assert plan["objects_that_may_have_records"] >= 1
    code, order, _ = firn(capsys, node, "start", *given(GONE), "--execute")
    assert code == 0
    name = order["id"]
    audited = [one.getMessage() for one in caplog.records if one.name == "firn.audit"]
    assert [one for one in audited if f"erasures of keys started (1): {name} [1 keys, topics events]" in one]
    seen: dict[str, Any] = {}

    def is_done() -> bool:
        code, found, _ = firn(capsys, node, "status", name)
        seen.update(found)
        return code == 0

    wait_until("the order to be done", is_done, 60)
    assert (seen["state"], seen["replicas"], seen["replicas_left"]) == ("done", 1, 0)
    assert (seen["archives"], seen["archives_left"], seen["cuts_left"]) == (1, 0, 0)
    code, report, _ = firn(capsys, node, "verify", name)
    assert (code, report["records_of_the_keys"], report["is_clean"]) == (0, 0, True)
    wait_until("the order to be gone", lambda: "it is gone" in firn(capsys, node, "status", name)[2], 60)
    assert files_with(bucket, GONE) == []
    assert files_with(node.data, GONE) == [], "whatever file.delete.delay.ms says"
    assert files_with(node.data, KEPT)
    assert [*bucket.glob("erase/*")] == []


def test_an_order_on_a_topic_that_is_compacted_by_the_nodes_file_is_refused_before_it_is_written(
    start: Start, bucket: Path, talk_to: Callable[[NodeThread], Talk], capsys: pytest.CaptureFixture[str]
) -> None:
    """The controller does not see the default of a file."""
    node = start(firn_remote_url=f"file://{bucket}", log_cleanup_policy="compact", **SETTINGS)
    refuses(node, talk_to(node), bucket)
    code, _, said = firn(capsys, node, "start", *given(GONE), "--execute")
    assert code == 1
    assert "compacted topics are not erased from so" in said


def test_an_order_that_the_controller_refuses_is_not_written(
    start: Start, bucket: Path, talk_to: Callable[[NodeThread], Talk]
) -> None:
    node = start(firn_remote_url=f"file://{bucket}", **SETTINGS)
    refuses(node, talk_to(node), bucket, cleanup_policy="compact")


def test_status_says_why_a_replica_waits(
    start: Start, bucket: Path, talk_to: Callable[[NodeThread], Talk], capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, not only after the ten minutes after which it is a finding."""
    node = start(firn_remote_url=f"file://{bucket}", **SETTINGS)
    talk = talk_to(node)
    produce(talk, talk.create("events").topic_id, 1)
    with Cluster(f"{node.host}:{node.port}") as cluster:
        made = make_order(
            cluster, cluster.topics(["events"]), [GONE], OrderIdentity(UUID(int=5), b"s" * 16, 1), None
        )
        assert [one.leader_epochs for one in made.topics] == [(0,)], "its leader told the end in that epoch"
        beyond = made._replace(topics=tuple(one._replace(ends=(9,)) for one in made.topics))
        start_order(cluster, beyond, CommandDeadline(20, WORLD))
    words = "broker 1: the log ends at 2, the order goes up to 9"

    def is_said() -> bool:
        _, found, _ = firn(capsys, node, "status", str(made.id))
        whys = [(one["topic"], one["partition"], one["why"]) for one in found["problems"]]
        return ("events", 0, words) in whys

    wait_until("the reason", is_said, 30)


def refuses(node: NodeThread, talk: Talk, bucket: Path, **configs: str) -> None:
    made = talk.create("events", 1, **configs)
    produce(talk, made.topic_id, 1)
    wait_until("the node to keep the prefix", lambda: (bucket / "cluster.json").exists())
    with Cluster(f"{node.host}:{node.port}") as cluster:
        identity = OrderIdentity(UUID(int=5), b"s" * 16, 1)
        order = make_order(cluster, cluster.topics(["events"]), [GONE], identity, None)

        def is_refused() -> bool:
            with pytest.raises((RequestError, OSError)) as error:
                start_order(cluster, order, CommandDeadline(20, WORLD))
            return "compacted" in str(error.value)

        wait_until("the refusal", is_refused)
    assert [*bucket.glob("erase/*")] == []


def test_topics_that_a_client_may_not_read_or_describe_tell_it_nothing(start: Start, bucket: Path) -> None:
    """Whoever may describe the cluster cannot test keys that it guesses, nor learn names of topics."""
    node = start(**CLOSED, **{"firn.remote.url": f"file://{bucket}", "firn.cut.interval.ms": "1000"})
    address, cluster_right, topic_right = f"{node.host}:{node.port}", (4, "kafka-cluster"), (2, "events")
    with (
        client(node, "eve") as eve,
        admin(node) as acls,
        Cluster(address, security=login("admin")) as cluster,
        client(node, "admin") as boss,
    ):
        made = Talk(boss).create("events")
        produce(Talk(boss), made.topic_id, 1)
        order = make_order(
            cluster, cluster.topics(["events"]), [GONE], OrderIdentity(UUID(int=5), b"s" * 16, 1), None
        )
        start_order(cluster, order, CommandDeadline(20, WORLD))
        count = ErasuresRequest(
            op=ErasureOp.VERIFY, id=order.id, topic_id=made.topic_id, partition=0, scope=ErasureScope.LOCAL
        )

        def asked(request: ErasuresRequest) -> tuple[Any, str]:
            answer = eve.request(ApiKey.ERASURES, request)
            return answer.error_code, f"{answer.error_message} {answer.document}"

        def refusals() -> list[Any]:
            return [
                asked(replace(count, op=op, scope=scope, order=given))[0]
                for op in (ErasureOp.LOOK, ErasureOp.VERIFY)
                for scope in (ErasureScope.LOCAL, ErasureScope.OBJECTS, ErasureScope.TAILS)
                for given in (None, encode_erasure(order))
            ]

        let(acls, "User:eve", *cluster_right, DESCRIBE)
        code, said = asked(ErasuresRequest(op=ErasureOp.LIST))
        assert (code, "events" in said, str(made.topic_id) in said) == (ErrorCode.none, False, True)
        assert set(refusals()) == {ErrorCode.unknown_topic_id}
        let(acls, "User:eve", *cluster_right, ALTER)
        code, said = asked(ErasuresRequest(op=ErasureOp.CANCEL, id=order.id))
        assert (code, "events" in said) == (ErrorCode.unknown_topic_id, False)
        again = encode_erasure(order._replace(id=UUID(int=6)))
        code, said = asked(ErasuresRequest(op=ErasureOp.START, id=UUID(int=6), order=again))
        assert (code, "events" in said) == (ErrorCode.unknown_topic_id, False)
        let(acls, "User:eve", *topic_right, DESCRIBE)
        assert "events" in asked(ErasuresRequest(op=ErasureOp.LIST))[1]
        assert set(refusals()) == {ErrorCode.topic_authorization_failed}
        let(acls, "User:eve", *topic_right, READ)
        assert ErrorCode.topic_authorization_failed not in refusals()
        produce(Talk(boss), made.topic_id, 3)
        later = make_order(
            cluster, cluster.topics(["events"]), [GONE], OrderIdentity(UUID(int=7), b"s" * 16, 1), None
        )
        code, said = asked(replace(count, id=later.id, order=encode_erasure(later)))
        assert code is ErrorCode.none
        assert json.loads(said.partition(" ")[2])["records"] >= 3, "what came behind the order's end stays"


def let(acls: ChangingCluster, principal: str, kind: int, name: str, operation: int) -> None:
    """Allow a principal an operation on a resource."""
    module = request_module(ApiKey.CREATE_ACLS)
    entry = module.AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=3, principal=principal, host="*",
        operation=operation, permission_type=3,
    )  # fmt: skip
    answer = acls.first.request(ApiKey.CREATE_ACLS, module.CreateAclsRequest(creations=(entry,)))
    assert answer.results[0].error_code is ErrorCode.none
