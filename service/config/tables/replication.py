"""Keys of brokers that have replicas of the same partitions. [P]

Apache Kafka's `ReplicationConfigs` and `RemoteLogManagerConfig` of 4.3.1.
"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, INT, LONG, MIB, STRING, key

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
        at_least=1, at_most=64,
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
    ),
)  # fmt: skip
