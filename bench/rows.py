"""Every row of `bench.latency`: what it is called, what happens in it, and in what kind of node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench import crowds, nasty, nasty_stores
from bench.stage import Row

_BRISK: Final = {
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
}
_BRISK_SWEEP: Final = {**_BRISK, "firn.remote.object.grace.ms": "1000"}
_SNAPSHOTS: Final = {"metadata.log.max.record.bytes.between.snapshots": "1"}
_EACH_PARTITION: Final = {"firn.metrics.partitions.enable": "true"}

ROWS: Final[Mapping[str, Row]] = {
    "nothing": Row("nothing", nasty.nothing),
    "inflation": Row("one Produce of 200 zstd batches, 60 MiB each", nasty.inflation),
    "create-wide": Row("CreateTopics, one of 1,000 partitions", nasty.create_wide),
    "create-many": Row("CreateTopics, 2,000 at once", nasty.create_many),
    "delete-many": Row("DeleteTopics, 3,000 at once", nasty.delete_many),
    "alter-many": Row("IncrementalAlterConfigs of 5,000 topics", nasty.alter_many),
    "alter-broker": Row("a setting of all brokers, under which each topic is looked at", nasty.alter_broker),
    "snapshots": Row("snapshots of the metadata", nasty.snapshots, settings=_SNAPSHOTS),
    "metadata": Row("Metadata of all topics", nasty.metadata_of_all),
    "describe-configs": Row("DescribeConfigs, 20,000 times one topic", nasty.describe_configs),
    "produce-many": Row("Produce to 100,000 partitions", nasty.produce_many),
    "fetch-many": Row("Fetch from 100,000 partitions", nasty.fetch_many),
    "list-offsets": Row("ListOffsets, 100,000 partitions", nasty.list_offsets),
    "time-in-batch": Row("ListOffsets by time, a batch of 100,000 records", nasty.time_in_batch),
    "equal-times": Row("ListOffsets by time, 200,000 equal ones", nasty.equal_times),
    "roll": Row("roll with 100,000 producers", nasty.roll_with_producers),
    "retention": Row("retention, 3,000 segments looked at and deleted", nasty.retention, settings=_BRISK),
    "gzip": Row("compression.type=gzip, batches of 900 KB", nasty.recompression("gzip")),
    "lz4": Row("compression.type=lz4, batches of 900 KB", nasty.recompression("lz4")),
    "metrics": Row("/metrics with each partition", nasty.scrape, settings=_EACH_PARTITION),
    "byte-a-second": Row(
        "1,000 connections, a byte a second", crowds.a_byte_a_second, settings=crowds.IMPATIENT
    ),
    "mid-frame": Row(
        "1,000 connections that stop in mid-frame", crowds.in_mid_frame, settings=crowds.IMPATIENT
    ),
    "never-reading": Row(
        "1,000 connections that never read", crowds.never_reading, settings=crowds.IMPATIENT
    ),
    "come-and-go": Row("5,000 connections, one after the other", crowds.coming_and_going),
    "scan": Row("four clients scan the archive", crowds.scanning, "folder", _BRISK, most_times=1.3),
    "scan-beside": Row(
        "four clients scan the archive of a second node", crowds.scanning, "folder", _BRISK, is_apart=True
    ),
    "store-denied": Row(
        "403 of the store for a minute", nasty_stores.store_denied, "s3", _BRISK, most_times=1.2
    ),
    "store-hangs": Row(
        "a store that hangs for a minute", nasty_stores.store_hangs, "s3", _BRISK, most_times=1.2
    ),
    "sweep": Row("sweep with 4,000 topics", nasty_stores.sweep, "folder", _BRISK_SWEEP),
    "manifests": Row("first cold reads behind 1,000 segments", nasty_stores.manifests, "folder", _BRISK),
    "dead-connection": Row(
        "a cold connection that died silently", nasty_stores.dead_connection, "s3", _BRISK
    ),
}

CONTROLS: Final[Mapping[str, str]] = {"scan": "scan-beside"}
"""The row in which the same is done to a second node, by row."""
