"""Keys, types and defaults beside Apache Kafka's documentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from service.config.foreign import refusal
from service.config.keys import ConfigKey, to_text
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from tests.unit.config.refusals import refused

ROOT = Path(__file__).parents[3]
OTHERWISE = {
    "advertised.listeners": "one text, which is taken apart with the listeners",
    "controller.quorum.append.linger.ms": "a flush that is under way gathers what comes meanwhile",
    "listeners": "as above; and a node listens on loopback until it is told otherwise",
    "listener.security.protocol.map": "none: what counts without it depends on the listeners",
    "log.dir": "below the directory that a node is started in",
    "node.id": "a node can be started without any settings",
    "offsets.topic.replication.factor": "an integer of 16 bits there, and its bounds say so here",
    "process.roles": "a single node is both",
    "queued.max.request.bytes": "memory is bounded",
    "transaction.state.log.replication.factor": "as offsets.topic.replication.factor",
    "remote.log.manager.copier.thread.pool.size": "memory is bounded",
}
"""Keys whose type or default is not Apache Kafka's, and why."""


def kafkas_keys(kind: str) -> dict[str, tuple[str, str]]:
    """Type and default ("-": none) of each key that the documentation of Kafka 4.3.1 lists."""
    text = (ROOT / "tests" / "golden" / "config" / f"{kind}_keys.txt").read_text()
    rows = [line.split(" ", 2) for line in text.splitlines()]
    return {name: (type_, default) for name, type_, default in rows}


@pytest.mark.parametrize(("kind", "keys"), [("broker", BROKER_KEYS), ("topic", TOPIC_KEYS)])
def test_every_key_of_apache_kafka_is_known_or_refused_with_a_reason(
    kind: str, keys: Mapping[str, ConfigKey]
) -> None:
    listed = kafkas_keys(kind)
    assert len(listed) > 30
    assert not [name for name in listed if name not in keys and refusal(name) is None]


@pytest.mark.parametrize(("kind", "keys"), [("broker", BROKER_KEYS), ("topic", TOPIC_KEYS)])
def test_keys_that_are_apache_kafkas_have_its_types_and_defaults(
    kind: str, keys: Mapping[str, ConfigKey]
) -> None:
    theirs = {name: row for name, row in kafkas_keys(kind).items() if name in keys}
    ours = {name: (keys[name].type.name.lower(), to_text(keys[name].default) or "-") for name in theirs}
    assert {name for name in theirs if theirs[name] != ours[name]} == OTHERWISE.keys() & theirs.keys()


def test_no_key_is_both_known_and_refused() -> None:
    assert not [name for name in {**BROKER_KEYS, **TOPIC_KEYS} if refusal(name) is not None]
    assert "a topic key" in refused({"delete.retention.ms": "1"})
