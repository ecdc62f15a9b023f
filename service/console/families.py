"""Every metric of a node: name, kind, labels and words, in one table. [P]

docs/metrics.md is made of it: `python -m service.console.docs > docs/metrics.md`. Names follow OpenMetrics:
the unit is the end of the name, and samples of a counter end in `_total` besides.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class Family(NamedTuple):
    """One metric. `kafka` is the MBean of the same meaning, where Apache Kafka has one."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    kafka: str = ""

    @property
    def unit(self) -> str:
        last = self.name.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""


def _counter(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    return Family(f"firn_{name}", COUNTER, help, labels, kafka)


def _gauge(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    return Family(f"firn_{name}", GAUGE, help, labels, kafka)


def _histogram(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    return Family(f"firn_{name}", HISTOGRAM, help, labels, kafka)


_REQUEST: Final = "kafka.network:type=RequestMetrics,name={},request=*"
_TOPICS: Final = "kafka.server:type=BrokerTopicMetrics,name={}"
_GROUPS: Final = "kafka.coordinator.group:type=GroupMetadataManager,name={}"
_GROUP: Final = "kafka.server:type=group-coordinator-metrics,attribute={}"
_LOG: Final = "kafka.log:type=Log,name={},topic=*,partition=*"

LOOP: Final = (
    _histogram(
        "loop_turn_seconds", "Turns of the event loop, from one look for events to the next.",
        kafka="kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    ),
    _gauge(
        "loop_longest_turn_seconds", "The longest turn of the loop since the start; /turns says who held it.",
    ),
)  # fmt: skip

NETWORK: Final = (
    _histogram(
        "request_queue_seconds", "Requests: from the begin of the loop's turn to their handler.", "api",
        kafka=_REQUEST.format("RequestQueueTimeMs"),
    ),
    _histogram(
        "request_handling_seconds", "Requests: time in which they had the loop, sending included.", "api",
        kafka=_REQUEST.format("LocalTimeMs"),
    ),
    _histogram(
        "request_later_seconds",
        "Requests whose answer had to wait (long polls, fsync, the bucket): until it was there.", "api",
        kafka=_REQUEST.format("RemoteTimeMs"),
    ),
    _counter(
        "request_received_bytes", "Bytes of requests.", "api", kafka=_REQUEST.format("RequestBytes")
    ),
    _counter(
        "request_sent_bytes", "Bytes of answers.", "api", kafka=_TOPICS.format("BytesOutPerSec")
    ),
    _counter(
        "request_errors", "Answers with an error; a request may have one for each partition.", "api", "error",
        kafka="kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*",
    ),
    _gauge(
        "connections", "Open connections.", "listener",
        kafka="kafka.server:type=socket-server-metrics,name=connection-count,listener=*",
    ),
    _counter(
        "connections_accepted", "Connections that came.",
        kafka="kafka.server:type=socket-server-metrics,name=connection-creation-total,listener=*",
    ),
    _counter("connections_waited", "Connections that came when max.connections were open."),
    _counter(
        "connections_idle_closed", "Connections that were closed because nothing happened on them.",
        kafka="kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
    ),
    _counter("connections_late_requests", "Connections that were closed because a request came too slowly."),
    _counter(
        "connections_late_responses", "Connections that were closed because a response was taken too slowly."
    ),
    _counter(
        "connections_ended_for_memory",
        "Connections that were closed because their request had stalled and its memory was needed.",
    ),
    _counter(
        "device_reads",
        "Reads from a disk's device, by threads, of up to a megabyte to be sent that the page cache lacked.",
    ),
    _counter("connections_malformed", "Connections that were closed because their bytes made no sense."),
    _counter("handler_failures", "Requests that ended in a bug of ours or an error of the disk."),
    _gauge(
        "memory_bytes", "Memory by who holds it.", "owner",
        kafka="kafka.network:type=SocketServer,name=MemoryPoolUsed",
    ),
)  # fmt: skip

SERVING: Final = (
    _counter("produced_batches", "Batches that were appended."),
    _counter(
        "produced_records", "Records that were appended.", kafka=_TOPICS.format("MessagesInPerSec")
    ),
    _counter("produced_bytes", "Bytes of batches that were appended.", kafka=_TOPICS.format("BytesInPerSec")),
    _counter(
        "fetched_partitions", "Partitions that fetches got bytes of, by tier (local, bucket).", "tier",
        kafka=_TOPICS.format("RemoteFetchRequestsPerSec"),
    ),
    _counter(
        "fetched_bytes", "Bytes that fetches got, by tier (local, bucket).", "tier",
        kafka=_TOPICS.format("RemoteFetchBytesPerSec"),
    ),
    _counter(
        "replication_sent_bytes", "Bytes of records that other replicas got here.",
        kafka=_TOPICS.format("ReplicationBytesOutPerSec"),
    ),
    _gauge(
        "fetches_waiting", "Fetches that wait now.",
        kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
    ),
    _histogram(
        "fetch_wait_seconds",
        "How long fetches waited: for new records, the bucket, or a disk's device to find an offset.",
        "reason",
        kafka="kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec",
    ),
)  # fmt: skip

LOGS: Final = (
    _gauge(
        "partitions", "Partitions of this node, by state (online, offline).", "state",
        kafka="kafka.server:type=ReplicaManager,name=PartitionCount",
    ),
    _gauge("segments", "Segments, by tier (local, bucket).", "tier", kafka=_LOG.format("NumLogSegments")),
    _gauge(
        "log_bytes", "Bytes of logs, by tier (local, bucket: whole objects).", "tier",
        kafka=_LOG.format("Size")
    ),
    _histogram(
        "log_flush_seconds", "Flushes of a log, waiting for a thread included.",
        kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    ),
    _counter("log_flush_errors", "Flushes that failed."),
    _counter("log_cleanings", "Logs that were compacted, each time."),
    _counter("log_cleaning_errors", "Logs that failed to be compacted, each time."),
    _counter("log_cleaned_bytes_read", "Bytes that were looked at to compact logs, their copy alone."),
    _counter("log_cleaned_bytes_written", "Bytes of them that stayed."),
    _gauge("log_uncleanable", "Logs that are left alone now, as they failed to be compacted."),
    _gauge(
        "log_dir_free_bytes", "Bytes that are free in the file system of a log directory.", "directory",
    ),
    _gauge("log_dir_size_bytes", "Bytes of the file system of a log directory.", "directory"),
    _gauge(
        "disk_step",
        "What is done because the file system of a log directory fills up, each with those before it: "
        "0 nothing, 1 its partitions are uploaded first, 2 local copies go early, 3 producers have to wait, "
        "4 records are refused.",
        "directory",
    ),
    _gauge(
        "disk_led_without_room",
        "Partitions of several replicas that are led in a log directory that refuses records: no other "
        "in-sync replica has room, or the controller does not move them.",
        "directory",
    ),
    _counter("disk_freed_segments", "Local copies that went early, as the disk filled up."),
    _counter("disk_freed_bytes", "Bytes of local copies that went early."),
    _counter("disk_sealed_segments", "Segments that were sealed early to be uploaded."),
    _histogram(
        "disk_throttle_seconds", "How long producers had to wait after a request, as the disk filled up.",
        kafka="kafka.server:type=Produce,user=*,client-id=*",
    ),
    _counter("disk_refused_batches", "Batches that were refused because the disk was too full for them."),
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
        "Versions of manifests that were committed; fewer than segments where several go with one.",
    ),
    _counter("tiering_store_pauses", "How often tiering had to leave the store alone for a while."),
    _counter(
        "tiering_dropped_segments", "Segments that retention took out of the archive.",
        kafka=_TOPICS.format("RemoteDeleteRequestsPerSec"),
    ),
    _counter("tiering_dropped_bytes", "Bytes of segments that retention took out of the archive."),
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
        "tiering_lag_seconds", "How long ago the oldest segment was sealed that is not in the bucket yet."
    ),
    _gauge("tiering_blocked_partitions", "Partitions that do not tier, by why they do not.", "reason"),
    _counter(
        "tiering_errors", "Steps of tiering that failed and are tried again, by step.", "step",
        kafka=_TOPICS.format("RemoteCopyErrorsPerSec"),
    ),
    _gauge(
        "tiering_failing",
        "Where a step of tiering fails now, by step: partitions, deleted topics, batches of objects.", "step",
    ),
    _counter("tiering_fenced_commits", "Commits that the metadata refused to a leader of an earlier epoch."),
    _counter("tiering_stalled_calls", "Calls of the store that did not come back and were given up."),
    _counter("tiering_repaired_heads", "HEADs that were written anew."),
    _counter("tiering_swept_orphans", "Objects that nothing named and that were deleted."),
    _counter("tiering_aborted_uploads", "Unfinished uploads that were aborted."),
    _gauge("tiering_unknown_topics", "Topics in the bucket that the metadata does not know."),
    _gauge(
        "tiering_displaced", "1 where another process writes to the prefix, and this one does not any more.",
    ),
    _gauge(
        "tiering_waits_seconds",
        "How long this process has waited to be one of those that may write to the prefix; 0 where it is.",
    ),
    _gauge("tiering_clock_skew_seconds", "How far the clock of this node is ahead of the store's."),
)  # fmt: skip

STORE: Final = (
    _histogram("store_call_seconds", "Calls of the store, by client and kind.", "client", "call"),
    _counter("store_sent_bytes", "Bytes sent to the store.", "client", "call"),
    _counter("store_received_bytes", "Bytes received from the store.", "client", "call"),
    _counter(
        "store_errors",
        "Calls of the store that failed, by kind of error; ObjectNotFound, PreconditionFailed are answers.",
        "client", "call", "error",
        kafka=_TOPICS.format("RemoteFetchErrorsPerSec"),
    ),
    _gauge("store_reachable", "1 where the last call of the store found it.", "client"),
    _counter("cache_hits", "Things of the bucket that were in memory."),
    _counter("cache_misses", "Things of the bucket that were not in memory."),
    _counter("cache_read_ahead", "Downloads that were begun before anybody asked."),
    _counter("cache_downloaded_bytes", "Bytes of records downloaded from the bucket."),
    _counter("cache_disk_hits", "Things of the bucket that were in the cache on the local disk."),
    _counter("cache_second_tries", "Second requests for what had not come in the usual time."),
    _counter("cache_second_tries_won", "Second requests that were answered first."),
    _counter(
        "cache_refused",
        "Downloads that were not begun because the store is left alone for a while, or refuses the object.",
    ),
    _gauge("cache_asleep", "Objects that were asked for and lie in an archive class, so cannot be read."),
    _counter("cache_retries", "Downloads that were tried again."),
    _counter("cache_failures", "Downloads that were given up."),
    _gauge("cache_streams", "Readers of the bucket that go on where they ended, for whom is read ahead."),
    _gauge(
        "cache_downloads", "Downloads under way or waiting for room.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize",
    ),
)  # fmt: skip

METADATA: Final = (
    _gauge(
        "metadata_offset", "Last offset of the metadata log that is applied.",
        kafka="kafka.server:type=broker-metadata-metrics,name=last-applied-record-offset",
    ),
    _gauge("metadata_topics", "Topics.", kafka="kafka.controller:type=KafkaController,name=GlobalTopicCount"),
    _counter("metadata_batches", "Changes written to the metadata log."),
    _counter("metadata_appended_bytes", "Bytes written to the metadata log."),
    _histogram("metadata_snapshot_seconds", "Snapshots of the metadata."),
    _counter(
        "metadata_snapshot_errors", "Snapshots that could not be written.",
        kafka="kafka.server:type=SnapshotEmitter,name=LatestSnapshotGeneratedAgeMs",
    ),
    _gauge(
        "quorum_is_leader", "1 where this node leads the metadata quorum.",
        kafka="kafka.controller:type=KafkaController,name=ActiveControllerCount",
    ),
    _gauge(
        "quorum_leader_id", "Who leads the metadata quorum, as this node knows; -1: nobody.",
        kafka="kafka.server:type=raft-metrics,name=current-leader",
    ),
    _gauge(
        "quorum_epoch", "Epoch of the metadata quorum.",
        kafka="kafka.server:type=raft-metrics,name=current-epoch",
    ),
    _gauge(
        "quorum_high_watermark", "Up to where the metadata log is known to be committed.",
        kafka="kafka.server:type=raft-metrics,name=high-watermark",
    ),
    _gauge(
        "cluster_brokers", "Registered brokers, by whether they may lead.", "state",
        kafka="kafka.controller:type=KafkaController,name=ActiveBrokerCount",
    ),
    _gauge(
        "replicas_led", "Partitions of several replicas that this node leads.",
        kafka="kafka.server:type=ReplicaManager,name=LeaderCount",
    ),
    _gauge("replicas_followed", "Partitions of several replicas that this node fetches from their leaders."),
    _gauge(
        "replicas_under_replicated",
        "Partitions led here with replicas that are not in sync, but for those that a reassignment adds.",
        kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions",
    ),
    _gauge(
        "replicas_under_min_isr", "Partitions led here that take no records with acks=all.",
        kafka="kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount",
    ),
    _gauge(
        "replicas_resting",
        "Partitions that this node does not fetch from their leaders: their log directory has no room.",
    ),
    _counter(
        "replication_received_bytes", "Bytes of records that replicas here have got from their leaders.",
        kafka=_TOPICS.format("ReplicationBytesInPerSec"),
    ),
    _counter(
        "replication_cuts_below_high_watermark",
        "How often a replica gave up committed records, as its leader lacks them: after an unclean election.",
    ),
    _counter(
        "isr_shrinks", "How often partitions led here lost in-sync replicas.",
        kafka="kafka.server:type=ReplicaManager,name=IsrShrinksPerSec",
    ),
    _counter(
        "isr_expands", "How often partitions led here won in-sync replicas.",
        kafka="kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
    ),
    _counter(
        "replication_throttled_bytes", "Bytes of throttled replicas that were sent or fetched.", "side",
        kafka="kafka.server:type=LeaderReplication",
    ),
    _gauge(
        "cluster_partitions_without_leader", "Partitions that nobody leads.",
        kafka="kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
    ),
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
    _gauge("partition_bucket_end_offset", "Offset after the last in the bucket.", "topic", "partition"),
    _gauge(
        "partition_local_bytes", "Bytes on the local disk.", "topic", "partition", kafka=_LOG.format("Size"),
    ),
    _gauge("partition_bucket_bytes", "Bytes in the bucket.", "topic", "partition"),
)  # fmt: skip
"""Told where `firn.metrics.partitions.enable` says so."""

COORDINATOR: Final = (
    _gauge(
        "groups", "Groups that this node coordinates, by protocol and state.", "protocol", "state",
        kafka=_GROUPS.format("NumGroups"),
    ),
    _gauge("group_offsets", "Positions that groups have committed.", kafka=_GROUPS.format("NumOffsets")),
    _counter(
        "group_offset_commits", "Positions that were committed.",
        kafka=_GROUP.format("offset-commit-count"),
    ),
    _counter(
        "group_offset_expirations", "Positions that have expired.",
        kafka=_GROUP.format("offset-expiration-count"),
    ),
    _counter(
        "group_offset_deletions", "Positions that were deleted on request.",
        kafka=_GROUP.format("offset-deletion-count"),
    ),
    _counter(
        "group_rebalances",
        "Rebalances: of classic groups completed ones, of consumer groups new epochs.", "protocol",
        kafka=_GROUP.format("group-completed-rebalance-count, consumer-group-rebalance-count"),
    ),
    _gauge(
        "group_partitions", "Partitions of `__consumer_offsets` that this node leads.", "state",
        kafka=_GROUP.format("num-partitions"),
    ),
    _histogram(
        "group_partition_load_seconds", "How long a partition of `__consumer_offsets` was read.",
        kafka=_GROUP.format("partition-load-time-avg"),
    ),
    _counter("group_loaded_records", "Records that were replayed when partitions were read."),
    _gauge("group_writes_waiting", "Decisions that wait for the high watermark."),
    _histogram(
        "group_write_seconds", "From a group's decision to its commit.",
        kafka=_GROUP.format("event-purgatory-time-ms"),
    ),
    _counter("group_write_timeouts", "Decisions that were not committed within `offsets.commit.timeout.ms`."),
    _counter(
        "group_batches", "Batches that were written for groups.", kafka=_GROUP.format("batch-flush-rate")
    ),
    _counter("group_batch_records", "Records in them."),
    _counter("group_batch_errors", "Batches that could not be written."),
    _histogram(
        "group_batch_linger_seconds", "How long batches waited for more.",
        kafka=_GROUP.format("batch-linger-time-ms"),
    ),
    _histogram(
        "group_batch_flush_seconds", "How long it took to append them.",
        kafka=_GROUP.format("batch-flush-time-ms"),
    ),
)  # fmt: skip

PROCESS: Final = (
    Family("process_cpu_seconds", COUNTER, "User and system CPU time of the process."),
    Family("process_resident_memory_bytes", GAUGE, "Resident memory of the process."),
    _gauge(
        "memory_limit_bytes",
        "Memory that the process may have: the least limit of its control groups, else the machine's.",
    ),
)

GROUPS: Final = MappingProxyType(
    {
        "The loop": LOOP,
        "Network": NETWORK,
        "Produce and fetch": SERVING,
        "Logs": LOGS,
        "Tiering": TIERING,
        "The object store and what is kept of it": STORE,
        "Metadata": METADATA,
        "Groups": COORDINATOR,
        "The process": PROCESS,
        "Each partition (`firn.metrics.partitions.enable`)": PARTITION,
    }
)
FAMILIES: Final = MappingProxyType({family.name: family for group in GROUPS.values() for family in group})
