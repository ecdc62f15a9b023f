"""Keys of the ladder: what is done while the file system of a log directory fills up. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, INT, LONG, MIB, key

_PERCENT: Final = {"at_least": 1, "at_most": 100, "dynamic": True}
_IN_ORDER: Final = "100: never. None of the four may be less than the one before it."

DISK: Final = (
    key(
        "firn.disk.watermarks.enable", BOOLEAN, True,
        "Whether anything is done before a file system is full: the four steps below, one on top of the "
        "other. They are for log directories with tiered partitions; elsewhere nothing could come free by "
        "itself, and only `firn.disk.reserve.bytes` counts.",
        dynamic=True,
    ),
    key(
        "firn.disk.upload.percent", INT, 80,
        "First step: from so full a file system on, sealed segments of its directory are copied to object "
        "storage before those of other directories. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.shrink.percent", INT, 85,
        "Second step: local segments that the archive has go before `local.retention.*` says so, the oldest "
        "of each partition first, until there is room; and active segments are sealed early, so that they "
        "may be copied. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.throttle.percent", INT, 92,
        "Third step: who produces to the directory has to wait after each request, up to "
        "`firn.disk.throttle.max.ms` (as by a quota of Kafka's: `throttle_time_ms`). " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.refuse.percent", INT, 97,
        "Fourth step: what is produced to the directory is refused with KAFKA_STORAGE_ERROR, with which "
        "clients come back, until there is room. " + _IN_ORDER,
        **_PERCENT,
    ),
    key(
        "firn.disk.margin.percent", INT, 1,
        "How much less full a file system must be for a step to end than for it to begin, so that steps do "
        "not come and go. Less than `firn.disk.upload.percent`.",
        at_least=0, at_most=50, dynamic=True,
    ),
    key(
        "firn.disk.counted.bytes", LONG, 256 * 1024 * MIB,
        "A file system larger than this counts as one of this size in which as much is left: the last "
        "hundredths of a large one are room enough.",
        at_least=MIB, dynamic=True,
    ),
    key(
        "firn.disk.reserve.bytes", LONG, 64 * MIB,
        "What records leave free in the file system of any log directory, for the metadata log, checkpoints "
        "and indexes: beyond that clients' records are refused with KAFKA_STORAGE_ERROR, replicas do not "
        "follow, and other replicas lead.",
        at_least=0, dynamic=True,
    ),
    key(
        "firn.disk.throttle.max.ms", INT, 1_000,
        "The longest that a producer has to wait after a request. It begins with little and grows as the "
        "file system fills up.",
        at_least=1, at_most=30_000, dynamic=True,
    ),
    key(
        "firn.disk.check.interval.ms", LONG, 1_000,
        "How often file systems are asked what is left of them; more often, up to twenty times a second, "
        "while much is appended and little is left.",
        at_least=50, at_most=60_000, dynamic=True,
    ),
)  # fmt: skip
