"""Settings of librdkafka (the package confluent-kafka) from options of a client. [P]"""

from __future__ import annotations

from service.base.errors import ConfigError
from service.config.client import ClientOptions
from service.config.oauthbearer import OAUTHBEARER
from service.security.jaas import read_jaas


def librdkafka_settings(options: ClientOptions) -> dict[str, str]:
    """Return the settings of connection and login that `options` say.

    Raises `ConfigError` for a login module that librdkafka has no words for.
    """
    found = {"security.protocol": options.protocol}
    if options.client_id is not None:
        found["client.id"] = options.client_id
    if options.uses_tls:
        given = {
            "ssl.ca.location": options.ca_location,
            "ssl.certificate.location": options.certificate_location,
            "ssl.key.location": options.key_location or options.certificate_location,
            "ssl.key.password": options.key_password,
        }
        found |= {name: value for name, value in given.items() if value is not None}
        found["ssl.endpoint.identification.algorithm"] = "https" if options.checks_hostname else "none"
    if options.uses_sasl:
        found["sasl.mechanisms"] = options.mechanism or ""
        found |= _tokens(options) if options.mechanism == OAUTHBEARER else _password(options)
    return found


def _password(options: ClientOptions) -> dict[str, str]:
    if options.jaas is None:
        return {"sasl.username": options.username, "sasl.password": options.password}
    module = read_jaas(options.jaas)
    if module.options.get("tokenauth", "").lower() == "true":
        raise ConfigError("sasl.jaas.config: librdkafka has no login by delegation token (tokenauth)")
    return {
        "sasl.username": module.options.get("username", ""),
        "sasl.password": module.options.get("password", ""),
    }


def _tokens(options: ClientOptions) -> dict[str, str]:
    if options.jaas is not None:
        raise ConfigError("sasl.jaas.config: say sasl.oauthbearer.client.id, ….secret and ….scope instead")
    if options.token_url is None or not options.token_url.startswith(("https:", "http:")):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url: librdkafka takes tokens by https:// alone")
    found = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": options.token_url,
        "sasl.oauthbearer.client.id": options.token_client_id,
        "sasl.oauthbearer.client.secret": options.token_client_secret,
    }
    if options.token_scope is not None:
        found["sasl.oauthbearer.scope"] = options.token_scope
    if options.token_extensions:
        found["sasl.oauthbearer.extensions"] = ",".join(f"{k}={v}" for k, v in options.token_extensions)
    if options.token_ca is not None:
        found["https.ca.location"] = options.token_ca
    return found
