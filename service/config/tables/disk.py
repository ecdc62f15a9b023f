"""Keys of disk watermarks: the steps taken while the file system of a log directory fills up. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, INT, LONG, MIB, key

_PERCENT: Final = {"at_least": 1, "at_most": 100, "dynamic": True}
_IN_ORDER: Final = "100: never. None of the four may be less than the one before it."

DISK: Final = (
    key(
        "firn.disk.watermarks.enable", BOOLEAN, True,
        "Whether the node acts before a file system is full, in the four steps below, which add up. They "
        "apply to log directories with tiered partitions; in others only `firn.disk.reserve.bytes` applies, "
        "because nothing could become free by itself.",
        dynamic=True,
    ),
    key(
        "firn.disk.upload.percent", INT, 80,
        "First step: from this usage on, sealed segments of the directory are copied to object storage "
        "before those of other directories. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.shrink.percent", INT, 85,
        "Second step: local segments that the archive has are deleted before `local.retention.*` says so, "
        "the oldest of each partition first, until there is room. Active segments are sealed early, so that "
        "they can be copied. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.throttle.percent", INT, 92,
        "Third step: producers to the directory are throttled after each request, by up to "
        "`firn.disk.throttle.max.ms` (as by a quota of Kafka: `throttle_time_ms`). " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.refuse.percent", INT, 97,
        "Fourth step: produce requests to the directory are refused with KAFKA_STORAGE_ERROR, which clients "
        "retry, until there is room. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.margin.percent", INT, 1,
        "A step ends when usage is this much below the usage at which it begins, so that steps do not "
        "alternate. Less than `firn.disk.upload.percent`.",
        at_least=0, at_most=50, dynamic=True,
    ),
    key(
        "firn.disk.counted.bytes", LONG, 256 * 1024 * MIB,
        "A larger file system counts as one of this size with the same free space: the last hundredths of a "
        "large file system are room enough.",
        at_least=MIB, dynamic=True,
    ),
    key(
        "firn.disk.reserve.bytes", LONG, 64 * MIB,
        "Free space that records leave in the file system of any log directory, for the metadata log, "
        "checkpoints and indexes. Beyond it clients' records are refused with KAFKA_STORAGE_ERROR, followers "
        "stop, and other replicas lead.",
        at_least=0, dynamic=True,
    ),
    key(
        "firn.disk.throttle.max.ms", INT, 1_000,
        "Longest throttle of a producer after a request. It begins with little and grows as the file system "
        "fills up.",
        at_least=1, at_most=30_000, dynamic=True,
    ),
    key(
        "firn.disk.check.interval.ms", LONG, 1_000,
        "Time between two checks of the free space; checks come more often, up to twenty times a second, "
        "while much is appended and little space is left.",
        at_least=50, at_most=60_000, dynamic=True,
    ),
)  # fmt: skip
