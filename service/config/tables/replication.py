"""Keys of replication between brokers. [P]

From Apache Kafka's `ReplicationConfigs`, `QuotaConfig` and `RemoteLogManagerConfig` of 4.3.1.
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
    return f"only {LEADER_SELECTOR} and {RACK_AWARE_SELECTOR} exist; other classes cannot be loaded"


REPLICATION: Final = (
    key(
        "replica.lag.time.max.ms", LONG, 30_000,
        "A follower that has not caught up with the leader for this long is removed from the ISR.",
        at_least=1,
    ),
    key(
        "num.replica.fetchers", INT, 1,
        "Number of fetchers for each leader; a partition always uses the same one.",
        at_least=1, at_most=64, dynamic=True,
    ),
    key(
        "replica.fetch.max.bytes", INT, MIB,
        "Most bytes of one partition in a follower's fetch; a larger batch comes whole.",
        at_least=0,
    ),
    key(
        "replica.fetch.response.max.bytes", INT, 10 * MIB,
        "Most bytes in a follower's fetch.",
        at_least=0,
    ),
    key(
        "replica.fetch.wait.max.ms", INT, 500,
        "Longest wait of a follower's fetch for new records.",
        at_least=0,
    ),
    key(
        "replica.fetch.min.bytes", INT, 1,
        "Bytes for which a follower's fetch waits.",
        at_least=0,
    ),
    key(
        "replica.fetch.backoff.ms", INT, 1000,
        "Pause after a failed fetch of a partition.",
        at_least=0,
    ),
    key(
        "replica.socket.timeout.ms", INT, 30_000,
        "A fetch fails after this time without a response of the leader.",
        at_least=1,
    ),
    key(
        "replica.high.watermark.checkpoint.interval.ms", LONG, 5000,
        "Time between two writes of changed high watermarks to `replication-offset-checkpoint`.",
        at_least=1,
    ),
    key(
        "replica.selector.class", STRING, None,
        f"Replica for consumers with a `client.rack`: the leader, or an in-sync replica in their rack "
        f"({RACK_AWARE_SELECTOR.rpartition('.')[2]}).",
        check=_selector_problem,
    ),
    key(
        "follower.fetch.last.tiered.offset.enable", BOOLEAN, False,
        "An empty replica of a tiered topic begins at the end of its archive instead of the start of the "
        "leader's local log.",
        dynamic=True,
    ),
    key(
        "leader.replication.throttled.rate", LONG, LONG_MAX,
        "Bytes per second that the node sends, on average, for replicas that their topics name in "
        "`leader.replication.throttled.replicas`; replicas out of sync wait. Set with `kafka-configs` or "
        "`kafka-reassign-partitions --throttle` alone.",
        at_least=0, dynamic=True, static=False,
    ),
    key(
        "follower.replication.throttled.rate", LONG, LONG_MAX,
        "Bytes per second that the node fetches, on average, for replicas that their topics name in "
        "`follower.replication.throttled.replicas`. Set as `leader.replication.throttled.rate`.",
        at_least=0, dynamic=True, static=False,
    ),
    key(
        "replication.quota.window.num", INT, 11,
        "Number of windows over which throttled replication is averaged.",
        at_least=1,
    ),
    key(
        "replication.quota.window.size.seconds", INT, 1,
        "Length of a window.",
        at_least=1,
    ),
)  # fmt: skip


def _replicas(side: str, what: str) -> ConfigKey:
    name = f"{side}.replication.throttled.replicas"
    return key(
        name, LIST, (),
        f"Replicas that {what} at the rate of `{side}.replication.throttled.rate`: "
        "`partition:broker,partition:broker`, or `*` for all of them.",
        check=replica_list_problem(name),
    )  # fmt: skip


REPLICATION_TOPIC: Final = (
    _replicas("leader", "their leaders send to"),
    _replicas("follower", "fetch"),
)
