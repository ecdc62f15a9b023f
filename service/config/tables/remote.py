"""Keys of the cold tier. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import LONG_MAX
from service.config.tables.checks import http_url_problem, store_url_problem
from service.config.tables.columns import BOOLEAN, HOUR_MS, INT, LONG, MIB, STRING, key

REMOTE: Final = (
    key(
        "remote.log.manager.task.interval.ms", LONG, 30_000,
        "How often a partition is looked at again that waits for what nobody tells of, such as room "
        "within its retention. What is sealed is copied at once.",
        at_least=1,
    ),
    key(
        "remote.log.manager.copier.thread.pool.size", INT, 4,
        "Segments that are copied at a time. Each takes up to 16 MiB of memory while it is; Kafka's "
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
        "Bytes of segments that are copied to object storage per second, on average over the window below. "
        "A segment is copied as a whole, and the next one waits.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.log.manager.copy.quota.window.num", INT, 11,
        "How many windows of the size below the copies are averaged over, with the one that has begun.",
        at_least=1,
    ),
    key(
        "remote.log.manager.copy.quota.window.size.seconds", INT, 1,
        "Length of such a window.",
        at_least=1,
    ),
    key(
        "remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX,
        "Bytes that are downloaded from object storage for consumers per second, on average over the window "
        "below. Beyond that a fetch of cold records is answered without any, and the client asks again.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.log.manager.fetch.quota.window.num", INT, 11,
        "How many windows of the size below the downloads are averaged over, with the one that has begun.",
        at_least=1,
    ),
    key(
        "remote.log.manager.fetch.quota.window.size.seconds", INT, 1,
        "Length of such a window.",
        at_least=1,
    ),
    key(
        "remote.fetch.max.wait.ms", INT, 500,
        "How long a fetch waits for object storage before it answers without; the download "
        "goes on.",
        at_least=1, dynamic=True,
    ),
    key(
        "remote.list.offsets.request.timeout.ms", LONG, 30_000,
        "How long a search for an offset by time may take in object storage, unless the client says.",
        at_least=1, dynamic=True,
    ),
    key(
        "firn.remote.url", STRING, None,
        "Where the cold tier lives: `s3://bucket/prefix`, `gs://bucket/prefix`, "
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
        "firn.remote.cache.bytes", LONG, 128 * MIB,
        "Memory for what is read from object storage: chunks in flight, read-ahead and cache "
        "together.",
        at_least=8 * MIB,
    ),
    key(
        "firn.remote.cache.dir", STRING, None,
        "Directory on this machine where what is read from object storage is kept beyond the memory "
        "for it. Of this node alone, and empty after each start: a fast disk that may lose what is on "
        "it will do. Unset: nothing is kept on disk. After an error of the disk the node goes on without.",
    ),
    key(
        "firn.remote.cache.dir.bytes", LONG, 10240 * MIB,
        "Most bytes in `firn.remote.cache.dir`; the least recently used go first.",
        at_least=64 * MIB,
    ),
    key(
        "firn.remote.chunk.bytes", INT, 4 * MIB,
        "Size of one ranged read from object storage.",
        at_least=64 * 1024, at_most=64 * MIB,
    ),
    key(
        "firn.remote.object.grace.ms", LONG, HOUR_MS,
        "How long an object stays in the bucket after the manifest has dropped it, so that "
        "readers of the old manifest can finish; and how old an object without a manifest "
        "must be to be swept as an orphan, and an unfinished multipart upload to be aborted. Must be "
        "longer than any upload takes.",
        at_least=0,
    ),
    key(
        "firn.remote.unfenced.allow", BOOLEAN, False,
        "Use an object store that does not honour conditional writes (If-Match, If-None-Match). "
        "Then two nodes on one prefix may write over each other unnoticed: make sure that there "
        "never are two.",
    ),
    key(
        "firn.remote.recover", BOOLEAN, False,
        "Take over, at this start, what the bucket says of topics, archives and producer ids and "
        "this node's metadata does not know, or knows an older state of: after a lost disk, or "
        "one restored from a backup. No other node may be running on the prefix. Records that "
        "were not in the bucket yet are given up where the restored log and the archive differ.",
    ),
)  # fmt: skip
