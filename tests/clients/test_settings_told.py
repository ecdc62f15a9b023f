"""`kafka-configs` on every entity; `--describe --all` tells of a key what Apache Kafka tells of it."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.clients.test_configs_and_dirs import node_id
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import REPOSITORY, wait_until

pytestmark = pytest.mark.java

GOLDEN = REPOSITORY / "tests" / "golden" / "config"
ENTRY = re.compile(r"\s*(\S+?)=(.*) sensitive=(\w+) synonyms=\{(.*)\}")

OTHERWISE = {
    "controller.quorum.append.linger.ms": "while one flush is under way, what comes gathers by itself",
    "log.dir": "below the directory that a node is started in",
    "queued.max.request.bytes": "memory is bounded",
    "remote.log.manager.copier.thread.pool.size": "memory is bounded",
}
"""Keys whose default is not Apache Kafka's, and why."""


def entries(text: str) -> dict[str, tuple[str, ...]]:
    """Value, whether it is sensitive, and synonyms of each key."""
    found = (ENTRY.fullmatch(line.rstrip("\n")) for line in text.splitlines())
    return {one[1]: (one[2], one[3], one[4]) for one in found if one is not None}


def golden(kind: str) -> dict[str, tuple[str, ...]]:
    """Of Apache Kafka 4.3.1: what it tells of keys that nobody has set."""
    return entries((GOLDEN / f"described_{kind}.txt").read_text())


def is_default(entry: tuple[str, ...]) -> bool:
    return all(one.startswith("DEFAULT_CONFIG:") for one in entry[2].split(", ") if one)


@pytest.mark.parametrize(("kind", "least"), [("topic", 24), ("broker", 60), ("group", 3)])
def test_default_settings_are_described_as_by_kafka(
    kind: str, least: int, broker: Broker, new_topic: NewTopic
) -> None:
    names = {"broker": node_id(broker), "group": "any"}
    name = names.get(kind) or new_topic(1)
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", f"{kind}s", "--entity-name", name)
    told, kafkas = entries(tool("configs", *at, "--describe", "--all")), golden(kind)
    common = {key for key in told.keys() & kafkas.keys() if is_default(told[key])}
    assert len(common) >= least
    differ = {key: (told[key], kafkas[key]) for key in common if told[key] != kafkas[key]}
    assert not {key: found for key, found in differ.items() if not broker.is_ours or key not in OTHERWISE}


def test_settings_for_all_brokers_are_set_and_taken_back(broker: Broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-default")
    own = (*at[:-1], "--entity-name", node_id(broker))
    change = "log.index.interval.bytes=123456"
    tool("configs", *at, "--alter", "--add-config", change)
    try:
        assert f"{change} sensitive=false" in tool("configs", *at, "--describe")
        tool("configs", *own, "--alter", "--add-config", "log.index.interval.bytes=50000")
        assert (
            "synonyms={DYNAMIC_BROKER_CONFIG:log.index.interval.bytes=50000, "
            f"DYNAMIC_DEFAULT_BROKER_CONFIG:{change}, DEFAULT_CONFIG:log.index.interval.bytes=4096}}"
        ) in tool("configs", *own, "--describe")
    finally:
        run_tool("configs", *own, "--alter", "--delete-config", "log.index.interval.bytes")
        tool("configs", *at, "--alter", "--delete-config", "log.index.interval.bytes")
    assert "log.index.interval.bytes" not in tool("configs", *own, "--describe")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("log.dirs=/elsewhere", "Cannot update these configs dynamically"),
        ("log.retention.ms=soon", "Not a number of type LONG"),
        ("log.cleaner.threads=99", "cannot be increased to more than double"),
        ("num.replica.fetchers=5", "should not be greater than double the current value 1"),
        ("node.id=7", "Cannot update these configs dynamically"),
    ],
)
def test_a_broker_s_setting_that_cannot_be_changed_is_refused(
    change: str, words: str, broker: Broker
) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-name")
    done = run_tool("configs", *at, node_id(broker), "--alter", "--add-config", change)
    assert done.returncode != 0
    assert words.encode() in done.stdout + done.stderr


def test_a_setting_for_all_brokers_holds_at_once_and_after_a_restart(broker: Broker, tmp_path: Path) -> None:
    """`message.max.bytes` is what topics get that say nothing of their own."""
    broker.admin.create(f"plain-{tmp_path.name}")
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-default")

    def is_taken() -> bool:
        failed: list[object] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 8_000_000, "linger.ms": 0}
        )
        producer.produce(
            f"plain-{tmp_path.name}", b"x" * 100_000, on_delivery=lambda error, _: failed.append(error)
        )
        producer.flush(30)
        (error,) = failed
        assert error is None or error.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE  # type: ignore[attr-defined]
        return error is None

    assert is_taken()
    tool("configs", *at, "--alter", "--add-config", "message.max.bytes=50000")
    try:
        wait_until("a large record to be refused", lambda: not is_taken())
        if broker.restart is not None:
            broker.restart()
            assert not is_taken()
    finally:
        tool("configs", *at, "--alter", "--delete-config", "message.max.bytes")
    wait_until("a large record to be taken", is_taken)


@pytest.mark.thorough
def test_a_group_s_settings_are_set_told_and_taken_back(broker: Broker, tmp_path: Path) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "groups")
    own = (*at, "--entity-name", f"settings-{tmp_path.name}")
    key = "consumer.session.timeout.ms"
    before = entries(tool("configs", *own, "--describe", "--all"))
    assert before[key][0] == "45000"
    tool("configs", *own, "--alter", "--add-config", f"{key}=46000")
    assert entries(tool("configs", *own, "--describe")) == {
        key: ("46000", "false", f"DYNAMIC_GROUP_CONFIG:{key}=46000, DEFAULT_CONFIG:group.{key}=45000")
    }
    assert f"settings-{tmp_path.name}" in tool("configs", *at, "--describe")
    done = run_tool("configs", *own, "--alter", "--add-config", f"{key}=5")
    assert done.returncode != 0
    wanted = f"{key} must be greater than or equal to group.consumer.min.session.timeout.ms"
    assert wanted in (done.stdout + done.stderr).decode()
    tool("configs", *own, "--alter", "--delete-config", key)
    assert entries(tool("configs", *own, "--describe", "--all")) == before


def test_metrics_of_clients_are_refused(broker: Broker) -> None:
    if not broker.is_ours:
        pytest.skip("other brokers have metrics of clients")
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "client-metrics", "--entity-name", "one")
    done = run_tool("configs", *at, "--alter", "--add-config", "interval.ms=1000")
    assert done.returncode != 0
    assert "Unknown resource type" in (done.stdout + done.stderr).decode()
