"""Table of every metric of a node: name, kind, labels and help text. [P]

docs/metrics.md is generated from it: `python -m service.console.docs > docs/metrics.md`. Names follow
OpenMetrics: the unit ends the name, and the samples of a counter also end in `_total`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from service.console.cluster_families import METADATA
from service.console.cut_families import CUT_KEEPER
from service.console.erasure_families import ORDERS
from service.console.family import COUNTER, GAUGE, Family
from service.console.family import counter as _counter
from service.console.family import gauge as _gauge
from service.console.family import histogram as _histogram
from service.console.health_families import HEALTH
from service.console.rewrite_families import REWRITES
from service.console.tail_families import TAILS
from service.console.transaction_families import TRANSACTIONS

_REQUEST: Final = "kafka.network:type=RequestMetrics,name={},request=*"
_SOCKETS: Final = "kafka.server:type=socket-server-metrics,name={},listener=*"
_TOPICS: Final = "kafka.server:type=BrokerTopicMetrics,name={}"
_OF_TOPIC: Final = "kafka.server:type=BrokerTopicMetrics,name={},topic=*"
_GROUPS: Final = "kafka.coordinator.group:type=GroupMetadataManager,name={}"
_GROUP: Final = "kafka.server:type=group-coordinator-metrics,attribute={}"
_CHANNEL: Final = "kafka.server:type=replica-fetcher-metrics,attribute={}"
_SESSIONS: Final = "kafka.server:type=FetchSessionCache,name={}"
_LOG: Final = "kafka.log:type=Log,name={},topic=*,partition=*"

LOOP: Final = (
    _histogram(
        "loop_turn_seconds", "Turns of the event loop, from one poll for events to the next.",
        kafka="kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    ),
    _gauge(
        "loop_longest_turn_seconds", "The longest turn of the loop since the start; /turns has its cause.",
    ),
)  # fmt: skip

NETWORK: Final = (
    _histogram(
        "request_queue_seconds", "Requests: from the begin of the loop's turn to their handler.", "api",
        kafka=_REQUEST.format("RequestQueueTimeMs"),
    ),
    _histogram(
        "request_handling_seconds", "Requests: time for which they held the loop, sending included.", "api",
        kafka=_REQUEST.format("LocalTimeMs"),
    ),
    _histogram(
        "request_later_seconds",
        "Requests whose response had to wait (long polls, fsync, bucket): time from the begin of the loop's "
        "turn until the response.", "api",
        kafka=_REQUEST.format("RemoteTimeMs"),
    ),
    _histogram(
        "request_seconds",
        "Requests: from the begin of the loop's turn that takes one up to its response, long polls included.",
        "api",
        kafka=_REQUEST.format("TotalTimeMs"),
    ),
    _counter(
        "request_received_bytes", "Bytes of requests.", "api", kafka=_REQUEST.format("RequestBytes")
    ),
    _counter(
        "request_sent_bytes", "Bytes of responses.", "api", kafka=_TOPICS.format("BytesOutPerSec")
    ),
    _counter(
        "request_errors", "Error responses; a request may have one for each partition.", "api", "error",
        kafka="kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*",
    ),
    _gauge(
        "connections", "Open connections.", "listener",
        kafka="kafka.server:type=socket-server-metrics,name=connection-count,listener=*",
    ),
    _counter(
        "connections_accepted", "Connections accepted.",
        kafka="kafka.server:type=socket-server-metrics,name=connection-creation-total,listener=*",
    ),
    _gauge(
        "tls_certificate_days",
        "Days until the first certificate of a listener's own chain ends; negative afterwards.", "listener",
    ),
    _gauge("tls_handshakes", "TLS handshakes that are under way, and that wait for their turn.", "state"),
    _counter("connections_waited", "Connections that came while max.connections were open."),
    _counter(
        "connections_refused",
        "Connections closed, as their address had too many (count: max.connections.per.ip) or opened too many"
        " a second (rate: connection_creation_rate).", "listener", "limit",
    ),
    _histogram(
        "connections_throttle_seconds",
        "Throttles of new connections: accepted late (listener: max.connection.creation.rate), or held "
        "and closed (ip: connection_creation_rate).", "listener", "limit",
        kafka="kafka.server:type=socket-server-metrics,name=connection-accept-throttle-time,listener=*",
    ),
    _histogram(
        "quota_throttle_seconds", "Throttles of clients after a request.", "quota",
        kafka="kafka.server:type={Produce,Fetch,Request,ControllerMutation},user=*,client-id=*",
    ),
    _gauge("quota_clients", "Users and clients under a quota who used it in the last windows.", "quota"),
    _counter(
        "connections_idle_closed", "Connections closed because they were idle.",
    ),
    _counter(
        "successful_authentication", "Logins that were completed, by listener.", "listener",
        kafka=_SOCKETS.format("successful-authentication-total"),
    ),
    _counter(
        "failed_authentication", "Logins that failed, by listener.", "listener",
        kafka=_SOCKETS.format("failed-authentication-total"),
    ),
    _counter(
        "successful_reauthentication", "Sessions that were renewed, by listener.", "listener",
        kafka=_SOCKETS.format("successful-reauthentication-total"),
    ),
    _counter(
        "failed_reauthentication", "Sessions that were not renewed, by listener.", "listener",
        kafka=_SOCKETS.format("failed-reauthentication-total"),
    ),
    _histogram(
        "reauthentication_latency_seconds", "Time in which sessions were renewed, by listener.", "listener",
        kafka=_SOCKETS.format("reauthentication-latency-avg"),
    ),
    _counter(
        "expired_connections_killed",
        "Connections closed because a request came after the end of their session, by listener.", "listener",
        kafka="kafka.server:type=socket-server-metrics,name=expired-connections-killed-count,listener=*",
    ),
    _counter(
        "late_authentication", "Connections closed because they did not log in in time, by listener.",
        "listener",
    ),
    _counter("connections_late_requests", "Connections closed because a request arrived too slowly."),
    _counter(
        "connections_late_responses", "Connections closed because a response was received too slowly."
    ),
    _counter(
        "connections_ended_for_memory",
        "Connections closed because their request had stalled and its memory was needed.",
    ),
    _counter(
        "device_reads",
        "Prefetches of up to a megabyte, by threads, of data to send that was not in the page cache.",
    ),
    _counter("connections_malformed", "Connections closed because their bytes were malformed."),
    _counter("handler_failures", "Requests that failed by a bug of the node or an error of the disk."),
    _counter(
        "peer_requests",
        "Requests sent to other nodes, by purpose (controller, quorum, replication).", "purpose",
        kafka=_CHANNEL.format("request-total"),
    ),
    _counter(
        "peer_sent_bytes", "Bytes sent to other nodes, by purpose.", "purpose",
        kafka=_CHANNEL.format("outgoing-byte-total"),
    ),
    _counter(
        "peer_received_bytes", "Bytes received in responses of other nodes, by purpose.", "purpose",
        kafka=_CHANNEL.format("incoming-byte-total"),
    ),
    _counter(
        "peer_connections", "Connections made to other nodes, by purpose.", "purpose",
        kafka=_CHANNEL.format("connection-creation-total"),
    ),
    _counter(
        "peer_failures",
        "Failures of connections to other nodes, by purpose and kind: connection attempts that were refused, "
        "attempts and requests that timed out, connections that were lost, and those closed for malformed "
        "bytes or a refused login.",
        "purpose", "failure",
    ),
    _gauge(
        "memory_bytes", "Memory by owner.", "owner",
        kafka="kafka.network:type=SocketServer,name=MemoryPoolUsed",
    ),
)  # fmt: skip

SERVING: Final = (
    _counter("produced_batches", "Batches appended."),
    _counter(
        "produced_records", "Records appended.", kafka=_TOPICS.format("MessagesInPerSec")
    ),
    _counter("produced_bytes", "Bytes of appended batches.", kafka=_TOPICS.format("BytesInPerSec")),
    _counter(
        "fetched_partitions", "Partitions with bytes in fetch responses, by tier (local, bucket).", "tier",
        kafka=_TOPICS.format("RemoteFetchRequestsPerSec"),
    ),
    _counter(
        "fetched_bytes", "Bytes in fetch responses, by tier (local, bucket).", "tier",
        kafka=_TOPICS.format("RemoteFetchBytesPerSec"),
    ),
    _counter(
        "replication_sent_bytes", "Bytes of records sent to other replicas.",
        kafka=_TOPICS.format("ReplicationBytesOutPerSec"),
    ),
    _counter(
        "topic_produced_bytes",
        "Bytes of appended batches, of each of `firn.metrics.topics.max` topics; the topic `(others)` stands "
        "for all further ones.", "topic",
        kafka=_OF_TOPIC.format("BytesInPerSec"),
    ),
    _counter(
        "topic_produced_records", "Records appended, by topic.", "topic",
        kafka=_OF_TOPIC.format("MessagesInPerSec"),
    ),
    _counter(
        "topic_fetched_bytes", "Bytes in fetch responses to consumers, by topic.", "topic",
        kafka=_OF_TOPIC.format("BytesOutPerSec"),
    ),
    _counter(
        "topic_fetched_records",
        "Records in fetch responses to consumers, by topic, counted by offsets, gaps of compaction included; "
        "of a response that ends before the log does, by its share of the local log's bytes.", "topic",
    ),
    _gauge(
        "produces_waiting", "Produce requests with acks=all that wait for other replicas.",
        kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Produce",
    ),
    _gauge(
        "fetches_waiting", "Fetches that are waiting.",
        kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
    ),
    _histogram(
        "fetch_wait_seconds",
        "Time that fetches waited: for new records, the bucket, or a disk's device to find an offset.",
        "reason",
        kafka="kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec",
    ),
    _gauge(
        "fetch_sessions",
        "Fetch sessions in the cache, of at most `max.incremental.fetch.session.cache.slots`.",
        kafka=_SESSIONS.format("NumIncrementalFetchSessions"),
    ),
    _gauge(
        "fetch_session_partitions", "Partitions of all fetch sessions.",
        kafka=_SESSIONS.format("NumIncrementalFetchPartitionsCached"),
    ),
    _counter(
        "fetch_session_evictions", "Fetch sessions that were ended to make room for others.",
        kafka=_SESSIONS.format("IncrementalFetchSessionEvictionsPerSec"),
    ),
    _gauge(
        "implicit_fetch_sessions",
        "Connections of clients without fetch sessions whose fetches of many partitions cost what changed.",
    ),
    _gauge(
        "implicit_fetch_session_partitions",
        "Partitions that are remembered for them, of at most `firn.fetch.session.cache.partitions`.",
    ),
)  # fmt: skip

AUTHORIZATION: Final = (
    _counter(
        "authorizations", "Answers of the authorizer: `allowed`, or `denied`, quiet ones included.",
        "api", "answer",
    ),
    _counter("authorization_failures", "Answers `denied` because the authorizer failed: a bug."),
    _gauge("acls", "ACLs of the cluster."),
)  # fmt: skip

LOGS: Final = (
    _gauge(
        "partitions", "Partitions of this node, by state (online, offline).", "state",
        kafka="kafka.server:type=ReplicaManager,name=PartitionCount",
    ),
    _gauge(
        "partitions_with_late_transactions",
        "Partitions whose oldest open transaction has not written for the longest timeout and five minutes:"
        " its end may never come.",
        kafka="kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount",
    ),
    _gauge(
        "log_oldest_transaction_seconds",
        "Longest time for which the oldest open transaction of a partition has not written.",
    ),
    _gauge("segments", "Segments, by tier (local, bucket).", "tier", kafka=_LOG.format("NumLogSegments")),
    _gauge(
        "log_bytes", "Bytes of logs, by tier (local, bucket: whole objects).", "tier",
        kafka=_LOG.format("Size")
    ),
    _histogram(
        "log_flush_seconds", "Flushes of a log, the wait for a thread included.",
        kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    ),
    _counter("log_flush_errors", "Failed flushes."),
    _counter("log_cleanings", "Compactions of logs."),
    _counter("log_cleaning_errors", "Failed compactions of logs."),
    _counter("log_cleaned_bytes_read", "Bytes read to copy compacted logs."),
    _counter("log_cleaned_bytes_written", "Bytes written to copy compacted logs."),
    _gauge(
        "erasure_open_replicas",
        "Replicas of the node that lack an order of erasure, or have not told of it, counted for each order.",
    ),
    _counter(
        "erasure_failures",
        "Failed attempts to carry an order of erasure out in a log, or to read its document.",
    ),
    _counter("erased_records", "Records that erasures have taken out of local logs."),
    _counter("erasure_bytes_read", "Bytes of local logs that erasures have read."),
    _counter("erasure_bytes_written", "Bytes of local logs that erasures have written."),
    _gauge(
        "partitions_left_out",
        "Partitions beyond `firn.metrics.partitions.max`, without metrics of their own; only with "
        "`firn.metrics.partitions.enable`.",
    ),
    _gauge("log_uncleanable", "Logs that are not compacted for now because a compaction failed."),
    _gauge(
        "log_dir_free_bytes", "Free bytes in the file system of a log directory.", "directory",
    ),
    _gauge("log_dir_size_bytes", "Bytes of the file system of a log directory.", "directory"),
    _gauge(
        "disk_step",
        "Step taken because the file system of a log directory fills up; each includes those before it: "
        "0 none, 1 its partitions are uploaded first, 2 local copies are deleted early, 3 producers are "
        "throttled, 4 records are refused.",
        "directory",
    ),
    _gauge(
        "disk_led_without_room",
        "Partitions of several replicas led in a log directory that refuses records: no other in-sync "
        "replica has room, or the controller does not move them.",
        "directory",
    ),
    _counter("disk_freed_segments", "Local copies deleted early because the disk filled up."),
    _counter("disk_freed_bytes", "Bytes of local copies deleted early."),
    _counter("disk_sealed_segments", "Segments sealed early to be uploaded."),
    _histogram(
        "disk_throttle_seconds", "Throttle times of producers because the disk filled up.",
        kafka="kafka.server:type=Produce,user=*,client-id=*",
    ),
    _counter("disk_refused_batches", "Batches refused because the disk was too full."),
)  # fmt: skip

TIERING: Final = (
    _counter(
        "tiering_copied_segments", "Segments copied to the bucket.",
        kafka=_TOPICS.format("RemoteCopyRequestsPerSec"),
    ),
    _counter(
        "tiering_copied_bytes", "Bytes of segments copied to the bucket.",
        kafka=_TOPICS.format("RemoteCopyBytesPerSec"),
    ),
    _counter(
        "tiering_written_manifests",
        "Committed versions of manifests; fewer than segments if one version adds several.",
    ),
    _counter("tiering_store_pauses", "Pauses of tiering because the store failed."),
    _counter(
        "tiering_dropped_segments", "Segments that retention removed from the archive.",
        kafka=_TOPICS.format("RemoteDeleteRequestsPerSec"),
    ),
    _counter("tiering_dropped_bytes", "Bytes of segments that retention removed from the archive."),
    _counter("tiering_deleted_objects", "Objects deleted from the bucket."),
    _gauge(
        "tiering_lag_segments", "Sealed segments that are not in the bucket yet.",
        kafka=_TOPICS.format("RemoteCopyLagSegments"),
    ),
    _gauge(
        "tiering_lag_bytes", "Bytes of sealed segments that are not in the bucket yet.",
        kafka=_TOPICS.format("RemoteCopyLagBytes"),
    ),
    _gauge(
        "tiering_lag_seconds", "Time since the oldest segment that is not in the bucket was sealed."
    ),
    _gauge("tiering_blocked_partitions", "Partitions that do not tier, by reason.", "reason"),
    _counter(
        "tiering_errors", "Failed steps of tiering, which are retried, by step.", "step",
        kafka=_TOPICS.format("RemoteCopyErrorsPerSec"),
    ),
    _gauge(
        "tiering_failing",
        "Partitions, deleted topics and object batches where a step now fails, by step.", "step",
    ),
    _counter("tiering_fenced_commits", "Commits that the metadata refused to a leader of an earlier epoch."),
    _counter("tiering_stalled_calls", "Calls of the store that did not return and were abandoned."),
    _counter("tiering_repaired_heads", "HEADs that the node has written again."),
    _gauge(
        "tiering_held_deletions",
        "Deletions of what commits of this node have dropped that are due, and wait until no cut is kept "
        "that may need the objects.",
    ),
    _counter("tiering_swept_orphans", "Orphaned objects that were deleted."),
    _gauge("tiering_unknown_topics", "Topics in the bucket that the metadata does not know."),
    _gauge(
        "tiering_displaced", "1 if another process writes to the prefix, and this one has stopped.",
    ),
    _gauge(
        "tiering_waits_seconds",
        "Time for which this process has waited for the right to write to the prefix; 0 if it has it.",
    ),
    _gauge("tiering_clock_skew_seconds", "Lead of this node's clock over the store's."),
)  # fmt: skip

STORE: Final = (
    _histogram("store_call_seconds", "Calls of the store, by client and kind.", "client", "call"),
    _counter("store_sent_bytes", "Bytes sent to the store.", "client", "call"),
    _counter("store_received_bytes", "Bytes received from the store.", "client", "call"),
    _counter(
        "store_errors",
        "Failed calls of the store, by kind of error; ObjectNotFound and PreconditionFailed are regular.",
        "client", "call", "error",
        kafka=_TOPICS.format("RemoteFetchErrorsPerSec"),
    ),
    _gauge("store_reachable", "1 if the last call of the store reached it.", "client"),
    _counter("cache_hits", "Lookups of objects or chunks found in memory."),
    _counter("cache_misses", "Lookups of objects or chunks not found in memory."),
    _counter("cache_read_ahead", "Downloads begun by read-ahead."),
    _counter("cache_downloaded_bytes", "Bytes of records downloaded from the bucket."),
    _counter("cache_disk_hits", "Lookups of objects or chunks found in the cache on the local disk."),
    _counter("cache_second_tries", "Hedged requests, for downloads that exceeded the usual time."),
    _counter("cache_second_tries_won", "Hedged requests that were answered first."),
    _counter(
        "cache_refused",
        "Downloads not begun because the store is paused after failures, or refuses the object.",
    ),
    _gauge("cache_asleep", "Requested objects that lie in an archive class and cannot be read."),
    _counter("cache_retries", "Retried downloads."),
    _counter("cache_failures", "Failed downloads, after all retries."),
    _gauge("cache_streams", "Sequential readers of the bucket, for which the node reads ahead."),
    _gauge(
        "cache_downloads", "Downloads under way or waiting for room.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize",
    ),
    _counter("tail_loaded_bytes", "Bytes of tails that were loaded into the logs of a restored cluster."),
    _counter("tail_load_failures", "Failed attempts to load the tail of a partition."),
)  # fmt: skip

PARTITION: Final = (
    _gauge(
        "partition_start_offset", "First offset.", "topic", "partition", kafka=_LOG.format("LogStartOffset"),
    ),
    _gauge("partition_local_start_offset", "First offset on the local disk.", "topic", "partition"),
    _gauge(
        "partition_end_offset", "Offset after the last.", "topic", "partition",
        kafka=_LOG.format("LogEndOffset"),
    ),
    _gauge(
        "partition_last_stable_offset_lag",
        "Offsets that open transactions hide from readers of committed ones.", "topic", "partition",
        kafka="kafka.cluster:type=Partition,name=LastStableOffsetLag,topic=*,partition=*",
    ),
    _gauge("partition_bucket_end_offset", "Offset after the last in the bucket.", "topic", "partition"),
    _gauge(
        "partition_local_bytes", "Bytes on the local disk.", "topic", "partition", kafka=_LOG.format("Size"),
    ),
    _gauge("partition_bucket_bytes", "Bytes in the bucket.", "topic", "partition"),
    _gauge(
        "partition_replica_lag",
        "Records that the replica furthest behind lacks, of a partition led here that has several.",
        "topic", "partition",
        kafka="kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*",
    ),
)  # fmt: skip
"""Present if `firn.metrics.partitions.enable` is set."""

COORDINATOR: Final = (
    _gauge(
        "groups", "Groups that this node coordinates, by protocol and state.", "protocol", "state",
        kafka=_GROUPS.format("NumGroups"),
    ),
    _gauge(
        "group_lag",
        "Records between a group's committed offset and the partition's high watermark, of groups that this "
        "node coordinates.", "group", "topic", "partition",
        kafka="kafka.consumer:type=consumer-fetch-manager-metrics,name=records-lag,topic=*,partition=*",
    ),
    _gauge("group_topic_lag", "Lag of a group over all partitions of a topic.", "group", "topic"),
    _gauge("group_members", "Members of a group.", "group"),
    _gauge(
        "group_lag_left_out",
        "What has no lag of its own here: `groups` beyond `firn.metrics.groups.max`, or with ids of more "
        "than 255 bytes; `topics` and `partitions` (of groups in the text) for which there is no room; "
        "`unknown`: partitions without a leader, or whose leader did not tell the end.", "what",
    ),
    _gauge("group_offsets", "Committed offsets of groups.", kafka=_GROUPS.format("NumOffsets")),
    _counter(
        "group_offset_commits", "Offsets committed.",
        kafka=_GROUP.format("offset-commit-count"),
    ),
    _counter(
        "group_offset_expirations", "Offsets expired.",
        kafka=_GROUP.format("offset-expiration-count"),
    ),
    _counter(
        "group_offset_deletions", "Offsets deleted on request.",
        kafka=_GROUP.format("offset-deletion-count"),
    ),
    _counter(
        "group_rebalances",
        "Rebalances: completed ones of classic groups, new epochs of consumer groups.", "protocol",
        kafka=_GROUP.format("group-completed-rebalance-count, consumer-group-rebalance-count"),
    ),
    _gauge(
        "group_partitions", "Partitions of `__consumer_offsets` that this node leads.", "state",
        kafka=_GROUP.format("num-partitions"),
    ),
    _histogram(
        "group_partition_load_seconds", "Load times of partitions of `__consumer_offsets`.",
        kafka=_GROUP.format("partition-load-time-avg"),
    ),
    _counter("group_loaded_records", "Records replayed when partitions were loaded."),
    _gauge("group_writes_waiting", "Writes that wait for the high watermark."),
    _histogram(
        "group_write_seconds", "Time from a group's write to its commit.",
        kafka=_GROUP.format("event-purgatory-time-ms"),
    ),
    _counter("group_write_timeouts", "Writes that were not committed within `offsets.commit.timeout.ms`."),
    _counter(
        "group_batches", "Batches written for groups.", kafka=_GROUP.format("batch-flush-rate")
    ),
    _counter("group_batch_records", "Records in batches written for groups."),
    _counter("group_batch_errors", "Failed batches of groups."),
    _histogram(
        "group_batch_linger_seconds", "Time that batches waited for more records.",
        kafka=_GROUP.format("batch-linger-time-ms"),
    ),
    _histogram(
        "group_batch_flush_seconds", "Time to append batches of groups.",
        kafka=_GROUP.format("batch-flush-time-ms"),
    ),
)  # fmt: skip

PROCESS: Final = (
    _gauge(
        "build_info",
        "1, for the node's version, commit, kernels (compiled, or interpreted: many times slower), and place "
        "in its cluster.",
        "version",
        "commit",
        "kernels",
        "node",
        "cluster",
        "rack",
        kafka="kafka.server:type=app-info",
    ),
    Family("process_start_time_seconds", GAUGE, "Time at which the process started, since 1970."),
    Family("process_open_fds", GAUGE, "Open descriptors: connections, and files of logs."),
    Family("process_max_fds", GAUGE, "Limit of open descriptors."),
    Family("process_cpu_seconds", COUNTER, "User and system CPU time of the process."),
    Family("process_resident_memory_bytes", GAUGE, "Resident memory of the process."),
    _gauge(
        "memory_limit_bytes",
        "Memory limit of the process: the least limit of its control groups, else the machine's memory.",
    ),
)

GROUPS: Final = MappingProxyType(
    {
        "The loop": LOOP,
        "Network": NETWORK,
        "Produce and fetch": SERVING,
        "Authorization (`authorizer.class.name`)": AUTHORIZATION,
        "Logs": LOGS,
        "Tiering": TIERING,
        "Cuts": CUT_KEEPER,
        "Tails": TAILS,
        "Rewrites": REWRITES,
        "Orders to erase keys": ORDERS,
        "The object store and its cache": STORE,
        "Metadata": METADATA,
        "Groups": COORDINATOR,
        "Transactions": TRANSACTIONS,
        "Health": HEALTH,
        "The process": PROCESS,
        "Each partition (`firn.metrics.partitions.enable`)": PARTITION,
    }
)
FAMILIES: Final = MappingProxyType({family.name: family for group in GROUPS.values() for family in group})
