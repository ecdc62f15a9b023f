"""Keys of Apache Kafka's producers, consumers and admin clients, which have strayed into a node's file. [P]

The list is what Kafka 4.3.1's `ProducerConfig`, `ConsumerConfig` and `AdminClientConfig` have and its brokers
do not.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from service.config.foreign.foreign_key import Owner, ignored, refused

CLIENTS: Final = tuple(
    chain(
        refused(
            Owner.CLIENTS,
            "a key of clients, which encrypts nothing on a node",
            "set listener.security.protocol.map, and security.inter.broker.protocol for nodes",
            "security.protocol",
        ),
        refused(
            Owner.CLIENTS,
            "a key of clients, which asks nobody for a login",
            "set sasl.enabled.mechanisms, and sasl.mechanism.inter.broker.protocol for nodes",
            "sasl.mechanism",
        ),
        ignored(
            Owner.CLIENTS,
            "a key of clients: producers, consumers or admin clients have it",
            "acks", "allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "batch.size",
            "bootstrap.controllers", "bootstrap.servers", "buffer.memory", "check.crcs", "client.dns.lookup",
            "client.id", "client.rack", "default.api.timeout.ms", "delivery.timeout.ms",
            "enable.auto.commit", "enable.idempotence", "enable.metrics.push", "exclude.internal.topics",
            "fetch.max.wait.ms", "fetch.min.bytes", "group.id", "group.instance.id", "group.protocol",
            "group.remote.assignor", "heartbeat.interval.ms", "interceptor.classes",
            "internal.throw.on.fetch.stable.offset.unsupported", "isolation.level",
            "key.deserializer", "key.serializer", "linger.ms", "max.block.ms",
            "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms",
            "max.poll.records", "max.request.size", "metadata.max.age.ms", "metadata.max.idle.ms",
            "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
            "partition.assignment.strategy", "partitioner.", "receive.buffer.bytes",
            "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms",
            "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms", "share.acknowledgement.mode",
            "share.acquire.mode", "transaction.timeout.ms", "transactional.id", "value.deserializer",
            "value.serializer",
        ),
    )
)  # fmt: skip
