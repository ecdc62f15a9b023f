"""Tasks of an audit: walk the chain of a partition, and prove one segment. Needs pyarrow.

The proofs are those of `fsck` (remote/reading/chain_proof.py, segment_proof.py); beyond them every record is
decoded and counted on the UTC day of its timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from service.base.errors import CorruptionError
from service.records.columns import ColumnDecoder
from service.remote.format.keys import HeadKey, partition_prefix
from service.remote.format.manifest import SegmentEntry
from service.remote.reading.chain_proof import proved_footer, proved_segments, published_chain
from service.remote.reading.lost_page import recovering
from service.remote.reading.object_reader import open_page
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.errors import ObjectNotFound, naming
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.snapshots import ChosenPartition
from service.spark.store import open_store_of

_EPOCH: Final = date(1970, 1, 1)
_FIRST_MS: Final = (date.min - _EPOCH).days * 86_400_000
_LAST_MS: Final = (date.max - _EPOCH).days * 86_400_000

SCHEMA: Final = (
    "topic string, topic_id string, partition int, object string, base_offset bigint, last_offset bigint, "
    "size_bytes bigint, records bigint, errors array<string>, days array<struct<day:date,records:bigint>>"
)


class Checked(NamedTuple):
    """A row of the audit: a segment, or (without offsets) the errors of a chain."""

    topic: str
    topic_id: str
    partition: int
    object: str
    base_offset: int | None
    last_offset: int | None
    size_bytes: int
    records: int
    errors: list[str]
    days: list[tuple[date, int]]


class AuditedSegment(NamedTuple):
    """A segment to prove: of one of the clusters `owners`, and of the manifest's `topic`."""

    chosen: ChosenPartition
    owners: frozenset[str]
    topic: str
    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class Chains:
    """A function from partitions to their segments, with a `Checked` for the errors of a chain."""

    options: ReadOptions
    owners: frozenset[str] | None

    def __call__(self, partitions: Iterable[ChosenPartition]) -> Iterator[AuditedSegment | Checked]:
        store = open_store_of(self.options)
        for chosen in partitions:
            errors: list[str] = []
            yield from self._chain(store, chosen, errors)
            if errors:
                yield _broken_chain(chosen, errors)

    def _chain(
        self, store: ObjectStore, chosen: ChosenPartition, errors: list[str]
    ) -> Iterator[AuditedSegment]:
        def error(where: str, what: str) -> None:
            errors.append(f"{where}: {what}")

        chain = published_chain(
            store,
            HeadKey(chosen.topic_id, chosen.partition),
            owners=self.owners,
            topic=chosen.topic,
            error=error,
        )
        if chain is None:
            return
        manifest = chain.manifest
        load = partial(open_page, store, owner=manifest)
        owners = frozenset((manifest.cluster_id, *(self.owners or ())))
        for entry in proved_segments(chain, load, error, recovering(store, manifest)):
            yield AuditedSegment(chosen, owners, manifest.topic, entry)


def _broken_chain(chosen: ChosenPartition, errors: list[str]) -> Checked:
    return Checked(
        topic=chosen.topic,
        topic_id=str(chosen.topic_id),
        partition=chosen.partition,
        object=partition_prefix(chosen.topic_id, chosen.partition),
        base_offset=None,
        last_offset=None,
        size_bytes=0,
        records=0,
        errors=errors,
        days=[],
    )


@dataclass(frozen=True, slots=True)
class Proofs:
    """A function from segments to rows. `bytes_read` and `records` are Spark accumulators for progress."""

    options: ReadOptions
    bytes_read: Any
    records: Any

    def __call__(self, found: Iterable[AuditedSegment | Checked]) -> Iterator[Checked]:
        store = open_store_of(self.options)
        for one in found:
            checked = one if isinstance(one, Checked) else check_segment(store, one)
            self.bytes_read.add(checked.size_bytes)
            self.records.add(checked.records)
            yield checked


def check_segment(store: ObjectStore, segment: AuditedSegment) -> Checked:
    """Prove a segment's footer, sections, blocks, batches and records. Raises only without the store."""
    entry, chosen = segment.entry, segment.chosen
    errors: list[str] = []
    days: Counter[int] = Counter()
    records = 0
    try:
        with naming(entry.key):
            footer = proved_footer(
                store, entry, _size(store, entry.key), owners=segment.owners, topic=segment.topic
            )
            prove_segment(
                entry,
                footer,
                partial(store.get_range, entry.key),
                partial(_count_days, days),
            )
            records = footer.record_count
    except (ObjectNotFound, CorruptionError) as e:
        errors.append(str(e))
    return Checked(
        chosen.topic,
        str(chosen.topic_id),
        chosen.partition,
        entry.key,
        entry.base_offset,
        entry.last_offset,
        entry.size,
        records,
        errors,
        [(_EPOCH + timedelta(days=day), count) for day, count in sorted(days.items())],
    )


def _size(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).size
    except ObjectNotFound:
        return None


def _count_days(days: Counter[int], data: memoryview) -> None:
    for columns in ColumnDecoder(want=("timestamp",)).decode(data):
        assert columns.timestamps is not None
        times = pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.timestamps)])
        # Timestamps beyond the calendar count on its first or last day.
        times = pc.min_element_wise(pc.max_element_wise(times, _FIRST_MS), _LAST_MS)
        for day, count in _counts(times.view(pa.timestamp("ms")).cast(pa.date32()).view(pa.int32())):
            days[day] += count


def _counts(array: Any) -> list[tuple[int, int]]:
    return [(row["values"], row["counts"]) for row in pc.value_counts(array).to_pylist()]
