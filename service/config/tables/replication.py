"""Keys of brokers that have replicas of the same partitions. [P]

Apache Kafka's `ReplicationConfigs`, `QuotaConfig` and `RemoteLogManagerConfig` of 4.3.1.
"""

from __future__ import annotations

from typing import Final

from service.config.keys import LONG_MAX, ConfigKey
from service.config.tables.checks import replica_list_problem
from service.config.tables.columns import BOOLEAN, INT, LIST, LONG, MIB, STRING, key

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _selector_problem(text: str) -> str | None:
    if text in ("", LEADER_SELECTOR, RACK_AWARE_SELECTOR):
        return None
    return f"there are {LEADER_SELECTOR} and {RACK_AWARE_SELECTOR}; others cannot be loaded"


REPLICATION: Final = (
    key(
        "replica.lag.time.max.ms", LONG, 30_000,
        "A follower that has not had everything for so long leaves the in-sync replicas.",
        at_least=1,
    ),
    key(
        "num.replica.fetchers", INT, 1,
        "Loops that fetch from each leader; a partition is always in the same one.",
        at_least=1, at_most=64, dynamic=True,
    ),
    key(
        "replica.fetch.max.bytes", INT, MIB,
        "Bytes of one partition that a follower asks for at a time; a larger batch comes whole.",
        at_least=0,
    ),
    key(
        "replica.fetch.response.max.bytes", INT, 10 * MIB,
        "Bytes that a follower asks for at a time.",
        at_least=0,
    ),
    key(
        "replica.fetch.wait.max.ms", INT, 500,
        "A follower's fetch that finds nothing new is answered after this.",
        at_least=0,
    ),
    key(
        "replica.fetch.min.bytes", INT, 1,
        "A follower's fetch waits for so many bytes.",
        at_least=0,
    ),
    key(
        "replica.fetch.backoff.ms", INT, 1000,
        "A partition that could not be fetched is asked for again after this.",
        at_least=0,
    ),
    key(
        "replica.socket.timeout.ms", INT, 30_000,
        "A fetch that the leader does not answer within this is given up.",
        at_least=1,
    ),
    key(
        "replica.high.watermark.checkpoint.interval.ms", LONG, 5000,
        "How often high watermarks that moved are noted in `replication-offset-checkpoint`.",
        at_least=1,
    ),
    key(
        "replica.selector.class", STRING, None,
        f"Which replica consumers with a `client.rack` are sent to: the leader, or one of their rack that is "
        f"in sync ({RACK_AWARE_SELECTOR.rpartition('.')[2]}).",
        check=_selector_problem,
    ),
    key(
        "follower.fetch.last.tiered.offset.enable", BOOLEAN, False,
        "An empty replica of a tiered topic begins where its archive ends, and not with the local log of the "
        "leader.",
        dynamic=True,
    ),
    key(
        "leader.replication.throttled.rate", LONG, LONG_MAX,
        "Bytes per second that the node sends of the replicas that `leader.replication.throttled.replicas` "
        "of their topics names, on average; those that are not in sync wait. Set with `kafka-configs` or "
        "`kafka-reassign-partitions --throttle` alone.",
        at_least=0, dynamic=True, static=False,
    ),
    key(
        "follower.replication.throttled.rate", LONG, LONG_MAX,
        "As `leader.replication.throttled.rate`, of what the node fetches of the replicas that "
        "`follower.replication.throttled.replicas` names.",
        at_least=0, dynamic=True, static=False,
    ),
    key(
        "replication.quota.window.num", INT, 11,
        "Windows over which replication that is throttled is averaged.",
        at_least=1,
    ),
    key(
        "replication.quota.window.size.seconds", INT, 1,
        "How long such a window is.",
        at_least=1,
    ),
)  # fmt: skip


def _replicas(side: str, what: str) -> ConfigKey:
    name = f"{side}.replication.throttled.replicas"
    return key(
        name, LIST, (),
        f"Replicas that {what} under the bound of `{side}.replication.throttled.rate`: "
        "`partition:broker,partition:broker`, or `*` for all of them.",
        check=replica_list_problem(name),
    )  # fmt: skip


REPLICATION_TOPIC: Final = (
    _replicas("leader", "their leaders send to"),
    _replicas("follower", "fetch"),
)
