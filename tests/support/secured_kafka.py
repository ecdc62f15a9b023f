"""Apache Kafka with listeners of TLS and SASL: alice logs in by PLAIN, bob by SCRAM."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.kafka_node import KafkaNode

SECURED: Final = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
LOGINS: Final = (
    ("PLAIN", "alice", "secret"),
    ("SCRAM-SHA-256", "bob", "pencil"),
    ("SCRAM-SHA-512", "bob", "pencil"),
)
"""Mechanism, username and password of those who may log in."""
_MODULES: Final = "org.apache.kafka.common.security"


def make_pem(folder: Path) -> Path:
    """Write `key.pem`, `cert.pem` (for 127.0.0.1, self-signed) and `both.pem` into the folder; return it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
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


@contextmanager
def secured_kafka(folder: Path, pem: Path, settings: Mapping[str, str]) -> Iterator[KafkaNode]:
    """Run a node with a listener of each protocol of `SECURED`; the one of SSL demands a certificate."""
    settings = {
        **settings,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem / "both.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pem / "cert.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        jaas = f"listener.name.{listener}.{{}}.sasl.jaas.config"
        settings[jaas.format("plain")] = f'{_MODULES}.plain.PlainLoginModule required user_alice="secret";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[jaas.format(mechanism)] = f"{_MODULES}.scram.ScramLoginModule required;"
    node = KafkaNode(folder, settings, heap="512m", secured=SECURED)
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            made = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 4096), b"pencil")
            for done in admin.alter_user_scram_credentials([made]).values():
                done.result(30)
        yield node
    finally:
        node.stop()
