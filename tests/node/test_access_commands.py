"""`firn acl`, `firn user` and `firn quota` on a whole node: what they do, print and refuse."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from tests.node.conftest import NodeThread

Start = Callable[..., NodeThread]
Run = Callable[..., str]
CLOSED = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


@pytest.fixture
def run(start: Start, capsys: pytest.CaptureFixture[str]) -> Run:
    node = start(**CLOSED)

    def command(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*words, "--bootstrap-server", f"127.0.0.1:{node.port}"]) == code
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    return command


def test_entries_are_added_once_listed_and_removed(run: Run) -> None:
    add = ("acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
    assert run(*add).splitlines() == [
        "to add:",
        "type   name    pattern  principal   host  permission  operation",
        "topic  orders  literal  User:alice  *     allow       Write",
        "topic  orders  literal  User:alice  *     allow       Describe",
        "topic  orders  literal  User:alice  *     allow       Create",
        "added 3",
    ]
    again = run(*add)
    assert again.startswith("there already:\n")
    assert again.endswith("added 0\n")
    run("acl", "add", "--deny-principal", "User:bob", "--topic", "or", "--resource-pattern-type", "prefixed")
    assert "bob" not in run("acl", "list", "--topic", "orders")
    assert "bob" in run("acl", "list", "--topic", "orders", "--resource-pattern-type", "match")
    rows = json.loads(run("acl", "list", "--principal", "User:bob", "--json"))
    assert rows == [
        {
            "resource_type": "topic",
            "name": "or",
            "pattern": "prefixed",
            "principal": "User:bob",
            "host": "*",
            "permission": "deny",
            "operation": "All",
        }
    ]
    assert run("acl", "remove", "--topic", "orders", "--dry-run").startswith("would remove:\n")
    assert (
        run("acl", "remove", "--allow-principal", "User:alice", "--producer", "--topic", "orders").count(
            "alice"
        )
        == 3
    )
    assert run("acl", "list", "--principal", "User:alice") == ""
    assert "there is no such entry" in run("acl", "remove", "--topic", "orders", code=1)


def test_names_cannot_change_the_terminal(run: Run) -> None:
    name = "User:\x1b[2J\nroot"
    run("acl", "add", "--allow-principal", name, "--topic", "t")
    listed = run("acl", "list")
    assert "\x1b" not in listed
    assert "User:\\x1b[2J\\nroot" in listed
    assert json.loads(run("acl", "list", "--json"))[0]["principal"] == name


def test_without_an_authorizer_the_command_says_so(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    node = start()
    assert main(["acl", "list", "--bootstrap-server", f"127.0.0.1:{node.port}"]) == 1
    assert "No Authorizer is configured on the broker (SECURITY_DISABLED)" in capsys.readouterr().err


def test_a_user_is_added_changed_listed_and_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    added = run("user", "add", "alice", "--password", f"@{path}")
    assert added == "added alice (SCRAM-SHA-512, 4096 iterations)\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"of bob\nand more\n")))
    run("user", "add", "bob", "--mechanism", "SCRAM-SHA-256", "--iterations", "8192")
    changed = run("user", "add", "alice", "--password", f"@{path}").splitlines()
    assert changed == [
        "changed the password of alice (SCRAM-SHA-512, 4096 iterations)",
        "open sessions go on until: firn user sessions --end alice",
    ]
    assert run("user", "list").splitlines() == [
        "user   mechanism      iterations",
        "alice  SCRAM-SHA-512  4096",
        "bob    SCRAM-SHA-256  8192",
    ]
    assert "no credential of SCRAM-SHA-512" in run(
        "user", "remove", "bob", "--mechanism", "SCRAM-SHA-512", code=1
    )
    assert run("user", "remove", "bob").startswith("removed bob (SCRAM-SHA-256)\n")
    assert json.loads(run("user", "list", "--json")) == [
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096}
    ]
    assert "bob has no credential" in run("user", "remove", "bob", code=1)
    run("user", "add", "alice", "--password", f"@{path}", "--mechanism", "SCRAM-SHA-256")
    assert run("user", "remove", "alice").startswith("removed alice (SCRAM-SHA-256, SCRAM-SHA-512)\n")
    assert run("user", "list") == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\n", "the password is empty"), (b"\xff\n", "not UTF-8"), (b"x" * 5000, "longer than 4096 bytes")],
)
def test_a_password_that_does_not_do_is_refused_without_being_repeated(
    run: Run, tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    said = run("user", "add", "alice", "--password", f"@{path}", code=1)
    assert reason in said
    assert "xxx" not in said
    assert run("user", "list") == ""


def test_a_password_as_an_argument_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["user", "add", "alice", "--password", "secret"])
    said = capsys.readouterr().err
    assert "expected @FILE" in said
    assert "secret" not in said


def test_the_clusters_reason_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret")
    said = run("user", "add", "alice", "--password", f"@{path}", "--iterations", "7", code=1)
    assert "UNACCEPTABLE_CREDENTIAL" in said


def test_quotas_are_set_listed_and_removed(run: Run) -> None:
    run("quota", "set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "alice")
    run("quota", "set", "request_percentage=50", "--default-user", "--client", "reports")
    run("quota", "set", "connection_creation_rate=20", "--default-ip")
    assert run("quota", "list").splitlines() == [
        "user       client-id  ip         quota                     value",
        "-          -          <default>  connection_creation_rate  20",
        "<default>  reports    -          request_percentage        50",
        "alice      -          -          producer_byte_rate        1048576",
        "alice      -          -          request_percentage        12.5",
    ]
    assert json.loads(run("quota", "list", "--client", "reports", "--json")) == [
        {"entity": {"user": None, "client-id": "reports"}, "quotas": {"request_percentage": 50.0}}
    ]
    assert run("quota", "remove", "request_percentage", "--user", "alice") == "removed request_percentage\n"
    assert "no quota consumer_byte_rate" in run(
        "quota", "remove", "consumer_byte_rate", "--user", "alice", code=1
    )
    assert run("quota", "remove", "--user", "alice") == "removed producer_byte_rate\n"
    assert "no quota" in run("quota", "remove", "--user", "alice", code=1)
    assert run("quota", "list", "--user", "alice") == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("producer_byte_rate=1",), "whose quota"),
        (("producer_byte_rate=1", "--ip", "192.0.2.1", "--user", "a"), "of nothing else"),
        (("speed=1", "--user", "a"), "INVALID_REQUEST"),
        (("producer_byte_rate=1.5", "--user", "a"), "INVALID_REQUEST"),
    ],
)
def test_a_quota_that_cannot_be_is_refused(run: Run, words: tuple[str, ...], reason: str) -> None:
    assert reason in run("quota", "set", *words, code=1)


@pytest.mark.parametrize(
    "text", ["producer_byte_rate", "producer_byte_rate=", "=1", "a=0", "a=-1", "a=nan", "a=inf"]
)
def test_a_quota_is_a_number_above_0(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quota", "set", text, "--user", "a"])
    assert "expected QUOTA=NUMBER above 0" in capsys.readouterr().err


def names_of(rows: list[dict[str, Any]]) -> set[str]:
    return {row["principal"] for row in rows}


def test_sessions_are_listed_and_ended_but_for_the_commands_own(run: Run, start: Start) -> None:
    rows = json.loads(run("user", "sessions", "--json"))
    assert names_of(rows) == {"User:ANONYMOUS"}
    assert rows[0]["client_id"] == "firn-cli"
    assert run("user", "sessions", "--end", "ANONYMOUS") == "node 1: ended 0 of User:ANONYMOUS\n"
    assert run("user", "sessions", "nobody") == ""
    assert "one of them" in run("user", "sessions", "alice", "--end", "alice", code=1)
