"""Scripts of a Kafka installation for suites that start brokers themselves: either server answers to them.

``python -m tests.judges.as_kafka firn|kafka storage|run-class|topics|configs ARGUMENTS``
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN

_NO_LOGIN = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,SSL:PLAINTEXT,SASL_PLAINTEXT:PLAINTEXT"
_LOGIN = re.compile(r"java\.security\.auth\.login\.config=(\S+)")


def main(program: str, tool: str, arguments: Sequence[str]) -> int:
    if tool in ("topics", "configs"):
        return subprocess.call([RUNNER, tool, *arguments])
    if tool == "storage":
        return subprocess.call([*_formatter(program, arguments), *arguments[program == "firn" :]])
    properties = Path(arguments[1])
    _put_logins_into(properties)
    if program == "kafka":
        os.execv(RUNNER, [str(RUNNER), "server", str(properties)])
    return _firn(properties)


def _formatter(program: str, arguments: Sequence[str]) -> list[str]:
    if program == "kafka":
        return [str(RUNNER), "storage"]
    # kafka-python formats before it writes how to log in, and Firn's tool looks at all that the node will.
    return [str(FIRN), arguments[0], f"--set={_NO_LOGIN}"]


def _put_logins_into(properties: Path) -> None:
    """The login of Java's static file goes where both servers read it."""
    found = _LOGIN.search(os.environ.get("KAFKA_OPTS", ""))
    text = properties.read_text()
    mechanism = re.search(r"^sasl\.enabled\.mechanisms=(\S+)", text, re.MULTILINE)
    if found is None or mechanism is None:
        return
    modules = re.search(r"KafkaServer \{\s*(.*?;)\s*\}", Path(found[1]).read_text(), re.DOTALL)
    assert modules is not None
    key = f"listener.name.sasl_plaintext.{mechanism[1].lower()}.sasl.jaas.config"
    properties.write_text(f"{text}\n{key}={modules[1]}\n")


def _firn(properties: Path) -> int:
    """Run a node, and say what Kafka says when it serves and has its users."""
    options = ["--until-eof", "--set", "firn.disk.watermarks.enable=false"]
    command = [str(FIRN), "server", str(properties), *options]
    # The node ends with this process, however that ends: its input is a pipe from here.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    node_id = re.search(r"^node\.id=(\d+)", properties.read_text(), re.MULTILINE)
    assert node_id is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("ready: "):
            print("Replayed UserScramCredentialRecord creating new entry for alice", flush=True)
            print(f"[KafkaRaftServer nodeId={node_id[1]}] Kafka Server started", flush=True)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
