"""The tail's own client against Apache Kafka: transactions, compaction, encryption, logins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from service.base.errors import ConfigError
from service.spark.errors import BrokerError
from tests.spark.filling import Row
from tests.spark.kafka_history import PARTITIONS, SETTINGS, consume_all, write_history
from tests.spark.tails import batches_of, options_of, rows_in, split_of
from tests.support.kafka_node import KafkaNode
from tests.support.requirements import need_kafka_tools
from tests.support.tiers import EARLIEST, LATEST, offset

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[test,spark]'")
pytestmark = pytest.mark.java
LOGIN = "org.apache.kafka.common.security"
SECURED = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `key.pem`, `cert.pem` (for 127.0.0.1, signed by itself) and `both.pem`."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    folder = tmp_path_factory.mktemp("pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[KafkaNode]:
    need_kafka_tools()
    settings = SETTINGS | {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem / "both.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pem / "cert.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        jaas = f"listener.name.{listener}.{{}}.sasl.jaas.config"
        settings[jaas.format("plain")] = f'{LOGIN}.plain.PlainLoginModule required user_alice="secret";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[jaas.format(mechanism)] = f"{LOGIN}.scram.ScramLoginModule required;"
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "kafka", settings, heap="512m", secured=SECURED)
    try:
        write_history(node.bootstrap, node.data, seed=5)
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            made = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 4096), b"pencil")
            for done in admin.alter_user_scram_credentials([made]).values():
                done.result(30)
        yield node
    finally:
        node.stop()


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
@pytest.mark.parametrize(
    ("mechanism", "username", "password"),
    [("PLAIN", "alice", "secret"), ("SCRAM-SHA-256", "bob", "pencil"), ("SCRAM-SHA-512", "bob", "pencil")],
)
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
    with pytest.raises(ConfigError, match=r"does not take kafka.sasl.mechanism=PLAIN|refuses"):
        read(
            kafka.bootstrap,
            "ledger",
            0,
            40,
            kafka__security__protocol="SASL_PLAINTEXT",
            **login("PLAIN", "alice", "secret"),
        )
