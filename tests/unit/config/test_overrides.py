"""Keys of one listener, and of one mechanism of it."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.config.describing import describe_broker, describe_broker_default
from service.config.overrides import (
    may_be_secret,
    of_all_listeners,
    of_listeners,
    parse_node,
    split,
    value_for,
)
from service.config.settings import BrokerConfig
from tests.unit.config.refusals import refused

TWO = {
    "listeners": "INTERNAL://127.0.0.1:1,EXTERNAL://127.0.0.1:2",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}


def test_the_most_specific_value_counts() -> None:
    problems: list[str] = []
    values = parse_node(
        {
            "connections.max.reauth.ms": "1",
            "listener.name.internal.connections.max.reauth.ms": "2",
            "listener.name.internal.scram-sha-512.connections.max.reauth.ms": "3",
            "listener.name.other.plain.connections.max.reauth.ms": "4",
        },
        problems,
    )
    key = "connections.max.reauth.ms"
    assert not problems
    assert value_for(values, key, "INTERNAL", "SCRAM-SHA-512") == 3
    assert value_for(values, key, "INTERNAL", "PLAIN") == 2
    assert value_for(values, key, "INTERNAL") == 2
    assert value_for(values, key, "OTHER") == 1
    assert value_for(values, key, "OTHER", "PLAIN") == 4


def test_a_name_is_taken_apart() -> None:
    one = split("listener.name.internal.scram-sha-256.sasl.jaas.config")
    assert (one.listener, one.mechanism, one.key.name) == ("internal", "scram-sha-256", "sasl.jaas.config")
    one = split("listener.name.internal.sasl.jaas.config")
    assert (one.listener, one.mechanism, one.key.name) == ("internal", "", "sasl.jaas.config")
    one = split("listener.name.a.b-c.ssl.client.auth")
    assert (one.listener, one.mechanism, one.key.name) == ("a.b-c", "", "ssl.client.auth")
    one = split("listener.name.plain.ssl.client.auth")
    assert (one.listener, one.mechanism, one.key.name) == ("plain", "", "ssl.client.auth")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "listener.name.intrenal.ssl.client.auth",
            "none",
            "listener.name.intrenal.ssl.client.auth: there is no listener called 'intrenal'; did you mean "
            "'internal'?",
        ),
        (
            "listener.name.Internal.ssl.client.auth",
            "none",
            "listener.name.Internal.ssl.client.auth: the listener's name is in lower case here: internal",
        ),
        (
            "listener.name.internal.ssl.client.aut",
            "none",
            "listener.name.internal.ssl.client.aut: unknown configuration key of a listener; did you mean "
            "'ssl.client.auth'?",
        ),
        (
            "listener.name.internal.ssl.client.auth",
            "maybe",
            "Invalid value maybe for configuration listener.name.internal.ssl.client.auth: String must be "
            "one of: required, requested, none",
        ),
        (
            "listener.name.internal.num.partitions",
            "1",
            "listener.name.internal.num.partitions: num.partitions cannot be set for one listener",
        ),
        (
            "listener.name.internal.ssl.provider",
            "BC",
            "listener.name.internal.ssl.provider: refused: TLS is OpenSSL's: there are no providers to "
            "choose among; take it out",
        ),
        (
            "listener.name.internal.scram-sha-1.sasl.jaas.config",
            "x",
            "listener.name.internal.scram-sha-1.sasl.jaas.config: there is no SASL mechanism 'scram-sha-1'; "
            "did you mean 'scram-sha-512'?",
        ),
        (
            "listener.name.internal.plain.ssl.client.auth",
            "none",
            "listener.name.internal.plain.ssl.client.auth: ssl.client.auth cannot be set for one mechanism",
        ),
        ("listener.name.internal.", "x", "listener.name.internal.: unknown configuration key of a listener"),
        ("listener.name.", "x", "listener.name.: unknown configuration key of a listener"),
    ],
)
def test_keys_that_no_listener_has_are_refused(name: str, value: str, message: str) -> None:
    assert refused({**TWO, name: value}) == message


def test_the_controllers_listener_has_keys_on_a_broker_too() -> None:
    broker = {
        "process.roles": "broker",
        "node.id": "2",
        "controller.quorum.voters": "1@c:9093",
        "controller.listener.names": "CONTROLLER",
    }
    assert BrokerConfig.from_properties({**broker, "listener.name.controller.ssl.keystore.location": "/x"})


def test_kafkas_default_of_a_key_without_effect_is_taken_for_a_listener_too() -> None:
    name = "listener.name.internal.ssl.protocol"
    node = BrokerConfig.from_properties({**TWO, name: "TLSv1.3"})
    assert name not in {one.name for one in describe_broker(node)}
    assert "the versions of TLS are those of ssl.enabled.protocols" in refused({**TWO, name: "TLSv1.2"})


def test_keys_of_a_listener_are_described_with_the_key_of_all_as_synonym() -> None:
    name = "listener.name.internal.ssl.client.auth"
    node = BrokerConfig.from_properties({**TWO, name: "required", "ssl.client.auth": "requested"})
    one = next(one for one in describe_broker(node) if one.name == name)
    assert (one.value, one.source, one.is_default, one.read_only) == ("required", 4, False, True)
    assert [(s.name, s.value, s.source) for s in one.synonyms] == [
        (name, "required", 4),
        ("ssl.client.auth", "requested", 4),
        ("ssl.client.auth", "none", 5),
    ]


class TestWhileTheNodeRuns:
    NODE = BrokerConfig.from_properties(TWO)

    def test_a_store_of_one_listener_of_one_broker_can_change(self) -> None:
        name = "listener.name.internal.ssl.keystore.location"
        changed = self.NODE.with_dynamic({name: "/new.pem"}, {})
        one = next(one for one in describe_broker(changed) if one.name == name)
        assert (one.value, one.source) == ("/new.pem", 2)

    @pytest.mark.parametrize(
        ("own", "everyone", "message"),
        [
            (
                "ssl.keystore.location",
                "",
                "These security configs can be dynamically updated only per-listener using the listener "
                "prefix: [ssl.keystore.location]",
            ),
            (
                "listener.name.internal.ssl.client.auth",
                "",
                "Cannot update these configs dynamically: [listener.name.internal.ssl.client.auth]",
            ),
            (
                "listener.name.internal.ssl.keystore.password",
                "",
                "Cannot update these configs dynamically: [listener.name.internal.ssl.keystore.password]",
            ),
            (
                "",
                "listener.name.internal.ssl.truststore.location",
                "Cannot update these configs at default cluster level, broker id must be specified: "
                "[listener.name.internal.ssl.truststore.location]",
            ),
            (
                "listener.name.internl.ssl.truststore.location",
                "",
                "listener.name.internl.ssl.truststore.location: there is no listener called 'internl'; did "
                "you mean 'internal'?",
            ),
        ],
    )
    def test_nothing_else_of_a_listener_can(self, own: str, everyone: str, message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            self.NODE.with_dynamic({own: "none"} if own else {}, {everyone: "none"} if everyone else {})
        assert str(raised.value) == message

    def test_limits_of_a_listener_can_change_for_one_broker_and_for_all(self) -> None:
        name = "listener.name.internal.max.connections"
        changed = self.NODE.with_dynamic({name: "7"}, {name: "9", "max.connections": "20"})
        one = next(one for one in describe_broker(changed) if one.name == name)
        assert (one.value, one.source) == ("7", 2)
        assert [(s.name, s.value, s.source) for s in one.synonyms] == [
            (name, "7", 2),
            (name, "9", 3),
            ("max.connections", "20", 3),
            ("max.connections", "2147483647", 5),
        ]
        of_all = next(
            one for one in describe_broker(self.NODE.with_dynamic({}, {name: "9"})) if one.name == name
        )
        assert (of_all.value, of_all.source) == ("9", 3)
        described = describe_broker_default(changed)
        assert [(one.name, one.value, one.source, one.read_only) for one in described] == [
            (name, "9", 3, True),
            ("max.connections", "20", 3, False),
        ]

    def test_settings_of_a_listener_that_is_there_no_more_are_left_out(self) -> None:
        name = "listener.name.{}.ssl.keystore.location"
        settings = {name.format("internal"): "/a", name.format("old"): "/b", "num.io.threads": "1", "x": "y"}
        assert of_listeners(settings, self.NODE.cluster.listener_names) == {
            name.format("internal"): "/a",
            "num.io.threads": "1",
            "x": "y",
        }

    def test_a_controller_checks_keys_and_values_but_not_the_names_of_others_listeners(self) -> None:
        settings = {"listener.name.theirs.ssl.keystore.type": "PEM", "num.io.threads": "3"}
        assert of_all_listeners(settings) == {"num.io.threads": "3"}
        with pytest.raises(ConfigError, match="String must be one of: JKS, PKCS12, PEM"):
            of_all_listeners({"listener.name.theirs.ssl.keystore.type": "DER"})


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("ssl.key.password", True),
        ("listener.name.any.plain.sasl.jaas.config", True),
        ("delegation.token.secret.key", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("anything.else", True),
        ("listener.name.any.anything", True),
        ("num.io.threads", False),
        ("log.retention.ms", False),
        ("listener.name.any.ssl.keystore.location", False),
    ],
)
def test_a_key_that_is_not_known_may_be_secret(name: str, is_secret: bool) -> None:
    assert may_be_secret(name) == is_secret
