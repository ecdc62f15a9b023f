"""Settings of librdkafka from options in Java's names or its own."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.client.librdkafka import librdkafka_settings
from service.config.client import parse_client

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
TOKENS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "s",
}


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": f'{SCRAM} username="a" password="b\\"c";'},
        {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": 'b"c'},
    ],
)
def test_a_login_by_password_has_the_same_settings_under_both_names(given: dict[str, str]) -> None:
    given |= {"security.protocol": "SASL_SSL", "ssl.ca.location": "ca.pem"}
    assert librdkafka_settings(parse_client(given)) == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "a",
        "sasl.password": 'b"c',
    }


def test_a_keystore_in_one_file_is_certificate_and_key() -> None:
    given = {
        "security.protocol": "SSL",
        "ssl.keystore.location": "both.pem",
        "ssl.keystore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka_settings(parse_client(given)) == {
        "security.protocol": "SSL",
        "ssl.certificate.location": "both.pem",
        "ssl.key.location": "both.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_tokens_come_from_the_issuer() -> None:
    found = librdkafka_settings(parse_client({**TOKENS, "sasl.oauthbearer.scope": "logs"}))
    assert found["sasl.oauthbearer.method"] == "oidc"
    assert found["sasl.oauthbearer.token.endpoint.url"] == "https://issuer/token"
    assert found["sasl.oauthbearer.scope"] == "logs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": "file:///t"}, "takes tokens by https"),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f'{SCRAM} username="a" password="b" tokenauth="true";',
            },
            "delegation token",
        ),
    ],
)
def test_logins_that_librdkafka_lacks_are_refused(change: dict[str, str], words: str) -> None:
    given = {"security.protocol": "SASL_SSL"} if "sasl.jaas.config" in change else dict(TOKENS)
    with pytest.raises(ConfigError, match=words):
        librdkafka_settings(parse_client(given | change))
