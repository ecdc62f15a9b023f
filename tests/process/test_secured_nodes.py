"""Three nodes that log in at each other: records, a killed leader, a client's login, wrong passwords."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from service.cli.format import credential_record
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.metadata.records import UserScramCredentialRecord
from service.wire.api import ApiKey, request_module
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Program
from tests.support.requirements import need_kafka_tools

CLUSTER = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
    include_cluster_authorized_operations=False, include_fenced_brokers=False
)
MODULES = "org.apache.kafka.common.security"


def settings(*, lifetime_ms: int = 0, broker_password: str = "of-the-brokers") -> dict[str, str]:
    """Brokers log in at each other and at controllers; controllers at each other with PLAIN."""
    plain = (
        f'{MODULES}.plain.PlainLoginModule required username="node" password="of-the-nodes" '
        'user_node="of-the-nodes" user_alice="secret";'
    )
    scram = f'{MODULES}.scram.ScramLoginModule required username="broker" password="{broker_password}";'
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "listener.name.plaintext.plain.sasl.jaas.config": plain,
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": scram,
        "connections.max.reauth.ms": str(lifetime_ms),
        "offsets.topic.replication.factor": "3",
    }


def users() -> tuple[UserScramCredentialRecord, ...]:
    return (credential_record("SCRAM-SHA-512=[name=broker,password=of-the-brokers]"),)


def client(cluster: Cluster, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def create(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(client(cluster))
    for done in admin.create_topics([NewTopic(topic, 3, 3)]).values():
        done.result(30)


def produce(cluster: Cluster, topic: str, count: int, start: int = 0) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer(client(cluster, acks="all"))
    for number in range(start, start + count):
        producer.produce(
            topic,
            b"%d" % number,
            partition=number % 3,
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
    assert producer.flush(60) == 0
    assert not failed


def consume(cluster: Cluster, topic: str, count: int) -> set[int]:
    consumer = confluent_kafka.Consumer(client(cluster, group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    found: set[int] = set()
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 1):
            assert not message.error()
            found.add(int(message.value()))
    consumer.close()
    return found


def in_sync(cluster: Cluster, topic: str) -> bool:
    found = AdminClient(client(cluster)).list_topics(topic, timeout=20).topics[topic].partitions.values()
    return len(found) == 3 and all(len(one.isrs) == 3 for one in found)


def test_three_nodes_log_in_at_each_other_and_fail_over(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings=settings(), credentials=users()).start() as cluster:
        create(cluster, "t")
        produce(cluster, "t", 3000)
        wait_until("all replicas to be in sync", lambda: in_sync(cluster, "t"), 60)
        assert consume(cluster, "t", 3000) == set(range(3000))
        cluster.members[1].kill()
        produce(cluster, "t", 300, 3000)
        cluster.members[1].start()
        wait_until("all replicas to be in sync again", lambda: in_sync(cluster, "t"), 60)
        assert len(consume(cluster, "t", 1)) >= 1
        for member in cluster.members.values():
            host, _, port = member.bootstrap.rpartition(":")
            with BlockingClient(host, int(port), timeout_s=10) as stranger, pytest.raises(ConnectionError):
                stranger.request(ApiKey.DESCRIBE_CLUSTER, CLUSTER)
            assert "of-the-" not in member.log(10_000)


def test_sessions_of_nodes_and_clients_are_renewed(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings=settings(lifetime_ms=2000), credentials=users()).start() as cluster:
        create(cluster, "t")
        for round_ in range(8):
            produce(cluster, "t", 300, 300 * round_)
            time.sleep(1)
        wait_until("all replicas to be in sync", lambda: in_sync(cluster, "t"), 60)
        assert consume(cluster, "t", 2400) == set(range(2400))
        for member in cluster.members.values():
            assert "refuses the login" not in member.log(10_000)


def test_brokers_with_a_wrong_password_replicate_nothing_and_clients_are_told(tmp_path: Path) -> None:
    wrong = settings(broker_password="wrong")
    with Cluster(tmp_path, settings=wrong, credentials=users()).start() as cluster:
        create(cluster, "t")
        wait_until(
            "a broker to tell of the refused login",
            lambda: any("refuses the login of broker" in one.log(10_000) for one in cluster.members.values()),
            60,
        )
        host, _, port = cluster.members[1].bootstrap.rpartition(":")
        login = Credentials("PLAIN", "alice", "wrong", lambda: "nonce")
        with pytest.raises(Exception, match="Invalid username or password"):
            BlockingClient(host, int(port), security=Security(None, login))
        admin = AdminClient(client(cluster, sasl_password="wrong"))
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=5)


@pytest.mark.java
def test_kafkas_nodes_and_ours_log_in_at_each_other(tmp_path: Path) -> None:
    need_kafka_tools()
    programs = {3: Program.KAFKA}
    with Cluster(tmp_path, settings=settings(), programs=programs, credentials=users()).start() as cluster:
        create(cluster, "t")
        produce(cluster, "t", 1500)
        wait_until("all replicas to be in sync", lambda: in_sync(cluster, "t"), 90)
        assert consume(cluster, "t", 1500) == set(range(1500))
        cluster.members[1].kill()
        produce(cluster, "t", 300, 1500)
        cluster.members[1].start()
        wait_until("all replicas to be in sync again", lambda: in_sync(cluster, "t"), 90)
