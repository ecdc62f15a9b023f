"""Apache Kafka's keys that a node refuses: without them it would be less safe than its file says. [P]"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Final

from service.config.foreign.foreign_key import Owner, refused

_refused = partial(refused, Owner.KAFKA)
_NO_CLASSES: Final = "classes cannot be loaded into a node that runs no Java"
_OPENSSL: Final = "TLS is OpenSSL's: there are no providers to choose among"
_CREDENTIALS: Final = "credentials come from the environment, never from a configuration key"
_AWS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"

REFUSED: Final = tuple(
    chain(
        _refused(
            "storage is built in",
            "name the bucket by firn.remote.url and take this key out",
            "remote.log.storage.", "rsm.config.",
        ),
        _refused(
            "storage is built in, and enabled by firn.remote.url",
            "set that, and this key to true, or take this key out",
            "remote.log.storage.system.enable",
        ),
        _refused(
            _NO_CLASSES,
            "take it out, and limit who may alter settings and create topics by ACLs",
            "alter.config.policy.class.name", "create.topic.policy.class.name",
        ),
        _refused(
            _NO_CLASSES,
            "take it out, and set quotas by `firn quota set`",
            "client.quota.callback.",
        ),
        _refused(
            _NO_CLASSES,
            "take it out, and map names of certificates by ssl.principal.mapping.rules",
            "principal.builder.class",
        ),
        _refused(
            _NO_CLASSES,
            "take it out, and give users and passwords in the listener's sasl.jaas.config",
            "sasl.client.callback.handler.class", "sasl.login.class",
        ),
        _refused(
            _NO_CLASSES,
            "take it out, and name PEM or PKCS12 files by ssl.keystore.location and ssl.truststore.location",
            "ssl.engine.factory.class",
        ),
        _refused(
            _OPENSSL,
            "take it out",
            "security.providers", "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
        ),
        _refused(
            "the versions of TLS are those of ssl.enabled.protocols",
            "set that and take this key out",
            "ssl.protocol",
        ),
        _refused(
            "GSSAPI is not served",
            "use SCRAM-SHA-512, or PLAIN over TLS, and take it out",
            "sasl.kerberos.",
        ),
        _refused(
            "tokens of nodes are read from files",
            "name the file by sasl.oauthbearer.token.endpoint.url=file:… and take this key out",
            "sasl.oauthbearer.assertion.", "sasl.oauthbearer.client.", "sasl.oauthbearer.header.",
            "sasl.oauthbearer.scope",
        ),
        _refused(
            "no key names a file without an URL",
            "put file: URLs into org.apache.kafka.sasl.oauthbearer.allowed.urls",
            "org.apache.kafka.sasl.oauthbearer.allowed.files",
        ),
        _refused(
            "no directory is cordoned",
            "move its replicas away, then leave the directory out of log.dirs",
            "cordoned.log.dirs",
        ),
        _refused(
            "two-phase commits are not supported",
            "take it out: no producer may keep a transaction open without a time-out",
            "transaction.two.phase.commit.enable",
        ),
        refused(
            Owner.FIRN, _CREDENTIALS, _AWS, "aws.", "firn.remote.s3.access.", "firn.remote.s3.secret."
        ),
    )
)  # fmt: skip
