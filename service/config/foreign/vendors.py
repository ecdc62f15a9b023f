"""Keys of products around Apache Kafka, mostly families by their prefix: the longest one counts. [P]"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Final

from service.config.foreign.foreign_key import Owner, ignored, refused

_confluent = partial(ignored, Owner.CONFLUENT)
_confluent_refused = partial(refused, Owner.CONFLUENT)

VENDORS: Final = tuple(
    chain(
        _confluent("a key of Confluent's server", "confluent.", "kafka.rest.", "ksql.", "schema.registry."),
        _confluent("there is no license to check", "confluent.license", "confluent.license."),
        _confluent("metrics are at /metrics of firn.http.listener", "confluent.metrics.",
                   "confluent.telemetry."),
        _confluent(
            "a variable of Confluent's image, KAFKA_JMX_…; metrics are at /metrics of firn.http.listener",
            "jmx.port", "jmx.hostname",
        ),
        _confluent("there is no balancer", "confluent.balancer."),
        _confluent("there are no cluster links", "confluent.cluster.link."),
        _confluent(
            "refused and allowed requests are logged as docs/security.md says", "confluent.security.event."
        ),
        _confluent_refused(
            "rights are those of Kafka's ACLs",
            "make ACLs by `firn acl`, set authorizer.class.name, and take this key out",
            "confluent.authorizer.", "confluent.oidc.", "confluent.basic.auth.", "confluent.oauth.",
        ),
        _confluent_refused(
            "storage is built in",
            "name the bucket by firn.remote.url, set remote.storage.enable on topics, take this key out",
            "confluent.tier.",
        ),
        _confluent_refused(
            "replicas are placed by racks",
            "set broker.rack on each node and take this key out",
            "confluent.log.placement.constraints", "confluent.offsets.topic.placement.constraints",
            "confluent.transaction.state.log.placement.constraints",
            "confluent.metadata.topic.placement.constraints", "confluent.placement.constraints",
        ),
        _confluent_refused(
            "records are not checked against schemas",
            "let producers check them by their registry, and take this key out",
            "confluent.schema.validation.", "confluent.key.schema.validation",
            "confluent.value.schema.validation",
        ),
        refused(
            Owner.STRIMZI,
            "rights are those of Kafka's ACLs",
            "make ACLs by `firn acl`, set authorizer.class.name, and take this key out",
            "strimzi.authorization.",
        ),
        ignored(Owner.STRIMZI, "a key of Strimzi's operator", "strimzi."),
        ignored(
            Owner.CRUISE_CONTROL,
            "metrics are at /metrics of firn.http.listener; there is no Cruise Control",
            "cruise.control.",
        ),
        ignored(
            Owner.PLUGINS, "metrics are at /metrics of firn.http.listener", "prometheus.metrics.reporter."
        ),
        refused(
            Owner.PLUGINS,
            "rights are those of Kafka's ACLs",
            "make ACLs by `firn acl`, set authorizer.class.name, and take this key out",
            "opa.authorizer.", "ranger.",
        ),
    )
)  # fmt: skip
