"""A cluster of three that was open is closed step by step, as docs/security.md says, under load."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from service.cli.dev_nodes import agree_on_ports
from tests.support.certificates import Authority
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster, Member

HOST = "127.0.0.1"
LONGEST_SILENCE_S = 5.0
"""Between two acknowledgements. A restart of a node takes its partitions some tenths of a second."""
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
FIRST = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "min.insync.replicas": "2",
}


class Load:
    """A producer and a member of a group; what was acknowledged, what was read, and what went wrong."""

    def __init__(self, name: str, client: Mapping[str, str]) -> None:
        self.name = name
        self.client = dict(client)
        self.acknowledged: set[str] = set()
        self.read: set[str] = set()
        self.errors: list[str] = []
        self.longest_s = 0.0
        self._last_s = time.monotonic()
        self._written, self._ending = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._produce, self._consume)]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(f"{self.name} to write", lambda: self.acknowledged, 60)
        return self

    def finish_writing(self) -> None:
        """Write no more, and wait until the last record is acknowledged."""
        self._written.set()
        self._threads[0].join()

    def stop(self) -> None:
        self._written.set()
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = confluent_kafka.Producer({**self.client, "acks": "all", "enable.idempotence": True})
        number = 0
        while not self._written.wait(0.005):
            value = f"{self.name}-{number}"
            producer.produce("t", value, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
        assert producer.flush(60) == 0

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        now = time.monotonic()
        if self.acknowledged:
            self.longest_s = max(self.longest_s, now - self._last_s)
        self._last_s = now
        if error is None:
            self.acknowledged.add((message.value() or b"").decode())
        else:
            self.errors.append(f"{self.name}: {error}")

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **self.client,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": "200",
            }
        )
        consumer.subscribe(["t"])
        while not self._ending.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error():
                    self.errors.append(f"{self.name}: {message.error()}")
                else:
                    self.read.add((message.value() or b"").decode())
        consumer.close()


@contextmanager
def load(name: str, client: Mapping[str, str]) -> Iterator[Load]:
    running = Load(name, client).start()
    try:
        yield running
    finally:
        running.stop()


class Moving:
    """The cluster and its clients' addresses, before and after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "nodes", settings=FIRST)
        authority = Authority("Firn CA")
        self.ca, self.node = authority.write(folder / "ca.pem"), folder / "node.pem"
        authority.issue("node").write(self.node)
        clients, free = agree_on_ports(0, 3, 6)
        self.ports = {
            node_id: (clients[at], free[at], free[3 + at]) for at, node_id in enumerate(self.cluster.members)
        }
        self.open_bootstrap = self.cluster.bootstrap
        self.closed_bootstrap = ",".join(f"{HOST}:{port}" for port in clients)
        self.secured_controllers = ",".join(f"{HOST}:{ports[2]}" for ports in self.ports.values())
        self.bootstrap = self.open_bootstrap
        self.options: tuple[str, ...] = ()

    def opened(self) -> dict[str, str]:
        return {"bootstrap.servers": self.open_bootstrap}

    def closed(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.closed_bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": f"of {user}",
            "ssl.ca.location": self.ca,
        }

    def as_admin(self) -> None:
        """Let `firn` log in from now on."""
        path = self.folder / "admin.properties"
        lines = {key: value for key, value in self.closed("admin").items() if key != "bootstrap.servers"}
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.bootstrap, self.options = self.closed_bootstrap, ("--command-config", str(path))

    def firn(self, *words: str, said: str = "") -> str:
        command = [str(FIRN), *words, "--bootstrap-server", self.bootstrap, *self.options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input=said)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def in_sync(self) -> bool:
        """Return whether each partition has its three replicas in sync."""
        asking = self.closed("admin") if self.options else self.opened()
        topics = AdminClient(asking).list_topics(timeout=20).topics.values()
        partitions = [one for topic in topics for one in topic.partitions.values()]
        return bool(partitions) and all(len(one.isrs) == 3 for one in partitions)

    def roll(self, **changes: str | None) -> None:
        """Restart each node with the changed settings, one after the other; None takes a key out."""
        for member in self.cluster.members.values():
            wait_until("all replicas to be in sync", self.in_sync, 60)
            member.leave()
            for key, value in self.changes_of(member, changes).items():
                member.settings.pop(key, None)
                if value is not None:
                    member.settings[key] = value
            member.start()
        wait_until("all replicas to be in sync", self.in_sync, 60)

    def changes_of(self, member: Member, changes: Mapping[str, str | None]) -> dict[str, str | None]:
        named = {key.replace("__", "-").replace("_", "."): value for key, value in changes.items()}
        if (listeners := named.get("listeners")) is not None:
            clients, internal, secured = self.ports[member.node_id]
            old = dict(zip(("PLAINTEXT", "CONTROLLER"), self.first_listeners(member), strict=True))
            new = {
                "CLIENTS": f"{HOST}:{clients}",
                "INTERNAL": f"{HOST}:{internal}",
                "SECURED": f"{HOST}:{secured}",
            }
            places = {**old, **new}
            named["listeners"] = ",".join(f"{name}://{places[name]}" for name in listeners.split(","))
        return named

    def first_listeners(self, member: Member) -> tuple[str, str]:
        node = next(one for one in self.cluster.plan.nodes if one.node_id == member.node_id)
        first, second = node.settings["listeners"].split(",")
        return first.partition("://")[2], second.partition("://")[2]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_open_cluster_is_closed_without_a_pause(tmp_path: Path) -> None:
    moving = Moving(tmp_path)
    with moving.cluster.start():
        admin = AdminClient(moving.opened())
        for done in admin.create_topics([NewTopic("t", 3, 3)]).values():
            done.result(30)
        with load("before", moving.opened()) as before:
            for user in ("admin", "alice"):
                moving.firn("user", "add", user, said=f"of {user}\n")
            add_listeners(moving)
            with load("after", moving.closed("alice")) as after:
                moving.as_admin()
                before.stop()  # what it did not read is the other member's
                move_nodes(moving)
                ask_for_rights(moving)
                take_the_old_listeners_away(moving)
                check_closed(moving)
                after.finish_writing()
                wait_until("all to be read", lambda: not missing(before, after), 30)
        report(before, after)


