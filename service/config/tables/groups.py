"""Keys of consumer groups and of the topic that holds them. [P]"""

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
        "An offset is kept for so long after its group went empty, after the group left its topic, or "
        "after the commit where nobody ever subscribed.",
        at_least=1,
    ),
    key(
        "offsets.retention.check.interval.ms", LONG, 600_000,
        "Time between looks for offsets that have expired.",
        at_least=1,
    ),
    key(
        "offsets.commit.timeout.ms", INT, 5000,
        "A write of a group coordinator that is not committed after this fails for whoever waits for it.",
        at_least=1,
    ),
    key(
        "offsets.topic.num.partitions", INT, 50,
        "Partitions of `__consumer_offsets`; holds when the topic is made, and it never grows.",
        at_least=1,
    ),
    key(
        "offsets.topic.replication.factor", INT, 3,
        "Replicas of `__consumer_offsets`. Where it is not set, as many as there are brokers when the "
        "topic is made, and no more than three.",
        at_least=1, at_most=32767,
    ),
    key(
        "offsets.topic.segment.bytes", INT, 100 * MIB,
        "Size of the segments of `__consumer_offsets`: small ones are compacted, and loaded, sooner.",
        at_least=MIB,
    ),
    key(
        "offsets.topic.compression.codec", INT, 0,
        "How batches in `__consumer_offsets` are compressed: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        at_least=0, at_most=4,
    ),
)  # fmt: skip

GROUPS: Final = (
    key(
        "group.coordinator.append.linger.ms", INT, -1,
        "What groups decide within this time becomes one batch. -1: within one turn of the event loop; "
        "0: every decision is a batch.",
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
        "An empty classic group waits so long for more members before its first rebalance; each that comes "
        "has it wait again.",
    ),
    key(
        "group.max.size", INT, INT_MAX,
        "Most members of a classic group.",
        at_least=1,
    ),
    key(
        "group.consumer.session.timeout.ms", INT, 45_000,
        "A member of a consumer group that is not heard of for so long is out of it.",
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
        "How often members of a consumer group are told to be heard of.",
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
        "A consumer group's partitions are dealt out anew so often at most; 0: whenever something changed.",
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
        "Who deals out the partitions of consumer groups; the first does where a group names none.",
        one_of=("uniform", "range"),
    ),
    key(
        "group.consumer.migration.policy", STRING, "bidirectional",
        "Whether a classic group may become a consumer group (upgrade), the other way round (downgrade), "
        "both, or neither.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    key(
        "group.consumer.regex.refresh.interval.ms", INT, 600_000,
        "How often subscriptions by pattern are looked up anew, whatever happens.",
        at_least=10_000,
    ),
)  # fmt: skip

GROUP: Final = (
    key(
        "consumer.session.timeout.ms", INT, 45_000,
        "A member of this consumer group that is not heard of for so long is out of it.",
        at_least=1, synonyms=synonyms_of("group.consumer.session.timeout.ms"),
    ),
    key(
        "consumer.heartbeat.interval.ms", INT, 5000,
        "How often members of this consumer group are told to be heard of.",
        at_least=1, synonyms=synonyms_of("group.consumer.heartbeat.interval.ms"),
    ),
    key(
        "consumer.assignment.interval.ms", INT, 1000,
        "This consumer group's partitions are dealt out anew so often at most.",
        at_least=0, synonyms=synonyms_of("group.consumer.assignment.interval.ms"),
    ),
)  # fmt: skip
"""Keys of one group, set as those of a resource of type GROUP."""
