"""What tasks of an audit do: walk the chain of a partition, and prove one segment. Needs pyarrow.

The proof of a segment is that of `fsck` (tiering/segment_proof.py); beyond it every record is decoded and
counted on the UTC day of its timestamp.
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
from service.remote.errors import ObjectNotFound, naming
from service.remote.manifest import Manifest, SegmentEntry, live_segments
from service.remote.object_reader import check_entry, open_footer_of
from service.remote.segment_object import Footer
from service.remote.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.archive import Archive, ChosenPartition
from service.spark.store import open_store_of
from service.tiering.segment_proof import prove_segment

_EPOCH: Final = date(1970, 1, 1)
_FIRST_MS: Final = (date.min - _EPOCH).days * 86_400_000
_LAST_MS: Final = (date.max - _EPOCH).days * 86_400_000

SCHEMA: Final = (
    "topic string, topic_id string, partition int, object string, base_offset bigint, last_offset bigint, "
    "size_bytes bigint, records bigint, errors array<string>, days array<struct<day:date,records:bigint>>"
)


class Checked(NamedTuple):
    """A row of the audit: a segment, or (without offsets) what is wrong with a chain."""

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


class Segment(NamedTuple):
    """A segment to prove, of the manifest of this cluster."""

    chosen: ChosenPartition
    cluster_id: str
    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class Chains:
    """Partition -> its segments, and a `Checked` for what is wrong with the chain itself."""

    options: ReadOptions
    cluster_id: str | None

    def __call__(self, partitions: Iterable[ChosenPartition]) -> Iterator[Segment | Checked]:
        with Archive(open_store_of(self.options), threads=1) as archive:
            for chosen in partitions:
                errors: list[str] = []
                yield from self._chain(archive, chosen, errors)
                if errors:
                    where = f"data/{chosen.topic_id}/{chosen.partition}"
                    yield Checked(
                        chosen.topic,
                        str(chosen.topic_id),
                        chosen.partition,
                        where,
                        None,
                        None,
                        0,
                        0,
                        errors,
                        [],
                    )

    def _chain(self, archive: Archive, chosen: ChosenPartition, errors: list[str]) -> Iterator[Segment]:
        try:
            manifest = archive.snapshots([chosen])[0].manifest
            if manifest is None:
                return
            if self.cluster_id is not None and manifest.cluster_id != self.cluster_id:
                errors.append(f"the manifest is of cluster {manifest.cluster_id}")
            if manifest.topic != chosen.topic:
                errors.append(f"the manifest is of topic {manifest.topic!r}")
            yield from self._walk(archive, chosen, manifest, errors)
        except (ObjectNotFound, CorruptionError) as e:
            errors.append(str(e))

    def _walk(
        self, archive: Archive, chosen: ChosenPartition, manifest: Manifest, errors: list[str]
    ) -> Iterator[Segment]:
        expected: int | None = None
        count = size = 0
        for entry in live_segments(manifest, archive.loader(manifest)):
            if expected is None and not entry.base_offset <= manifest.start_offset <= entry.last_offset:
                errors.append(f"the chain begins at {entry.base_offset}, not at {manifest.start_offset}")
            if expected is not None and entry.base_offset != expected:
                errors.append(f"after offset {expected - 1} the chain goes on at {entry.base_offset}")
            expected = entry.last_offset + 1
            count, size = count + 1, size + entry.size
            yield Segment(chosen, manifest.cluster_id, entry)
        if (manifest.start_offset if expected is None else expected) != manifest.end_offset:
            errors.append(f"the chain ends before {expected}, not before {manifest.end_offset}")
        if (count, size) != (manifest.segments, manifest.size_bytes):
            errors.append(f"{count} segments of {size} bytes, the manifest sums up others")


@dataclass(frozen=True, slots=True)
class Proofs:
    """Segments -> what was found. `bytes_read` is an accumulator of Spark's that the driver looks at."""

    options: ReadOptions
    bytes_read: Any
    records: Any

    def __call__(self, found: Iterable[Segment | Checked]) -> Iterator[Checked]:
        store = open_store_of(self.options)
        for one in found:
            checked = one if isinstance(one, Checked) else check_segment(store, one)
            self.bytes_read.add(checked.size_bytes)
            self.records.add(checked.records)
            yield checked


def check_segment(store: ObjectStore, segment: Segment) -> Checked:
    """Footer, every section, block, batch and record. Only a store that does not answer raises."""
    entry, chosen = segment.entry, segment.chosen
    errors: list[str] = []
    days: Counter[int] = Counter()
    records = 0
    try:
        with naming(entry.key):
            size = store.head(entry.key).size
            if size != entry.size:
                raise CorruptionError(f"the object has {size} bytes, the manifest says {entry.size}")
            footer = open_footer_of(store, entry)
            _compare(segment, footer)
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


def _compare(segment: Segment, footer: Footer) -> None:
    identity = footer.identity
    check_entry(segment.entry, footer)
    if (identity.cluster_id, identity.topic) != (segment.cluster_id, segment.chosen.topic):
        raise CorruptionError(f"of cluster {identity.cluster_id}, topic {identity.topic!r}")


def _count_days(days: Counter[int], data: memoryview) -> None:
    for columns in ColumnDecoder(want=("timestamp",)).decode(data):
        assert columns.timestamps is not None
        times = pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.timestamps)])
        # What is beyond the calendar counts on its last day, or its first.
        times = pc.min_element_wise(pc.max_element_wise(times, _FIRST_MS), _LAST_MS)
        for day, count in _counts(times.view(pa.timestamp("ms")).cast(pa.date32()).view(pa.int32())):
            days[day] += count


def _counts(array: Any) -> list[tuple[int, int]]:
    return [(row["values"], row["counts"]) for row in pc.value_counts(array).to_pylist()]
