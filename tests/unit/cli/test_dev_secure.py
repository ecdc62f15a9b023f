"""`firn dev --secure`: what it makes is made once, for its owner alone, and taken by nodes and clients."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.base.properties_file import load_properties
from service.base.world import system_world
from service.cli.dev import DEV_SETTINGS
from service.cli.dev_nodes import plan_nodes
from service.cli.dev_secure import DevSecurity, prepare, secured, secured_alone
from service.config.client import parse_client
from service.config.settings import BrokerConfig
from service.security.scram import credential_from, salted_password


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevSecurity:
    return prepare(tmp_path_factory.mktemp("dev") / "secure")


def test_everything_is_read_by_its_owner_alone(made: DevSecurity) -> None:
    assert made.folder.stat().st_mode & 0o777 == 0o700
    files = list(made.folder.iterdir())
    assert len(files) == 9
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    first = prepare(tmp_path / "secure")
    before = {path.name: path.read_text() for path in first.folder.iterdir()}
    first.java("admin").unlink()
    again = prepare(tmp_path / "secure")
    assert {path.name: path.read_text() for path in again.folder.iterdir()} == before
    first.node.unlink()
    prepare(tmp_path / "secure")
    assert first.ca.read_text() != before["ca.pem"]


@pytest.mark.parametrize("user", ["admin", "alice"])
def test_both_kinds_of_clients_properties_say_the_same(made: DevSecurity, user: str) -> None:
    java = parse_client(load_properties(str(made.java(user))))
    other = parse_client(load_properties(str(made.librdkafka(user))))
    assert (java.protocol, java.mechanism, java.ca_location) == ("SASL_SSL", "SCRAM-SHA-512", str(made.ca))
    assert (other.protocol, other.mechanism, other.ca_location) == (
        java.protocol,
        java.mechanism,
        str(made.ca),
    )
    assert other.username == user
    assert other.password == made.password(user).read_text().rstrip()
    assert java.jaas is not None
    assert f'username="{user}" password="{other.password}"' in java.jaas


def test_the_credentials_are_those_of_the_passwords(made: DevSecurity) -> None:
    for record in made.credentials():
        password = made.password(record.name).read_text().rstrip().encode()
        salted = salted_password("SCRAM-SHA-512", password, record.salt, record.iterations)
        keys = credential_from("SCRAM-SHA-512", salted, record.salt, record.iterations)
        assert (record.mechanism, record.stored_key) == (2, keys.stored_key)


def test_the_nodes_certificate_is_its_authoritys(made: DevSecurity) -> None:
    context = ssl.create_default_context(cafile=str(made.ca))
    context.load_cert_chain(made.node)
    (ca,) = context.get_ca_certs()
    assert ca["subject"] == ((("commonName", "firn dev CA"),),)


def test_a_node_that_is_alone_has_one_listener(made: DevSecurity, tmp_path: Path) -> None:
    given = {**DEV_SETTINGS, "allow.everyone.if.no.acl.found": "true"}
    config = BrokerConfig.from_properties(secured_alone(made, given, tmp_path, 0))
    (listener,) = config.listeners
    assert (listener.name, listener.protocol.name) == ("CLIENTS", "SASL_SSL")
    assert listener.port > 0
    (secured_listener,) = config.cluster.security.listeners
    assert secured_listener.sasl is not None
    assert [one.name for one in secured_listener.sasl.mechanisms] == ["SCRAM-SHA-512"]


@pytest.mark.parametrize("controllers", [1, 3])
def test_nodes_of_a_cluster_know_each_other_by_certificate(
    made: DevSecurity, tmp_path: Path, controllers: int
) -> None:
    settings = {**DEV_SETTINGS, **made.settings(is_cluster=True)}
    ports = ([1, 2, 3], list(range(11, 11 + controllers)))
    plan = plan_nodes(3, controllers, ports, tmp_path, system_world(), settings)
    plan = secured(plan, [21, 22, 23], "127.0.0.1")
    for at, node in enumerate(plan.nodes):
        config = BrokerConfig.from_properties(node.settings)
        places = [(one.name, one.port, one.protocol.name) for one in config.listeners]
        assert places == [("CLIENTS", at + 1, "SASL_SSL"), ("INTERNAL", at + 21, "SSL")]
        assert config.cluster.inter_broker_listener_name == "INTERNAL"
        assert len(config.cluster.controller_listeners) == (1 if at < controllers else 0)
        secrets = [made.password(user).read_text().rstrip() for user in ("admin", "alice")]
        assert not [one for one in secrets if one in " ".join(node.child("info").command)]


def test_a_missing_package_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ConfigError, match=r"its extra \[security\]"):
        prepare(tmp_path / "secure")
