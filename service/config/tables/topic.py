"""Keys of a topic; `synonyms` name the broker keys that give their defaults. [P]"""

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
        "Treatment of old records. `delete`: retention deletes segments. `compact`: the last record of each "
        "key is kept, and a record without a key is refused. Both may be named, or none: then everything "
        "is kept. Tiered topics cannot be compacted.",
        one_of=("compact", "delete"), synonyms=synonyms_of("log.cleanup.policy"),
    ),
    key(
        "compression.gzip.level", INT, -1,
        "Level of gzip when a batch is recompressed for `compression.type`: 1 is fast, 9 is small, "
        "-1 is zlib's default.",
        check=gzip_level_problem, synonyms=synonyms_of("compression.gzip.level"),
    ),
    key(
        "compression.lz4.level", INT, 9,
        "As `compression.gzip.level`, for lz4. Levels above 12 do not compress further.",
        at_least=1, at_most=17, synonyms=synonyms_of("compression.lz4.level"),
    ),
    key(
        "compression.type", STRING, "producer",
        "Codec of stored batches. `producer` keeps the producer's; with another value batches of other "
        "codecs are recompressed.",
        one_of=COMPRESSION_TYPES, synonyms=synonyms_of("compression.type"),
    ),
    key(
        "compression.zstd.level", INT, 3,
        "As `compression.gzip.level`, for zstd. Levels below 1 are faster.",
        at_least=-131_072, at_most=22, synonyms=synonyms_of("compression.zstd.level"),
    ),
    key(
        "delete.retention.ms", LONG, 24 * HOUR_MS,
        "Time for which a tombstone, a record without a value, stays in a compacted topic after compaction. "
        "A consumer that begins at the start has this long to read everything.",
        at_least=0, synonyms=synonyms_of("log.cleaner.delete.retention.ms"),
    ),
    key(
        "file.delete.delay.ms", LONG, 60_000,
        "Time for which a deleted file stays on disk.",
        at_least=0, synonyms=synonyms_of("log.segment.delete.delay.ms"),
    ),
    key(
        "firn.merge.enable", BOOLEAN, True,
        "Merge runs of at least eight neighbouring segments in the bucket that are each smaller than "
        "`firn.merge.small.bytes` into one object. Without `firn.remote.url` it has no effect.",
        synonyms=synonyms_of("firn.merge.enable"),
    ),
    key(
        "firn.tail.enable", BOOLEAN, True,
        "Save records that are in no sealed segment yet in the bucket with each cut, so that a cluster that "
        "is restored from the bucket has them. Of a topic that is not tiered as far as a partition's log has "
        "at most `firn.tail.base.max.bytes`. Without `firn.remote.url` it has no effect.",
        synonyms=synonyms_of("firn.tail.default.enable"),
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
        "Bytes of a tiered partition that stay on the broker's disk after their copy to "
        "object storage. -2: as `retention.bytes`.",
        at_least=-2, synonyms=synonyms_of("log.local.retention.bytes"),
    ),
    key(
        "local.retention.ms", LONG, -2,
        "Time for which records of a tiered partition stay on the broker's disk after their copy to "
        "object storage. -2: as `retention.ms`.",
        at_least=-2, synonyms=synonyms_of("log.local.retention.ms"),
    ),
    key(
        "max.compaction.lag.ms", LONG, LONG_MAX,
        "Older records are compacted whatever `min.cleanable.dirty.ratio` is; their segment is sealed in "
        "time for that.",
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
        "Share of a compacted log that must be uncompacted before the log is compacted again.",
        at_least=0, at_most=1, synonyms=synonyms_of("log.cleaner.min.cleanable.ratio"),
    ),
    key(
        "min.compaction.lag.ms", LONG, 0,
        "Younger records are not compacted.",
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
        "Only `false` is accepted, for tools that send back all settings that they have read: segments grow "
        "as they are written.",
        check=preallocation_problem, synonyms=synonyms_of("log.preallocate"),
    ),
    key(
        "remote.log.copy.disable", BOOLEAN, False,
        "Stop copying to object storage; the archive stays readable.",
    ),
    key(
        "remote.log.delete.on.disable", BOOLEAN, False,
        "Required to switch `remote.storage.enable` off: the log then begins with the records on the "
        "broker's disk, and those in object storage are deleted.",
    ),
    key(
        "remote.storage.enable", BOOLEAN, False,
        "Copy sealed segments to object storage and delete local copies by `local.retention.*`. Needs "
        "`firn.remote.url`. Can be switched off only together with `remote.log.delete.on.disable=true`.",
    ),
    key(
        "retention.bytes", LONG, -1,
        "Bytes that a partition may hold over both tiers before its oldest segments are deleted. -1: "
        "no bound.",
        synonyms=synonyms_of("log.retention.bytes"),
    ),
    key(
        "retention.ms", LONG, WEEK_MS,
        "Time for which records are kept, over both tiers, by their timestamps. -1: for ever.",
        at_least=-1, synonyms=synonyms_of("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    key(
        "segment.bytes", INT, 1 << 30,
        "Size at which a segment is sealed and a new one begins. One segment becomes one "
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
        "Up to this much is subtracted from `segment.ms`, at random for each segment, so that "
        "partitions do not roll together.",
        at_least=0, synonyms=synonyms_of("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    key(
        "segment.ms", LONG, WEEK_MS,
        "Age at which a segment is sealed even if it is not full.",
        at_least=1, synonyms=synonyms_of("log.roll.ms", "log.roll.hours"),
    ),
)  # fmt: skip
