"""`firn transaction` and Kafka's own tool, at nodes of either: hanging transactions, lists, ends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from service.cli.main import main
from service.client.admin import Cluster
from service.client.transaction_queries import describe_transaction
from tests.support.clients import Admin
from tests.support.isolation import UNCOMMITTED, values
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import tool
from tests.support.processes import Node, wait_until
from tests.support.requirements import need_kafka_tools
from tests.support.transactional_client import TransactionalClient, settled
from tests.support.transactional_producers import JavaTransactional, Refused

pytestmark = pytest.mark.java
ANY_AGE = ("--older-than-ms", "0")
NONE = ErrorCode.none


class Broker(NamedTuple):
    bootstrap: str
    data: Path
    is_firn: bool = True


@pytest.fixture(scope="module", params=["firn", pytest.param("kafka", marks=pytest.mark.thorough)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that takes what it cannot verify, so that transactions can hang."""
    need_kafka_tools()
    settings = {
        "transaction.partition.verification.enable": "false",
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
    }
    folder = tmp_path_factory.mktemp(request.param) / "node"
    if request.param == "kafka":
        kafka = KafkaNode(folder, settings, heap="512m")
        try:
            yield Broker(kafka.bootstrap, kafka.data, is_firn=False)
        finally:
            kafka.stop()
        return
    node = Node(folder, settings)
    try:
        yield Broker(node.start().bootstrap, node.data)
    finally:
        node.close()


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


def asked(capsys: pytest.CaptureFixture[str], bootstrap: str, *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["transaction", *words, "--bootstrap-server", bootstrap]) == code
    return capsys.readouterr().out


def hang(topic: str, client: TransactionalClient) -> int:
    """Leave a record in a transaction of which no coordinator knows; return its offset."""
    answer = settled(client, lambda: client.produce(topic, 0, [b"lost"]))
    assert answer.error_code == NONE
    offset: int = answer.base_offset
    return offset


