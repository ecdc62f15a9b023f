"""Keys of a node among others: its roles, the quorum it belongs to, and a broker's life in it. [P]

Apache Kafka's `KRaftConfigs`, `QuorumConfig`, `MetadataLogConfig` and `ReplicationConfigs`.
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
        "pure broker has none of them and reaches controllers by the first. Only a node that is alone needs "
        "none: it speaks to its controller in memory.",
    ),
    key(
        "controller.quorum.voters", LIST, (),
        "`id@host:port` of each voter of the metadata quorum, the same on all nodes: the voters are these "
        "until `kraft.version` is raised to 1. Leave it out where directories are formatted with "
        "`--standalone`, `--initial-controllers` or `--no-initial-controllers`.",
    ),
    key(
        "controller.quorum.bootstrap.servers", LIST, (),
        "`host:port` of controllers by which this node finds the quorum. With neither this nor "
        "`controller.quorum.voters` a node of both roles is alone.",
    ),
    key(
        "controller.quorum.election.timeout.ms", INT, 1000,
        "A voter that was not elected within one to two times this stands again.",
        at_least=0,
    ),
    key(
        "controller.quorum.fetch.timeout.ms", INT, 2000,
        "A voter that could not fetch from the leader for so long asks for an election; a leader that no "
        "majority fetched from for one and a half times as long resigns.",
        at_least=0,
    ),
    key(
        "controller.quorum.election.backoff.max.ms", INT, 1000,
        "A voter whose election failed waits for so long at most before the next one.",
        at_least=0,
    ),
    key(
        "controller.quorum.append.linger.ms", INT, 0,
        "The leader gathers records for so long before it flushes and sends them; Kafka's default is 25. At "
        "0 what comes while one flush is under way shares the next one: ten writers on three voters made "
        "1,360 changes a second, half of them within 6.6 ms; at 25 it was 320 and 31 ms (`python -m "
        "bench.quorum`).",
        at_least=0,
    ),
    key(
        "controller.quorum.request.timeout.ms", INT, 2000,
        "A request to another voter that is not answered after this has failed.",
        at_least=0,
    ),
    key(
        "controller.quorum.retry.backoff.ms", INT, 20,
        "Time between two tries of a request to another voter.",
        at_least=0,
    ),
    key(
        "controller.quorum.auto.join.enable", BOOLEAN, False,
        "Whether a controller that is no voter has itself made one, and one of its id with another directory "
        "removed. For controllers, with `kraft.version` 1.",
    ),
    key(
        "controller.quorum.fetch.max.bytes", INT, MIB,
        "Bytes of the metadata log that one fetch brings at most; always one batch.",
        at_least=1,
    ),
    key(
        "controller.quorum.fetch.snapshot.max.bytes", INT, MIB,
        "Bytes of a snapshot that one request brings at most.",
        at_least=1,
    ),
    key(
        "firn.quorum.refused.election", BOOLEAN, True,
        "Whether a voter asks for an election as soon as its leader's address has refused connections three "
        "times in 300 ms: nobody listens there any more.",
    ),
    key(
        "metadata.log.dir", STRING, None,
        "Directory of the metadata log. Default: the first of `log.dirs`.",
    ),
    *METADATA_LOG,
    key(
        "metadata.max.retention.bytes", LONG, 100 * MIB,
        "Snapshots and segments of the metadata log beyond this go, the oldest first, but never the newest "
        "snapshot and what follows it. -1: no bound.",
        at_least=-1,
    ),
    key(
        "metadata.max.retention.ms", LONG, WEEK_MS,
        "Snapshots and segments of the metadata log that are older go, but never the newest snapshot and "
        "what follows it. -1: no bound.",
        at_least=-1,
    ),
    key(
        "metadata.max.idle.interval.ms", INT, 500,
        "The active controller writes a record that says nothing when it wrote none for so long, so that "
        "others see the log move; one whom nobody can follow writes none. 0: never.",
        at_least=0,
    ),
    key(
        "broker.heartbeat.interval.ms", INT, 2000,
        "Time between two heartbeats of a broker.",
        at_least=1,
    ),
    key(
        "broker.session.timeout.ms", INT, 9000,
        "A broker that the active controller does not hear of for so long is fenced. Twice the time between "
        "heartbeats, at least.",
        at_least=1,
    ),
    key(
        "initial.broker.registration.timeout.ms", INT, 60_000,
        "A broker that could not register for so long after its start ends.",
        at_least=1,
    ),
    key(
        "firn.broker.refused.fence.ms", INT, 1000,
        "A broker of which nothing is heard since its connection broke is fenced when its address, which was "
        "open to this controller before, has refused connections five times within this time. One that does "
        "not answer is given its session. -1: never before the session ends.",
        at_least=-1,
    ),
    key(
        "controlled.shutdown.enable", BOOLEAN, True,
        "Whether a broker has its leaderships moved before it ends.",
    ),
    key(
        "inter.broker.listener.name", STRING, None,
        "Listener by which brokers reach each other; it must be advertised. Default: the one called "
        "PLAINTEXT; on a node that is alone, the first.",
    ),
    key(
        "auto.leader.rebalance.enable", BOOLEAN, True,
        "Whether leaderships go back to the preferred replicas by themselves.",
    ),
    key(
        "leader.imbalance.check.interval.seconds", LONG, 300,
        "How often that is looked at.",
        at_least=1,
    ),
    key(
        "unclean.leader.election.interval.ms", LONG, 300_000,
        "How often partitions without a leader are looked at for that.",
        at_least=1, internal=True,
    ),
)  # fmt: skip

CLUSTER_TOPIC: Final = (
    key(
        "unclean.leader.election.enable", BOOLEAN, False,
        "Whether a replica that may lack records is made leader where no other one is left.",
        synonyms=synonyms_of("unclean.leader.election.enable"),
    ),
)  # fmt: skip
"""Keys of a topic whose partitions may have several replicas."""
