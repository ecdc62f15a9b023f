"""Keys of the metadata log. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import HOUR_MS, INT, LONG, MIB, key

METADATA_LOG: Final = (
    key(
        "metadata.log.segment.bytes", INT, 1 << 30,
        "Segment size of the metadata log.",
        at_least=8 * MIB,
    ),
    key(
        "metadata.log.max.record.bytes.between.snapshots", LONG, 20 * MIB,
        "Bytes of metadata log after which a snapshot is written.",
        at_least=1,
    ),
    key(
        "metadata.log.max.snapshot.interval.ms", LONG, HOUR_MS,
        "Time after which a snapshot is written if there are new records. 0: never by time.",
        at_least=0,
    ),
)  # fmt: skip
