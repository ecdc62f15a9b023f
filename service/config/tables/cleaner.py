"""Keys of log compaction; `topic` has those that topics can override. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, DOUBLE, INT, LONG, MIB, key

CLEANER: Final = (
    key(
        "log.cleaner.enable", BOOLEAN, True,
        "Whether compacted topics are compacted; without it they grow for ever.",
    ),
    key(
        "log.cleaner.threads", INT, 1,
        "Number of logs that are compacted at the same time.",
        at_least=0, dynamic=True,
    ),
    key(
        "log.cleaner.dedupe.buffer.size", LONG, 128 * MIB,
        "Bytes of memory for the keys of all logs that are being compacted, 24 bytes a key. A log with more "
        "keys is compacted in parts.",
        at_least=1024, dynamic=True,
    ),
    key(
        "log.cleaner.io.buffer.size", INT, MIB // 2,
        "Bytes of memory for reading and writing all logs that are being compacted.",
        at_least=0, dynamic=True,
    ),
    key(
        "log.cleaner.io.buffer.load.factor", DOUBLE, 0.9,
        "Share of the memory for keys that may be used; a fuller map is slower.",
        at_least=0, at_most=1, dynamic=True,
    ),
    key(
        "log.cleaner.io.max.bytes.per.second", DOUBLE, 1.7976931348623157e308,
        "Most bytes that compaction reads and writes in a second, on average.",
        dynamic=True,
    ),
    key(
        "log.cleaner.backoff.ms", LONG, 15_000,
        "Pause before the next check for logs to compact, when there was none.",
        at_least=0, dynamic=True,
    ),
)  # fmt: skip
