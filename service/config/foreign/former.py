"""Keys that Apache Kafka had before 4.0, which files of that time still have. [P]"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Final

from service.config.foreign.foreign_key import Owner, ignored, refused

_ignored = partial(ignored, Owner.FORMER_KAFKA)
_refused = partial(refused, Owner.FORMER_KAFKA)
_NO_ZOOKEEPER: Final = "there is no ZooKeeper; metadata is a Raft log"

FORMER: Final = tuple(
    chain(
        _refused(
            _NO_ZOOKEEPER,
            "name the controllers by controller.quorum.bootstrap.servers and take this key out",
            "zookeeper.",
        ),
        _ignored(
            _NO_ZOOKEEPER,
            "zookeeper.connection.timeout.ms", "zookeeper.session.timeout.ms", "zookeeper.sync.time.ms",
            "zookeeper.max.in.flight.requests",
        ),
        _refused(
            "node ids are not generated",
            "give each node its own node.id and take this key out",
            "broker.id.generation.enable",
        ),
        _ignored("node ids are not generated", "reserved.broker.max.id"),
        _refused(
            "a node listens where listeners says",
            "set listeners=NAME://HOST:PORT and take this key out",
            "host.name", "port",
        ),
        _refused(
            "clients connect where advertised.listeners says",
            "set advertised.listeners=NAME://HOST:PORT and take this key out",
            "advertised.host.name", "advertised.port",
        ),
        _refused(
            "timestamps are bounded by two keys",
            "set log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms",
            "log.message.timestamp.difference.max.ms",
        ),
        _refused(
            "the key has another name",
            "set delegation.token.secret.key",
            "delegation.token.master.key",
        ),
        _refused(
            "quotas are in the metadata log",
            "set them by `firn quota set --default-client`",
            "quota.producer.default", "quota.consumer.default",
        ),
        _ignored(
            "formats of records between nodes are those of the feature metadata.version",
            "inter.broker.protocol.version", "log.message.format.version",
        ),
        _ignored("records are sent as they are stored, in format 2", "log.message.downconversion.enable"),
        _ignored("committed offsets wait for every replica in sync", "offsets.commit.required.acks"),
        _ignored("controllers have listeners of their own", "control.plane.listener.name"),
        _ignored(
            "a stopping node asks its controller until its session ends",
            "controlled.shutdown.max.retries", "controlled.shutdown.retry.backoff.ms",
        ),
        _ignored("metrics are at /metrics of firn.http.listener", "auto.include.jmx.reporter", "kafka.csv."),
        _ignored("passwords are never in the metadata log", "password.encoder."),
        _ignored("there is one coordinator of groups", "group.coordinator.new.enable"),
        _ignored("replicas are in sync by replica.lag.time.max.ms", "replica.lag.max.messages"),
        _ignored(
            "the feature eligible.leader.replicas.version decides that", "eligible.leader.replicas.enable"
        ),
    )
)  # fmt: skip
