"""Downloads of a task: order, budget, and objects that are not as planned."""

from __future__ import annotations

import threading

import pytest

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.columns import ColumnDecoder
from service.remote.format.manifest import SegmentEntry
from service.spark.errors import DataLossError
from service.spark.plan.splits import SegmentPiece, Split
from service.spark.read.downloads import Downloads
from tests.unit.spark.bucket import START_MS, Bucket, CountingStore, marker, plain, transactional


def offsets(
    store: CountingStore,
    splits: list[Split],
    *,
    fetch_bytes: int = 8 << 20,
    budget_bytes: int = 32 << 20,
    lost: list[str] | None = None,
) -> list[int]:
    """The offsets that tasks read, one split after the other."""
    found: list[int] = []
    for split in splits:
        told = None if lost is None else lost.append
        with Downloads(
            store, split.pieces, fetch_bytes=fetch_bytes, budget_bytes=budget_bytes, lost=told
        ) as downloads:
            for piece, parts in downloads:
                decoder = ColumnDecoder(
                    want={"offset"},
                    min_offset=piece.begin_offset,
                    max_offset=piece.end_offset,
                    aborted=piece.aborted,
                )
                for columns in decoder.decode_stream(parts):
                    assert columns.offsets is not None
                    found.extend(columns.offsets)
    return found


def large(topics: int = 1, segments: int = 3) -> Bucket:
    """Segments of 2 MB: too large to come with one GET."""
    bucket = Bucket(block_bytes=100_000)
    bucket.topic("big", topics)
    for partition in range(topics):
        for _ in range(segments):
            base = bucket.end("big", partition)
            batches = [plain(base + 10 * i, START_MS, value_bytes=10_000) for i in range(20)]
            bucket.add("big", partition, batches)
    bucket.store.reset()
    return bucket


@pytest.mark.parametrize("fetch_bytes", [64 << 10, 300_000, 8 << 20])
@pytest.mark.parametrize("budget_bytes", [0, 500_000, 32 << 20])
def test_every_record_comes_once_and_in_order(fetch_bytes: int, budget_bytes: int) -> None:
    bucket = large()
    splits = bucket.plan(subscribe="big", maxPartitionBytes=700_000)
    assert len(splits) > 5
    assert offsets(bucket.store, splits, fetch_bytes=fetch_bytes, budget_bytes=budget_bytes) == list(
        range(600)
    )


def test_small_objects_come_with_one_get_each() -> None:
    bucket = Bucket()
    bucket.topic("small")
    for _ in range(30):
        bucket.add("small")
    splits = bucket.plan(subscribe="small")
    bucket.store.reset()
    assert offsets(bucket.store, splits) == list(range(3000))
    assert set(bucket.store.gets.values()) == {1}
    assert len(bucket.store.gets) == 30


def test_blocks_that_no_row_is_wanted_of_are_not_downloaded() -> None:
    bucket = large(segments=1)
    splits = bucket.plan(
        subscribe="big", startingOffsets='{"big":{"0":95}}', endingOffsets='{"big":{"0":105}}'
    )
    bucket.store.reset()
    assert offsets(bucket.store, splits) == list(range(95, 105))
    assert sum(bucket.store.bytes.values()) < 210_000 < 2_000_000


