"""Settings of OAUTHBEARER: what a listener needs, what is refused, and what is complained of."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig
from service.config.oauthbearer import KeySetSettings, OAuthBearerSettings
from service.config.security import NodeSecurity

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
OWN = "listener.name.sasl_plaintext.oauthbearer."
JAAS = {f"{OWN}sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required;"}
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
URL = "https://issuer.test/keys"
HANDLER = f"{OWN}sasl.server.callback.handler.class"
BASE = {"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl.enabled.mechanisms": "OAUTHBEARER", **JAAS}
SIGNED = {
    **BASE,
    HANDLER: f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
    f"{OWN}sasl.oauthbearer.jwks.endpoint.url": URL,
    ALLOWED: f"https://other.test, {URL}",
}


def read(properties: dict[str, str]) -> NodeSecurity:
    return ClusterConfig.from_properties(properties).security


def tokens(properties: dict[str, str]) -> OAuthBearerSettings | None:
    sasl = read(properties).listeners[0].sasl
    return sasl.mechanism("OAUTHBEARER").oauthbearer


def refused(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        read(properties)
    return str(raised.value)


def test_signed_tokens_have_kafkas_defaults() -> None:
    keys = KeySetSettings(URL, None, ("https://other.test", URL), 3_600_000, 100, 10_000)
    assert tokens(SIGNED) == OAuthBearerSettings(keys, (), None, 30, "sub", "scope")
    assert read(SIGNED).takes_signed_tokens


def test_the_most_specific_key_counts() -> None:
    more = {
        "sasl.oauthbearer.expected.audience": "all",
        "listener.name.sasl_plaintext.sasl.oauthbearer.expected.issuer": "of the listener",
        f"{OWN}sasl.oauthbearer.expected.audience": "a,b",
        f"{OWN}sasl.oauthbearer.clock.skew.seconds": "5",
        "sasl.oauthbearer.sub.claim.name": " azp ",
    }
    found = tokens({**SIGNED, **more})
    assert (found.expected_audience, found.expected_issuer) == (("a", "b"), "of the listener")
    assert (found.clock_skew_seconds, found.sub_claim_name) == (5, "azp")


def test_a_file_has_keys_too() -> None:
    url = "file:///etc/firn/my%20keys.json"
    found = tokens({**SIGNED, f"{OWN}sasl.oauthbearer.jwks.endpoint.url": url, ALLOWED: url})
    assert found.key_set.path == "/etc/firn/my keys.json"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({ALLOWED: ""}, "is not among org.apache.kafka.sasl.oauthbearer.allowed.urls"),
        ({ALLOWED: URL + "/"}, "is not among"),
        ({f"{OWN}sasl.oauthbearer.jwks.endpoint.url": ""}, "is not set: "),
        ({f"{OWN}sasl.oauthbearer.jwks.endpoint.url": "http://issuer.test/keys"}, "is not encrypted"),
        ({f"{OWN}sasl.oauthbearer.jwks.endpoint.url": "ftp://issuer.test/keys"}, "is no URL of https"),
        ({f"{OWN}sasl.oauthbearer.jwks.endpoint.url": "file:keys"}, "is no URL of https"),
        ({HANDLER: "com.acme.Own"}, "No other class can be loaded"),
        ({HANDLER: f"{PACKAGE}secured.OAuthBearerValidatorCallbackHandler"}, "since Kafka 4.0"),
        (
            {"sasl.server.callback.handler.class": f"{PACKAGE}OAuthBearerValidatorCallbackHandler"},
            "counts only",
        ),
        ({"sasl.oauthbearer.jwt.validator.class": f"{PACKAGE}ClientJwtValidator"}, "No other class"),
        ({"sasl.oauthbearer.sub.claim.name": " "}, "a claim has to have a name"),
        ({"org.apache.kafka.sasl.oauthbearer.allowed.files": "/x"}, "allowed.files: refused"),
        ({"sasl.oauthbearer.assertion.file": "/x"}, "tokens of nodes are read from files"),
    ],
)
def test_settings_that_would_not_work_are_refused(more: dict[str, str], reason: str) -> None:
    assert reason in refused({**SIGNED, **more})


@pytest.mark.parametrize(
    "url", ["https://me:se:cret@issuer.test/keys", "http://issuer.test/keys?key=se:cret"]
)
def test_a_refused_url_is_told_without_its_secrets(url: str) -> None:
    told = refused({**SIGNED, f"{OWN}sasl.oauthbearer.jwks.endpoint.url": url})
    assert "//issuer.test/keys" in told
    assert "se:cret" not in told


def test_keys_without_the_handler_have_no_effect() -> None:
    text = refused({**BASE, f"{OWN}sasl.oauthbearer.jwks.endpoint.url": URL})
    assert "has no effect without" in text
    assert tokens(BASE).key_set is None
    assert not read(BASE).takes_signed_tokens


def test_doubtful_settings_are_complained_of() -> None:
    (unsigned,) = read(BASE).complaints
    assert "tokens that nobody has signed" in unsigned
    audience, issuer = read(SIGNED).complaints
    assert "for nobody in particular" in audience
    assert "of any issuer" in issuer
    known = {"sasl.oauthbearer.expected.issuer": "i", "sasl.oauthbearer.expected.audience": "a"}
    assert read({**SIGNED, **known}).complaints == ()
    (open_tokens,) = read({**SIGNED, **known, "listeners": "SASL_PLAINTEXT://0.0.0.0:1",
                           "advertised.listeners": "SASL_PLAINTEXT://a:1"}).complaints  # fmt: skip
    assert "takes tokens (OAUTHBEARER) over connections that are not encrypted" in open_tokens


def test_a_nodes_own_token_is_in_a_file() -> None:
    token = "listener.name.c.oauthbearer.sasl.oauthbearer.token.endpoint.url"
    handler = "listener.name.c.oauthbearer.sasl.login.callback.handler.class"
    broker = {
        "process.roles": "broker", "node.id": "4", "listeners": "B://127.0.0.1:1",
        "controller.quorum.voters": "1@c:9093,2@d:9093", "controller.listener.names": "C",
        "listener.security.protocol.map": "B:PLAINTEXT,C:SASL_PLAINTEXT", "inter.broker.listener.name": "B",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "listener.name.c.oauthbearer.sasl.jaas.config": JAAS[f"{OWN}sasl.jaas.config"],
    }  # fmt: skip
    good = {token: "file:///t", handler: f"{PACKAGE}OAuthBearerLoginCallbackHandler", ALLOWED: "file:///t"}
    assert read({**broker, **good}).controller.token_path == "/t"
    assert "with a token from a file" in refused(broker)
    assert "with a token from a file" in refused({**broker, **good, token: "https://issuer.test/token"})
    assert "is not among" in refused({**broker, **good, ALLOWED: ""})
    del good[handler]
    assert "has to be" in refused({**broker, **good})
