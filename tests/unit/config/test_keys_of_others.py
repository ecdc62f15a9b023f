"""Keys of Apache Kafka, Strimzi, Confluent and Bitnami: which are taken, warned of, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config.explaining import explain
from service.config.foreign import FOREIGN, foreign_key
from service.config.foreign.foreign_key import Owner
from service.config.foreign.kafka_defaults import KAFKA_DEFAULTS
from service.config.given import GivenConfig, gather
from service.config.tables import BROKER_KEYS, TOPIC_KEYS

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "config"
ROWS = [
    tuple(line.split(" "))
    for line in (GOLDEN / "keys_of_others.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
OUTCOMES = {"taken": "taken", "ignored": "warned", "refused": "refused"}


def given(*pairs: tuple[str, str]) -> GivenConfig:
    return gather(None, pairs, {})


def outcome(name: str, value: str, *more: tuple[str, str]) -> str:
    try:
        found = explain(given((name, value), *more))
    except ConfigError:  # a config provider, which is looked at before the keys
        return "refused"
    if name.startswith("authorizer.") and found.problems:
        return "refused"
    return next(OUTCOMES[one.outcome] for one in found.keys if one.key == name)


def test_keys_that_people_bring_are_taken_warned_of_or_refused() -> None:
    assert len(ROWS) > 200
    found = [f"{name} {value} {outcome(name, value)}" for name, value, _ in ROWS]
    assert found == [" ".join(row) for row in ROWS]


def test_a_warning_has_the_key_and_the_reason_and_no_value() -> None:
    for name, value, expected in ROWS:
        warnings = [] if expected == "refused" else given((name, value)).warnings()
        assert len(warnings) == (expected == "warned"), name
        for one in warnings:
            assert one.startswith(f"--set {name} has no effect here: ")
            assert len(one.partition("here: ")[2]) > 10
            assert "geheim" not in one


def test_strict_refuses_all_of_them_unless_they_have_kafkas_default() -> None:
    strict = ("firn.config.strict", "true")
    for name, value, expected in ROWS:
        if expected == "warned":
            base = name.removeprefix("listener.name.plaintext.")
            usual = KAFKA_DEFAULTS.get(base, "").lower() == value.lower() and base in KAFKA_DEFAULTS
            assert outcome(name, value, strict) == ("warned" if usual else "refused"), name


def test_no_name_is_suggested_in_place_of_another_products() -> None:
    for name, value, expected in ROWS:
        row = foreign_key(name)
        if expected != "refused" or row is None:
            continue
        texts = " ".join(map(str, explain(given((name, value))).problems))
        assert "did you mean" not in texts, name
        assert "unknown" not in texts, name


def test_each_refused_key_says_why_and_what_to_do() -> None:
    verbs = ("take", "set", "name", "use", "make", "let", "give", "put", "move")
    for row in FOREIGN.values():
        assert len(row.why) > 10, row.name
        if row.is_refused:
            assert row.instead.startswith(verbs), row.instead


def test_every_key_of_kafkas_classes_is_a_key_here_or_foreign() -> None:
    names = (GOLDEN / "kafka_class_keys.txt").read_text("utf-8").split()
    assert len(names) == 360
    assert not [name for name in names if name not in BROKER_KEYS and foreign_key(name) is None]
    assert not [name for name in {*BROKER_KEYS, *TOPIC_KEYS} if foreign_key(name) is not None]


def test_every_key_of_kafkas_clients_is_known_to_be_theirs() -> None:
    names = (GOLDEN / "client_class_keys.txt").read_text("utf-8").split()
    assert len(names) == 141
    assert not [name for name in names if name not in BROKER_KEYS and foreign_key(name) is None]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("confluent.balancer.topic.replication.factor", Owner.CONFLUENT),
        ("confluent.anything.at.all", Owner.CONFLUENT),
        ("zookeeper.connect", Owner.FORMER_KAFKA),
        ("rsm.config.x", Owner.KAFKA),
        ("num.network.threads", Owner.KAFKA),
        ("partitioner.class", Owner.CLIENTS),
    ],
)
def test_a_key_belongs_to_its_family(name: str, owner: Owner) -> None:
    row = foreign_key(name)
    assert row is not None
    assert row.owner is owner


@pytest.mark.parametrize(
    "name", ["confluent", "confluentx.y", "portx", "num.network.threads.x", "", ".", "rsm."]
)
def test_a_name_that_only_looks_alike_is_nobodys(name: str) -> None:
    assert foreign_key(name) is None


def test_kafkas_switch_of_tiered_storage_has_to_agree_with_the_bucket() -> None:
    switch, url = "remote.log.storage.system.enable", ("firn.remote.url", "file:///mnt/archive")
    assert outcome(switch, "true") == "refused"
    assert outcome(switch, "true", ("firn.remote.url", "")) == "refused"
    assert outcome(switch, "true", url, ("firn.config.strict", "true")) == "warned"
    assert outcome(switch, "false") == "warned"
    assert outcome(switch, "false", url) == "refused", "records would go where the file says they do not"
    assert outcome(switch, " ", url) == "warned"
    assert outcome("remote.log.storage.manager.class.name", "a.B", url) == "refused"
    (problem,) = explain(given((switch, "true"))).problems
    assert problem.words == (
        f"{switch}: refused: storage is built in, and enabled by firn.remote.url; set that, and this key to"
        " true, or take this key out"
    )


def test_values_that_may_be_secrets_are_not_shown_of_keys_without_effect_either() -> None:
    pairs = [
        (name, "geheim")
        for name in (
            "delegation.token.master.key", "confluent.license", "confluent.license.x", "rsm.config.secret",
            "zookeeper.ssl.keystore.password", "password.encoder.secret", "sasl.oauthbearer.client.secret",
        )
    ]  # fmt: skip
    shown = {one.key: one.value for one in explain(given(*pairs, ("num.io.threads", "9"))).keys}
    assert shown == {**{name: None for name, _ in pairs}, "num.io.threads": "9"}


def test_a_key_without_a_value_chooses_nothing() -> None:
    for name in (
        "zookeeper.connect",
        "principal.builder.class",
        "rsm.config.bucket",
        "confluent.tier.enable",
    ):
        assert outcome(name, " ", ("firn.config.strict", "true")) == "warned", name
    assert outcome("ssl.protocol", "TLS") == "warned"
    assert outcome("ssl.protocol", "TLSv1.2") == "refused"
