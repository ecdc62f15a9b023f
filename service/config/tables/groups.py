"""Keys of consumer groups and of the topic that stores them. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import INT_MAX
from service.config.tables.columns import INT, LIST, LONG, MIB, STRING, key, synonyms_of

OFFSETS_TOPIC: Final = (
    key(
        "offset.metadata.max.bytes", INT, 4096,
        "Longest text that a client may store with an offset.",
    ),
    key(
        "offsets.load.buffer.size", INT, 5 * MIB,
        "Bytes of a partition of `__consumer_offsets` that are read at a time when it is loaded.",
        at_least=1,
    ),
    key(
        "offsets.retention.minutes", INT, 10_080,
        "Time for which an offset is kept after its group became empty, after the group left its topic, or "
        "after the commit if the group never had members.",
        at_least=1,
    ),
    key(
        "offsets.retention.check.interval.ms", LONG, 600_000,
        "Time between two checks for expired offsets.",
        at_least=1,
    ),
    key(
        "offsets.commit.timeout.ms", INT, 5000,
        "A write of a group coordinator that is not committed after this long fails.",
        at_least=1,
    ),
    key(
        "offsets.topic.num.partitions", INT, 50,
        "Partitions of `__consumer_offsets`, set when the topic is created; it never grows.",
        at_least=1,
    ),
    key(
        "offsets.topic.replication.factor", INT, 3,
        "Replicas of `__consumer_offsets`. Unset: the number of brokers when the topic is created, at most "
        "three.",
        at_least=1, at_most=32767,
    ),
    key(
        "offsets.topic.segment.bytes", INT, 100 * MIB,
        "Size of the segments of `__consumer_offsets`: small ones are compacted, and loaded, sooner.",
        at_least=MIB,
    ),
    key(
        "offsets.topic.compression.codec", INT, 0,
        "Compression of batches in `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        at_least=0, at_most=4,
    ),
)  # fmt: skip

GROUPS: Final = (
    key(
        "group.coordinator.append.linger.ms", INT, -1,
        "Changes of groups within this time become one batch. -1: changes within one turn of the event loop; "
        "0: every change is a batch.",
        at_least=-1,
    ),
    key(
        "group.min.session.timeout.ms", INT, 6000,
        "Shortest session that a member of a classic group may ask for.",
    ),
    key(
        "group.max.session.timeout.ms", INT, 1_800_000,
        "Longest session that a member of a classic group may ask for.",
    ),
    key(
        "group.initial.rebalance.delay.ms", INT, 3000,
        "Time for which an empty classic group waits for more members before its first rebalance; each new "
        "member restarts it.",
    ),
    key(
        "group.max.size", INT, INT_MAX,
        "Most members of a classic group.",
        at_least=1,
    ),
    key(
        "group.consumer.session.timeout.ms", INT, 45_000,
        "A member of a consumer group whose heartbeat is this late is removed.",
        at_least=1,
    ),
    key(
        "group.consumer.min.session.timeout.ms", INT, 45_000,
        "Shortest session that a consumer group can be given.",
        at_least=1,
    ),
    key(
        "group.consumer.max.session.timeout.ms", INT, 60_000,
        "Longest session that a consumer group can be given.",
        at_least=1,
    ),
    key(
        "group.consumer.heartbeat.interval.ms", INT, 5000,
        "Heartbeat interval that members of a consumer group are told.",
        at_least=1,
    ),
    key(
        "group.consumer.min.heartbeat.interval.ms", INT, 5000,
        "Shortest interval of heartbeats that a consumer group can be given.",
        at_least=1,
    ),
    key(
        "group.consumer.max.heartbeat.interval.ms", INT, 15_000,
        "Longest interval of heartbeats that a consumer group can be given.",
        at_least=1,
    ),
    key(
        "group.consumer.assignment.interval.ms", INT, 1000,
        "Shortest time between two assignments of a consumer group's partitions; 0: after every change.",
        at_least=0, dynamic=True,
    ),
    key(
        "group.consumer.min.assignment.interval.ms", INT, 0,
        "Shortest interval of assignments that a consumer group can be given.",
        at_least=0,
    ),
    key(
        "group.consumer.max.assignment.interval.ms", INT, 15_000,
        "Longest interval of assignments that a consumer group can be given.",
        at_least=0,
    ),
    key(
        "group.consumer.max.size", INT, INT_MAX,
        "Most members of a consumer group.",
        at_least=1,
    ),
    key(
        "group.consumer.assignors", LIST, ("uniform", "range"),
        "Assignors of consumer groups; the first is used by groups that name none.",
        one_of=("uniform", "range"),
    ),
    key(
        "group.consumer.migration.policy", STRING, "bidirectional",
        "Whether a classic group may become a consumer group (upgrade), the other way round (downgrade), "
        "both, or neither.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"), any_case=True,
    ),
    key(
        "group.consumer.regex.refresh.interval.ms", INT, 600_000,
        "Time between two evaluations of subscriptions by pattern without other changes.",
        at_least=10_000,
    ),
)  # fmt: skip

GROUP: Final = (
    key(
        "consumer.session.timeout.ms", INT, 45_000,
        "A member of this consumer group whose heartbeat is this late is removed.",
        at_least=1, synonyms=synonyms_of("group.consumer.session.timeout.ms"),
    ),
    key(
        "consumer.heartbeat.interval.ms", INT, 5000,
        "Heartbeat interval that members of this consumer group are told.",
        at_least=1, synonyms=synonyms_of("group.consumer.heartbeat.interval.ms"),
    ),
    key(
        "consumer.assignment.interval.ms", INT, 1000,
        "Shortest time between two assignments of this consumer group's partitions.",
        at_least=0, synonyms=synonyms_of("group.consumer.assignment.interval.ms"),
    ),
)  # fmt: skip
"""Keys of one group, set on a resource of type GROUP."""