def test_a_hanging_transaction_is_found_and_aborted(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin(bootstrap).create("flights", 2)
    with TransactionalClient(bootstrap, "hanging-id", version=1) as client:
        assert settled(client, client.init) == NONE
        offset = hang("flights", client)
        (one,) = json.loads(asked(capsys, bootstrap, "hanging", *ANY_AGE, "--json", code=1))
        found = (one["topic"], one["partition"], one["first_offset"], one["producer_id"])
        assert found == ("flights", 0, offset, client.producer_id)
        assert (one["producer_epoch"], one["transactional_id"]) == (0, "hanging-id")
        assert asked(capsys, bootstrap, "hanging", *ANY_AGE, "--topic", "flights", "--partition", "1") == ""
        assert asked(capsys, bootstrap, "hanging") == ""
        text = asked(capsys, bootstrap, "hanging", *ANY_AGE, "--topic", "flights", code=1)
        assert text.splitlines()[1].split()[:3] == ["flights", "0", str(offset)]
        kafkas = tool(
            "transactions",
            "--bootstrap-server",
            bootstrap,
            "find-hanging",
            "--max-transaction-timeout",
            "0",
            "--topic",
            "flights",
        )
        assert kafkas.splitlines()[1].split()[:4] == ["flights", "0", str(client.producer_id), "0"]

        place = ("--topic", "flights", "--partition", "0", "--start-offset")
        asked(capsys, bootstrap, "abort", *place, str(offset + 1), code=1)
        told = asked(capsys, bootstrap, "abort", *place, str(offset))
        assert told == (
            f"aborted the transaction of producer {client.producer_id}, epoch 0, in flights-0 from offset"
            f" {offset} on\n"
        )
        assert asked(capsys, bootstrap, "hanging", *ANY_AGE) == ""
        assert values(bootstrap, "flights") == []
        assert values(bootstrap, "flights", UNCOMMITTED) == [b"lost"]


def test_a_transaction_that_its_coordinator_knows_is_not_aborted(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin(bootstrap).create("known", 1)
    with TransactionalClient(bootstrap, "known-id", version=1) as client:
        assert settled(client, client.init) == NONE
        assert settled(client, lambda: client.add(("known", 0))) == {("known", 0): NONE}
        offset = hang("known", client)
        assert asked(capsys, bootstrap, "hanging", "--topic", "known", *ANY_AGE) == ""
        place = ("--topic", "known", "--partition", "0", "--start-offset", str(offset))
        assert main(["transaction", "abort", *place, "--bootstrap-server", bootstrap]) == 1
        assert "does not hang" in capsys.readouterr().err

        told = json.loads(asked(capsys, bootstrap, "describe", "known-id", "--json"))
        assert told["partitions"] == [{"topic": "known", "partition": 0}]
        assert (told["state"], told["producer_epoch"], told["timeout_ms"]) == ("Ongoing", 0, 60_000)
        assert abs(told["start_ms"] - time.time() * 1000) < 60_000
        rows = json.loads(asked(capsys, bootstrap, "list", "--state", "Ongoing", "--json"))
        assert rows == [
            {"transactional_id": "known-id", "node": 1, "producer_id": client.producer_id, "state": "Ongoing"}
        ]
        assert json.loads(asked(capsys, bootstrap, "list", "--longer-than-ms", "600000", "--json")) == []
        assert "known-id  " in asked(capsys, bootstrap, "list", "--pattern", "known-.*")
        assert "known-id" not in asked(capsys, bootstrap, "list", "--pattern", "know")

        assert asked(capsys, bootstrap, "terminate", "known-id").startswith("fenced by producer ")
        assert client.end(commit=True) == ErrorCode.producer_fenced
        text = asked(capsys, bootstrap, "describe", "known-id")
        assert "state: Empty\n" in text
        assert "open for: -\n" in text
        assert values(bootstrap, "known") == []


def test_an_id_that_is_not_there_is_named_and_not_made(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("describe", "terminate"):
        assert main(["transaction", action, "nobody", "--bootstrap-server", bootstrap]) == 1
        assert capsys.readouterr().err == "firn transaction: there is no transactional id nobody\n"
    assert "nobody" not in asked(capsys, bootstrap, "list")


@pytest.mark.thorough
def test_kafkas_tool_as_a_whole(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    topic, name = "whole", "whole-id"

    def kafkas(*words: str) -> list[list[str]]:
        """The rows below the head."""
        told = tool("transactions", "--bootstrap-server", bootstrap, *words)
        return [line.split() for line in told.splitlines()[1:] if line.strip()]

    Admin(bootstrap).create(topic, 1)
    with TransactionalClient(bootstrap, name, version=1) as client:
        assert settled(client, client.init) == NONE
        producer = str(client.producer_id)
        offset = str(hang(topic, client))
        place = ("--topic", topic, "--partition", "0")
        find = ("find-hanging", "--max-transaction-timeout", "0", "--topic", topic)
        (row,) = kafkas(*find)
        assert (row[:4], row[5]) == ([topic, "0", producer, "0"], offset)
        (row,) = kafkas("describe-producers", *place)
        assert (row[0], row[1], row[-1]) == (producer, "0", offset)
        kafkas("abort", *place, "--start-offset", offset)
        assert kafkas(*find) == []
        assert asked(capsys, bootstrap, "hanging", *ANY_AGE, "--topic", topic) == ""

    with TransactionalClient(bootstrap, name, version=1) as client:
        assert settled(client, client.init) == NONE
        assert settled(client, lambda: client.add((topic, 0))) == {(topic, 0): NONE}
        assert settled(client, lambda: client.produce(topic, 0, [b"open"])).error_code == NONE
        (row,) = kafkas("describe", "--transactional-id", name)
        assert (row[1], row[2], row[4], row[-1]) == (name, str(client.producer_id), "Ongoing", f"{topic}-0")
        assert [name, row[0], row[2], "Ongoing"] in kafkas("list")
        assert [one[0] for one in kafkas("list", "--transactional-id-pattern", "who.*-id")] == [name]
        kafkas("forceTerminateTransaction", "--transactionalId", name)
        assert client.end(commit=True) == ErrorCode.producer_fenced
        (row,) = kafkas("describe", "--transactional-id", name)
        assert row[4] == "Empty"
    wait_until("nothing is open", lambda: values(bootstrap, topic) == [])


EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
STEPS = [
    (EMPTY, 0),
    (ONGOING, 0),
    (PREPARE_COMMIT, 1),
    (COMPLETE_COMMIT, 1),
    (ONGOING, 1),
    (PREPARE_ABORT, 2),
    (COMPLETE_ABORT, 2),
]
"""status and epoch of each record of an id that commits and aborts, by transaction version 2"""


def commit_and_abort(bootstrap: str, topic: str, name: str) -> int:
    """Write `one` twice, of which the second is aborted; return the producer's id."""
    Admin(bootstrap).create(topic, 1)
    with TransactionalClient(bootstrap, name) as client:
        assert settled(client, client.init) == NONE
        for commit in (True, False):
            assert settled(client, lambda: client.produce(topic, 0, [b"one"])).error_code == NONE
            assert settled(client, lambda commit=commit: client.end(commit=commit)) == NONE  # type: ignore[misc]
        wait_until("its markers", lambda: len(values(bootstrap, topic, UNCOMMITTED)) == 2)
        wait_until("its markers", lambda: values(bootstrap, topic) == [b"one"])
        return client.producer_id


def test_kafkas_dump_reads_the_log_of_ids_and_the_index_of_aborted_transactions(broker: Broker) -> None:
    topic, name = "dumped", "dumped-id"
    producer = commit_and_abort(broker.bootstrap, topic, name)
    logs = sorted(broker.data.glob("__transaction_state-*/*.log"))
    (index,) = broker.data.glob(f"{topic}-0/*.txnindex")

    files = ",".join(map(str, [*logs, index]))
    text = tool("dump-log", "--transaction-log-decoder", "--files", files)
    assert "isvalid: false" not in text
    found = [line.partition(" key: ")[2].partition(" payload: ") for line in text.splitlines()]
    keys = {"type": "0", "data": {"transactionalId": name}}
    states = [json.loads(value) for key, _, value in found if key and json.loads(key) == keys]
    assert {one["version"] for one in states} == {"1"}
    rows = [one["data"] for one in states]
    assert [(one["transactionStatus"], one["producerEpoch"]) for one in rows] == STEPS
    assert {one["producerId"] for one in rows} == {producer}
    assert {one["transactionTimeoutMs"] for one in rows} == {60_000}
    assert rows[1]["transactionPartitions"] == [{"topic": topic, "partitionIds": [0]}]
    assert rows[3]["transactionPartitions"] == []
    aborted = [line for line in text.splitlines() if "lastStableOffset" in line]
    assert aborted == [f"version: 0 producerId: {producer} firstOffset: 2 lastOffset: 3 lastStableOffset: 4"]


@pytest.mark.thorough
def test_kafkas_tools_read_markers_and_the_topic_of_ids(broker: Broker) -> None:
    topic, name = "marked", "marked-id"
    commit_and_abort(broker.bootstrap, topic, name)
    (log,) = broker.data.glob(f"{topic}-0/*.log")
    text = tool("dump-log", "--print-data-log", "--files", log)
    assert re.findall(r"endTxnMarker: (\w+)", text) == ["COMMIT", "ABORT"]
    (partition,) = (
        path.parent.name.rpartition("-")[2]
        for path in broker.data.glob("__transaction_state-*/*.log")
        if name.encode() in path.read_bytes()
    )
    told = tool(
        "console-consumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", "__transaction_state"),
        *("--partition", partition, "--offset", "earliest", "--timeout-ms", "8000"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
    )
    rows = [json.loads(one) for one in told.replace("}{", "}\n{").splitlines()]
    states = [one["value"]["data"] for one in rows if one["key"]["data"]["transactionalId"] == name]
    assert [(one["transactionStatus"], one["producerEpoch"]) for one in states] == STEPS


@pytest.mark.thorough
def test_a_running_client_goes_on_at_another_level_but_not_at_none(broker: Broker, tmp_path: Path) -> None:
    """Java's keeps to version 2 until it connects again; each end by it raises the epoch."""
    topic, name, bootstrap = "followed", "followed-id", broker.bootstrap
    Admin(bootstrap).create(topic, 1)
    producer = JavaTransactional(bootstrap, name, 60_000, tmp_path)

    def write(value: str) -> None:
        producer.begin()
        producer.send(topic, 0, value)

    def to_level(how: str, level: int) -> None:
        feature = f"transaction.version={level}"
        tool("features", "--bootstrap-server", bootstrap, how, "--feature", feature)

    try:
        write("a")
        to_level("downgrade", 1)
        producer.commit()
        write("b")
        producer.commit()
        write("c")
        to_level("upgrade", 2)
        producer.commit()
        with Cluster(bootstrap) as cluster:
            assert describe_transaction(cluster, lambda: False, name).producer_epoch == 3
        wait_until("all is committed", lambda: values(bootstrap, topic) == [b"a", b"b", b"c"])
        write("d")
        to_level("downgrade", 0)
        with pytest.raises(Refused, match="version of API is not supported"):
            producer.commit()
        producer.close()
        if not broker.is_firn:  # leaves the next client waiting for the end of what was open
            return
        producer = JavaTransactional(bootstrap, name, 60_000, tmp_path)
        write("e")
        producer.commit()
        wait_until("it is committed", lambda: values(bootstrap, topic) == [b"a", b"b", b"c", b"e"])
    finally:
        producer.close()
        to_level("upgrade", 2)
