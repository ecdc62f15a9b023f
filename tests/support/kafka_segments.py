"""Segments written by Apache Kafka, put through our offloader into a store, as a node would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from service.base.disk import SystemDisk
from service.base.files import read_checkpoint
from service.base.types import TopicIdPartition
from service.hot.files import FileCache, FileHandle
from service.hot.log_dir import read_topic_id
from service.hot.sealed_segments import SealedSegment
from service.records.batch import iter_headers
from service.records.segment_indexes import IndexBytes, Walk
from service.remote.format.manifest_codec import TopicsFileRow
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.object_reader import Chain
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.planner import Copy
from service.tiering.prefix_fence import claim_prefix
from service.tiering.shared_objects import TopicsSnapshot, write_topics
from tests.support.kafka_node import CLUSTER_ID
from tests.support.world import WORLD

BLOCK_BYTES = 64 << 10
"""Small, so that small logs have many."""


def offload(
    data: Path, store: ObjectStore, topics: dict[str, int], *, block_bytes: int = BLOCK_BYTES
) -> None:
    """Put `topics` (name -> number of partitions) from Kafka's log directory `data` into `store`.

    The broker must have ended cleanly. Every segment goes, the one that was active too; where the log begins
    inside a segment (records deleted by an admin), the manifest says so.
    """
    starts = _log_starts(data)
    for folder, tip in _claimed(data, store, topics):
        _offload_log(segments(folder), store, tip, starts.get(folder.name, 0), block_bytes)


def offload_sealed(
    data: Path, store: ObjectStore, topics: dict[str, int], *, with_snapshots: bool = True
) -> None:
    """The same while the broker runs, again and again: what is sealed by now and not in `store` yet.

    Nothing may have been deleted or compacted.
    """
    for folder, tip in _claimed(data, store, topics):
        sealed = segments(folder)[:-1]
        if not with_snapshots:
            sealed = [segment._replace(producer_snapshot_path=None) for segment in sealed]
        _offload_log(sealed, store, tip, 0, BLOCK_BYTES)


def _claimed(
    data: Path, store: ObjectStore, topics: dict[str, int]
) -> Iterator[tuple[Path, TopicIdPartition]]:
    """The folders of all partitions, once the store knows the topics."""
    claim_prefix(store, CLUSTER_ID)
    rows = []
    for topic, partitions in topics.items():
        topic_id = read_topic_id(SystemDisk(), data / f"{topic}-0")
        assert topic_id is not None
        rows.append(TopicsFileRow(topic, topic_id, partitions, {}))
    write_topics(store, CLUSTER_ID, TopicsSnapshot(1, {row.topic_id for row in rows}, lambda: rows))
    for row in rows:
        for partition in range(row.partitions):
            yield data / f"{row.name}-{partition}", TopicIdPartition(row.topic_id, row.name, partition)


def _log_starts(data: Path) -> dict[str, int]:
    rows = (line.split() for line in read_checkpoint(SystemDisk(), data / "log-start-offset-checkpoint"))
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


def _offload_log(
    sealed: Sequence[SealedSegment],
    store: ObjectStore,
    tip: TopicIdPartition,
    log_start: int,
    block_bytes: int,
) -> None:
    chains = ChainStore(store, CLUSTER_ID, WORLD)
    seen = chains.read_head(tip)
    head = seen.head
    manifest = chains.empty(tip) if head is None else chains.load(tip, head.manifest_key).manifest
    chain: Chain | None = None
    for segment in sealed:
        if segment.base_offset < manifest.end_offset:
            continue
        identity = SegmentIdentity(CLUSTER_ID, *tip, segment.base_offset, segment.last_offset, 0, uuid4())
        entry = copy_segment(store, Copy(segment, segment.base_offset), identity, CallProgress(), block_bytes)
        chain = chains.append(manifest, [entry], 0, lambda key: None)
        manifest = chain.manifest
    if chain is None:
        return
    if log_start > manifest.start_offset:
        chain, _ = chains.drop(manifest, tip, log_start, 0, lambda key: None)
    chains.write_head(seen, chain.head)


def segments(folder: Path) -> list[SealedSegment]:
    """Every segment of a partition's folder that holds something, oldest first."""
    logs = sorted(path for path in folder.glob("*.log") if path.stat().st_size)
    bases = [int(log.stem) for log in logs]
    *_, last = iter_headers(logs[-1].read_bytes())
    ends = [*(after for _, after in pairwise(bases)), last.next_offset]
    return [_sealed(log, base, end) for log, base, end in zip(logs, bases, ends, strict=True)]


def _sealed(log: Path, base_offset: int, end_offset: int) -> SealedSegment:
    size = log.stat().st_size
    txn_index = log.with_suffix(".txnindex")
    snapshot, before = (log.with_name(f"{at:020}.snapshot") for at in (end_offset, base_offset))

    def prove_indexes(walk: Walk | None = None) -> IndexBytes:
        if walk is not None:
            walk(lambda batches, position: None)
        return IndexBytes(log.with_suffix(".index").read_bytes(), log.with_suffix(".timeindex").read_bytes())

    return SealedSegment(
        base_offset=base_offset,
        last_offset=end_offset - 1,
        size=size,
        sealed_at_ms=0,
        txn_index_path=txn_index if txn_index.exists() else None,
        producer_snapshot_path=snapshot if snapshot.exists() else None,
        log=FileHandle(log, size, FileCache(SystemDisk())),
        prove_indexes=prove_indexes,
        base_snapshot_path=before if before.exists() else None,
    )
