"""An archive of version 1 is planned and read as one of today, and so is one that went on in version 2."""

from __future__ import annotations

import pytest

from service.remote.format.manifest import ManifestLimits
from service.remote.stores.memory_store import MemoryStore
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.splits import Split
from tests.support.older_format import version_1
from tests.unit.spark.bucket import (
    START_MS,
    Bucket,
    CountingStore,
    marker,
    options_of,
    plain,
    plan_batch,
    transactional,
)
from tests.unit.spark.test_downloads import offsets


def filled() -> Bucket:
    """Pages, a start inside a segment, transactions of which one is open at the end."""
    bucket = Bucket(limits=ManifestLimits(entries=2, page_refs=2))
    bucket.topic("t", 2)
    for number in range(9):
        base = bucket.end("t")
        batches = [
            plain(base, START_MS + 1000 * base),
            transactional(base + 10, 7),
            marker(base + 11, 7, commit=False),
        ]
        bucket.add("t", 0, batches, txn_rows=[(7, base + 10, base + 11, base + 12)], opened={})
        if number == 5:
            bucket.drop_before("t", 25)
    bucket.add("t", 0, [transactional(bucket.end("t"), 8)], opened={8: bucket.end("t")})
    bucket.add("t", 1, 5)
    return bucket


def older(bucket: Bucket) -> CountingStore:
    """The same in version 1."""
    store = CountingStore()
    objects = {
        info.key: bucket.store.get(info.key, max_size=1 << 30) for info in MemoryStore.list(bucket.store, "")
    }
    for key, data in version_1(objects).items():
        store.put(key, data)
    assert not any(info.key.endswith(".gz") for info in MemoryStore.list(store, ""))
    return store


def planned(store: CountingStore, **options: object) -> list[Split]:
    read = options_of(**options)
    with ArchiveReader(store, read_committed=read.read_committed, threads=4) as archive:
        return plan_batch(archive, read)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"isolationLevel": "read_committed"},
        {"startingTimestamp": START_MS + 10_000, "endingTimestamp": START_MS + 40_000},
    ],
)
def test_both_versions_plan_and_read_the_same(options: dict[str, object]) -> None:
    bucket = filled()
    store = older(bucket)
    today = planned(bucket.store, subscribe="t", **options)
    before = planned(store, subscribe="t", **options)

    def told(splits: list[Split]) -> list[tuple[object, ...]]:
        return [
            (piece.entry.key, piece.begin_offset, piece.end_offset, piece.aborted)
            for split in splits
            for piece in split.pieces
        ]

    assert told(before) == told(today)
    found = offsets(store, before)
    assert found == offsets(bucket.store, today)
    assert len(found) > 5


def test_an_archive_goes_on_in_version_2_where_version_1_ended() -> None:
    bucket = filled()
    expected = sorted(offsets(bucket.store, planned(bucket.store, subscribe="t")))
    store = older(bucket)
    with ArchiveReader(store) as archive:
        chosen = archive.choose(options_of(subscribe="t").choice)
        for snapshot in archive.snapshots(chosen):
            assert snapshot.manifest is not None
            bucket.manifests["t", snapshot.chosen.partition] = snapshot.manifest
    bucket.store = store
    base = bucket.end("t", 1)
    bucket.add("t", 1, 2)
    keys = {info.key.rpartition(".")[2] for info in MemoryStore.list(store, "") if "/manifest/" in info.key}
    assert keys == {"gz", "zst"}
    went_on = sorted(offsets(store, planned(store, subscribe="t")))
    assert went_on == sorted([*expected, *range(base, base + 20)])
