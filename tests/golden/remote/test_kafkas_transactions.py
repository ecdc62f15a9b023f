"""Segments with transactions that Apache Kafka wrote are archived as they are: its rows are those of its
batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.base.threads import SystemThreads
from service.inspect.partition_check import Subject, check_partition
from service.records.producer_snapshot import decode_rows
from service.remote.format.keys import HeadKey
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.object_reader import open_footer_of, read_section
from service.remote.stores.memory_store import MemoryStore
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.planner import Copy
from tests.support.kafka_segments import segments
from tests.unit.remote.archive import CLUSTER, TIP, TOPIC_ID, Archive

FOLDER = Path(__file__).parents[1] / "hot" / "kafka-transactions" / "golden-0"


@pytest.fixture
def archive() -> Archive:
    """Kafka's segments, put through our copier."""
    made = Archive(MemoryStore(SystemThreads()))
    for segment in segments(FOLDER):
        identity = SegmentIdentity(
            CLUSTER, *TIP, segment.base_offset, segment.last_offset, 0, made.new_uuid()
        )
        made.add_entry(
            copy_segment(made.store, Copy(segment, segment.base_offset), identity, CallProgress(), 1000)
        )
    return made


def test_kafkas_rows_and_producers_are_archived_byte_for_byte(archive: Archive) -> None:
    seen = 0
    for segment, entry in zip(segments(FOLDER), archive.manifest.entries, strict=True):
        sections = open_footer_of(archive.store, entry).sections
        snapshot = read_section(archive.store, entry.key, sections["producer_snapshot"])
        rows = read_section(archive.store, entry.key, sections["txn_index"])
        assert segment.producer_snapshot_path is not None
        assert snapshot == segment.producer_snapshot_path.read_bytes()
        path = FOLDER / f"{segment.base_offset:020}.txnindex"
        assert rows == (path.read_bytes() if path.exists() else b"")
        seen += len(rows)
        firsts = [row.txn_first_offset for row in decode_rows(snapshot) if row.txn_first_offset >= 0]
        assert entry.open_from in (-1, min(firsts, default=segment.last_offset + 1))
    assert seen >= 4 * 34


def test_an_archive_of_kafkas_transactions_is_clean(archive: Archive) -> None:
    subject = Subject(HeadKey(TOPIC_ID, TIP.partition), TIP.topic, frozenset((CLUSTER,)))
    report = check_partition(archive.store, subject, deep=True)
    assert report.is_clean, report.errors
