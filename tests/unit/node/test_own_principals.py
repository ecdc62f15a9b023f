"""Principals of a node at other nodes, beside `super.users`."""

from __future__ import annotations

import pytest

from service.config.protocols import SecurityProtocol
from service.config.security import OutgoingSecurity, TlsSettings
from service.config.settings import BrokerConfig
from service.node.own_principals import principal_at, principal_complaints

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
NODE = {
    "authorizer.class.name": AUTHORIZER,
    "process.roles": "broker",
    "node.id": "2",
    "listeners": "BROKERS://127.0.0.1:1",
    "inter.broker.listener.name": "BROKERS",
    "controller.listener.names": "C",
    "controller.quorum.voters": "1@c:1",
}
LOGIN = {
    **NODE,
    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,C:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": f'{SCRAM} username="broker" password="geheim";',
    "listener.name.c.plain.sasl.jaas.config": f'{PLAIN} username="node" password="geheim";',
}
PLAINTEXT = {**NODE, "listener.security.protocol.map": "BROKERS:PLAINTEXT,C:PLAINTEXT"}
END = "and super.users does not name it: without an ACL for CLUSTER_ACTION they refuse its requests"


def complaints(properties: dict[str, str]) -> list[str]:
    return list(principal_complaints(BrokerConfig.from_properties(properties)))


def test_a_node_that_logs_in_is_told_which_users_it_is() -> None:
    assert complaints(LOGIN) == [
        f"this node is User:broker at listeners BROKERS of other nodes, {END}",
        f"this node is User:node at listeners C of other nodes, {END}",
    ]


def test_super_users_are_not_complained_of() -> None:
    assert complaints({**LOGIN, "super.users": "User:broker;User:node"}) == []
    assert complaints({**LOGIN, "super.users": "User:broker"}) == [
        f"this node is User:node at listeners C of other nodes, {END}"
    ]


def test_a_node_without_a_login_is_anonymous() -> None:
    assert complaints(PLAINTEXT) == [
        f"this node is User:ANONYMOUS at listeners BROKERS, C of other nodes, {END}"
    ]
    assert complaints({**PLAINTEXT, "super.users": "User:ANONYMOUS"}) == []


@pytest.mark.parametrize("settings", [LOGIN, PLAINTEXT])
def test_a_node_without_an_authorizer_needs_no_super_users(settings: dict[str, str]) -> None:
    assert complaints({**settings, "authorizer.class.name": ""}) == []


def test_a_node_that_is_alone_asks_nobody() -> None:
    assert complaints({"authorizer.class.name": AUTHORIZER}) == []


def test_names_from_certificates_and_unreadable_modules_are_left_to_the_other_nodes() -> None:
    name = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
    left = [f"this node is User:node at listeners C of other nodes, {END}"]
    assert complaints({**LOGIN, name: "nonsense"}) == left
    assert complaints({**LOGIN, name: f"{SCRAM};"}) == left
    assert principal_at(OutgoingSecurity("B", SecurityProtocol.SSL, TlsSettings())) is None
