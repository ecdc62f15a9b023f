"""Secrets of a machine's nodes: fetched by their ARNs alone, tried, written for one user, fetched again."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from infra.boot.firn_boot.__main__ import main
from infra.boot.firn_boot.document import Document, parse
from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.fetching import secret, sign
from infra.boot.firn_boot.secret_files import step_secrets
from infra.boot.firn_boot.steps import everything
from service.base.properties import parse_properties
from service.config.client import parse_client
from service.config.cluster import ClusterConfig
from service.config.providers import resolved
from service.config.settings import BrokerConfig
from tests.support.certificates import Authority
from tests.support.model_machine import ModelMachine, package
from tests.support.stores import CREDENTIALS, moto_server

TAR = package()
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
VOTERS = [f"{900 + c}@firn-c{c}.firn.internal:9093:{letter * 21}A" for c, letter in enumerate("abc", 1)]
HOME = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn"
ARNS = {name: f"{HOME}/{name}-a1b2c3" for name in ("node", "ca", "admin", "super_users")}
CA = Authority()
NODE = CA.issue("firn-node", hosts=("*.firn.internal",))
VALUES = {
    "node": NODE.key_pem() + NODE.chain_pem,
    "ca": CA.pem,
    "admin": "pa\\ss=word:#1",
    "super_users": "User:admin;User:CN=firn-node",
}


class Vault:
    """Secrets by ARN; those of `away` cannot be had."""

    def __init__(self, **changed: str) -> None:
        self.values = {ARNS[name]: text for name, text in {**VALUES, **changed}.items()}
        self.away: set[str] = set()
        self.asked: list[str] = []

    def get(self, arn: str) -> str:
        self.asked.append(arn)
        if arn in self.away:
            raise OSError("400 AccessDeniedException")
        return self.values[arn]


def document(**changes: Any) -> dict[str, Any]:
    return {
        "host": "firn-1.firn.internal",
        "nodes": [
            {"id": 1, "port": 9092, "http_port": 9464, "role": "broker", "internal_port": 9192},
            {"id": 1001, "port": 9093, "http_port": 9465, "role": "broker", "internal_port": 9193},
        ],
        "package": {"url": "s3://archive/packages/firn.tar", "sha256": hashlib.sha256(TAR).hexdigest()},
        "cluster": {"id": CLUSTER, "controllers": VOTERS, "formed": "s3://archive/formed"},
        "security": ARNS,
        **changes,
    }


CONTROLLER: dict[str, Any] = {
    "host": "firn-c1.firn.internal",
    "nodes": [{"id": 901, "port": 9093, "http_port": 9464, "role": "controller"}],
}


def alone() -> dict[str, Any]:
    changed = document(nodes=[{"id": 1, "port": 9092, "http_port": 9464}])
    del changed["cluster"]
    return changed


def read(changed: Mapping[str, Any]) -> Document:
    return parse(json.dumps(changed))


def boot(machine: ModelMachine, vault: Vault, changed: Mapping[str, Any] | None = None) -> None:
    everything(
        machine,
        read(changed or document()),
        "/etc/firn/machine.json",
        lambda _: iter([TAR]),
        lambda url, region, text, headers: text,
        vault.get,
    )


def files(machine: ModelMachine) -> dict[str, str]:
    return {path.name: path.read_text() for path in machine.path("etc/firn/secrets").iterdir()}


def test_a_machine_gets_its_secrets_and_nobody_else_reads_them(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    assert sorted(vault.asked) == sorted(ARNS.values())
    found = files(machine)
    assert found.pop("client.properties").splitlines()[0] == "security.protocol=SASL_SSL"
    assert found == {
        "node.pem": VALUES["node"],
        "ca.pem": VALUES["ca"],
        "admin.password": "pa\\ss=word:#1",
        "super.users": "User:admin;User:CN=firn-node",
    }
    home = machine.path("etc/firn/secrets")
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}
    assert {path.stat().st_uid for path in home.iterdir()} == {machine.number}
    # Neither what others may read, nor what is said, nor a command's arguments have any of them.
    others = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
    text = "".join(path.read_text() for path in others) + repr(machine.said) + repr(machine.commands)
    for hidden in ("pa\\ss", "pa\\\\ss", "PRIVATE KEY", "CN=firn-node"):
        assert hidden not in text


def test_files_belong_to_the_user_of_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, given = ModelMachine(tmp_path), list[int]()
    machine.number = 4711
    monkeypatch.setattr(os, "fchown", lambda _, owner, __: given.append(owner))
    boot(machine, Vault())
    assert given == [4711] * 5
    assert ("chown", "firn:firn", str(machine.path("etc/firn/secrets"))) in machine.commands


def test_the_file_of_a_client_is_read_as_it_was_meant(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    boot(machine, Vault())
    options = parse_client(dict(parse_properties(files(machine)["client.properties"])))
    assert (options.protocol, options.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (options.username, options.password) == ("admin", "pa\\ss=word:#1")
    assert options.ca_location == str(machine.path("etc/firn/secrets/ca.pem"))


def test_brokers_have_a_listener_for_clients_and_one_for_nodes(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    boot(machine, Vault())
    settings = dict(parse_properties(machine.path("etc/firn/server-1001.properties").read_text()))
    expected = {
        "listeners": "CLIENTS://0.0.0.0:9093,INTERNAL://0.0.0.0:9193",
        "advertised.listeners": "CLIENTS://firn-1.firn.internal:9093,INTERNAL://firn-1.firn.internal:9193",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.internal.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.location": "/etc/firn/secrets/node.pem",
        "ssl.truststore.location": "/etc/firn/secrets/ca.pem",
        "super.users": "${secrets:/etc/firn/secrets:super.users}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    assert {key: settings.get(key) for key in expected} == expected
    assert machine.formed == []
    assert machine.timers == {"firn-secrets.timer"}


def test_the_admin_is_made_with_the_cluster_from_a_file(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    boot(machine, Vault(), document(**CONTROLLER))
    user = f"SCRAM-SHA-512=[name=admin,password=@{tmp_path}/etc/firn/secrets/admin.password]"
    assert machine.formed == [f"--initial-controllers {','.join(VOTERS)} --add-scram {user}"]
    settings = dict(parse_properties(machine.path("etc/firn/server-901.properties").read_text()))
    assert settings["listeners"] == "CONTROLLER://0.0.0.0:9093"
    assert settings["listener.name.controller.ssl.client.auth"] == "required"
    assert settings["inter.broker.listener.name"] == "INTERNAL"  # where a broker is asked whether it lives
    assert "sasl.enabled.mechanisms" not in settings


def test_a_node_that_is_alone_is_formatted_with_the_admin_once(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    boot(machine, Vault(), alone())
    user = f"SCRAM-SHA-512=[name=admin,password=@{tmp_path}/etc/firn/secrets/admin.password]"
    assert machine.formed == [f"--add-scram {user}"]
    meta = machine.path("var/lib/firn/node-1/meta.properties").read_text()
    assert f"cluster.id={CLUSTER}" in meta
    settings = dict(parse_properties(machine.path("etc/firn/server-1.properties").read_text()))
    assert settings["listeners"] == "CLIENTS://0.0.0.0:9092"
    assert "inter.broker.listener.name" not in settings
    boot(machine, Vault(), alone())
    assert len(machine.formed) == 1
    other = ModelMachine(tmp_path / "other")
    boot(other, Vault(), {**alone(), "properties": {"firn.cluster.id": "A" * 22}})
    assert f"cluster.id={'A' * 22}" in other.path("var/lib/firn/node-1/meta.properties").read_text()


@pytest.mark.parametrize(
    "changed", [document(), document(**CONTROLLER), alone()], ids=["broker", "voter", "alone"]
)
def test_nodes_take_what_is_written_for_them(tmp_path: Path, changed: dict[str, Any]) -> None:
    machine = ModelMachine(tmp_path)
    boot(machine, Vault(), changed)
    home = str(machine.path("etc/firn/secrets"))
    for path in machine.path("etc/firn").glob("server-*.properties"):
        written = parse_properties(path.read_text().replace("/etc/firn/secrets", home))
        settings = resolved(dict(written), {})
        cluster = ClusterConfig.from_properties(settings)
        assert cluster.complaints() == []
        assert {one.protocol.name for one in cluster.security.listeners} <= {"SSL", "SASL_SSL"}
        assert BrokerConfig.from_properties(settings).super_users == "User:admin;User:CN=firn-node"


def test_nodes_tell_their_metrics_over_https_and_for_a_token_if_there_is_one(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    written = machine.path("etc/firn/server-1.properties")
    assert "firn.http.ssl.keystore.location=/etc/firn/secrets/node.pem" in written.read_text().splitlines()
    assert "firn.http.token.file" not in written.read_text() + files(machine)["client.properties"]
    secured = document(security={**ARNS, "metrics": f"{HOME}/metrics-a1b2c3"})
    vault.values[f"{HOME}/metrics-a1b2c3"] = "a-token-of-20-letters\n"
    boot(machine, vault, secured)
    assert files(machine)["metrics.token"] == "a-token-of-20-letters"
    assert machine.path("etc/firn/secrets/metrics.token").stat().st_mode & 0o777 == 0o600
    assert "firn.http.token.file=/etc/firn/secrets/metrics.token" in written.read_text().splitlines()
    place = machine.path("etc/firn/secrets/metrics.token")
    assert f"firn.http.token.file={place}" in files(machine)["client.properties"].splitlines()
    vault.values[f"{HOME}/metrics-a1b2c3"] = "short"
    with pytest.raises(BootError, match="a token has 16 to 4096 visible ASCII characters"):
        step_secrets(machine, read(secured), vault.get)
    assert files(machine)["metrics.token"] == "a-token-of-20-letters"


def test_without_security_nothing_is_asked_for(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    plain = document(nodes=[{"id": 1, "port": 9092, "http_port": 9464, "role": "broker"}])
    del plain["security"]
    boot(machine, vault, plain)
    assert vault.asked == []
    assert not machine.path("etc/firn/secrets").exists()
    assert machine.timers == set()
    settings = dict(parse_properties(machine.path("etc/firn/server-1.properties").read_text()))
    assert settings["listeners"] == "PLAINTEXT://0.0.0.0:9092"
    assert not [key for key in settings if key.startswith(("ssl.", "sasl.", "config.providers"))]


# -- fetched again


def test_a_renewed_certificate_is_written_and_no_node_restarted(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    renewed = CA.issue("firn-node", hosts=("*.firn.internal",))
    vault.values[ARNS["node"]] = renewed.key_pem() + renewed.chain_pem
    machine.said.clear()
    step_secrets(machine, read(document()), vault.get)
    assert files(machine)["node.pem"] == renewed.key_pem() + renewed.chain_pem
    assert machine.said == [f"{tmp_path}/etc/firn/secrets/node.pem has changed"]
    boot(machine, vault)
    assert set(machine.active.values()) == {1}


def test_secrets_that_are_as_they_were_are_not_written_again(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    before = {path: path.stat().st_ino for path in machine.path("etc/firn/secrets").iterdir()}
    machine.said.clear()
    step_secrets(machine, read(document()), vault.get)
    assert {path: path.stat().st_ino for path in machine.path("etc/firn/secrets").iterdir()} == before
    assert machine.said == []


def test_new_super_users_and_a_new_password_are_written(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    vault.values[ARNS["super_users"]] += ";User:CN=other\n"
    vault.values[ARNS["admin"]] = "another-password\n"
    machine.said.clear()
    step_secrets(machine, read(document()), vault.get)
    found = files(machine)
    assert found["super.users"] == "User:admin;User:CN=firn-node;User:CN=other"
    assert found["admin.password"] == "another-password"
    assert "sasl.password=another-password\n" in found["client.properties"]
    assert any(
        "super.users has changed; nodes know of it when they are restarted" in one for one in machine.said
    )


OTHER = CA.issue("firn-node")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("node", NODE.chain_pem, "no PEM with a key"),
        ("node", NODE.key_pem(), "no PEM with a key"),
        ("node", OTHER.key_pem() + NODE.chain_pem, "no PEM with a key"),
        ("node", NODE.key_pem("encrypted") + NODE.chain_pem, "no PEM with a key"),
        ("node", (NODE.key_pem() + NODE.chain_pem)[:400], "no PEM with a key"),
        ("ca", "nonsense", "no PEM with certificates"),
        ("ca", NODE.key_pem(), "no PEM with certificates"),
        ("admin", "", "8 to 256 visible"),
        ("admin", "two words", "8 to 256 visible"),
        ("admin", "line\nsasl.username=root", "8 to 256 visible"),
        ("super_users", "somebody", "principals are written as"),
        ("super_users", "User:admin\nlisteners=PLAINTEXT://:1", "principals are written as"),
        ("super_users", "User:admin;;User:b", "principals are written as"),
    ],
    ids=range(13),  # keys are new with each run
)
def test_a_secret_that_is_of_no_use_leaves_the_one_of_before(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    before = files(machine)
    vault.values[ARNS[name]] = text
    with pytest.raises(BootError, match=words) as told:
        step_secrets(machine, read(document()), vault.get)
    assert ARNS[name] in str(told.value)
    assert not text or text not in str(told.value)
    assert files(machine) == before
    assert set(machine.active.values()) == {1}


def test_a_vault_that_is_away_keeps_no_node_from_starting(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    boot(machine, vault)
    vault.away = set(ARNS.values())
    machine.active.clear()
    machine.said.clear()
    boot(machine, vault)
    assert len(machine.active) == 2
    assert len([one for one in machine.said if "AccessDenied" in one and "stays as it is" in one]) == 4


def test_a_first_start_without_one_of_them_is_tried_again(tmp_path: Path) -> None:
    machine, vault = ModelMachine(tmp_path), Vault()
    vault.away = {ARNS["node"]}
    with pytest.raises(BootError, match=f"secrets: {ARNS['node']}: 400 AccessDenied"):
        boot(machine, vault)
    assert machine.active == {}
    vault.away.clear()
    boot(machine, vault)
    assert len(machine.active) == 2


def test_every_step_can_fail_and_the_next_run_goes_on_from_there(tmp_path: Path) -> None:
    whole = ModelMachine(tmp_path / "whole")
    whole.root.mkdir()
    boot(whole, Vault(), document(**CONTROLLER))
    expected, failed = files(whole), set()
    for k in range(1, len(whole.commands) + 1):
        machine = ModelMachine(tmp_path / str(k))
        machine.root.mkdir()
        machine.fail_at = k
        with pytest.raises(BootError, match="planted") as told:
            boot(machine, Vault(), document(**CONTROLLER))
        failed.add(str(told.value).partition(":")[0])
        machine.fail_at = None
        boot(machine, Vault(), document(**CONTROLLER))
        assert files(machine).keys() == expected.keys(), k
        assert len(machine.formed) == 1, k
        assert machine.timers == {"firn-secrets.timer"}, k
    assert "secrets" in failed


# -- the document


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"security": []}, "security: an object"),
        ({"security": {}}, "admin, ca, node, super_users is missing"),
        ({"security": {**ARNS, "admin": "hunter2-and-more"}}, r"security\.admin: the ARN"),
        ({"security": {**ARNS, "admin": f"{HOME}*"}}, r"security\.admin: the ARN"),
        ({"security": {**ARNS, "password": "x"}}, "password is not known"),
        ({"nodes": [{"id": 1, "port": 9092, "http_port": 9464, "role": "broker"}]}, "internal_port"),
        (
            {"nodes": [{"id": 1, "port": 9092, "http_port": 9464, "role": "broker", "internal_port": 9092}]},
            "same id or port",
        ),
        (
            {"nodes": [{**CONTROLLER["nodes"][0], "internal_port": 9192}], "host": CONTROLLER["host"]},
            "internal",
        ),
        ({"properties": {"super.users": "User:me"}}, "super.users is made from"),
        ({"properties": {"listener.security.protocol.map": "CLIENTS:PLAINTEXT"}}, "is made from"),
    ],
)
def test_security_that_is_not_right_is_refused_by_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BootError, match=words):
        read(document(**changes))


def test_an_internal_port_without_security_is_refused() -> None:
    changed = document()
    del changed["security"]
    with pytest.raises(BootError, match=r"nodes\[0\]\.internal_port"):
        read(changed)


def test_parameters_of_ssm_are_taken_too() -> None:
    arn = "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/firn/admin"
    found = read(document(security={**ARNS, "admin": arn})).security
    assert found is not None
    assert found.admin == arn


# -- fetching


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_server(tmp_path) as endpoint:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        yield endpoint


def client(endpoint: str, service: str) -> Any:
    return boto3.client(service, endpoint_url=endpoint, region_name="eu-central-1")


def test_secrets_and_parameters_are_fetched_by_their_arns(cloud: str) -> None:
    vault, parameters = client(cloud, "secretsmanager"), client(cloud, "ssm")
    arn = vault.create_secret(Name="firn/node", SecretString="one")["ARN"]
    assert secret(arn) == "one"
    vault.put_secret_value(SecretId=arn, SecretString="two ä\n")
    assert secret(arn) == "two ä\n"
    parameters.put_parameter(Name="/firn/admin", Value="three", Type="SecureString")
    assert secret("arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin") == "three"
    binary = vault.create_secret(Name="firn/binary", SecretBinary=b"\0")["ARN"]
    with pytest.raises(OSError, match="no text"):
        secret(binary)
    with pytest.raises(OSError, match="ResourceNotFound"):
        secret(f"{HOME}/nothing-a1b2c3")


def test_the_command_fetches_again_and_says_what_failed(tmp_path: Path, cloud: str) -> None:
    vault = client(cloud, "secretsmanager")
    arns = {
        name: vault.create_secret(Name=f"firn/{name}", SecretString=text)["ARN"]
        for name, text in VALUES.items()
    }
    machine = ModelMachine(tmp_path / "machine")
    machine.users.add("firn")
    machine.write("etc/firn/machine.json", json.dumps(document(security=arns)))
    assert main(["--config", "etc/firn/machine.json", "secrets"], machine) == 0
    assert files(machine)["admin.password"] == VALUES["admin"]
    vault.put_secret_value(SecretId=arns["ca"], SecretString="nonsense")
    assert main(["--config", "etc/firn/machine.json", "secrets"], machine) == 1
    assert machine.said[-1].startswith(f"secrets: {arns['ca']}: no PEM with certificates")
    assert files(machine)["ca.pem"] == VALUES["ca"]


@pytest.mark.parametrize("token", ["", "a-session/token+=="])
def test_requests_for_secrets_are_signed_as_the_sdk_signs_them(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: now)
    host, body = "secretsmanager.eu-central-1.amazonaws.com", b'{"SecretId": "x"}'
    given = {
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": "secretsmanager.GetSecretValue",
    }
    request = botocore.awsrequest.AWSRequest("POST", f"https://{host}/", dict(given), body)
    keys = botocore.credentials.Credentials("AKID", "secret", token or None)
    botocore.auth.SigV4Auth(keys, "secretsmanager", "eu-central-1").add_auth(request)
    mine = {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": token}
    where = ("secretsmanager", "eu-central-1")
    ours = sign(mine, where, "POST", "/", now, {"host": host, **given}, body)
    assert ours["Authorization"] == request.headers["Authorization"]
