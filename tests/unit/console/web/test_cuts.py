"""The bucket page says how old the newest cuts are and what keeps one from being complete."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.base.world import system_world
from service.console.web.bucket_desk import BucketDesk
from service.console.web.cuts import CutsShown
from service.console.web.pages.bucket_cuts import cuts_section
from service.remote.stores.memory_store import MemoryStore
from tests.support.cut_archives import AT_MS, CutWriter, row
from tests.unit.spark.bucket import Bucket

NOW_MS = AT_MS + 65_000


def shown(bucket: Bucket, folder: Path) -> CutsShown | None:
    """What a survey of this bucket finds of its cuts."""
    for info in MemoryStore.list(bucket.store, ""):
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.store.get(info.key, max_size=1 << 30))
    with ThreadPoolExecutor(2) as pool:
        desk = BucketDesk(folder.as_uri(), None, None, system_world(), pool)
        return asyncio.run(desk.survey(1000)).cuts


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    made.topic("t", 3)
    made.add("t", batches=3)
    return made


def test_a_bucket_without_cuts_says_so(bucket: Bucket, tmp_path: Path) -> None:
    found = shown(bucket, tmp_path)
    assert found is None
    assert "No cut was taken yet" in str(cuts_section(found, NOW_MS))


def test_ages_and_kept_cuts_are_shown(bucket: Bucket, tmp_path: Path) -> None:
    writer, topic = CutWriter(bucket.store), bucket.topic_id("t")
    writer.cut({topic: [row(30)]}, [], number=1, at_ms=AT_MS)
    writer.cut({topic: [row(30)]}, [], number=2, at_ms=AT_MS + 55_000, is_exact=False)
    found = shown(bucket, tmp_path)
    assert found is not None
    assert ([ref.cut for ref in found.kept], found.missing_count, found.problem) == ([1, 2], 0, None)
    page = str(cuts_section(found, NOW_MS))
    assert "10 s ago" in page
    assert "65 s ago" in page or "1 min" in page
    assert "loose" in page
    assert "incomplete" not in page


def test_partitions_that_keep_a_cut_from_being_complete_are_named(bucket: Bucket, tmp_path: Path) -> None:
    writer, topic = CutWriter(bucket.store), bucket.topic_id("t")
    rows = [
        row(30, saved=10, waits=True, version=1),  # its segment has come
        row(90, saved=40, waits=True, version=1),
        row(20, saved=5),  # is not tailed
    ]
    writer.cut({topic: rows}, [], number=3, is_complete=False)
    found = shown(bucket, tmp_path)
    assert found is not None
    assert found.missing == (("t", 1, 40, 90),)
    page = str(cuts_section(found, NOW_MS))
    assert "What keeps the newest cut from being complete" in page
    assert "Offsets that wait for a segment" in page
    assert "none" in page, "no cut is complete"


def test_a_damaged_cut_is_named_and_keeps_nothing_else_from_being_shown(
    bucket: Bucket, tmp_path: Path
) -> None:
    writer, topic = CutWriter(bucket.store), bucket.topic_id("t")
    writer.cut({topic: [row(30)]}, [], is_complete=False)
    bucket.store.delete([writer.kept[0].key])
    found = shown(bucket, tmp_path)
    assert found is not None
    assert found.problem is not None
    assert writer.kept[0].key in found.problem
    bucket.store.put("CUT", b"<script>")
    found = shown(bucket, tmp_path)
    assert found is not None
    page = str(cuts_section(found, NOW_MS))
    assert "The cuts cannot be read" in page
    assert "<script>" not in page
