"""Three nodes that know each other by certificates, and rotations of these and their CA under load."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.certificates import Authority, Issued
from tests.support.processes import wait_until
from tests.support.quorums import Cluster

RELOAD_MS = 100


class Files:
    """Stores that all nodes share, replaced as an operator would: a new file, renamed."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.trust = folder / "node.pem", folder / "trust.pem"
        self.ca = Authority("First CA")
        self.shown = self.ca.issue("node")
        self.put_keys(self.shown)
        self.put_trust(self.ca.pem)

    def put_keys(self, issued: Issued) -> None:
        self.shown = issued
        self._replace(self.keys, issued.key_pem() + issued.chain_pem)

    def put_trust(self, *pems: str) -> None:
        self._replace(self.trust, "".join(pems))

    def _replace(self, path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, path)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust),
            "ssl.client.auth": "required",
            "firn.ssl.reload.interval.ms": str(RELOAD_MS),
            "offsets.topic.replication.factor": "3",
        }


def client(cluster: Cluster, ca: str, own: Issued, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.pem": ca,
        "ssl.certificate.pem": own.chain_pem,
        "ssl.key.pem": own.key_pem(),
        **more,
    }


def shown_by(port: int, ca: str, own: Issued, folder: Path) -> bytes | None:
    """The certificate that a listener shows now; None where it does not trust ours, or we do not trust it."""
    context = ssl.create_default_context(cadata=ca)
    context.load_cert_chain(own.write(folder / "asking.pem"))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as conn,
        ):
            return conn.getpeercert(binary_form=True)
    except OSError:
        return None


def ports_of(cluster: Cluster) -> list[int]:
    return [int(one.rpartition(":")[2]) for one in cluster.bootstrap.split(",")]


class Load:
    """A client that writes with acks=all all the time, on fresh connections every now and then."""

    def __init__(self, settings: dict[str, object], topic: str) -> None:
        self.settings, self.topic = settings, topic
        self.errors: list[str] = []
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            producer = confluent_kafka.Producer(
                {**self.settings, "error_cb": lambda e: self.errors.append(str(e)), "acks": "all"}
            )
            for _ in range(100):
                producer.produce(self.topic, b"x" * 100, on_delivery=self._delivered)
                producer.poll(0.002)
            if producer.flush(30):
                self.errors.append("not all was delivered")

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        self.sent += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(60)


def make_topic(settings: dict[str, object], name: str) -> None:
    admin = AdminClient(settings)
    for done in admin.create_topics([NewTopic(name, 3, 3)]).values():
        done.result(30)


def leaders(settings: dict[str, object], topic: str) -> dict[int, int]:
    found = AdminClient(settings).list_topics(topic, 20).topics[topic].partitions
    return {number: one.leader for number, one in found.items()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def rotate(cluster: Cluster, files: Files, issued: Issued, cas: str, own: Issued, folder: Path) -> None:
    """Give the nodes another certificate; returns when all show it."""
    files.put_keys(issued)
    wanted = ssl.PEM_cert_to_DER_cert(issued.pem)
    for port in ports_of(cluster):
        wait_until("the new certificate", partial(shows, wanted, port, cas, own, folder))


def test_rotations_of_certificates_and_their_ca_disturb_nobody_but_strangers(
    tmp_path: Path, files: Files
) -> None:
    first, second = files.ca, Authority("Second CA")
    with Cluster(tmp_path / "cluster", settings=files.settings).start() as cluster:
        stranger = Authority("Other CA").issue("node")
        for one in ports_of(cluster):
            assert not is_served(one, first.pem, stranger, tmp_path)
        both = first.pem + second.pem
        settings = client(cluster, both, first.issue("load", hosts=()))
        make_topic(settings, "t")
        before, load = leaders(settings, "t"), Load(settings, "t")
        with load.running():
            wait_until("records", lambda: load.sent > 100)
            for _ in range(10):
                rotate(cluster, files, first.issue("node"), both, first.issue("me", hosts=()), tmp_path)
            files.put_trust(first.pem, second.pem)
            port = ports_of(cluster)
            asking = second.issue("me", hosts=())
            for one in port:
                wait_until("both authorities", partial(is_served, one, both, asking, tmp_path))
            rotate(cluster, files, second.issue("node"), both, asking, tmp_path)
            load.settings = client(cluster, second.pem, second.issue("load", hosts=()))
            sent = load.sent
            wait_until("records of the new client", lambda: load.sent > sent + 200)
            files.put_trust(second.pem)
            stale = second.pem, first.issue("me", hosts=()), tmp_path
            for one in port:
                wait_until("the end of the first", partial(is_refused, one, *stale))
            sent = load.sent
            wait_until("records without the first", lambda: load.sent > sent + 200)
        assert load.errors == []
        assert leaders(load.settings, "t") == before


def shows(wanted: bytes, port: int, ca: str, own: Issued, folder: Path) -> bool:
    return shown_by(port, ca, own, folder) == wanted


def is_refused(port: int, ca: str, own: Issued, folder: Path) -> bool:
    return not is_served(port, ca, own, folder)


def is_served(port: int, ca: str, own: Issued, folder: Path) -> bool:
    """Whether a client with this certificate is let in: with TLS 1.3 it hears that after its handshake."""
    context = ssl.create_default_context(cadata=ca)
    context.load_cert_chain(own.write(folder / "asking.pem"))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as conn,
        ):
            conn.sendall(bytes.fromhex("0000000b001200000000000100016d"))
            return bool(conn.recv(1))
    except OSError:
        return False
