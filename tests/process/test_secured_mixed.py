"""Firn and Apache Kafka as one cluster over TLS, with logins and rights: one quorum, ISR and set of users."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError
from service.cli.format import credential_record
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security, tls_context
from service.wire.api import ApiKey, request_module
from tests.support.certificates import Authority
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member, Program

pytestmark = [pytest.mark.java, pytest.mark.thorough]
MODULES = "org.apache.kafka.common.security"
TOPIC = "shared"


class Secured:
    """Three nodes of both roles, the third of them Kafka's, and clients of them by name."""

    def __init__(self, folder: Path, programs: dict[int, Program]) -> None:
        ca = Authority()
        self.ca = ca.write(folder / "ca.pem")
        node = ca.issue("node", kind="rsa").write(folder / "node.pem")
        plain = (
            f'{MODULES}.plain.PlainLoginModule required username="node" password="of-the-nodes" '
            'user_node="of-the-nodes";'
        )
        scram = f'{MODULES}.scram.ScramLoginModule required username="broker" password="of-the-brokers";'
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": plain,
            "listener.name.plaintext.scram-sha-512.sasl.jaas.config": scram,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": node,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node;User:broker;User:admin",
            "offsets.topic.replication.factor": "3",
            "min.insync.replicas": "2",
        }
        users = [
            ("broker", "of-the-brokers"),
            ("admin", "admin-secret"),
            ("alice", "secret"),
            ("bob", "pencil"),
        ]
        made = tuple(credential_record(f"SCRAM-SHA-512=[name={who},password={word}]") for who, word in users)
        self.passwords = dict(users)
        self.nodes = Cluster(folder / "nodes", settings=settings, programs=programs, credentials=made)
        self.members = list(self.nodes.members.values())

    def client(self, who: str, member: Member | None = None, **more: Any) -> dict[str, Any]:
        bootstrap = self.nodes.bootstrap if member is None else member.bootstrap
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": who,
            "sasl.password": self.passwords[who],
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def admin(self, who: str = "admin", member: Member | None = None) -> AdminClient:
        return AdminClient(self.client(who, member))

    def in_sync(self) -> bool:
        told = self.admin().list_topics(TOPIC, timeout=20).topics[TOPIC].partitions.values()
        return len(told) == 3 and all(len(one.isrs) == 3 for one in told)

    def grant(self, who: str, kind: Any, name: str, what: Any) -> None:
        entry = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{who}", "*", what, AclPermissionType.ALLOW
        )
        admin = self.admin()
        for done in admin.create_acls([entry]).values():
            done.result(30)

    def add_user(self, name: str, password: str) -> None:
        self.passwords[name] = password
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(name, info, password.encode())
        admin = self.admin()
        for done in admin.alter_user_scram_credentials([made]).values():
            done.result(30)

    def write(self, who: str, values: range) -> list[str]:
        """Names of the errors of what was not taken."""
        failed: list[str] = []
        producer = confluent_kafka.Producer(self.client(who, acks="all", message_timeout_ms=60_000))
        for number in values:
            producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda error, _: failed.append(error.name()) if error else None,
            )
        assert producer.flush(90) == 0
        return failed

    def read(self, who: str, count: int) -> set[int]:
        consumer = confluent_kafka.Consumer(
            self.client(who, group_id="readers", auto_offset_reset="earliest")
        )
        consumer.subscribe([TOPIC])
        found: set[int] = set()
        deadline = time.monotonic() + 90
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, 1):
                assert not message.error(), message.error()
                found.add(int(message.value()))
        consumer.close()
        return found

    def sees(self, who: str, member: Member) -> bool:
        """Whether that node lets the user in, and shows it the topic."""
        try:
            return TOPIC in self.admin(who, member).list_topics(timeout=3).topics
        except KafkaException:
            return False


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path, {3: Program.KAFKA})
    with made.nodes.start(seconds=120):
        yield made


def leads_next(secured: Secured, wanted: int) -> None:
    """Have that node lead the quorum: whoever else does is killed, and comes back."""
    for _ in range(20):
        if (leader := leader_of(secured)) == wanted:
            return
        victim = secured.nodes.members[leader]
        victim.kill()
        wait_until("somebody else to lead", lambda: leader_of(secured, leader) not in (-1, leader), 60)
        victim.start(90)
    raise AssertionError(f"{wanted} never led")


def leader_of(secured: Secured, without: int = -1) -> int:
    """The quorum's leader, as its own node tells it; -1 while there is none."""
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(
        topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
    )
    login = Credentials("SCRAM-SHA-512", "admin", secured.passwords["admin"], secrets.token_urlsafe)
    security = Security(tls_context(secured.ca), login)
    for member in secured.members:
        if member.node_id == without or not member.is_running:
            continue
        host, _, port = member.bootstrap.rpartition(":")
        with contextlib.suppress(OSError, RequestError, ConfigError):
            with BlockingClient(host, int(port), "test", security=security, timeout_s=5) as client:
                told = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
            found = told.topics[0].partitions[0]
            if found.error_code == ErrorCode.none:
                return int(found.leader_id)
    return -1


def test_users_rights_and_replicas_are_shared_whoever_leads(secured: Secured) -> None:
    admin = secured.admin()
    for made in admin.create_topics([NewTopic(TOPIC, 3, 3)]).values():
        made.result(30)
    assert secured.write("admin", range(300)) == []
    assert set(secured.write("bob", range(3))) == {"TOPIC_AUTHORIZATION_FAILED"}
    for at, (leader, name) in enumerate(((3, "of-kafka"), (1, "of-firn"))):
        leads_next(secured, leader)
        secured.add_user(name, "secret")
        secured.grant(name, ResourceType.TOPIC, TOPIC, AclOperation.ALL)
        secured.grant(name, ResourceType.GROUP, "readers", AclOperation.ALL)
        for member in secured.members:
            known = partial(secured.sees, name, member)
            wait_until(f"{name} to be known to node {member.node_id}", known, 60)
        wait_until("all replicas to be in sync", secured.in_sync, 90)
        assert secured.write(name, range(300 * (at + 1), 300 * (at + 2))) == []
    assert secured.read("of-kafka", 900) == set(range(900))
    for member in secured.members:
        assert not secured.sees("bob", member)
