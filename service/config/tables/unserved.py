"""The rest of Apache Kafka's keys, refused with the reason why they have no effect here. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_FIXED: Final = "timeouts between nodes are fixed"
_NO_SHARES: Final = "share groups are not supported"
_NO_PLUGINS: Final = "classes cannot be loaded into a node that runs no Java"
_COUNTERS: Final = "metrics are at /metrics of firn.http.listener, without samples or reporters"
_PURGATORY: Final = "completed operations leave the purgatory at once"
_KERNEL_CHOOSES: Final = "the system sizes the buffers of each socket as it needs them"

UNSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "alter.config.policy.class.name": _NO_PLUGINS,
        "alter.log.dirs.replication.quota.window.num": "replicas are not moved between log directories",
        "alter.log.dirs.replication.quota.window.size.seconds": "replicas are not moved between directories",
        "background.threads": "a node is one event loop and small pools of threads",
        "client.quota.callback.class": _NO_PLUGINS,
        "controller.socket.timeout.ms": _FIXED,
        "cordoned.log.dirs": "leave a directory out of log.dirs once it holds nothing",
        "create.topic.policy.class.name": _NO_PLUGINS,
        "delete.records.purgatory.purge.interval.requests": _PURGATORY,
        "early.start.listeners": "a listener opens once its service is ready",
        "fetch.purgatory.purge.interval.requests": _PURGATORY,
        "kafka.metrics.polling.interval.secs": _COUNTERS,
        "kafka.metrics.reporters": _COUNTERS,
        "log.dir.failure.timeout.ms": "requests for a partition of a failed directory fail at once",
        "log.flush.start.offset.checkpoint.interval.ms": (
            "start offsets are written with recovery points: log.flush.offset.checkpoint.interval.ms"
        ),
        "log.initial.task.delay.ms": "tasks begin at once after a start",
        "metadata.log.segment.ms": "segments of the metadata log roll by size: metadata.log.segment.bytes",
        "metric.reporters": _COUNTERS,
        "metrics.num.samples": _COUNTERS,
        "metrics.recording.level": _COUNTERS,
        "metrics.sample.window.ms": _COUNTERS,
        "num.recovery.threads.per.data.dir": "log recovery shares the threads of all disk work",
        "num.replica.alter.log.dirs.threads": "replicas are not moved between log directories",
        "principal.builder.class": _NO_PLUGINS,
        "producer.id.expiration.check.interval.ms": "expired producer ids are removed every ten minutes",
        "producer.purgatory.purge.interval.requests": _PURGATORY,
        "queued.max.requests": "requests are bounded by their bytes: queued.max.request.bytes",
        "remote.log.index.file.cache.total.size.bytes": "indexes count as firn.remote.cache.bytes",
        "remote.log.manager.expiration.thread.pool.size": (
            "expiry shares remote.log.manager.copier.thread.pool.size"
        ),
        "remote.log.manager.follower.thread.pool.size": "followers share the threads of cold reads",
        "remote.log.manager.thread.pool.size": "use remote.log.manager.copier.thread.pool.size",
        "remote.log.reader.max.pending.tasks": "cold reads are bounded by firn.remote.cache.bytes",
        "replica.alter.log.dirs.io.max.bytes.per.second": "replicas are not moved between log directories",
        "replica.socket.receive.buffer.bytes": _KERNEL_CHOOSES,
        "request.timeout.ms": _FIXED,
        "share.coordinator.": _NO_SHARES,
        "share.fetch.purgatory.purge.interval.requests": _NO_SHARES,
        "socket.connection.setup.timeout.max.ms": _FIXED,
        "socket.connection.setup.timeout.ms": _FIXED,
        "socket.listen.backlog.size": "connections that wait are as many as the system allows",
        "socket.receive.buffer.bytes": _KERNEL_CHOOSES,
        "socket.send.buffer.bytes": _KERNEL_CHOOSES,
        "telemetry.max.bytes": "metrics of clients are not collected",
    }
)
"""Names, and prefixes (those with a dot at the end)."""
