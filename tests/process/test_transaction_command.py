"""`firn transaction` against Apache Kafka, whose own tool agrees: hanging transactions, lists, ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from service.cli.main import main
from tests.support.clients import Admin
from tests.support.isolation import UNCOMMITTED, values
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import tool
from tests.support.requirements import need_kafka_tools
from tests.support.transactional_client import TransactionalClient, settled

pytestmark = pytest.mark.java
HOUR_MS = 3_600_000
NONE = ErrorCode.none


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that takes what it cannot verify, so that transactions can hang."""
    need_kafka_tools()
    settings = {
        "transaction.partition.verification.enable": "false",
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
    }
    kafka = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", settings, heap="512m")
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


def asked(capsys: pytest.CaptureFixture[str], bootstrap: str, *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["transaction", *words, "--bootstrap-server", bootstrap]) == code
    return capsys.readouterr().out


def hang(bootstrap: str, topic: str, client: TransactionalClient) -> int:
    """Leave records an hour old in a transaction of which no coordinator knows; return their offset."""
    old_ms = time.time_ns() // 1_000_000 - HOUR_MS
    answer = settled(client, lambda: client.produce(topic, 0, [b"lost"], timestamp_ms=old_ms))
    assert answer.error_code == NONE
    offset: int = answer.base_offset
    return offset


def test_a_hanging_transaction_is_found_and_aborted(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin(bootstrap).create("flights", 2)
    with TransactionalClient(bootstrap, "hanging-id", version=1) as client:
        assert settled(client, client.init) == NONE
        offset = hang(bootstrap, "flights", client)
        (one,) = json.loads(asked(capsys, bootstrap, "hanging", "--json", code=1))
        found = (one["topic"], one["partition"], one["first_offset"], one["producer_id"])
        assert found == ("flights", 0, offset, client.producer_id)
        assert (one["producer_epoch"], one["transactional_id"]) == (0, "hanging-id")
        assert asked(capsys, bootstrap, "hanging", "--topic", "flights", "--partition", "1") == ""
        text = asked(capsys, bootstrap, "hanging", "--topic", "flights", code=1)
        assert text.splitlines()[1].split()[:3] == ["flights", "0", str(offset)]
        kafkas = tool("transactions", "--bootstrap-server", bootstrap, "find-hanging", "--topic", "flights")
        assert kafkas.splitlines()[1].split()[:4] == ["flights", "0", str(client.producer_id), "0"]

        place = ("--topic", "flights", "--partition", "0", "--start-offset")
        asked(capsys, bootstrap, "abort", *place, str(offset + 1), code=1)
        told = asked(capsys, bootstrap, "abort", *place, str(offset))
        assert told == (
            f"aborted the transaction of producer {client.producer_id}, epoch 0, in flights-0 from offset"
            f" {offset} on\n"
        )
        assert asked(capsys, bootstrap, "hanging") == ""
        assert values(bootstrap, "flights") == []
        assert values(bootstrap, "flights", UNCOMMITTED) == [b"lost"]


def test_a_transaction_that_its_coordinator_knows_is_not_aborted(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin(bootstrap).create("known", 1)
    with TransactionalClient(bootstrap, "known-id") as client:
        assert settled(client, client.init) == NONE
        offset = hang(bootstrap, "known", client)
        assert asked(capsys, bootstrap, "hanging", "--topic", "known", "--older-than-ms", "0") == ""
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
