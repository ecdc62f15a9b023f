"""Keys of a cluster: roles, quorum, broker sessions and leader election. [P]

From Apache Kafka's `KRaftConfigs`, `QuorumConfig`, `MetadataLogConfig` and `ReplicationConfigs`.
"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, INT, LIST, LONG, MIB, STRING, WEEK_MS, key, synonyms_of
from service.config.tables.metadata_log import METADATA_LOG

CLUSTER: Final = (
    key(
        "process.roles", LIST, ("broker", "controller"),
        "Roles of this node: `broker`, `controller`, or both, in either order.",
        one_of=("broker", "controller"),
    ),
    key(
        "controller.listener.names", LIST, (),
        "Names of the controllers' listeners. On a controller they are among `listeners` and are opened; a "
        "pure broker has none of them and connects to controllers by the first. Only a node that is alone "
        "needs none: it calls its controller in memory.",
    ),
    key(
        "controller.quorum.voters", LIST, (),
        "`id@host:port` of each voter of the metadata quorum, the same on all nodes. These are the voters "
        "until `kraft.version` is raised to 1. Leave it out if directories are formatted with "
        "`--standalone`, `--initial-controllers` or `--no-initial-controllers`.",
    ),
    key(
        "controller.quorum.bootstrap.servers", LIST, (),
        "`host:port` of controllers by which this node finds the quorum. With neither this nor "
        "`controller.quorum.voters` a node of both roles is alone.",
    ),
    key(
        "controller.quorum.election.timeout.ms", INT, 1000,
        "A voter that was not elected within one to two times this starts another election.",
        at_least=0,
    ),
    key(
        "controller.quorum.fetch.timeout.ms", INT, 2000,
        "A voter that has not fetched from the leader for this long starts an election; a leader from which "
        "no majority has fetched for one and a half times as long resigns.",
        at_least=0,
    ),
    key(
        "controller.quorum.election.backoff.max.ms", INT, 1000,
        "Longest pause of a voter between a failed election and the next one.",
        at_least=0,
    ),
    key(
        "controller.quorum.append.linger.ms", INT, 0,
        "Time for which the leader gathers records before it flushes and sends them; Kafka's default is 25. "
        "At 0, records that come during a flush share the next one: ten writers on three voters made 1,360 "
        "changes a second, half of them within 6.6 ms; at 25 it was 320 and 31 ms (`python -m "
        "bench.quorum`).",
        at_least=0,
    ),
    key(
        "controller.quorum.request.timeout.ms", INT, 2000,
        "A request to another voter fails after this time without a response.",
        at_least=0,
    ),
    key(
        "controller.quorum.retry.backoff.ms", INT, 20,
        "Pause between two attempts of a request to another voter.",
        at_least=0,
    ),
    key(
        "controller.quorum.auto.join.enable", BOOLEAN, False,
        "Whether a controller that is no voter adds itself as one, and removes a voter with its id and "
        "another directory. For controllers, with `kraft.version` 1.",
    ),
    key(
        "controller.quorum.fetch.max.bytes", INT, MIB,
        "Most bytes of the metadata log in one fetch; always at least one batch.",
        at_least=1,
    ),
    key(
        "controller.quorum.fetch.snapshot.max.bytes", INT, MIB,
        "Most bytes of a snapshot in one response.",
        at_least=1,
    ),
    key(
        "firn.quorum.refused.election", BOOLEAN, True,
        "Whether a voter starts an election as soon as its leader's address has refused connections three "
        "times in 300 ms, because the leader's process has ended.",
    ),
    key(
        "metadata.log.dir", STRING, None,
        "Directory of the metadata log. Default: the first of `log.dirs`.",
    ),
    *METADATA_LOG,
    key(
        "metadata.max.retention.bytes", LONG, 100 * MIB,
        "Snapshots and segments of the metadata log beyond this size are deleted, oldest first, but never "
        "the newest snapshot and the log after it. -1: no bound.",
        at_least=-1,
    ),
    key(
        "metadata.max.retention.ms", LONG, WEEK_MS,
        "Snapshots and segments of the metadata log that are older are deleted, but never the newest "
        "snapshot and the log after it. -1: no bound.",
        at_least=-1,
    ),
    key(
        "metadata.max.idle.interval.ms", INT, 500,
        "The active controller writes a record without content after this long without another one, so that "
        "other nodes see progress; a controller without other nodes writes none. 0: never.",
        at_least=0,
    ),
    key(
        "broker.heartbeat.interval.ms", INT, 2000,
        "Time between two heartbeats of a broker.",
        at_least=1,
    ),
    key(
        "broker.session.timeout.ms", INT, 9000,
        "A broker is fenced when the active controller has received no heartbeat for this long. At least "
        "twice the time between heartbeats.",
        at_least=1,
    ),
    key(
        "initial.broker.registration.timeout.ms", INT, 60_000,
        "A broker that cannot register for this long after its start ends.",
        at_least=1,
    ),
    key(
        "firn.broker.refused.fence.ms", INT, 1000,
        "A broker whose connection broke and from which nothing was received since is fenced when its "
        "address, which was open to this controller before, has refused connections five times within this "
        "time. A broker that does not respond is fenced when its session ends. -1: never before that.",
        at_least=-1,
    ),
    key(
        "controlled.shutdown.enable", BOOLEAN, True,
        "Whether a broker has its leaderships moved to other brokers before it ends.",
    ),
    key(
        "inter.broker.listener.name", STRING, None,
        "Listener for connections between brokers; it must be advertised. Default: the one called as "
        "`security.inter.broker.protocol`; on a node that is alone, the first.",
    ),
    key(
        "security.inter.broker.protocol", STRING, "PLAINTEXT",
        "Protocol of connections between brokers, which takes the listener of that name. Not together with "
        "`inter.broker.listener.name`.",
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    key(
        "auto.leader.rebalance.enable", BOOLEAN, True,
        "Whether leaderships return to the preferred replicas by themselves.",
    ),
    key(
        "leader.imbalance.check.interval.seconds", LONG, 300,
        "Time between two checks for leaders that are not the preferred replica.",
        at_least=1,
    ),
    key(
        "unclean.leader.election.interval.ms", LONG, 300_000,
        "Time between two checks for partitions that need an unclean leader election.",
        at_least=1, internal=True,
    ),
)  # fmt: skip

CLUSTER_TOPIC: Final = (
    key(
        "unclean.leader.election.enable", BOOLEAN, False,
        "Whether a replica that may lack records becomes leader if no other one is left.",
        synonyms=synonyms_of("unclean.leader.election.enable"),
    ),
)  # fmt: skip
"""Keys of a topic whose partitions can have several replicas."""
