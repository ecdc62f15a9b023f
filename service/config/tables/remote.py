"""Keys of the cold tier. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import LONG_MAX
from service.config.tables.checks import (
    cut_interval_problem,
    http_url_problem,
    kms_key_problem,
    store_url_problem,
)
from service.config.tables.columns import BOOLEAN, DAY_MS, HOUR_MS, INT, LONG, MIB, STRING, key

REMOTE: Final = (
    key(
        "remote.log.manager.task.interval.ms", LONG, 30_000,
        "Time between two checks of a partition that waits for something without an event, such as room "
        "within its retention. Sealed segments are copied at once.",
        at_least=1,
    ),
    key(
        "remote.log.manager.copier.thread.pool.size", INT, 4,
        "Number of segments that are copied at the same time. Each takes up to 16 MiB of memory; Kafka's "
        "default is 10.",
        at_least=1,
    ),
    key(
        "remote.log.reader.threads", INT, 10,
        "Threads that read from object storage.",
        at_least=1,
    ),
    key(
        "remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX,
        "Most bytes of segments that are copied to object storage per second, on average over the window "
        "below. A segment is copied as a whole, and the next one waits.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.log.manager.copy.quota.window.num", INT, 11,
        "Number of windows of the size below over which copies are averaged, the current one included.",
        at_least=1,
    ),
    key(
        "remote.log.manager.copy.quota.window.size.seconds", INT, 1,
        "Length of a window.",
        at_least=1,
    ),
    key(
        "remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX,
        "Most bytes that are downloaded from object storage for consumers per second, on average over the "
        "window below. Beyond that, fetches of cold records get an empty response, and clients fetch again.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.log.manager.fetch.quota.window.num", INT, 11,
        "Number of windows of the size below over which downloads are averaged, the current one included.",
        at_least=1,
    ),
    key(
        "remote.log.manager.fetch.quota.window.size.seconds", INT, 1,
        "Length of a window.",
        at_least=1,
    ),
    key(
        "remote.fetch.max.wait.ms", INT, 500,
        "Longest wait of a fetch for object storage; then the response is empty, and the download "
        "continues.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.list.offsets.request.timeout.ms", LONG, 30_000,
        "Longest search for an offset by time in object storage, unless the client sets a timeout.",
        at_least=1, dynamic=True,
    ),
    key(
        "firn.remote.url", STRING, None,
        "URL of the cold tier: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix` or `file:///dir`. Unset: no tiered storage. Credentials come"
        " from the environment (for S3 the usual AWS chain), never from a configuration key.",
        check=store_url_problem,
    ),
    key(
        "firn.remote.s3.endpoint", STRING, None,
        "Endpoint of an S3-compatible server. Default: AWS, or `AWS_ENDPOINT_URL`.",
        check=http_url_problem,
    ),
    key(
        "firn.remote.s3.region", STRING, None,
        "Region of the bucket. Default: `AWS_REGION`, else us-east-1.",
    ),
    key(
        "firn.remote.s3.sse", STRING, None,
        "Encryption at rest that every write asks S3 for, by the header `x-amz-server-side-encryption`, as "
        "some buckets' policies demand. Unset: no header, so the bucket's own default holds.",
        one_of=("AES256", "aws:kms"),
    ),
    key(
        "firn.remote.s3.sse.kms.key.id", STRING, None,
        "Key of KMS for `firn.remote.s3.sse=aws:kms`: its ARN, its id or `alias/NAME`. Default: the key that "
        "AWS manages for S3 in the account.",
        check=kms_key_problem,
    ),
    key(
        "firn.remote.cache.bytes", LONG, 128 * MIB,
        "Memory for data from object storage: chunks in flight, read-ahead and cache "
        "together.",
        at_least=8 * MIB,
    ),
    key(
        "firn.remote.cache.dir", STRING, None,
        "Directory on this machine that caches data from object storage beyond the memory cache. For this "
        "node alone, and emptied at each start: a fast disk that may lose its content is fine. Unset: no "
        "cache on disk. After an error of the disk the node continues without it.",
    ),
    key(
        "firn.remote.cache.dir.bytes", LONG, 10240 * MIB,
        "Most bytes in `firn.remote.cache.dir`; the least recently used are removed first.",
        at_least=64 * MIB,
    ),
    key(
        "firn.remote.chunk.bytes", INT, 4 * MIB,
        "Size of one ranged read from object storage.",
        at_least=64 * 1024, at_most=64 * MIB,
    ),
    key(
        "firn.remote.object.grace.ms", LONG, HOUR_MS,
        "Time for which an object stays in the bucket after the manifest has dropped it, so that "
        "readers of the old manifest can finish; also the age at which an object without a manifest "
        "is swept as an orphan. Must be longer than any upload takes.",
        at_least=0,
    ),
    key(
        "firn.cut.interval.ms", LONG, 10_000,
        "Time between two cuts: moments of the whole cluster from which the bucket can restore it. The "
        "records that no segment in the bucket has are uploaded with each, and nothing while nothing "
        "changes. -1: no cuts. The value of the broker that keeps the prefix counts.",
        check=cut_interval_problem, dynamic=True,
    ),
    key(
        "firn.cut.hold.max.ms", INT, 20,
        "Longest time for which a cut usually holds back what becomes visible on brokers: high watermarks, "
        "and the answers that wait for them. Brokers go on by themselves after it, and the cut is void. "
        "Where that happens twice in a row the time is doubled, up to firn.cut.hold.longest.ms.",
        at_least=1, at_most=10_000, dynamic=True,
    ),
    key(
        "firn.cut.hold.longest.ms", INT, 640,
        "Longest time that firn.cut.hold.max.ms is doubled to while brokers are too busy to answer within "
        "it; it is halved after sixteen cuts in time. A cut holds back until the slowest broker answers, "
        "so produce with acks=all and fetches at the log's end may take so much longer once in each "
        "firn.cut.interval.ms. With a value not above firn.cut.hold.max.ms the time is never doubled.",
        at_least=1, at_most=10_000, dynamic=True,
    ),
    key(
        "firn.merge.small.bytes", LONG, 16 * MIB,
        "Only objects in the bucket that are smaller are merged with their neighbours "
        "(`firn.merge.enable`).",
        at_least=1, at_most=1024 * MIB, dynamic=True,
    ),
    key(
        "firn.merge.min.age.ms", LONG, DAY_MS,
        "Only segments that were uploaded longer ago are merged, however old their records are: so the "
        "segments of a backfill are merged once it is over.",
        at_least=0, dynamic=True,
    ),
    key(
        "firn.rewrite.object.bytes", LONG, 128 * MIB,
        "Most bytes of an object that is merged from others; an eighth of the topic's `retention.bytes` "
        "where that is less.",
        at_least=1 * MIB, at_most=1024 * MIB, dynamic=True,
    ),
    key(
        "firn.displaced.produce", STRING, "refuse",
        "What a node does with records of producers once a cluster that was restored from this one has taken "
        "the prefix over: refuse them (KAFKA_STORAGE_ERROR), as clients belong to the restored cluster now, "
        "or allow them, although nothing of them is copied any more.",
        one_of=("refuse", "allow"), dynamic=True,
    ),
    key(
        "firn.tail.base.max.bytes", LONG, 1024 * MIB,
        "Largest local log of a partition of a topic that is not tiered, as compacted ones are, that goes "
        "into tails: these have all of it. A larger one is left out, and named in the log and in metrics. "
        "Internal topics are saved whatever their size is.",
        at_least=0, dynamic=True,
    ),
    key(
        "firn.tail.wait.ms", LONG, 0,
        "A partition whose segment will be sealed and copied within this time, at the rate of its last "
        "minute, goes into no tail: its bytes go up once. The cut is complete when the segment is there.",
        at_least=0, dynamic=True,
    ),
    key(
        "firn.remote.unfenced.allow", BOOLEAN, False,
        "Use an object store that does not honour conditional writes (If-Match, If-None-Match). "
        "Then two nodes on one prefix may overwrite each other's objects unnoticed: make sure that there "
        "never are two.",
    ),
    key(
        "firn.remote.metadata.credentials", BOOLEAN, False,
        "Copy users' SCRAM credentials and delegation tokens into the bucket with the other metadata. "
        "Otherwise a recovery from the bucket (`firn.remote.recover`) brings topics, ACLs and quotas back, "
        "and each user's password has to be set again. With it everybody who may read the archive reads the "
        "salted keys of all users.",
    ),
    key(
        "firn.remote.recover", BOOLEAN, False,
        "Take over, at this start, the topics, archives and producer ids of the bucket that this node's "
        "metadata lacks or knows in an older state: after a lost disk, or one restored from a backup. "
        "No other node may be running on the prefix. Records that were not yet in the bucket are "
        "discarded where the restored log and the archive differ.",
    ),
)  # fmt: skip
