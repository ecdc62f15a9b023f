"""Records Apache Kafka's answers to a client that may not do what it asks: each API, each version.

``python -m tests.golden.security.capture_refusals`` writes ``refusals.json``: answers in hex by the rights of
the client and the request (`tests/support/refused_requests.py`). Kafka 4.3.1; its authorizer is the
StandardAuthorizer, and the client is alice, logged in by PLAIN.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from pathlib import Path
from typing import Any

from service.client.blocking_client import BlockingClient
from tests.node.conftest import Talk
from tests.support.acl_requests import Asker
from tests.support.kafka_node import KafkaNode
from tests.support.refused_requests import RIGHTS, TOPIC, frame_of, golden_of, name_of, requests
from tests.support.wire import ConnectionLost, RawConnection, schema

GOLDEN = Path(__file__).with_name("refusals.json")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="secret";',
}


def login(address: str) -> RawConnection:
    peer = RawConnection(address)
    peer.call(schema(17, 1).SaslHandshakeRequest(mechanism="PLAIN"))
    answer = peer.call(schema(36, 2).SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))
    assert answer.error_code == 0, answer
    return peer


def ask(address: str, frame: bytes) -> bytes | None:
    with login(address) as peer:
        try:
            peer.send_frame(frame)
            return peer.receive_frame()
        except ConnectionLost:
            return None


def main() -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        kafka = KafkaNode(Path(folder) / "kafka", SETTINGS, heap="512m", secured=("SASL_PLAINTEXT",))
        try:
            host, port = kafka.bootstrap.split(":")
            with BlockingClient(host, int(port), secrets.token_hex(4), timeout_s=30) as client:
                admin = Asker(Talk(client), Talk(client), settle_s=0.1)
                admin.wait_for_groups()
                topic_id = admin.admin.create(TOPIC).topic_id
                for words, rights in RIGHTS.items():
                    admin.forbid_all()
                    if rights:
                        admin.allow(*rights)
                    of = found[words] = {}
                    for key, version, variant in requests(words):
                        one = key, version, variant, topic_id
                        answer = ask(kafka.addresses["SASL_PLAINTEXT"], frame_of(*one))
                        of[name_of(key, version, variant)] = golden_of(*one, answer)
        finally:
            kafka.stop()
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
