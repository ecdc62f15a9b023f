"""Three nodes that log in at each other with a token from a file, which is renewed under them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from service.config.tables.oauthbearer import LOGIN_HANDLER
from tests.support.issuers import ALLOWED, key_file, settings_of, token_of
from tests.support.processes import wait_until
from tests.support.quorums import Cluster

pytestmark = pytest.mark.thorough
LIFE_S = 8


def settings(keys: str, token: Path) -> dict[str, str]:
    own = {
        "sasl.login.callback.handler.class": LOGIN_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    listeners = ("plaintext", "controller")
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        ALLOWED: f"{keys},{token.as_uri()}",
        **{key: value for one in listeners for key, value in settings_of(keys, one).items()},
        **{
            f"listener.name.{one}.oauthbearer.{key}": value for one in listeners for key, value in own.items()
        },
    }


def client(cluster: Cluster) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token_of("alice"), time.time() + 600),
        "acks": "all",
    }


def in_sync(admin: AdminClient) -> bool:
    found = admin.list_topics("t", timeout=20).topics["t"].partitions.values()
    return len(found) == 3 and all(len(one.isrs) == 3 for one in found)


@contextmanager
def renewed(token: Path) -> Iterator[None]:
    """Write a fresh token every second until the end of the `with`."""
    ended = threading.Event()

    def renew() -> None:
        while True:
            token.with_suffix(".new").write_text(token_of("node", life_s=LIFE_S))
            token.with_suffix(".new").rename(token)
            if ended.wait(1):
                return

    thread = threading.Thread(target=renew)
    thread.start()
    wait_until("the first token", token.exists)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_nodes_renew_their_sessions_with_the_token_of_now(tmp_path: Path) -> None:
    token, keys = tmp_path / "token", key_file(tmp_path, "one")
    with renewed(token), Cluster(tmp_path / "nodes", settings=settings(keys, token)).start() as cluster:
        admin = AdminClient(client(cluster))
        for done in admin.create_topics([NewTopic("t", 3, 3)]).values():
            done.result(30)
        wait_until("all replicas to be in sync", lambda: in_sync(admin), 60)
        producer = confluent_kafka.Producer(client(cluster))
        deadline = time.monotonic() + 2 * LIFE_S
        while time.monotonic() < deadline:
            for partition in range(3):
                producer.produce("t", b"x" * 100, partition=partition)
            assert producer.flush(30) == 0
            time.sleep(0.2)
        wait_until("all replicas to be in sync", lambda: in_sync(admin), 60)
        for member in cluster.members.values():
            log = member.log(100_000)
            assert "refuses the login" not in log
            assert "eyJ" not in log, "a token is in the log"
