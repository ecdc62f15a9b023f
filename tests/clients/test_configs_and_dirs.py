"""Settings replaced as a whole, levels of loggers, and what lies in log directories, as clients see them."""

from __future__ import annotations

import json
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import REPLICAS, Broker, NewTopic
from tests.support.clients import CLIENTS, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until

TOPIC = confluent_admin.ConfigResource.Type.TOPIC


def test_confluent_replaces_all_settings_of_a_topic(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1, max_message_bytes="123456")
    replaced = confluent_admin.ConfigResource(TOPIC, topic, set_config={"retention.bytes": "1234567"})
    broker.admin.client.alter_configs([replaced])[replaced].result(20)
    changed = {"retention.bytes": "1234567"}.items()
    # of several nodes another one may answer, which knows of it a little later
    wait_until("the change to be known", lambda: changed <= broker.admin.configs(topic).items())
    configs = broker.admin.configs(topic)
    assert configs["max.message.bytes"] == "1048588"
    wrong = confluent_admin.ConfigResource(TOPIC, topic, set_config={"retention.bytes": "many"})
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        broker.admin.client.alter_configs([wrong])[wrong].result(20)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    assert broker.admin.configs(topic)["retention.bytes"] == "1234567"


def node_id(broker: Broker) -> str:
    """Of one of them."""
    return str(min(node.id for node in broker.admin.client.describe_cluster().result(20).nodes))


@pytest.mark.java
def test_kafka_configs_changes_levels_of_loggers(broker: Broker) -> None:
    at = (
        *("--bootstrap-server", broker.bootstrap),
        *("--entity-type", "broker-loggers", "--entity-name", node_id(broker)),
    )
    described = tool("configs", *at, "--describe")
    loggers = dict(line.split(" ")[2].split("=") for line in described.splitlines() if " sensitive=" in line)
    assert loggers["root"] in ("INFO", "WARN")
    name = next(one for one in sorted(loggers) if "." in one)
    tool("configs", *at, "--alter", "--add-config", f"{name}=DEBUG")
    assert f"{name}=DEBUG" in tool("configs", *at, "--describe")
    tool("configs", *at, "--alter", "--delete-config", name)
    assert f"{name}=DEBUG" not in tool("configs", *at, "--describe")
    for change, words in ((f"{name}=LOUD", b"not a supported log level"), ("no.such=INFO", b"no.such")):
        refused = run_tool("configs", *at, "--alter", "--add-config", change)
        assert refused.returncode != 0
        assert words in refused.stdout + refused.stderr


def described_dirs(broker: Broker, topic: str) -> list[dict[str, Any]]:
    out = tool("log-dirs", "--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", topic)
    answer = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return [one for node in answer["brokers"] for one in node["logDirs"]]


@pytest.mark.java
def test_kafka_log_dirs_tells_what_lies_where(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(300, 3))
    held = [one for found in described_dirs(broker, topic) for one in found["partitions"]]
    assert sorted(one["partition"] for one in held) == [
        f"{topic}-{index}" for index in range(3) for _ in range(REPLICAS)
    ]
    for one in held:
        assert one["size"] > 1000
        assert (one["offsetLag"], one["isFuture"]) == (0, False)
    if broker.data:
        for one in held:
            name, _, number = one["partition"].rpartition("-")
            files = broker.folder(name, int(number)).glob("*.log")
            assert sum(path.stat().st_size for path in files) == one["size"]


@pytest.mark.java
def test_resources_with_settings_are_listed(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    at = ("--bootstrap-server", broker.bootstrap, "--describe", "--all")
    for kind, name, key in (
        ("topics", topic, "retention.ms="),
        ("brokers", node_id(broker), "log.retention.ms="),
    ):
        found = tool("configs", *at, "--entity-type", kind, "--entity-name", name)
        assert key in found


@pytest.mark.java
def test_kafka_transactions_describes_producers(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    idempotent: dict[str, Any] = {"enable.idempotence": True}
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(20, 1), **idempotent)
    at = ("--bootstrap-server", broker.bootstrap, "describe-producers", "--topic", topic, "--partition", "0")
    found = tool("org.apache.kafka.tools.TransactionsCommand", *at).splitlines()
    head, row = found[0].split(), found[1].split()
    assert head[:4] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"]
    assert int(row[0]) >= 0
    assert row[1:4] == ["0", "-1", "19"]
