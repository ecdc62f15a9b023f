"""Metrics of the metadata, its quorum, the cluster and the replicas: rows of the table in `families`. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import counter as _counter
from service.console.family import gauge as _gauge
from service.console.family import histogram as _histogram

_TOPICS: Final = "kafka.server:type=BrokerTopicMetrics,name={}"

METADATA: Final = (
    _gauge(
        "metadata_offset", "Last applied offset of the metadata log.",
        kafka="kafka.server:type=broker-metadata-metrics,name=last-applied-record-offset",
    ),
    _gauge("metadata_topics", "Topics.", kafka="kafka.controller:type=KafkaController,name=GlobalTopicCount"),
    _counter("metadata_batches", "Changes written to the metadata log."),
    _counter("metadata_appended_bytes", "Bytes written to the metadata log."),
    _histogram("metadata_snapshot_seconds", "Snapshots of the metadata."),
    _counter(
        "metadata_snapshot_errors", "Snapshots that failed.",
        kafka="kafka.server:type=SnapshotEmitter,name=LatestSnapshotGeneratedAgeMs",
    ),
    _gauge(
        "quorum_is_leader", "1 if this node leads the metadata quorum.",
        kafka="kafka.controller:type=KafkaController,name=ActiveControllerCount",
    ),
    _gauge(
        "quorum_leader_id", "Leader of the metadata quorum, as known to this node; -1 for none.",
        kafka="kafka.server:type=raft-metrics,name=current-leader",
    ),
    _gauge(
        "quorum_epoch", "Epoch of the metadata quorum.",
        kafka="kafka.server:type=raft-metrics,name=current-epoch",
    ),
    _gauge(
        "quorum_high_watermark", "High watermark of the metadata log.",
        kafka="kafka.server:type=raft-metrics,name=high-watermark",
    ),
    _gauge(
        "quorum_voter_lag", "Records of the metadata log that a voter lacks; told by the leader.", "voter",
    ),
    _gauge(
        "cluster_brokers", "Registered brokers, by state (active, fenced).", "state",
        kafka="kafka.controller:type=KafkaController,name=ActiveBrokerCount",
    ),
    _gauge(
        "replicas_led", "Partitions of several replicas that this node leads.",
        kafka="kafka.server:type=ReplicaManager,name=LeaderCount",
    ),
    _gauge("replicas_followed", "Partitions of several replicas that this node fetches from their leaders."),
    _gauge(
        "replicas_under_replicated",
        "Partitions led here with replicas out of sync, without those that a reassignment adds.",
        kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions",
    ),
    _gauge(
        "replicas_under_min_isr", "Partitions led here that refuse records with acks=all.",
        kafka="kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount",
    ),
    _gauge(
        "replicas_at_min_isr",
        "Partitions led here that refuse records with acks=all as soon as one more replica is out of sync.",
        kafka="kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount",
    ),
    _gauge(
        "replicas_lag",
        "Records that a replica on that broker lacks at most, of a partition led here.", "broker",
        kafka="kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
    ),
    _gauge(
        "replicas_resting",
        "Partitions that this node does not fetch because their log directory has no room.",
    ),
    _counter(
        "replication_received_bytes", "Bytes of records that replicas here have fetched from their leaders.",
        kafka=_TOPICS.format("ReplicationBytesInPerSec"),
    ),
    _counter(
        "replication_cuts_below_high_watermark",
        "Truncations of a replica below the high watermark, after an unclean election.",
    ),
    _counter(
        "isr_shrinks", "Shrinks of the ISR of partitions led here.",
        kafka="kafka.server:type=ReplicaManager,name=IsrShrinksPerSec",
    ),
    _counter(
        "isr_expands", "Expansions of the ISR of partitions led here.",
        kafka="kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
    ),
    _counter(
        "replication_throttled_bytes", "Bytes sent or fetched for throttled replicas.", "side",
        kafka="kafka.server:type=LeaderReplication",
    ),
    _gauge(
        "cluster_partitions_without_leader", "Partitions without a leader.",
        kafka="kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
    ),
    _gauge(
        "cluster_preferred_imbalance", "Partitions that another than their preferred replica leads, or none.",
        kafka="kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount",
    ),
    _gauge(
        "cluster_partitions_reassigning", "Partitions whose replicas are being changed.",
        kafka="kafka.server:type=ReplicaManager,name=ReassigningPartitions",
    ),
    _gauge(
        "cluster_unloaded_tails",
        "Partitions of a restored cluster that take no records yet, as their tails are not loaded.",
    ),
    _counter(
        "cluster_leader_elections",
        "Elections of another leader of a partition. Every node counts all of the cluster since its start.",
        kafka="kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs",
    ),
    _counter(
        "cluster_unclean_elections",
        "Elections of a leader that may lack committed records; counted as those of leaders.",
        kafka="kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    ),
)  # fmt: skip