class SlowStore(CountingStore):
    """Remembers how many bytes of ranges were under way or untaken at most."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        with self.lock:
            self.started.append((start, length))
        return super().get_range(key, start, length)


def test_downloads_ahead_stay_within_the_budget() -> None:
    bucket = large(segments=1)
    store = SlowStore()
    bucket.store, taken_from = store, bucket.store
    for key in (entry for entry in taken_from.__dict__["_objects"]):
        store.put(key, taken_from.get(key, max_size=1 << 30))
    (split,) = bucket.plan(subscribe="big")
    store.started.clear()
    with Downloads(store, split.pieces, fetch_bytes=100_000, budget_bytes=350_000) as downloads:
        ((_, parts),) = [next(iter(downloads))]
        next(parts)
        ranges = [length for start, length in store.started if length > 50_000]
        # One is with the taker; of those ahead each is just above 100 kB, so three fit.
        assert len(ranges) <= 4


def test_unread_parts_do_not_block_the_next_piece() -> None:
    bucket = large()
    (split,) = bucket.plan(subscribe="big")
    with Downloads(bucket.store, split.pieces, fetch_bytes=1 << 20, budget_bytes=1 << 20) as downloads:
        assert [piece.entry.base_offset for piece, _ in downloads] == [0, 200, 400]


def _pieces(splits: list[Split]) -> list[SegmentPiece]:
    return [piece for split in splits for piece in split.pieces]


@pytest.mark.parametrize("bucket", [large(), None])
def test_an_object_that_is_gone_is_named_with_its_offsets(bucket: Bucket | None) -> None:
    if bucket is None:
        bucket = Bucket()
        bucket.topic("big")
        for _ in range(3):
            bucket.add("big", batches=20)
    splits = bucket.plan(subscribe="big")
    gone = _pieces(splits)[1].entry
    bucket.store.delete([gone.key])
    with pytest.raises(DataLossError, match=f"big-0: offsets 200 to 399 are lost.*{gone.key}"):
        offsets(bucket.store, splits)
    lost: list[str] = []
    assert offsets(bucket.store, splits, lost=lost) == [*range(200), *range(400, 600)]
    assert len(lost) == 1


def _damage(store: CountingStore, entry: SegmentEntry, position: int) -> None:
    data = bytearray(store.get(entry.key, max_size=1 << 30))
    data[position] ^= 0x40
    store.put(entry.key, data)


def test_a_bad_checksum_says_which_object_and_which_offsets() -> None:
    bucket = large()
    splits = bucket.plan(subscribe="big")
    entry = _pieces(splits)[2].entry
    _damage(bucket.store, entry, 1_000_000)
    with pytest.raises(CorruptionError, match=rf"{entry.key}: wrong checksum .* offsets 4\d0 to 4\d9"):
        offsets(bucket.store, splits, lost=[])


def test_a_footer_that_is_not_the_manifests_is_named() -> None:
    for bucket in (large(), Bucket()):
        if "big" not in bucket.topics:
            bucket.topic("big")
            bucket.add("big")
        splits = bucket.plan(subscribe="big")
        entry = _pieces(splits)[0].entry
        _damage(bucket.store, entry, entry.size - 30)
        with pytest.raises(CorruptionError, match=entry.key):
            offsets(bucket.store, splits)


def test_an_object_that_was_cut_short_is_named() -> None:
    bucket = large()
    splits = bucket.plan(subscribe="big")
    entry = _pieces(splits)[0].entry
    bucket.store.put(entry.key, bucket.store.get(entry.key, max_size=1 << 30)[:1000])
    with pytest.raises(CorruptionError, match=entry.key):
        offsets(bucket.store, splits)


def test_markers_and_what_was_aborted_are_left_out_when_committed_records_are_asked_for() -> None:
    bucket = Bucket()
    bucket.topic("pay")
    bucket.add("pay", batches=[transactional(0, 7, 5), transactional(5, 8, 5), plain(10, START_MS)])
    bucket.add(
        "pay",
        batches=[
            marker(20, 7, commit=False),
            marker(21, 8, commit=True),
            transactional(22, 7, 3),
            marker(25, 7, commit=True),
        ],
        txn_rows=[(7, 0, 20, 21)],
    )
    committed = bucket.plan(subscribe="pay", isolationLevel="read_committed")
    assert offsets(bucket.store, committed) == [*range(5, 20), 22, 23, 24]
    everything = bucket.plan(subscribe="pay")
    assert offsets(bucket.store, everything) == [*range(20), 22, 23, 24]
