"""Keys of the local tier that no topic can override. [P]"""

from __future__ import annotations

from typing import Final

from service.base.types import MAX_INFLATED_BATCH_BYTES
from service.config.keys import LONG_MAX
from service.config.tables.columns import INT, LIST, LONG, MIB, key

LOG: Final = (
    key(
        "log.dirs", LIST, None,
        "Data directories, separated by commas. Default: `log.dir`.",
    ),
    key(
        "log.dir", LIST, ("firn-data",),
        "The data directory, when `log.dirs` is not given.",
    ),
    key(
        "log.flush.scheduler.interval.ms", LONG, LONG_MAX,
        "Default of `flush.ms` when `log.flush.interval.ms` is not set. Logs are checked every second "
        "whatever it is.",
        at_least=1,
    ),
    key(
        "log.flush.offset.checkpoint.interval.ms", INT, 60_000,
        "Time between two writes of the recovery points.",
        at_least=0,
    ),
    key(
        "log.retention.check.interval.ms", LONG, 300_000,
        "Time between two applications of retention.",
        at_least=1,
    ),
    key(
        "producer.id.expiration.ms", INT, 86_400_000,
        "The state of an idempotent producer is removed after this long without records.",
        at_least=1, dynamic=True,
    ),
    key(
        "firn.max.inflated.batch.bytes", INT, 64 * MIB,
        "A compressed batch that inflates beyond this (and beyond `max.message.bytes`) is refused.",
        at_least=MIB, at_most=MAX_INFLATED_BATCH_BYTES,
    ),
    key(
        "firn.max.inflated.request.bytes", INT, 128 * MIB,
        "Most bytes to which all compressed batches of one produce request may inflate together; batches "
        "beyond are refused. Never less than for one batch.",
        at_least=MIB,
    ),
)  # fmt: skip

HOURS_AND_MINUTES: Final = (
    key(
        "log.roll.hours", INT, 168,
        "`log.roll.ms` in hours, used when that is not set.",
        at_least=1,
    ),
    key(
        "log.roll.jitter.hours", INT, 0,
        "`log.roll.jitter.ms` in hours, used when that is not set.",
        at_least=0,
    ),
    key(
        "log.retention.minutes", INT, None,
        "`log.retention.ms` in minutes, used when that is not set.",
        at_least=-1,
    ),
    key(
        "log.retention.hours", INT, 168,
        "`log.retention.ms` in hours, used when neither that nor minutes is set.",
        at_least=-1,
    ),
)  # fmt: skip
"""Keys in coarser units, other names of keys in milliseconds."""
