"""Keys of a topic; the broker keys that give their defaults are made of them (`synonyms`). [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import LONG_MAX
from service.config.tables.checks import gzip_level_problem, preallocation_problem
from service.config.tables.columns import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    LIST,
    LONG,
    MIB,
    STRING,
    WEEK_MS,
    key,
    synonyms_of,
)

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")


TOPIC: Final = (
    key(
        "cleanup.policy", LIST, ("delete",),
        "What happens to old records. `delete`: segments go when retention says so. `compact`: of each key "
        "the last record stays, and a record without a key is refused. Both may be named, or none: then all "
        "is kept. Tiered topics cannot be compacted.",
        one_of=("compact", "delete"), synonyms=synonyms_of("log.cleanup.policy"),
    ),
    key(
        "compression.gzip.level", INT, -1,
        "How hard gzip tries where a batch is compressed anew for `compression.type`: 1 is fast, 9 is small, "
        "-1 is zlib's own choice.",
        check=gzip_level_problem, synonyms=synonyms_of("compression.gzip.level"),
    ),
    key(
        "compression.lz4.level", INT, 9,
        "As `compression.gzip.level`, for lz4. Beyond 12 nothing becomes smaller.",
        at_least=1, at_most=17, synonyms=synonyms_of("compression.lz4.level"),
    ),
    key(
        "compression.type", STRING, "producer",
        "Codec that batches are stored in. `producer` keeps them as they came; another value "
        "recompresses a batch that came otherwise.",
        one_of=COMPRESSION_TYPES, synonyms=synonyms_of("compression.type"),
    ),
    key(
        "compression.zstd.level", INT, 3,
        "As `compression.gzip.level`, for zstd. Levels below 1 are faster still.",
        at_least=-131_072, at_most=22, synonyms=synonyms_of("compression.zstd.level"),
    ),
    key(
        "delete.retention.ms", LONG, 24 * HOUR_MS,
        "How long the deletion of a key, a record without a value, stays in a compacted topic once it has "
        "been compacted: so long a consumer that begins at the start may take to read everything.",
        at_least=0, synonyms=synonyms_of("log.cleaner.delete.retention.ms"),
    ),
    key(
        "file.delete.delay.ms", LONG, 60_000,
        "How long a deleted file stays on disk.",
        at_least=0, synonyms=synonyms_of("log.segment.delete.delay.ms"),
    ),
    key(
        "flush.messages", LONG, LONG_MAX,
        "fsync the log after this many records.",
        at_least=1, synonyms=synonyms_of("log.flush.interval.messages"),
    ),
    key(
        "flush.ms", LONG, LONG_MAX,
        "fsync the log when its oldest unflushed record is this old.",
        at_least=0, synonyms=synonyms_of("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    key(
        "index.interval.bytes", INT, 4096,
        "Bytes of log between two entries of the offset index.",
        at_least=0, synonyms=synonyms_of("log.index.interval.bytes"),
    ),
    key(
        "internal.segment.bytes", INT, None,
        "Segment size below the bound of `segment.bytes`, for tests.",
        at_least=1, internal=True,
    ),
    key(
        "local.retention.bytes", LONG, -2,
        "Bytes of a tiered partition that stay on the broker's disk once the rest is in "
        "object storage. -2: as `retention.bytes`.",
        at_least=-2, synonyms=synonyms_of("log.local.retention.bytes"),
    ),
    key(
        "local.retention.ms", LONG, -2,
        "How long records of a tiered partition stay on the broker's disk once they are in "
        "object storage. -2: as `retention.ms`.",
        at_least=-2, synonyms=synonyms_of("log.local.retention.ms"),
    ),
    key(
        "max.compaction.lag.ms", LONG, LONG_MAX,
        "A record that is older is compacted whatever `min.cleanable.dirty.ratio` says; its segment is "
        "sealed in time for that.",
        at_least=1, synonyms=synonyms_of("log.cleaner.max.compaction.lag.ms"),
    ),
    key(
        "max.message.bytes", INT, 1_048_588,
        "Largest record batch accepted, as stored (12 bytes of overhead included).",
        at_least=0, synonyms=synonyms_of("message.max.bytes"),
    ),
    key(
        "message.timestamp.after.max.ms", LONG, HOUR_MS,
        "How far a record's timestamp may lie after the broker's clock. Without effect under "
        "`LogAppendTime`.",
        at_least=0, synonyms=synonyms_of("log.message.timestamp.after.max.ms"),
    ),
    key(
        "message.timestamp.before.max.ms", LONG, LONG_MAX,
        "How far a record's timestamp may lie before the broker's clock. Without effect under"
        " `LogAppendTime`.",
        at_least=0, synonyms=synonyms_of("log.message.timestamp.before.max.ms"),
    ),
    key(
        "message.timestamp.type", STRING, "CreateTime",
        "Keep the producer's timestamps (`CreateTime`) or stamp the broker's "
        "(`LogAppendTime`).",
        one_of=TIMESTAMP_TYPES, synonyms=synonyms_of("log.message.timestamp.type"),
    ),
    key(
        "min.cleanable.dirty.ratio", DOUBLE, 0.5,
        "Which part of a compacted log must not have been compacted yet before it is.",
        at_least=0, at_most=1, synonyms=synonyms_of("log.cleaner.min.cleanable.ratio"),
    ),
    key(
        "min.compaction.lag.ms", LONG, 0,
        "A record that is younger is not compacted.",
        at_least=0, synonyms=synonyms_of("log.cleaner.min.compaction.lag.ms"),
    ),
    key(
        "min.insync.replicas", INT, 1,
        "Replicas that must hold a batch before `acks=all` is answered; with fewer in sync "
        "the batch is refused.",
        at_least=1, synonyms=synonyms_of("min.insync.replicas"),
    ),
    key(
        "preallocate", BOOLEAN, False,
        "Only `false`, for tools that send back all settings that they have read: segments grow as they are "
        "written.",
        check=preallocation_problem, synonyms=synonyms_of("log.preallocate"),
    ),
    key(
        "remote.log.copy.disable", BOOLEAN, False,
        "Stop copying to object storage; what is there stays readable.",
    ),
    key(
        "remote.log.delete.on.disable", BOOLEAN, False,
        "Needed to switch `remote.storage.enable` off: the log begins with what is on the broker's disk "
        "then, and what is in object storage is deleted.",
    ),
    key(
        "remote.storage.enable", BOOLEAN, False,
        "Copy sealed segments to object storage and let local copies go. Needs "
        "`firn.remote.url`. It is switched off together with `remote.log.delete.on.disable=true` alone.",
    ),
    key(
        "retention.bytes", LONG, -1,
        "Bytes that a partition may hold over both tiers before its oldest segments go. -1: "
        "no bound.",
        synonyms=synonyms_of("log.retention.bytes"),
    ),
    key(
        "retention.ms", LONG, WEEK_MS,
        "How long records are kept, over both tiers, by their timestamps. -1: for ever.",
        at_least=-1, synonyms=synonyms_of("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    key(
        "segment.bytes", INT, 1 << 30,
        "Size at which a segment is sealed and a new one begun. One segment becomes one "
        "object.",
        at_least=MIB, synonyms=synonyms_of("log.segment.bytes"),
    ),
    key(
        "segment.index.bytes", INT, 10 * MIB,
        "Largest size of an index file; a segment whose index is full is sealed.",
        at_least=4, synonyms=synonyms_of("log.index.size.max.bytes"),
    ),
    key(
        "segment.jitter.ms", LONG, 0,
        "Up to this much is taken off `segment.ms`, at random for each segment, so that "
        "partitions do not roll together.",
        at_least=0, synonyms=synonyms_of("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    key(
        "segment.ms", LONG, WEEK_MS,
        "Age at which a segment is sealed even when it is not full.",
        at_least=1, synonyms=synonyms_of("log.roll.ms", "log.roll.hours"),
    ),
)  # fmt: skip
