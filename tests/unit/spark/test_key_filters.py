"""A read of one key opens the objects whose filter may have it, and of these alone reads the log."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")

from service.remote.format.segment_object import KEY_FILTER
from service.remote.reading.object_reader import open_footer_of
from service.spark.errors import DataLossError
from service.spark.plan.splits import Split
from service.spark.read.split_reader import read_split
from service.spark.schema import ReadColumn
from tests.support.built_batches import build_batch
from tests.unit.spark.bucket import START_MS, Bucket, options_of

SEGMENTS = 120
RECORDS = 500


def batch(base_offset: int, keys: list[bytes | None]) -> bytes:
    rows = [(START_MS + base_offset + n, key, b"v" * 400) for n, key in enumerate(keys)]
    return bytes(build_batch(rows, base_offset=base_offset))


@pytest.fixture(scope="module")
def bucket() -> Bucket:
    """Twenty customers in each segment, others in each; one more is in the fourth segment alone."""
    made = Bucket(block_bytes=16_384)
    made.topic("events")
    for number in range(SEGMENTS):
        keys: list[bytes | None] = [b"customer-%d" % (20 * number + n % 20) for n in range(RECORDS)]
        if number == 3:
            keys[7] = b"wanted"
        made.add("events", batches=[batch(RECORDS * number, keys)], with_key_filter=True)
    return made


def rows(bucket: Bucket, splits: list[Split], where: str) -> list[tuple[int, bytes | None]]:
    options = options_of(subscribe="events", where=where)
    columns = [ReadColumn("offset"), ReadColumn("key")]
    found: list[tuple[int, bytes | None]] = []
    for split in splits:
        for part in read_split(bucket.store, split, options, columns):
            found += zip(part.column("offset").to_pylist(), part.column("key").to_pylist(), strict=True)
    return found


def test_one_key_of_many_objects_costs_a_fiftieth_of_their_bytes(bucket: Bucket) -> None:
    bucket.store.reset()
    splits = bucket.plan("key = 'wanted'", subscribe="events")
    assert rows(bucket, splits, "key = 'wanted'") == [(RECORDS * 3 + 7, b"wanted")]
    whole = sum(entry.size for entry in bucket.manifest("events", 0).entries)
    assert 0 < sum(bucket.store.bytes.values()) < whole / 50, "documents, footers and filters among them"


def test_objects_without_filters_are_read_as_before() -> None:
    """Older ones, and those with a record that does not parse; of records without keys the footer tells."""
    made = Bucket(block_bytes=16_384)
    made.topic("events")
    made.add("events", batches=[batch(0, [b"other", b"wanted"])])
    made.add("events", batches=[batch(2, [None, None])], with_key_filter=True)
    made.add("events", batches=[batch(4, [b"other", b"another"])], with_key_filter=True)
    made.add("events", batches=[batch(6, [b"wanted", None])], with_key_filter=True)
    bare, no_keys, others, last = made.manifest("events", 0).entries
    made.store.reset()
    splits = made.plan("key in ('wanted', X'ff') and offset > 0", subscribe="events")
    assert [piece.entry.key for split in splits for piece in split.pieces] == [bare.key, last.key]
    assert made.store.gets[no_keys.key] == made.store.gets[bare.key] == 1, "the footer alone"
    assert made.store.gets[others.key] == made.store.gets[last.key] == 2
    assert rows(made, splits, "key in ('wanted', X'ff') and offset > 0") == [(1, b"wanted"), (6, b"wanted")]


def test_rows_of_a_key_are_chosen_without_the_column(bucket: Bucket) -> None:
    """The key is looked at although it is not wanted, and offsets alone are not counted by the footer."""
    options = options_of(subscribe="events", where="key = 'wanted'")
    columns = [ReadColumn("offset")]
    splits = bucket.plan("key = 'wanted'", subscribe="events")
    parts = [part for split in splits for part in read_split(bucket.store, split, options, columns)]
    assert [(part.num_columns, part.num_rows) for part in parts if part.num_rows] == [(1, 1)]


def test_a_damaged_filter_is_named_and_never_says_no(caplog: pytest.LogCaptureFixture) -> None:
    """Its object is read as one without a filter: nothing makes a filter anew, and the records are sound."""
    made = Bucket()
    made.topic("events")
    entry = made.add("events", batches=[batch(0, [b"other"])], with_key_filter=True)
    section = open_footer_of(made.store, entry).sections[KEY_FILTER]
    data = bytearray(made.store.get(entry.key, max_size=1 << 30))
    assert made.plan("key = 'wanted'", subscribe="events") == []
    for position in range(section.position, section.end):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        made.store.put(entry.key, bytes(damaged))
        caplog.clear()
        splits = made.plan("key = 'wanted'", subscribe="events")
        assert [piece.entry.key for split in splits for piece in split.pieces] == [entry.key]
        assert f"{entry.key}: the section at {section.position} has a wrong checksum" in caplog.text
    assert rows(made, made.plan("key = 'other'", subscribe="events"), "key = 'other'") == [(0, b"other")]


def test_an_object_that_is_gone_is_the_tasks_to_tell() -> None:
    """As without the condition: it ends the job, or with failOnDataLoss=false a warning names it."""
    made = Bucket()
    made.topic("events")
    gone = made.add("events", batches=[batch(0, [b"wanted"])], with_key_filter=True)
    made.add("events", batches=[batch(1, [b"wanted"])], with_key_filter=True)
    made.store.delete([gone.key])
    splits = made.plan("key = 'wanted'", subscribe="events")
    with pytest.raises(DataLossError, match=gone.key):
        rows(made, splits, "key = 'wanted'")
    options = options_of(subscribe="events", where="key = 'wanted'", failOnDataLoss=False)
    found = [
        offset
        for split in splits
        for part in read_split(made.store, split, options, [ReadColumn("offset")])
        for offset in part.column("offset").to_pylist()
    ]
    assert found == [1]
