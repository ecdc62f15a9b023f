"""Keys of SASL and of connections that log in. [P]

From Apache Kafka's `SaslConfigs`, `BrokerSecurityConfigs`, `KRaftConfigs` and `SocketServerConfigs` of 4.3.1.
"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import INT, LIST, LONG, PASSWORD, STRING, key

GSSAPI: Final = "GSSAPI"

SASL: Final = (
    key(
        "sasl.enabled.mechanisms", LIST, (GSSAPI,),
        "Mechanisms of a SASL listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Kafka's default, "
        "GSSAPI, is not served: a SASL listener has to name others.",
        per_listener=True,
    ),
    key(
        "sasl.mechanism.inter.broker.protocol", STRING, GSSAPI,
        "Mechanism with which this broker logs in at other brokers. GSSAPI is not served: name one that is.",
    ),
    key(
        "sasl.mechanism.controller.protocol", STRING, GSSAPI,
        "Mechanism with which this node logs in at controllers. GSSAPI is not served: name one that is. "
        "Controllers among themselves cannot use SCRAM.",
    ),
    key(
        "sasl.jaas.config", PASSWORD, None,
        "Login module and its options, in the format of JAAS files. Counts only with the prefix of a "
        "listener and a mechanism: `listener.name.internal.scram-sha-512.sasl.jaas.config`.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "sasl.server.max.receive.size", INT, 524_288,
        "Largest request of a connection that has not logged in; a larger one closes it.",
        at_least=1, per_listener=True,
    ),
    key(
        "connections.max.reauth.ms", LONG, 0,
        "Time after which a client has to log in again; 0: never.",
        per_listener=True, per_mechanism=True,
    ),
    key(
        "connection.failed.authentication.delay.ms", INT, 100,
        "Time between a login that failed and the answer to it, after which the connection is closed.",
        at_least=0,
    ),
    key(
        "firn.authentication.timeout.ms", INT, 10_000,
        "Time from the start of a connection to the end of its TLS handshake and login, on listeners that "
        "are not PLAINTEXT; a slower connection is closed.",
        at_least=1,
    ),
)  # fmt: skip
