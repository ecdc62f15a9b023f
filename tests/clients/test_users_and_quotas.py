"""Users' SCRAM credentials and client quotas, as Kafka's own tool and confluent-kafka set and read them."""

from __future__ import annotations

import uuid

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import Broker
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until


def new_name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def configs(broker: Broker, *arguments: str) -> str:
    return tool("configs", "--bootstrap-server", broker.bootstrap, *arguments)


def described(broker: Broker, *entity: str) -> str:
    return configs(broker, "--describe", *entity)


@pytest.mark.java
def test_kafka_configs_sets_reads_and_deletes_quotas(broker: Broker) -> None:
    user, client = new_name("user"), new_name("client")
    entity = ("--entity-type", "users", "--entity-name", user)
    configs(broker, "--alter", *entity, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    both = (*entity, "--entity-type", "clients", "--entity-name", client)
    configs(broker, "--alter", *both, "--add-config", "consumer_byte_rate=2048")
    defaults = (*entity, "--entity-type", "clients", "--entity-default")
    configs(broker, "--alter", *defaults, "--add-config", "controller_mutation_rate=0.5")
    wait_until("the quotas to be known", lambda: "consumer_byte_rate" in described(broker, *both))
    said = described(broker, *entity)
    assert f"Quota configs for user-principal '{user}' are " in said
    assert "producer_byte_rate=1024.0" in said
    assert "request_percentage=12.5" in said
    said = described(broker, *both)
    assert (
        f"Quota configs for user-principal '{user}', client-id '{client}' are consumer_byte_rate=2048.0"
        in said
    )
    said = described(broker, *defaults)
    assert f"user-principal '{user}', the default client-id are controller_mutation_rate=0.5" in said
    configs(broker, "--alter", *both, "--delete-config", "consumer_byte_rate")
    wait_until("the quota to be gone", lambda: "consumer_byte_rate" not in described(broker, *both))
    configs(broker, "--alter", *entity, "--delete-config", "producer_byte_rate,request_percentage")
    configs(broker, "--alter", *defaults, "--delete-config", "controller_mutation_rate")
    wait_until("all of them to be gone", lambda: "Quota configs" not in described(broker, *entity))


@pytest.mark.java
@pytest.mark.parametrize(
    ("entity", "change", "words"),
    [
        ("users --entity-default", "consumer_byte_rate=5000000", "the default user-principal"),
        ("clients --entity-default", "producer_byte_rate=5000000", "the default client-id"),
        ("ips --entity-default", "connection_creation_rate=5000000", "the default ip"),
        ("ips --entity-name 192.0.2.7", "connection_creation_rate=5000000", "ip '192.0.2.7'"),
    ],
)
def test_kafka_configs_sets_quotas_of_defaults_and_addresses(
    broker: Broker, entity: str, change: str, words: str
) -> None:
    named, key = ("--entity-type", *entity.split()), change.partition("=")[0]
    configs(broker, "--alter", *named, "--add-config", change)
    try:
        wait_until("the quota to be known", lambda: key in described(broker, *named))
        assert f"Quota configs for {words} are {key}=5000000.0" in described(broker, *named)
    finally:
        configs(broker, "--alter", *named, "--delete-config", key)
    wait_until("the quota to be gone", lambda: key not in described(broker, *named))


@pytest.mark.java
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("producer_byte_rate=0", b"producer_byte_rate must be greater than 0"),
        ("producer_byte_rate=1.5", b"cannot be a fractional value"),
        ("request_percentage=-1", b"request_percentage must be greater than 0"),
    ],
)
def test_kafka_configs_says_why_a_quota_is_refused(broker: Broker, change: str, words: bytes) -> None:
    entity = ("--entity-type", "users", "--entity-name", new_name("user"))
    refused = run_tool(
        "configs", "--bootstrap-server", broker.bootstrap, "--alter", *entity, "--add-config", change
    )
    assert refused.returncode != 0
    assert words in refused.stdout + refused.stderr


@pytest.mark.java
def test_kafka_configs_sets_reads_and_deletes_credentials(broker: Broker) -> None:
    user = new_name("user")
    entity = ("--entity-type", "users", "--entity-name", user)
    configs(broker, "--alter", *entity, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    configs(broker, "--alter", *entity, "--add-config", "SCRAM-SHA-512=[password=other]")
    wait_until("both to be known", lambda: "SCRAM-SHA-512" in described(broker, *entity))
    said = described(broker, *entity)
    assert f"SCRAM credential configs for user-principal '{user}' are " in said
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert "SCRAM-SHA-512=iterations=4096" in said
    assert "secret" not in said
    configs(broker, "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
    wait_until("one to be gone", lambda: "SCRAM-SHA-256" not in described(broker, *entity))
    configs(broker, "--alter", *entity, "--delete-config", "SCRAM-SHA-512")
    refused = run_tool(
        "configs",
        "--bootstrap-server",
        broker.bootstrap,
        "--alter",
        *entity,
        "--delete-config",
        "SCRAM-SHA-512",
    )
    assert refused.returncode != 0
    assert b"Attempt to delete a user credential that does not exist" in refused.stdout + refused.stderr


def test_confluent_sets_reads_and_deletes_credentials(broker: Broker) -> None:
    client, user = broker.admin.client, new_name("user")
    sha = confluent_admin.ScramMechanism.SCRAM_SHA_256
    info = confluent_admin.ScramCredentialInfo(sha, 10_000)
    for done in client.alter_user_scram_credentials(
        [confluent_admin.UserScramCredentialUpsertion(user, info, b"secret")]
    ).values():
        done.result(20)

    def known() -> bool:
        try:
            client.describe_user_scram_credentials([user])[user].result(20)
        except confluent_kafka.KafkaException:
            return False
        return True

    wait_until("the credential to be known", known)
    found = client.describe_user_scram_credentials([user])[user].result(20)
    assert [(one.mechanism, one.iterations) for one in found.scram_credential_infos] == [(sha, 10_000)]
    few = confluent_admin.ScramCredentialInfo(sha, 4095)
    (refused,) = client.alter_user_scram_credentials(
        [confluent_admin.UserScramCredentialUpsertion(user, few, b"secret")]
    ).values()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        refused.result(20)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.UNACCEPTABLE_CREDENTIAL
    for done in client.alter_user_scram_credentials(
        [confluent_admin.UserScramCredentialDeletion(user, sha)]
    ).values():
        done.result(20)
    wait_until("the credential to be gone", lambda: not known())
