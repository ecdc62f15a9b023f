"""Asks a fresh Apache Kafka 4.3.1 node for delegation tokens what `token_steps.py` says.

    python -m tests.golden.metadata.capture_tokens

It starts two nodes, with and without ``delegation.token.secret.key``, and writes into `kafka-4.3.1`
`token-answers.json` and `tokens/`: the first one's ``__cluster_metadata-0``, its log and its last snapshot.
`hmacs` has ids of tokens and their HMACs under `token_steps.KEY`.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.golden.metadata.token_steps import KEY, PASSWORDS, STEPS, WITHOUT_A_KEY, Script
from tests.support.kafka_node import KafkaNode
from tests.support.processes import wait_until

FOLDER = Path(__file__).parent / "kafka-4.3.1"
MODULES = "org.apache.kafka.common.security"
USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
PREFIX = "listener.name.sasl_plaintext"
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"{PREFIX}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {USERS};",
    f"{PREFIX}.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    f"{PREFIX}.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metadata.log.max.record.bytes.between.snapshots": "1500",
}


def listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def answers(folder: Path, steps: Any, **more: str) -> tuple[list[Any], Any, Path]:
    """Return answers, created tokens, and the folder of the metadata log."""
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    node = KafkaNode(folder, settings, secured=("SASL_PLAINTEXT",))
    try:
        host, _, port = node.addresses["SASL_PLAINTEXT"].rpartition(":")
        wait_until("the second listener", lambda: listens(host, int(port)), 30)
        script = Script({"PLAINTEXT": node.bootstrap, **node.addresses}, pause_s=0.7)
        found = script.run(steps)
    finally:
        node.stop()
    return found, script.made, node.data / "__cluster_metadata-0"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        told, made, log = answers(Path(name) / "with", STEPS, delegation_token_secret_key=KEY)
        without, _, _ = answers(Path(name) / "without", WITHOUT_A_KEY)
        document = {
            "steps": told,
            "without_a_key": without,
            "hmacs": {one.token_id: one.hmac.hex() for one in made},
        }
        lines = ",\n".join(
            f"{json.dumps(key)}:[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
            if isinstance(value, list)
            else f"{json.dumps(key)}:{json.dumps(value, indent=0)}"
            for key, value in document.items()
        )
        (FOLDER / "token-answers.json").write_text("{\n" + lines + "\n}\n")
        target = FOLDER / "tokens"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        kept = ["00000000000000000000.log"]
        kept.append(max(one.name for one in log.glob("*.checkpoint")))
        for one in kept:
            shutil.copyfile(log / one, target / one)


if __name__ == "__main__":
    main()
