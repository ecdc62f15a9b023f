"""`firn config get`, `set` and `unset`: of topics, brokers, all brokers, groups and loggers, on a node."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.conftest import NodeThread, Talk
from tests.support.firn_commands import Firn

Start = Callable[..., NodeThread]


@pytest.fixture
def firn(start: Start, capsys: pytest.CaptureFixture[str]) -> Iterator[Firn]:
    with start(delegation_token_secret_key="geheim").client() as client:
        Talk(client).create("t", retention_ms="7000")
        yield Firn(client.address, capsys)


def test_a_setting_of_a_topic_is_shown_changed_and_deleted(firn: Firn) -> None:
    assert firn("config", "get", "--topic", "t").splitlines() == [
        "setting       value  from",
        "retention.ms  7000   topic",
    ]
    assert firn("config", "set", "--topic", "t", "segment.bytes=2000000", "retention.ms=9").splitlines() == [
        "setting        value    from",
        "segment.bytes  2000000  topic",
        "retention.ms   9        topic",
    ]
    (row,) = json.loads(firn("config", "unset", "--topic", "t", "retention.ms", "--json"))
    assert row == {
        "name": "retention.ms",
        "value": "-1",
        "source": "file",
        "is_read_only": False,
        "is_sensitive": False,
    }
    assert json.loads(firn("config", "get", "--topic", "t", "retention.ms", "--json")) == [row]
    names = {one["name"] for one in json.loads(firn("config", "get", "--topic", "t", "--all", "--json"))}
    assert {"cleanup.policy", "min.insync.replicas"} <= names


def test_lists_are_added_to_and_taken_from(firn: Firn) -> None:
    key = "cleanup.policy"
    firn("config", "set", "--topic", "t", "--append", f"{key}=compact")
    assert json.loads(firn("config", "get", "--topic", "t", key, "--json"))[0]["value"] == "delete,compact"
    firn("config", "set", "--topic", "t", "--subtract", f"{key}=delete")
    assert json.loads(firn("config", "get", "--topic", "t", key, "--json"))[0]["value"] == "compact"


def test_a_wrong_setting_changes_nothing_and_is_told(firn: Firn) -> None:
    said = firn.refused("config", "set", "--topic", "t", "retention.ms=5", "retention.mss=6")
    assert "retention.mss" in said
    assert "INVALID_CONFIG" in said
    firn("config", "set", "--topic", "t", "retention.ms=5", "--dry-run")
    assert "7000" in firn("config", "get", "--topic", "t", "retention.ms")
    said = firn.refused("config", "get", "--topic", "t", "retention.mss")
    assert said == "firn config: topic t: there is no setting 'retention.mss'; did you mean 'retention.ms'?\n"
    assert "what is to change?" in firn.refused("config", "set", "--topic", "t")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in firn.refused("config", "get", "--topic", "u")
    assert "node.id" in firn.refused("config", "set", "--broker", "1", "node.id=2")


def test_brokers_have_settings_of_their_own_and_common_ones(firn: Firn) -> None:
    key = "log.segment.bytes"
    firn("config", "set", "--broker-defaults", f"{key}=3000000")
    assert firn("config", "get", "--broker-defaults").splitlines()[1].split("  ")[0] == key
    firn("config", "set", "--broker", "1", f"{key}=4000000")

    def now() -> tuple[str, str]:
        (row,) = json.loads(firn("config", "get", "--broker", "1", key, "--json"))
        return row["value"], row["source"]

    assert now() == ("4000000", "broker")
    firn("config", "unset", "--broker", "1", key)
    assert now() == ("3000000", "all brokers")
    firn("config", "unset", "--broker-defaults", key)
    assert now() == ("1073741824", "default")
    assert "node.id" in firn("config", "get", "--broker", "1", "node.id")
    assert "read-only" in firn("config", "get", "--broker", "1", "node.id")


def test_secrets_are_never_shown_and_a_file_has_many_settings(firn: Firn, tmp_path: Path) -> None:
    key = "delegation.token.secret.key"
    told = firn("config", "get", "--broker", "1", key)
    assert told.splitlines()[1].split() == [key, "(secret)", "file,", "read-only"]
    as_json = firn("config", "get", "--broker", "1", "--all", "--json")
    assert "geheim" not in told + as_json
    (row,) = [one for one in json.loads(as_json) if one["name"] == key]
    assert (row["value"], row["is_sensitive"]) == (None, True)
    path = tmp_path / "more.properties"
    path.write_text("log.cleaner.threads=2\nlog.retention.ms=5\n")
    firn("config", "set", "--broker", "1", "--file", str(path))
    assert "2" in firn("config", "get", "--broker", "1", "log.cleaner.threads").split()
    path.write_text("listener.name.plaintext.ssl.keystore.password=geheim\n")
    said = firn.refused("config", "set", "--broker", "1", "--file", str(path))
    assert "INVALID_CONFIG" in said
    assert "geheim" not in said


def test_groups_have_settings(firn: Firn) -> None:
    firn("config", "set", "--group", "g", "consumer.session.timeout.ms=50000")
    assert firn("config", "get", "--group", "g").splitlines()[1].split() == [
        "consumer.session.timeout.ms", "50000", "group",
    ]  # fmt: skip
    firn("config", "unset", "--group", "g", "consumer.session.timeout.ms")
    assert firn("config", "get", "--group", "g") == ""


def test_levels_of_loggers_change_while_the_node_runs(firn: Firn) -> None:
    """Of a whole room, too, of which nobody has asked for a logger of its own."""
    inner = logging.getLogger("a_room.of_a_test")
    firn("config", "set", "--broker-logger", "1", "a_room=DEBUG")
    assert inner.getEffectiveLevel() == logging.DEBUG
    assert "DEBUG" in firn("config", "get", "--broker-logger", "1", "a_room")
    firn("config", "unset", "--broker-logger", "1", "a_room")
    assert inner.getEffectiveLevel() != logging.DEBUG


def test_a_setting_that_there_is_not_is_not_deleted_in_silence(firn: Firn) -> None:
    said = firn.refused("config", "unset", "--topic", "t", "retention.mss")
    assert said == "firn config: topic t: there is no setting 'retention.mss'; did you mean 'retention.ms'?\n"
    assert "did you mean 'retention.ms'?" in firn.refused(
        "topic", "alter", "t", "--delete-config", "retention.m"
    )
    assert "7000" in firn("config", "get", "--topic", "t", "retention.ms")
    firn("topic", "alter", "t", *["--delete-config", "retention.ms"] * 2)
    assert "7000" not in firn("config", "get", "--topic", "t")
