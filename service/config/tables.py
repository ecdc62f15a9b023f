"""Every configuration key that Firn accepts, topic keys first, then the node's. [P]

Names, types, defaults and bounds are Apache Kafka 4.3's (`LogConfig`, `KafkaConfig`) wherever Kafka has the
key; keys under `firn.` are ours. A key is in these tables only if it has an effect; `REFUSED` says why for
the well-known ones that have none.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.base.types import MAX_INFLATED_BATCH_BYTES
from service.config.keys import LONG_MAX, ConfigKey, ConfigType, Synonym, Value

BOOLEAN, INT, LONG, STRING, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.STRING,
    ConfigType.LIST,
)
MIB: Final = 1 << 20
HOUR_MS: Final = 3_600_000
WEEK_MS: Final = 168 * HOUR_MS
COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")


_HTTP_REST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.\-]+)(:[0-9]{1,5})?(/[!-~]*)?")
"""Host, port and path of an HTTP URL; anything stranger is a mistake."""


def _only_delete(text: str) -> str | None:
    if [part.strip() for part in text.split(",")] == ["delete"]:
        return None
    return "Firn keeps whole logs and deletes by retention: only 'delete' is supported"


S3_SCHEMES: Final = ("s3", "s3a", "s3n")
"""The same thing; the latter two are Hadoop's words."""


