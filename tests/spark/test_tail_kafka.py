"""The tail's own client against Apache Kafka: transactions, compaction, encryption, logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.spark.errors import BrokerError
from tests.spark.filling import Row
from tests.spark.kafka_history import PARTITIONS, SETTINGS, consume_all, write_history
from tests.spark.tails import batches_of, options_of, rows_in, split_of
from tests.support.kafka_node import KafkaNode
from tests.support.requirements import need_kafka_tools
from tests.support.secured_kafka import LOGINS, make_pem, secured_kafka
from tests.support.tiers import EARLIEST, LATEST, offset

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pem(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[KafkaNode]:
    need_kafka_tools()
    with secured_kafka(tmp_path_factory.mktemp("kafka") / "kafka", pem, SETTINGS) as node:
        write_history(node.bootstrap, node.data, seed=5)
        yield node


def read(bootstrap: str, topic: str, begin: int, end: int, partition: int = 0, **more: object) -> list[Row]:
    options, tail = options_of(bootstrap, topic, **more)
    return rows_in(batches_of(split_of(tail, topic, partition, begin, end), options, tail))


@pytest.mark.parametrize("fetch_bytes", ["64k", "8m"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", PARTITIONS)
def test_rows_of_transactions_and_compacted_logs_are_as_a_consumer_reads_them(
    kafka: KafkaNode, topic: str, isolation: str, fetch_bytes: str
) -> None:
    wanted = consume_all(kafka.bootstrap, topic, PARTITIONS[topic], isolation)
    assert wanted
    found: list[Row] = []
    for partition in range(PARTITIONS[topic]):
        begin, end = (offset(kafka.bootstrap, topic, partition, edge) for edge in (EARLIEST, LATEST))
        middle = (begin + end) // 2
        for first, last in ((begin, middle), (middle, end)):
            more = {"isolationLevel": isolation, "fetchBytes": fetch_bytes}
            found += read(kafka.bootstrap, topic, first, last, partition, **more)
    assert found == wanted


def login(mechanism: str, username: str, password: str) -> dict[str, object]:
    return {
        "kafka__sasl__mechanism": mechanism,
        "kafka__sasl__username": username,
        "kafka__sasl__password": password,
    }


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("mechanism", "username", "password"), LOGINS)
def test_logins(
    kafka: KafkaNode, pem: Path, protocol: str, mechanism: str, username: str, password: str
) -> None:
    more: dict[str, object] = {"kafka__security__protocol": protocol, **login(mechanism, username, password)}
    if protocol == "SASL_SSL":
        more["kafka__ssl__ca__location"] = pem / "cert.pem"
    address = kafka.addresses[protocol]
    assert read(address, "ledger", 0, 40, **more) == read(kafka.bootstrap, "ledger", 0, 40)
    wrong = more | login(mechanism, username, "wrong")
    with pytest.raises(ConfigError, match=f"refuses the login of {username}") as refused:
        read(address, "ledger", 0, 40, **wrong)
    assert "wrong" not in str(refused.value)


def test_brokers_are_proved_by_their_certificates_and_prove_us_by_ours(kafka: KafkaNode, pem: Path) -> None:
    address = kafka.addresses["SSL"]
    plain = read(kafka.bootstrap, "ledger", 0, 40)
    ours = {
        "kafka__security__protocol": "SSL",
        "kafka__ssl__certificate__location": pem / "cert.pem",
        "kafka__ssl__key__location": pem / "key.pem",
        "kafkaConsumer__pollTimeoutMs": 2000,
    }
    trusted = ours | {"kafka__ssl__ca__location": pem / "cert.pem"}
    assert read(address, "ledger", 0, 40, **trusted) == plain
    with pytest.raises(ConfigError, match="is not to be trusted: self-signed certificate"):
        read(address, "ledger", 0, 40, **ours)
    name = "localhost:" + address.rpartition(":")[2]
    with pytest.raises(ConfigError, match="is not to be trusted: Hostname mismatch"):
        read(name, "ledger", 0, 40, **trusted)
    unchecked = trusted | {"kafka__ssl__endpoint__identification__algorithm": "none"}
    assert read(name, "ledger", 0, 40, **unchecked) == plain
    nobody = {key: value for key, value in trusted.items() if "certificate" not in key and "key" not in key}
    with pytest.raises((OSError, BrokerError)):
        read(address, "ledger", 0, 40, **nobody)
    with pytest.raises(ConfigError, match=r"options kafka\.ssl\.…: .*No such file"):
        read(address, "ledger", 0, 40, **trusted | {"kafka__ssl__ca__location": pem / "none.pem"})


def test_a_listener_of_another_protocol_is_told_apart(kafka: KafkaNode) -> None:
    with pytest.raises(ConfigError, match=r"does not offer the SASL mechanism PLAIN|refuses"):
        read(
            kafka.bootstrap,
            "ledger",
            0,
            40,
            kafka__security__protocol="SASL_PLAINTEXT",
            **login("PLAIN", "alice", "secret"),
        )
