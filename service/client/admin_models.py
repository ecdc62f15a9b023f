"""Plain values of a cluster's answers to admin requests. [P]"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""


class NodeInfo(NamedTuple):
    """A node, as DescribeCluster reports it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterInfo(NamedTuple):
    """The cluster, nodes sorted by id."""

    cluster_id: str
    controller: int
    nodes: tuple[NodeInfo, ...]


class ConfigEntry(NamedTuple):
    """One configuration key, as DescribeConfigs reports it. `source` and `kind` are Kafka's numbers."""

    name: str
    value: str | None
    source: int
    kind: int
    is_read_only: bool
    is_sensitive: bool
    documentation: str
    synonyms: tuple[tuple[str, str | None, int], ...]


class PartitionInfo(NamedTuple):
    """One partition; `leader` is -1 where it has none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    """A topic, or some of its partitions."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]


class PartitionPage(NamedTuple):
    """Consecutive partitions of a topic. `more`: there are partitions of higher number."""

    topic: TopicInfo
    more: bool


class FetchResult(NamedTuple):
    """Result of one fetch of one partition: whole batches, or none if there were no records in time."""

    records: bytes
    high_watermark: int
    log_start: int