def add_listeners(moving: Moving) -> None:
    moving.roll(
        listeners="PLAINTEXT,CLIENTS,INTERNAL,CONTROLLER,SECURED",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,INTERNAL:SSL,"
        "CONTROLLER:PLAINTEXT,SECURED:SSL",
        inter_broker_listener_name="PLAINTEXT",
        controller_listener_names="CONTROLLER,SECURED",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(moving.node),
        ssl_truststore_type="PEM",
        ssl_truststore_location=moving.ca,
        listener_name_internal_ssl_client_auth="required",
        listener_name_secured_ssl_client_auth="required",
        sasl_enabled_mechanisms="SCRAM-SHA-512",
        listener_name_clients_scram__sha__512_sasl_jaas_config=SCRAM,
    )


def move_nodes(moving: Moving) -> None:
    moving.roll(
        inter_broker_listener_name="INTERNAL",
        controller_listener_names="SECURED,CONTROLLER",
        controller_quorum_bootstrap_servers=moving.secured_controllers,
    )


def ask_for_rights(moving: Moving) -> None:
    moving.roll(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:admin;User:CN=node",
        allow_everyone_if_no_acl_found="true",
    )
    moving.firn(
        *("acl", "add", "--allow-principal", "User:alice", "--producer", "--consumer"),
        *("--topic", "t", "--group", "g"),
    )
    moving.roll(allow_everyone_if_no_acl_found="false")


def take_the_old_listeners_away(moving: Moving) -> None:
    moving.roll(
        listeners="CLIENTS,INTERNAL,SECURED",
        listener_security_protocol_map="CLIENTS:SASL_SSL,INTERNAL:SSL,SECURED:SSL",
        controller_listener_names="SECURED",
    )


def check_closed(moving: Moving) -> None:
    moving.firn("user", "add", "mallory", said="of mallory\n")
    topics = AdminClient(moving.closed("mallory")).list_topics(timeout=20).topics
    assert "t" not in topics
    with pytest.raises(KafkaException):
        AdminClient(moving.opened()).list_topics(timeout=3)
    sessions = moving.firn("user", "sessions", "--json")
    assert "ANONYMOUS" not in sessions
    assert '"User:CN=node"' in sessions


def missing(*loads: Load) -> set[str]:
    """Return what was acknowledged and not read yet."""
    return {value for one in loads for value in one.acknowledged} - {v for one in loads for v in one.read}


def report(before: Load, after: Load) -> None:
    print(f"longest silence: {before.longest_s:.2f} s before, {after.longest_s:.2f} s after")
    assert before.errors + after.errors == []
    assert max(before.longest_s, after.longest_s) < LONGEST_SILENCE_S
