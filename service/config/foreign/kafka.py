"""Apache Kafka's keys of things that Firn does not have, and that nobody's data depends on. [P]

The list is that of Kafka 4.3.1's `AbstractKafkaConfig.CONFIG_DEF`, with its internal keys.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Final

from service.config.foreign.foreign_key import Owner, ignored

_ignored = partial(ignored, Owner.KAFKA)

IGNORED: Final = tuple(
    chain(
        _ignored(
            "a node is one event loop and small pools of threads; firn.processes uses more cores",
            "num.network.threads", "num.io.threads", "background.threads",
        ),
        _ignored(
            "groups and transactions are coordinated on the node's event loop",
            "group.coordinator.threads", "group.coordinator.background.threads",
            "group.coordinator.cached.buffer.max.bytes",
        ),
        _ignored(
            "classic and consumer groups are both served; the feature group.version=0 turns the latter off",
            "group.coordinator.rebalance.protocols",
        ),
        _ignored("there are no share groups", "group.share.", "share.coordinator.", "share.fetch."),
        _ignored("there are no streams groups", "group.streams."),
        _ignored(
            "the system sizes the buffers of each socket as it needs them",
            "socket.send.buffer.bytes", "socket.receive.buffer.bytes", "replica.socket.receive.buffer.bytes",
        ),
        _ignored(
            "connections that wait are as many as the system allows (net.core.somaxconn)",
            "socket.listen.backlog.size",
        ),
        _ignored("requests are bounded by their bytes, queued.max.request.bytes", "queued.max.requests"),
        _ignored(
            "time-outs between nodes are fixed",
            "controller.socket.timeout.ms", "request.timeout.ms", "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
        ),
        _ignored(
            "completed operations leave the purgatory at once",
            "fetch.purgatory.purge.interval.requests", "producer.purgatory.purge.interval.requests",
            "delete.records.purgatory.purge.interval.requests",
        ),
        _ignored(
            "metrics are at /metrics of firn.http.listener, without samples or reporters",
            "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
            "kafka.metrics.",
        ),
        _ignored("metrics of clients are not collected", "telemetry.max.bytes"),
        _ignored("log recovery shares the threads of all disk work", "num.recovery.threads.per.data.dir"),
        _ignored(
            "replicas are not moved between log directories",
            "num.replica.alter.log.dirs.threads", "alter.log.dirs.replication.quota.window.num",
            "alter.log.dirs.replication.quota.window.size.seconds",
            "replica.alter.log.dirs.io.max.bytes.per.second",
        ),
        _ignored("requests for a failed directory fail at once", "log.dir.failure.timeout.ms"),
        _ignored(
            "start offsets are written with recovery points, log.flush.offset.checkpoint.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms",
        ),
        _ignored("tasks begin at once after a start", "log.initial.task.delay.ms"),
        _ignored(
            "expired producer ids are removed every ten minutes", "producer.id.expiration.check.interval.ms"
        ),
        _ignored(
            "segments of the metadata log roll by size, metadata.log.segment.bytes",
            "metadata.log.segment.ms", "internal.metadata.",
        ),
        _ignored("a listener opens once its service is ready", "early.start.listeners"),
        _ignored("a node that does not start says so and ends", "server.max.startup.time.ms"),
        _ignored("turns of the event loop are measured and logged instead", "controller.performance."),
        _ignored(
            "there are no unfinished APIs or features to switch on",
            "unstable.api.versions.enable", "unstable.feature.versions.enable",
        ),
        _ignored(
            "cold reads and their indexes share firn.remote.cache.bytes",
            "remote.log.index.file.cache.", "remote.log.reader.max.pending.tasks",
        ),
        _ignored(
            "expiry shares remote.log.manager.copier.thread.pool.size",
            "remote.log.manager.expiration.thread.pool.size",
        ),
        _ignored(
            "followers share the threads of cold reads, remote.log.reader.threads",
            "remote.log.manager.follower.thread.pool.size",
        ),
        _ignored(
            "the pools have keys of their own, remote.log.manager.copier.thread.pool.size and "
            "remote.log.reader.threads",
            "remote.log.manager.thread.pool.size",
        ),
        _ignored("retries of the store are fixed", "remote.log.manager.task.retry."),
        _ignored(
            "the catalog of segments is in the metadata log; there is no metadata manager",
            "remote.log.metadata.", "rlmm.config.",
        ),
        _ignored(
            "tokens of nodes are read from files, again when they change",
            "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", "sasl.login.refresh.",
            "sasl.login.retry.",
        ),
        _ignored("random numbers are OpenSSL's", "ssl.secure.random.implementation"),
    )
)  # fmt: skip
