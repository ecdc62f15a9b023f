"""What a cluster tells its clients, in plain values. [P]"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID


class NodeInfo(NamedTuple):
    """A node, as DescribeCluster tells it."""

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
    """One key as DescribeConfigs tells it. `source` and `kind` are Kafka's numbers."""

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
    """Some of a topic's partitions, in their order. `more` says whether there are others behind them."""

    topic: TopicInfo
    more: bool


class Fetched(NamedTuple):
    """What one fetch of one partition brought: whole batches, or none where there was nothing in time."""

    records: bytes
    high_watermark: int
    log_start: int
