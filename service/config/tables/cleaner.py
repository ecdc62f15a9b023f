"""Keys of log compaction; those that topics can override are in `topic`. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, DOUBLE, INT, LONG, MIB, key

CLEANER: Final = (
    key(
        "log.cleaner.enable", BOOLEAN, True,
        "Whether compacted topics are compacted at all; without it they grow for ever.",
    ),
    key(
        "log.cleaner.threads", INT, 1,
        "How many logs are compacted at a time.",
        at_least=0, dynamic=True,
    ),
    key(
        "log.cleaner.dedupe.buffer.size", LONG, 128 * MIB,
        "Bytes of memory for the keys of the logs that are being compacted, all together, 24 for each key. "
        "A log with more keys is compacted in parts.",
        at_least=1024, dynamic=True,
    ),
    key(
        "log.cleaner.io.buffer.size", INT, MIB // 2,
        "Bytes of memory for reading and writing the logs that are being compacted, all together.",
        at_least=0, dynamic=True,
    ),
    key(
        "log.cleaner.io.buffer.load.factor", DOUBLE, 0.9,
        "Which part of the memory for keys may be taken; where it is fuller it is slower.",
        at_least=0, at_most=1, dynamic=True,
    ),
    key(
        "log.cleaner.io.max.bytes.per.second", DOUBLE, 1.7976931348623157e308,
        "Bytes that are read and written for compaction in a second, at most, on average.",
        dynamic=True,
    ),
    key(
        "log.cleaner.backoff.ms", LONG, 15_000,
        "How long it takes until logs are looked at again when there was nothing to compact.",
        at_least=0, dynamic=True,
    ),
)  # fmt: skip
