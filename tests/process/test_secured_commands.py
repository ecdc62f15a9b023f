"""Commands log in with `--command-config`, in Java's names and librdkafka's, and say why they cannot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.firn_commands import Firn
from tests.support.processes import FIRN
from tests.support.secured_firn import SecuredFirn, secured_firn

LIBRDKAFKA = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism={0}\nsasl.username={1}\nsasl.password={2}\n"
JAVA = (
    "bootstrap.servers=elsewhere:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={0}\n"
    'sasl.jaas.config=org.apache.kafka.common.security.{3} required username="{1}" password="{2}";\n'
)
FILES = {
    "plain": LIBRDKAFKA.format("PLAIN", "alice", "secret"),
    "scram": LIBRDKAFKA.format("SCRAM-SHA-512", "bob", "pencil"),
    "java": JAVA.format("SCRAM-SHA-256", "bob", "pencil", "scram.ScramLoginModule"),
    "java-plain": JAVA.format("PLAIN", "alice", "secret", "plain.PlainLoginModule"),
    "wrong": LIBRDKAFKA.format("PLAIN", "alice", "geheim"),
    "other-module": JAVA.format("PLAIN", "alice", "geheim", "scram.ScramLoginModule"),
    "unknown": LIBRDKAFKA.format("PLAIN", "alice", "geheim") + "sasl.pasword=geheim\n",
    "half": "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password=geheim\n",
    "idle": "sasl.mechanism=PLAIN\n",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredFirn]:
    with secured_firn(tmp_path_factory.mktemp("firn") / "node") as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in FILES}


def firn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(FIRN), *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["plain", "scram", "java", "java-plain"])
def test_every_command_that_speaks_kafka_logs_in(node: SecuredFirn, files: dict[str, str], name: str) -> None:
    where = ("--bootstrap-server", node.addresses["SASL_PLAINTEXT"], "--command-config", files[name])
    made = firn("topic", "create", name, *where)
    assert made.returncode == 0, made.stderr
    assert name in firn("topic", "list", *where).stdout.split()
    assert f"topic: {name}" in firn("topic", "describe", name, *where).stdout
    assert firn("group", "list", *where).returncode == 0
    assert json.loads(firn("tiers", name, "--json", *where).stdout)["topic"] == name
    told = firn("cluster", "describe", *where)
    assert told.returncode == 0, told.stdout + told.stderr
    assert firn("topic", "delete", name, *where).returncode == 0


def test_commands_that_change_things_log_in(
    node: SecuredFirn, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    here = Firn(node.addresses["SASL_PLAINTEXT"], capsys)

    def run(*words: str) -> str:
        return here(*words, "--command-config", files["scram"])

    run("topic", "create", "changed")
    assert "altered changed" in run("topic", "alter", "changed", "--config", "retention.ms=5000")
    assert "5000" in run("config", "get", "--topic", "changed")
    told = run("group", "reset-offsets", "g", "--topic", "changed", "--to-earliest", "--execute", "--json")
    assert json.loads(told)["offsets"][0]["new_offset"] == 0
    assert "deleted g" in run("group", "delete", "g", "--execute")
    assert "changed" in run("offsets", "changed")
    assert "ok" in run("log-dirs")
    assert "group.version" in run("cluster", "features", "describe")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "refuses the login of alice: Authentication failed: Invalid username or password"),
        ("other-module", "PLAIN needs the login module org.apache.kafka.common.security.plain"),
        ("unknown", "option sasl.pasword is not served"),
        ("half", "security.protocol=SASL_PLAINTEXT needs option sasl.username"),
        ("idle", "option sasl.mechanism says nothing without security.protocol="),
    ],
)
def test_a_file_that_does_not_do_is_refused_without_its_password(
    node: SecuredFirn, files: dict[str, str], name: str, reason: str
) -> None:
    told = firn(
        "topic",
        "list",
        "--bootstrap-server",
        node.addresses["SASL_PLAINTEXT"],
        "--command-config",
        files[name],
    )
    assert told.returncode == 1
    assert reason in told.stderr
    assert "geheim" not in told.stderr + told.stdout


def test_a_command_without_a_login_ends_with_an_error(node: SecuredFirn) -> None:
    told = firn("topic", "list", "--bootstrap-server", node.addresses["SASL_PLAINTEXT"])
    assert told.returncode == 1
    assert "closed the connection" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_file_that_is_not_there_is_named(node: SecuredFirn) -> None:
    told = firn("group", "list", "--command-config", "/nonexistent/client.properties")
    assert told.returncode == 1
    assert "/nonexistent/client.properties: No such file" in told.stderr


def test_a_node_with_a_wrong_login_module_does_not_start(tmp_path: Path) -> None:
    prefix = "listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security."
    for value, reason in (
        ("plain.PlainLoginModule needed;", "Invalid login module control flag in JAAS config"),
        ("scram.ScramLoginModule required;", "the login module has to be"),
        ('plain.PlainLoginModule required user_a="geheim"', "not terminated by semi-colon"),
    ):
        told = firn(
            "server", "--set", f"log.dirs={tmp_path}", "--set", "listeners=PLAINTEXT://127.0.0.1:0",
            "--set", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
            "--set", "sasl.enabled.mechanisms=PLAIN", "--set", prefix + value,
        )  # fmt: skip
        assert told.returncode == 1
        assert reason in told.stderr + told.stdout
        assert "geheim" not in told.stderr + told.stdout
