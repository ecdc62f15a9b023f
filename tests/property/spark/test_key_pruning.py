"""A condition on the key reads less, and gives the rows that reading everything and choosing gives."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.spark.options import ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.splits import Split
from service.spark.read.split_reader import read_split
from service.spark.schema import ReadColumn
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from tests.unit.spark.bucket import START_MS, Bucket, marker, options_of, plan_batch

Row = tuple[int, bytes | None, int]

KEYS = (None, b"", b"a", b"ab", b"b", b"\xff", b"\0", b"a\0", "\u00e9".encode(), "e\u0301".encode(), b"A")
"""Keys that are easily taken for each other: empty and missing, prefixes, one letter in two encodings."""
_COLUMNS = tuple(ReadColumn(name) for name in ("offset", "key", "timestamp"))

keys = st.sampled_from(KEYS)
batches = st.tuples(st.lists(keys, min_size=1, max_size=4), st.sampled_from(CompressionType))
segments = st.lists(
    st.tuples(st.lists(batches, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=7
)


def literal(key: bytes, *, as_text: bool) -> str:
    if as_text and key.isascii() and key.isalnum():
        return f"'{key.decode()}'"
    return f"X'{key.hex()}'"


wanted = st.lists(
    st.tuples(st.sampled_from([key for key in KEYS if key is not None] + [b"nobody's"]), st.booleans()),
    min_size=1,
    max_size=4,
)
more = st.sampled_from(["", " and offset >= 3", " and offset not between 2 and 5", " and timestamp < {at}"])


def condition(chosen: Iterable[tuple[bytes, bool]], others: str) -> str:
    words = [literal(key, as_text=as_text) for key, as_text in chosen]
    text = f"key = {words[0]}" if len(words) == 1 else f"key in ({', '.join(words)})"
    return text + others.format(at="TIMESTAMP '2023-11-14 22:13:20.004Z'")


def passes(row: Row, chosen: Iterable[tuple[bytes, bool]], others: str) -> bool:
    """Say by hand what a condition says."""
    offset, key, at_ms = row
    rest = {
        "": True,
        " and offset >= 3": offset >= 3,
        " and offset not between 2 and 5": not 2 <= offset <= 5,
        " and timestamp < {at}": at_ms < START_MS + 4,
    }
    return key in {one for one, _ in chosen} and rest[others]


def built(parts: Iterable[tuple[list[tuple[list[bytes | None], CompressionType]], bool]]) -> Bucket:
    """A bucket with these segments; the flag says whether a segment has its filter."""
    bucket = Bucket(block_bytes=200)
    bucket.topic("t")
    for made, has_filter in parts:
        offset, log = bucket.end("t"), []
        for some, codec in made:
            builder = BatchBuilder(offset, codec)
            for key in some:
                builder.add(START_MS + offset + len(builder), key, b"v" * 50)
            log.append(bytes(builder.build()))
            offset += len(some)
        bucket.add("t", batches=log, with_key_filter=has_filter)
    return bucket


def rows(bucket: Bucket, splits: Iterable[Split], options: ReadOptions) -> list[Row]:
    found: list[Row] = []
    for split in splits:
        for part in read_split(bucket.store, split, options, _COLUMNS):
            times = [round(one.timestamp() * 1000) for one in part.column("timestamp").to_pylist()]
            columns = part.column("offset").to_pylist(), part.column("key").to_pylist(), times
            found += zip(*columns, strict=True)
    return found


def read(bucket: Bucket, where: str | None = None, **more: object) -> list[Row]:
    options = options_of(subscribe="t", **more, **({} if where is None else {"where": where}))
    with ArchiveReader(bucket.store, read_committed=options.read_committed, threads=2) as archive:
        return rows(bucket, plan_batch(archive, options), options)


@given(parts=segments, chosen=wanted, others=more, batch_rows=st.sampled_from([1, 3, 10_000]))
@settings(max_examples=150, deadline=None)
def test_no_row_is_lost_and_none_is_added(
    parts: list[tuple[list[tuple[list[bytes | None], CompressionType]], bool]],
    chosen: list[tuple[bytes, bool]],
    others: str,
    batch_rows: int,
) -> None:
    bucket = built(parts)
    expected = [row for row in read(bucket) if passes(row, chosen, others)]
    where = condition(chosen, others)
    assert read(bucket, where, batchRows=batch_rows) == expected
    assert read(bucket, where, minPartitions=5) == expected
    assert streamed(bucket, where) == expected


def streamed(bucket: Bucket, where: str) -> list[Row]:
    """The same by micro-batches of three offsets."""
    given = {"url": "file:///none", "subscribe": "t", "startingOffsets": "earliest", "where": where}
    stream = parse_stream({**given, "maxOffsetsPerTrigger": "3"})
    plan = StreamPlan(stream, lambda: ArchiveReader(bucket.store, threads=2))
    at = plan.initial()
    found: list[Row] = []
    while (end := plan.latest(at)) != at:
        found += rows(bucket, plan.plan(at, end), stream.read)
        at = end
    return found


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([1, 2]), st.sampled_from(["write", "commit", "abort"])),
        min_size=1,
        max_size=9,
    ),
    has_filter=st.booleans(),
    isolation=st.sampled_from(["read_committed", "read_uncommitted"]),
)
@settings(max_examples=80, deadline=None)
def test_transactions_end_where_they_end_without_the_condition(
    steps: list[tuple[int, str]], has_filter: bool, isolation: str
) -> None:
    """Aborted records of the key do not come back, and nothing behind the last stable offset is shown."""
    bucket = Bucket()
    bucket.topic("t")
    opened: dict[int, int] = {}
    for producer, step in steps:
        offset = bucket.end("t")
        if step == "write":
            opened.setdefault(producer, offset)
            builder = BatchBuilder(offset, producer_id=producer, producer_epoch=0, is_transactional=True)
            builder.add(START_MS, b"a", b"v")
            builder.add(START_MS, None, b"v")
            made, txn_rows = [bytes(builder.build())], []
        else:
            first = opened.pop(producer, None)
            made = [marker(offset, producer, commit=step == "commit")]
            stable = min(opened.values(), default=offset + 1)
            txn_rows = [(producer, first, offset, stable)] if step == "abort" and first is not None else []
        bucket.add("t", batches=made, txn_rows=txn_rows, opened=dict(opened), with_key_filter=has_filter)
    expected = [row for row in read(bucket, isolationLevel=isolation) if row[1] == b"a"]
    assert read(bucket, "key = 'a'", isolationLevel=isolation) == expected
