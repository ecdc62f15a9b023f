"""Keys of logins with tokens (OAUTHBEARER). [P]

From Apache Kafka's `SaslConfigs` and `BrokerSecurityConfigs` of 4.3.1. The URLs that may be read are a system
property of Java there; here it is a key of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.config.tables.columns import CLASS, INT, LIST, LONG, STRING, key

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
SECURED_HANDLER: Final = f"{_PACKAGE}OAuthBearerValidatorCallbackHandler"
UNSECURED_HANDLER: Final = f"{_PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
LOGIN_HANDLER: Final = f"{_PACKAGE}OAuthBearerLoginCallbackHandler"
FILE_RETRIEVER: Final = f"{_PACKAGE}FileJwtRetriever"
_DEFAULT_RETRIEVER: Final = f"{_PACKAGE}DefaultJwtRetriever"
RETRIEVERS: Final = (_DEFAULT_RETRIEVER, FILE_RETRIEVER, f"{_PACKAGE}ClientCredentialsJwtRetriever")
"""Classes that Java's clients read tokens with, from files and from issuers."""
_DEFAULT_VALIDATOR: Final = f"{_PACKAGE}DefaultJwtValidator"
_BROKER_VALIDATOR: Final = f"{_PACKAGE}BrokerJwtValidator"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
SERVER_HANDLER: Final = "sasl.server.callback.handler.class"

_MOVED: Final = {
    f"{_PACKAGE}secured.{name}": f"{_PACKAGE}{name}"
    for name in ("OAuthBearerValidatorCallbackHandler", "OAuthBearerLoginCallbackHandler")
}
"""Names of before Kafka 4.0."""


def only_classes(*names: str) -> Callable[[str], str | None]:
    """Return a check for the name of one of these classes."""

    def problem(text: str) -> str | None:
        if text in names:
            return None
        if text in _MOVED:
            return f"The class is called {_MOVED[text]} since Kafka 4.0"
        return f"No other class can be loaded into a node that runs no Java: there is {', '.join(names)}"

    return problem


OAUTHBEARER_KEYS: Final = (
    key(
        SERVER_HANDLER, CLASS, None,
        f"What checks tokens: `{SECURED_HANDLER}` takes signed ones ([security](security.md)); without it "
        "tokens are not signed, and taken only where the login module has an option unsecuredValidator…. "
        "Counts only with the prefix of a listener and of OAUTHBEARER.",
        check=only_classes(SECURED_HANDLER, UNSECURED_HANDLER), per_listener=True, per_mechanism=True,
    ),
    key(
        JWKS_URL, STRING, None,
        "URL of the issuer's public keys: https, http on this machine, or file:. Has to be among "
        f"`{ALLOWED_URLS}`.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000,
        "Time between two looks at the issuer's keys. A file is looked at every ten seconds at least.",
        at_least=1, per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100,
        "Time to the next try after the keys could not be read; doubled after each further failure.",
        at_least=1, per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000,
        "Longest time to the next try after the keys could not be read.",
        at_least=1, per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.clock.skew.seconds", INT, 30,
        "Difference of clocks that is allowed when the times of a token are compared.",
        at_least=0, per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.expected.audience", LIST, (),
        "A token has to be for one of these (aud). Without any, one that says whom it is for is refused.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.expected.issuer", STRING, None,
        "A token has to be from this issuer (iss). Without it any issuer counts whose keys sign.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.scope.claim.name", STRING, "scope",
        "Claim with a token's scope, whose form is checked.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.sub.claim.name", STRING, "sub",
        "Claim with the name of the user.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.jwt.validator.class", CLASS, _DEFAULT_VALIDATOR,
        "Kafka's name for the check of signed tokens.",
        check=only_classes(_DEFAULT_VALIDATOR, _BROKER_VALIDATOR), per_listener=True, per_mechanism=True,
    ),
    key(
        TOKEN_URL, STRING, None,
        "Source of this node's own token, for logins at other nodes: file: and a path. The file is read at "
        f"each login. Has to be among `{ALLOWED_URLS}`.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.login.callback.handler.class", CLASS, None,
        "Kafka's name for logins at other nodes with a token.",
        check=only_classes(LOGIN_HANDLER), per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.oauthbearer.jwt.retriever.class", CLASS, _DEFAULT_RETRIEVER,
        "Kafka's name for the reading of this node's own token.",
        check=only_classes(_DEFAULT_RETRIEVER, FILE_RETRIEVER), per_listener=True, per_mechanism=True,
    ),
    key(
        ALLOWED_URLS, LIST, (),
        f"URLs that `{JWKS_URL}` and `{TOKEN_URL}` may name, and where these may redirect to. A system "
        "property of Java in Kafka.",
    ),
)  # fmt: skip
