"""An archive of one partition in any store, and what a reader must find in it."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from uuid import UUID

from service.base.types import TopicIdPartition
from service.records.batch import iter_headers
from service.records.txn_rows import encode_row
from service.remote.format.block_table import BatchFacts, BlockTableBuilder, LogBlock
from service.remote.format.keys import head_key
from service.remote.format.manifest import Manifest, ManifestLimits, PageRef, SegmentEntry
from service.remote.format.manifest_codec import encode_head, encode_manifest, encode_page, head_of
from service.remote.format.segment_object import PlannedObject, SegmentIdentity, plan_object
from service.remote.reading.log_scan import scan_log
from service.remote.reading.object_reader import entry_of, open_page
from service.remote.stores.store import ObjectStore
from tests.support.built_batches import build_batch
from tests.support.transactional_log import TransactionalLog, snapshot_of

TOPIC_ID = UUID(int=7)
TIP = TopicIdPartition(TOPIC_ID, "flights", 3)
CLUSTER = "c-1"
START_MS = 1_700_000_000_000


def batch_of(base_offset: int, count: int, value_bytes: int, epoch: int, timestamp: int) -> bytes:
    """One uncompressed batch; record timestamps rise by 1 ms from `timestamp`."""
    data = build_batch(
        [(timestamp + i, b"k", bytes([(base_offset + i) % 251]) * value_bytes) for i in range(count)],
        base_offset=base_offset,
        leader_epoch=epoch,
    )
    return bytes(data)


def blocks_of(log: bytes, target_bytes: int) -> tuple[LogBlock, ...]:
    builder = BlockTableBuilder(target_bytes)
    for header in iter_headers(log):
        facts = BatchFacts(
            header.position,
            header.size,
            header.base_offset,
            header.last_offset,
            header.base_timestamp,
            header.max_timestamp,
            header.record_count,
        )
        builder.add(facts, log[header.position : header.end])
    return builder.finish()


def index_of(log: TransactionalLog, begin: int, end: int) -> bytes:
    """Return the transaction index of a segment with these offsets of `log`."""
    return b"".join(encode_row(row) for row in log.rows if begin <= row.last_offset < end)


def plan_segment(
    log: bytes,
    *,
    base_offset: int,
    last_offset: int,
    epochs: tuple[tuple[int, int], ...],
    uuid: UUID,
    block_bytes: int = 1 << 20,
    tip: TopicIdPartition = TIP,
    producer_snapshot: bytes = b"snapshot",
) -> PlannedObject:
    index = b"".join(
        struct.pack(">ii", header.base_offset - base_offset, header.position)
        for header in list(iter_headers(log))[1:4]
    )
    return plan_object(
        SegmentIdentity(
            CLUSTER, tip.topic_id, tip.topic, tip.partition, base_offset, last_offset, epochs[-1][0], uuid
        ),
        log=lambda: [log],
        log_length=len(log),
        blocks=blocks_of(log, block_bytes),
        offset_index=index,
        time_index=struct.pack(">qi", START_MS, 0),
        producer_snapshot=producer_snapshot,
        leader_epochs=epochs,
        transactional_batch_count=0,
        max_timestamp_offset=last_offset,
    )


@dataclass
class Archive:
    """Segments of one partition, written to `store` with their manifest and HEAD."""

    store: ObjectStore
    seed: int = 1
    limits: ManifestLimits = field(default_factory=ManifestLimits)
    block_bytes: int = 4096
    log: bytearray = field(default_factory=bytearray)
    next_offset: int = 0
    timestamp: int = START_MS
    manifest_key: str = ""
    producer_snapshot: bytes = b"snapshot"

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.manifest = Manifest(CLUSTER, TOPIC_ID, TIP.topic, TIP.partition)

    def new_uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def load(self, ref: PageRef):  # type: ignore[no-untyped-def]
        return open_page(self.store, ref, self.manifest)

    def add_segment(
        self, batches: int, *, count: int = 5, value_bytes: int = 100, epoch: int = 0
    ) -> SegmentEntry:
        """Write one more segment of equal batches and the manifest that names it."""
        log = bytearray()
        for _ in range(batches):
            log += batch_of(self.next_offset, count, value_bytes, epoch, self.timestamp)
            self.next_offset += count
            self.timestamp += 1000
        return self.add_log(bytes(log))

    def add_log(self, log: bytes) -> SegmentEntry:
        """Write one more segment of these batches and the manifest that names it."""
        headers = list(iter_headers(log))
        epochs: list[tuple[int, int]] = []
        for one in headers:
            if not epochs or epochs[-1][0] < one.partition_leader_epoch:
                epochs.append((one.partition_leader_epoch, one.base_offset))
        planned = plan_segment(
            log,
            base_offset=headers[0].base_offset,
            last_offset=headers[-1].last_offset,
            epochs=tuple(epochs),
            uuid=self.new_uuid(),
            block_bytes=self.block_bytes,
            producer_snapshot=self.producer_snapshot,
        )
        self.log += log
        self.next_offset = headers[-1].next_offset
        return self._name(planned, epochs[-1][0])

    def add_transactions(
        self,
        log: TransactionalLog,
        end_offset: int,
        *,
        is_older: bool = False,
        rows: bytes | None = None,
        snapshot: bytes | None = None,
    ) -> SegmentEntry:
        """Write one more segment with what `log` has up to `end_offset`, and the manifest that names it.

        `is_older`: as by software that knew no `open_from`. `rows`, `snapshot`: in place of the right ones.
        """
        if not self.manifest.version:
            self.next_offset = log.base_offset
        base, last = self.next_offset, end_offset - 1
        data = b"".join(b.data for b in log.batches if base <= b.base_offset <= last)
        scanned = scan_log(
            lambda position, length: data[position : position + length],
            0,
            len(data),
            first_offset=base,
            last_offset=last,
            name="log",
            block_bytes=self.block_bytes,
        )
        opened = log.open_at(end_offset)
        has_transactions = bool(scanned.transactional_batch_count or opened)
        planned = plan_object(
            SegmentIdentity(CLUSTER, TIP.topic_id, TIP.topic, TIP.partition, base, last, 0, self.new_uuid()),
            log=lambda: [data],
            log_length=len(data),
            blocks=scanned.blocks,
            offset_index=b"",
            time_index=b"",
            txn_index=index_of(log, base, end_offset) if rows is None else rows,
            producer_snapshot=snapshot_of(opened) if snapshot is None else snapshot,
            leader_epochs=((0, base),),
            transactional_batch_count=scanned.transactional_batch_count,
            open_from=-1 if is_older or not has_transactions else min(opened.values(), default=end_offset),
        )
        self.log += data
        self.next_offset = end_offset
        return self._name(planned, 0)

    def _name(self, planned: PlannedObject, epoch: int) -> SegmentEntry:
        self.store.put_stream(planned.key, planned.parts(), planned.size)
        return self.add_entry(entry_of(planned.footer), epoch)

    def add_entry(self, entry: SegmentEntry, epoch: int = 0) -> SegmentEntry:
        """Write the manifest that names one more object."""
        change = self.manifest.append(
            [entry], leader_epoch=epoch, new_uuid=self.new_uuid, encode_page=encode_page, limits=self.limits
        )
        for _, ref, data in change.pages:
            self.store.put(ref.key, data)
        self.commit(change.manifest)
        return entry

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest and HEAD."""
        self.manifest = manifest
        self.manifest_key = manifest.key(self.new_uuid())
        data = encode_manifest(manifest)
        self.store.put(self.manifest_key, data)
        self.store.put(
            head_key(TOPIC_ID, TIP.partition), encode_head(head_of(manifest, self.manifest_key, data))
        )

    def drop_before(self, offset: int) -> tuple[str, ...]:
        drop = self.manifest.drop_before(offset, leader_epoch=0, load=self.load)
        self.commit(drop.manifest)
        return drop.keys

    def position_of(self, offset: int) -> int:
        """Return the position in the whole log of the batch with `offset`."""
        return next(h.position for h in iter_headers(self.log) if h.last_offset >= offset)