def store_url_problem(text: str) -> str | None:
    """Why `text` is not the URL of an object store, None when it is."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in (*S3_SCHEMES, "gs", "az", "file") or not _is_printable(text):
        return "Expected a URL such as s3://bucket/prefix, gs://bucket/prefix, az://box/prefix or file:///dir"
    if "@" in rest.partition("/")[0]:
        return "Credentials do not belong in the URL; they come from the environment (the usual AWS chain)"
    if not rest.strip("/"):
        return "The URL names no bucket or directory"
    if scheme == "file" and not rest.startswith("/"):
        return "Expected file:// and an absolute path, as in file:///var/lib/firn"
    return None


def http_url_problem(text: str) -> str | None:
    """Why `text` is not the URL of a server, None when it is."""
    scheme, separator, rest = text.partition("://")
    if "@" in rest:
        return "Credentials do not belong in the URL"
    if not separator or scheme not in ("http", "https") or not _HTTP_REST.fullmatch(rest):
        return "Expected a URL such as http://127.0.0.1:9000"
    return None


def _is_printable(text: str) -> bool:
    return text.isprintable() and " " not in text


def _cluster_id(text: str) -> str | None:
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or len(text) != 22 or int.from_bytes(raw, "big") < 2:
        return (
            "Expected 22 characters of URL-safe base64 (16 bytes), as 'kafka-storage random-uuid' makes them"
        )
    return None


def _key(name: str, type: ConfigType, default: Value, doc: str, **more: object) -> ConfigKey:
    return ConfigKey(name, type, default, doc, **more)  # type: ignore[arg-type]


def _synonyms(*names: str) -> tuple[Synonym, ...]:
    factor = {"hours": HOUR_MS, "minutes": 60_000}
    return tuple(Synonym(name, factor.get(name.rpartition(".")[2], 1)) for name in names)


_TOPIC = (
    _key(
        "cleanup.policy", LIST, ("delete",),
        "What happens to old segments. Only `delete` is supported: they go when retention "
        "says so.",
        check=_only_delete, synonyms=_synonyms("log.cleanup.policy"),
    ),
    _key(
        "compression.type", STRING, "producer",
        "Codec that batches are stored in. `producer` keeps them as they came; another value "
        "recompresses a batch that came otherwise.",
        one_of=COMPRESSION_TYPES, synonyms=_synonyms("compression.type"),
    ),
    _key(
        "file.delete.delay.ms", LONG, 60_000,
        "How long a deleted file stays on disk under its `.deleted` name.",
        at_least=0, synonyms=_synonyms("log.segment.delete.delay.ms"),
    ),
    _key(
        "flush.messages", LONG, LONG_MAX,
        "fsync the log after this many records.",
        at_least=1, synonyms=_synonyms("log.flush.interval.messages"),
    ),
    _key(
        "flush.ms", LONG, LONG_MAX,
        "fsync the log when its oldest unflushed record is this old.",
        at_least=0, synonyms=_synonyms("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    _key(
        "index.interval.bytes", INT, 4096,
        "Bytes of log between two entries of the offset index.",
        at_least=0, synonyms=_synonyms("log.index.interval.bytes"),
    ),
    _key(
        "internal.segment.bytes", INT, None,
        "Segment size below the bound of `segment.bytes`, for tests.",
        at_least=1, internal=True,
    ),
    _key(
        "local.retention.bytes", LONG, -2,
        "Bytes of a tiered partition that stay on the broker's disk once the rest is in "
        "object storage. -2: as `retention.bytes`.",
        at_least=-2, synonyms=_synonyms("log.local.retention.bytes"),
    ),
    _key(
        "local.retention.ms", LONG, -2,
        "How long records of a tiered partition stay on the broker's disk once they are in "
        "object storage. -2: as `retention.ms`.",
        at_least=-2, synonyms=_synonyms("log.local.retention.ms"),
    ),
    _key(
        "max.message.bytes", INT, 1_048_588,
        "Largest record batch accepted, as stored (12 bytes of overhead included).",
        at_least=0, synonyms=_synonyms("message.max.bytes"),
    ),
    _key(
        "message.timestamp.after.max.ms", LONG, HOUR_MS,
        "How far a record's timestamp may lie after the broker's clock. Without effect under "
        "`LogAppendTime`.",
        at_least=0, synonyms=_synonyms("log.message.timestamp.after.max.ms"),
    ),
    _key(
        "message.timestamp.before.max.ms", LONG, LONG_MAX,
        "How far a record's timestamp may lie before the broker's clock. Without effect under"
        " `LogAppendTime`.",
        at_least=0, synonyms=_synonyms("log.message.timestamp.before.max.ms"),
    ),
    _key(
        "message.timestamp.type", STRING, "CreateTime",
        "Keep the producer's timestamps (`CreateTime`) or stamp the broker's "
        "(`LogAppendTime`).",
        one_of=TIMESTAMP_TYPES, synonyms=_synonyms("log.message.timestamp.type"),
    ),
    _key(
        "min.insync.replicas", INT, 1,
        "Replicas that must hold a batch before `acks=all` is answered; with fewer in sync "
        "the batch is refused.",
        at_least=1, synonyms=_synonyms("min.insync.replicas"),
    ),
    _key(
        "remote.log.copy.disable", BOOLEAN, False,
        "Stop copying to object storage; what is there stays readable.",
    ),
    _key(
        "remote.storage.enable", BOOLEAN, False,
        "Copy sealed segments to object storage and let local copies go. Needs "
        "`firn.remote.url`. It cannot be switched off again.",
    ),
    _key(
        "retention.bytes", LONG, -1,
        "Bytes that a partition may hold over both tiers before its oldest segments go. -1: "
        "no bound.",
        synonyms=_synonyms("log.retention.bytes"),
    ),
    _key(
        "retention.ms", LONG, WEEK_MS,
        "How long records are kept, over both tiers, by their timestamps. -1: for ever.",
        at_least=-1, synonyms=_synonyms("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    _key(
        "segment.bytes", INT, 1 << 30,
        "Size at which a segment is sealed and a new one begun. One segment becomes one "
        "object.",
        at_least=MIB, synonyms=_synonyms("log.segment.bytes"),
    ),
    _key(
        "segment.index.bytes", INT, 10 * MIB,
        "Largest size of an index file; a segment whose index is full is sealed.",
        at_least=4, synonyms=_synonyms("log.index.size.max.bytes"),
    ),
    _key(
        "segment.jitter.ms", LONG, 0,
        "Up to this much is taken off `segment.ms`, at random for each segment, so that "
        "partitions do not roll together.",
        at_least=0, synonyms=_synonyms("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    _key(
        "segment.ms", LONG, WEEK_MS,
        "Age at which a segment is sealed even when it is not full.",
        at_least=1, synonyms=_synonyms("log.roll.ms", "log.roll.hours"),
    ),
)  # fmt: skip

_NODE = (
    _key(
        "node.id", INT, 1,
        "Number of this node.",
        at_least=0, importance="high",
    ),
    _key(
        "process.roles", LIST, ("broker", "controller"),
        "Roles of this node. A single node is both, in either order.",
        one_of=("broker", "controller"), importance="high",
    ),
    _key(
        "listeners", STRING, "PLAINTEXT://127.0.0.1:9092",
        "Where to listen: `NAME://host:port,…`. An empty host is every interface; port 0 "
        "takes a free one. Firn's default listens on the loopback interface only.",
        importance="high",
    ),
    _key(
        "advertised.listeners", STRING, None,
        "Addresses that clients are told, by listener name. Default: as `listeners`, with the"
        " machine's name for an empty host.",
        importance="high",
    ),
    _key(
        "listener.security.protocol.map", STRING, None,
        "Protocol of each listener name: `NAME:PROTOCOL,…`. Listeners in use must map to "
        "PLAINTEXT; entries for names not in use are let be. Default: PLAINTEXT and the "
        "controller's listeners are PLAINTEXT.",
        importance="low",
    ),
    _key(
        "controller.listener.names", LIST, (),
        "Names in `listeners` that belong to the controller. A single node speaks to its "
        "controller in memory: these listeners are left closed.",
        importance="high",
    ),
    _key(
        "controller.quorum.voters", LIST, (),
        "`id@host:port` of the metadata quorum's voters. Only this node itself can be named.",
        importance="high",
    ),
    _key(
        "firn.cluster.id", STRING, None,
        "Cluster id to format an empty data directory with. Default: a random one. A directory "
        "formatted with another id is refused. A new disk takes an existing prefix over with this "
        "and `firn.remote.recover`; without the latter it serves, and neither writes to the "
        "prefix nor deletes from it.",
        check=_cluster_id,
    ),
    _key(
        "broker.rack", STRING, None,
        "Rack that clients are told for this node.",
    ),
    _key(
        "log.dirs", LIST, None,
        "Data directories, separated by commas. Default: `log.dir`.",
        importance="high",
    ),
    _key(
        "log.dir", LIST, ("firn-data",),
        "The data directory, when `log.dirs` is not given.",
        importance="high",
    ),
    _key(
        "num.partitions", INT, 1,
        "Partitions of a topic that is created without a number of its own.",
        at_least=1,
    ),
    _key(
        "default.replication.factor", INT, 1,
        "Replicas of a topic that is created without a number of its own. One node can hold "
        "one.",
        at_least=1, at_most=1,
    ),
    _key(
        "auto.create.topics.enable", BOOLEAN, True,
        "Create a topic when a client asks for its metadata and allows it.",
        importance="high",
    ),
    _key(
        "delete.topic.enable", BOOLEAN, True,
        "Allow topics to be deleted.",
        importance="high",
    ),
    _key(
        "socket.request.max.bytes", INT, 100 * MIB,
        "Largest request; a larger one closes its connection.",
        at_least=1, importance="high",
    ),
    _key(
        "max.connections", INT, 2**31 - 1,
        "Open connections at most; further ones wait to be accepted.",
        at_least=1,
    ),
    _key(
        "connections.max.idle.ms", LONG, 600_000,
        "Close a connection on which nothing happened for this long. -1: never.",
        at_least=-1,
    ),
    _key(
        "queued.max.request.bytes", LONG, 256 * MIB,
        "Bytes of requests that are still arriving, over all connections, beyond which no more "
        "are read. -1: no bound, which is Kafka's default and leaves memory to the clients.",
        at_least=-1,
    ),
    _key(
        "fetch.max.bytes", INT, 55 * MIB,
        "Most bytes one fetch answers with, whatever the client asked for.",
        at_least=1024,
    ),
    _key(
        "max.request.partition.size.limit", INT, 2000,
        "Partitions that one DescribeTopicPartitions answers at most.",
        at_least=1,
    ),
    _key(
        "log.flush.scheduler.interval.ms", LONG, LONG_MAX,
        "Default of `flush.ms` when `log.flush.interval.ms` is not set. Logs are looked at every "
        "second whatever it is.",
        at_least=1, importance="high",
    ),
    _key(
        "log.flush.offset.checkpoint.interval.ms", INT, 60_000,
        "How often the recovery points are written.",
        at_least=0, importance="high",
    ),
    _key(
        "log.retention.check.interval.ms", LONG, 300_000,
        "How often retention is applied.",
        at_least=1,
    ),
    _key(
        "producer.id.expiration.ms", INT, 86_400_000,
        "An idempotent producer that is silent for this long is forgotten.",
        at_least=1, importance="low",
    ),
    _key(
        "metadata.log.segment.bytes", INT, 1 << 30,
        "Segment size of the metadata log.",
        at_least=8 * MIB, importance="high",
    ),
    _key(
        "metadata.log.max.record.bytes.between.snapshots", LONG, 20 * MIB,
        "Bytes of metadata log after which a snapshot is written.",
        at_least=1, importance="high",
    ),
    _key(
        "metadata.log.max.snapshot.interval.ms", LONG, HOUR_MS,
        "Time after which a snapshot is written when there is anything new. 0: never by time.",
        at_least=0, importance="high",
    ),
    _key(
        "remote.log.manager.task.interval.ms", LONG, 30_000,
        "How often partitions are looked at for segments to copy to object storage and to "
        "delete there.",
        at_least=1, importance="low",
    ),
    _key(
        "remote.log.manager.copier.thread.pool.size", INT, 4,
        "Segments that are copied at a time. Each takes up to 16 MiB of memory while it is; Kafka's "
        "default is 10.",
        at_least=1,
    ),
    _key(
        "remote.log.reader.threads", INT, 10,
        "Threads that read from object storage.",
        at_least=1,
    ),
    _key(
        "remote.fetch.max.wait.ms", INT, 500,
        "How long a fetch waits for object storage before it answers without; the download "
        "goes on.",
        at_least=1,
    ),
    _key(
        "remote.list.offsets.request.timeout.ms", LONG, 30_000,
        "How long a search for an offset by time may take in object storage, unless the client says.",
        at_least=1,
    ),
    _key(
        "firn.remote.url", STRING, None,
        "Where the cold tier lives: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix` or `file:///dir`. Unset: no tiered storage. Credentials come"
        " from the environment (for S3 the usual AWS chain), never from a configuration key.",
        check=store_url_problem, importance="high",
    ),
    _key(
        "firn.remote.s3.endpoint", STRING, None,
        "Endpoint of an S3-compatible server. Default: AWS, or `AWS_ENDPOINT_URL`.",
        check=http_url_problem,
    ),
    _key(
        "firn.remote.s3.region", STRING, None,
        "Region of the bucket. Default: `AWS_REGION`, else us-east-1.",
    ),
    _key(
        "firn.remote.cache.bytes", LONG, 128 * MIB,
        "Memory for what is read from object storage: chunks in flight, read-ahead and cache "
        "together.",
        at_least=8 * MIB,
    ),
    _key(
        "firn.remote.chunk.bytes", INT, 4 * MIB,
        "Size of one ranged read from object storage.",
        at_least=64 * 1024, at_most=64 * MIB,
    ),
    _key(
        "firn.remote.object.grace.ms", LONG, HOUR_MS,
        "How long an object stays in the bucket after the manifest has dropped it, so that "
        "readers of the old manifest can finish; and how old an object without a manifest "
        "must be to be swept as an orphan, and an unfinished multipart upload to be aborted. Must be "
        "longer than any upload takes.",
        at_least=0,
    ),
    _key(
        "firn.remote.unfenced.allow", BOOLEAN, False,
        "Use an object store that does not honour conditional writes (If-Match, If-None-Match). "
        "Then two nodes on one prefix may write over each other unnoticed: make sure that there "
        "never are two.",
        importance="low",
    ),
    _key(
        "firn.remote.recover", BOOLEAN, False,
        "Take over, at this start, what the bucket says of topics, archives and producer ids and "
        "this node's metadata does not know, or knows an older state of: after a lost disk, or "
        "one restored from a backup. No other node may be running on the prefix. Records that "
        "were not in the bucket yet are given up where the restored log and the archive differ.",
    ),
    _key(
        "firn.max.inflated.batch.bytes", INT, 64 * MIB,
        "A compressed batch that inflates beyond this (and beyond `max.message.bytes`) is refused.",
        at_least=MIB, at_most=MAX_INFLATED_BATCH_BYTES,
    ),
)  # fmt: skip

_HOURS_AND_MINUTES = (
    _key(
        "log.roll.hours", INT, 168,
        "`log.roll.ms` in hours, used when that is not set.",
        at_least=1, importance="high",
    ),
    _key(
        "log.roll.jitter.hours", INT, 0,
        "`log.roll.jitter.ms` in hours, used when that is not set.",
        at_least=0, importance="high",
    ),
    _key(
        "log.retention.minutes", INT, None,
        "`log.retention.ms` in minutes, used when that is not set.",
        at_least=-1, importance="high",
    ),
    _key(
        "log.retention.hours", INT, 168,
        "`log.retention.ms` in hours, used when neither that nor minutes is set.",
        at_least=-1, importance="high",
    ),
)  # fmt: skip

_HIGH = {
    "compression.type", "log.flush.interval.messages", "log.flush.interval.ms", "log.retention.bytes",
    "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms", "log.segment.bytes",
    "log.segment.delete.delay.ms", "message.max.bytes", "min.insync.replicas",
}  # fmt: skip


def _broker_default(topic_key: ConfigKey) -> ConfigKey:
    """The broker key that gives a topic key its default: same type and bounds, under the broker's name."""
    name = topic_key.synonyms[0].name
    several = len(topic_key.synonyms) > 1
    return ConfigKey(
        name=name,
        type=topic_key.type,
        # a key with hours or minutes beside it has no default of its own, as in Kafka
        default=None if several else topic_key.default,
        doc=f"Default of the topic key `{topic_key.name}`: {topic_key.doc}",
        at_least=topic_key.at_least,
        one_of=topic_key.one_of,
        check=topic_key.check,
        importance="high" if name in _HIGH else "medium",
        dynamic=True,
    )


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in _TOPIC})
BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {
        key.name: key
        for key in (*_NODE, *(_broker_default(key) for key in _TOPIC if key.synonyms), *_HOURS_AND_MINUTES)
    }
)

REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broker.id": "use node.id",
        "zookeeper.": "there is no ZooKeeper; metadata is a Raft log",
        "metadata.log.dir": "the metadata log lives in the first of log.dirs",
        "controller.quorum.bootstrap.servers": "a single node has no quorum to find; leave it out",
        "inter.broker.listener.name": "a single node speaks to no other broker; leave it out",
        "security.inter.broker.protocol": "a single node speaks to no other broker; leave it out",
        "num.network.threads": "a node is one event loop; run more nodes to use more cores",
        "num.io.threads": "a node is one event loop; run more nodes to use more cores",
        "remote.log.storage.system.enable": "firn.remote.url is the switch: set it, or leave it out",
        "remote.log.storage.manager.": "storage is built in; set firn.remote.url",
        "remote.log.metadata.": "the catalog of segments is in the metadata quorum",
        "remote.log.delete.on.disable": "remote storage cannot be switched off for a topic; delete the topic",
        "log.cleaner.": "compacted topics are not supported",
        "offsets.": "consumer groups are not supported",
        "group.": "consumer groups are not supported",
        "transaction.": "transactions are not supported",
        "transactional.": "transactions are not supported",
        "ssl.": "TLS is not supported",
        "sasl.": "SASL is not supported",
        "authorizer.class.name": "authorization is not supported",
        "aws.": "credentials come from the environment, never from a configuration key",
        "firn.remote.s3.access": "credentials come from the environment, never from a configuration key",
        "firn.remote.s3.secret": "credentials come from the environment, never from a configuration key",
    }
)
"""Names and prefixes (those with a dot at the end, and the S3 secrets) that people bring from elsewhere."""


def refusal(name: str) -> str | None:
    """Why a well-known key is not accepted, or `None` when it is simply unknown."""
    for known, reason in REFUSED.items():
        if name == known or (known.endswith((".", "access", "secret")) and name.startswith(known)):
            return reason
    return None
