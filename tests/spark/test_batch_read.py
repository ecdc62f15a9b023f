"""The DataFrame is what a consumer read, however it is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import errors

from tests.spark.conftest import read
from tests.spark.filling import PARTITIONS, START_MS, Filled, Row
from tests.spark.frames import COLUMNS, rows_of
from tests.support.stores import Store, folder_store

Load = Callable[..., Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offsets_of(frame: Any) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def at(milliseconds: int) -> str:
    """As an SQL literal."""
    return f"timestamp'{EPOCH + timedelta(milliseconds=milliseconds)}'"  # with its zone


def test_every_codec_header_null_and_empty_value_is_as_a_consumer_read_it(load: Load, filled: Filled) -> None:
    frame = load(subscribe="mixed", includeHeaders="true")
    assert frame.columns == [*COLUMNS, "headers"]
    found = rows_of(frame)
    assert found == filled.rows["mixed"]
    assert len(found) > 8000
    assert {row.headers is None for row in found} == {True, False}


def test_times_set_by_the_broker_are_those(load: Load, filled: Filled) -> None:
    found = rows_of(load(subscribe="stamped", includeHeaders="true"))
    assert found == filled.rows["stamped"]
    assert {row.timestamp_type for row in found} == {1}


def test_records_of_ten_megabytes(load: Load, filled: Filled) -> None:
    found = rows_of(load(subscribe="huge", includeHeaders="true", batchBytes="1m"))
    assert found == filled.rows["huge"]
    assert max(len(row.value or b"") for row in found) == 10_000_000


def test_the_types_are_those_of_sparks_kafka_source(load: Load) -> None:
    frame = load(subscribe="mixed")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]


def test_small_splits_and_small_batches_give_the_same_rows(load: Load, filled: Filled) -> None:
    frame = load(
        subscribe="mixed",
        includeHeaders="true",
        minPartitions=9,
        batchRows=100,
        batchBytes="64k",
        fetchBytes="64k",
        readAheadBytes=0,
    )
    assert frame.rdd.getNumPartitions() >= 9
    assert rows_of(frame) == filled.rows["mixed"]


def test_rows_are_read_from_an_s3_server(spark: Any, filled_s3: Filled) -> None:
    frame = read(spark, filled_s3.store, subscribe="mixed", includeHeaders="true")
    assert rows_of(frame) == filled_s3.rows["mixed"]


@pytest.mark.parametrize(
    "columns",
    [
        "offset bigint, partition int",
        "value binary",
        "topic string",
        "headers array<struct<key:string,value:binary>>",
        "timestampType int not null, key binary",
    ],
)
def test_a_schema_of_some_columns_reads_those(load: Load, filled: Filled, columns: str) -> None:
    frame = load(columns, subscribe="mixed", includeHeaders="true")
    names = frame.columns
    whole = load(subscribe="mixed", includeHeaders="true").select(*names)
    assert frame.count() == len(filled.rows["mixed"])
    assert frame.exceptAll(whole).isEmpty()
    assert whole.exceptAll(frame).isEmpty()


def test_offsets_and_times_bound_what_is_read(load: Load, filled: Filled) -> None:
    starting = json.dumps({"mixed": {"0": 100, "1": -2, "2": 7}})
    ending = json.dumps({"mixed": {"0": 200, "1": 50, "2": -1}})
    frame = load(subscribe="mixed", startingOffsets=starting, endingOffsets=ending)
    spans = {0: (100, 200), 1: (0, 50), 2: (7, filled.borders["mixed"][2])}
    assert offsets_of(frame) == [(p, o) for p, (begin, end) in spans.items() for o in range(begin, end)]
    first_ms, last_ms = START_MS + 1_000_000, START_MS + 2_000_500
    frame = load(subscribe="mixed", startingTimestamp=first_ms, endingTimestamp=last_ms)
    assert offsets_of(frame) == [
        (row.partition, row.offset) for row in filled.rows["mixed"] if first_ms <= row.timestamp_ms < last_ms
    ]


def test_topics_go_by_id_by_pattern_and_by_assignment(load: Load, filled: Filled) -> None:
    topics = json.loads(filled.store.read("topics.json"))["topics"]
    topic_id = next(topic["topic_id"] for topic in topics if topic["name"] == "stamped")
    stamped = [(0, row.offset) for row in filled.rows["stamped"]]
    assert offsets_of(load("partition int, offset bigint", subscribe=topic_id)) == stamped
    assert offsets_of(load("partition int, offset bigint", subscribePattern="st.*ed")) == stamped
    assigned = load("partition int, offset bigint", assign='{"mixed":[1]}')
    assert offsets_of(assigned) == [(1, n) for n in range(filled.borders["mixed"][1])]


CONDITIONS: list[tuple[str, Callable[[Row], bool]]] = [
    ("partition = 1", lambda r: r.partition == 1),
    ("partition in (0, 2) and topic like 'mi%'", lambda r: r.partition != 1),
    ("partition <> 2 and offset < 20", lambda r: r.partition != 2 and r.offset < 20),
    ("offset between 500 and 600", lambda r: 500 <= r.offset <= 600),
    ("offset not between 500 and 2600", lambda r: not 500 <= r.offset <= 2600),
    ("offset in (3, 700, 2999)", lambda r: r.offset in (3, 700, 2999)),
    ("offset = 5 or partition = 0", lambda r: r.offset == 5 or r.partition == 0),
    (f"timestamp >= {at(START_MS + 4_000_000)}", lambda r: r.timestamp_ms >= START_MS + 4_000_000),
    (
        f"timestamp > {at(START_MS + 900_000)} and timestamp < {at(START_MS + 1_000_000)}",
        lambda r: START_MS + 900_000 < r.timestamp_ms < START_MS + 1_000_000,
    ),
    (f"timestamp = {at(START_MS + 1_234_000)}", lambda r: r.timestamp_ms == START_MS + 1_234_000),
    (
        f"timestamp < {at(START_MS + 90_000)} or timestamp > {at(START_MS + 8_000_000)} or offset = 900",
        lambda r: (
            r.timestamp_ms < START_MS + 90_000 or r.timestamp_ms > START_MS + 8_000_000 or r.offset == 900
        ),
    ),
    (
        f"not (timestamp > {at(START_MS)} and offset > 10)",
        lambda r: r.timestamp_ms <= START_MS or r.offset <= 10,
    ),
    ("offset < 10 and offset > 20", lambda r: False),
    ("key = 'k3'", lambda r: r.key == b"k3"),
    ("key = '' and partition = 1", lambda r: r.key == b"" and r.partition == 1),
    (
        "key in ('k1', X'6b32', '\u00fc') and offset < 900",
        lambda r: r.key in (b"k1", b"k2") and r.offset < 900,
    ),
    ("X'6B' = key", lambda r: r.key == b"k"),
]


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS, ids=[text for text, _ in CONDITIONS])
def test_option_where_selects_the_rows_of_the_filter(
    load: Load, filled: Filled, condition: str, holds: Callable[[Row], bool]
) -> None:
    expected = [(r.partition, r.offset) for r in filled.rows["mixed"] if holds(r)]
    assert offsets_of(load(subscribe="mixed").where(condition)) == expected
    assert offsets_of(load(subscribe="mixed", where=condition)) == expected
    alone = load("value binary", subscribe="mixed", where=condition)
    assert alone.count() == len(expected)


def test_times_mean_in_where_what_they_mean_to_spark(load: Load, filled: Filled) -> None:
    """Whatever way of writing a time is understood here, Spark understands in the same way."""
    moment = EPOCH + timedelta(milliseconds=START_MS + 1_000_000)
    texts = [f"{moment:%Y-%m-%d %H:%M:%S}{zone}" for zone in ("Z", " UTC", "+00:00", "-07:30")]
    texts += [
        f"{moment:%Y-%m-%dT%H:%M:%S}Z",
        f"{moment:%Y-%m-%d %H:%M:%S}.25Z",
        f"{moment:%Y-%m-%d} 7:5:3.000001+02:00",
    ]
    for text in texts:
        for literal in (f"TIMESTAMP '{text}'", f"'{text}'"):
            condition = f"timestamp >= {literal} and partition = 1"
            expected = offsets_of(load(subscribe="mixed").where(condition))
            assert offsets_of(load(subscribe="mixed", where=condition)) == expected, literal


def test_times_without_a_zone_are_those_of_a_session_in_the_zone_that_the_option_says(
    spark: Any, load: Load
) -> None:
    local = EPOCH + timedelta(milliseconds=START_MS + 1_000_000, hours=-7)
    condition = (
        f"timestamp >= '{local:%Y-%m-%d %H:%M:%S}' and timestamp < '{local + timedelta(days=2):%Y-%m-%d}'"
    )
    zone = "America/Phoenix"
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        expected = offsets_of(load(subscribe="mixed").where(condition))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert offsets_of(load(subscribe="mixed", where=condition, timeZone=zone)) == expected
    assert 0 < len(expected) < len(offsets_of(load(subscribe="mixed")))


@pytest.fixture
def copy(filled: Filled, tmp_path: Path) -> Store:
    """The folder again, to be damaged."""
    shutil.copytree(filled.store.url.removeprefix("file://"), tmp_path / "copy")
    return folder_store(tmp_path / "copy")


def segments(store: Store, filled: Filled, partition: int) -> list[Path]:
    """The segment files of one partition of `mixed`, oldest first."""
    topics = json.loads(store.read("topics.json"))["topics"]
    topic_id = next(topic["topic_id"] for topic in topics if topic["name"] == "mixed")
    folder = Path(store.url.removeprefix("file://")) / "data" / topic_id / str(partition)
    return sorted(folder.glob("*.seg"))


def test_segments_outside_option_where_are_not_opened(spark: Any, copy: Store, filled: Filled) -> None:
    """Every object that no row is wanted of is deleted, and nobody notices."""
    old = [path for p in range(PARTITIONS) for path in segments(copy, filled, p)[:-3]]
    other = segments(copy, filled, 0)
    for path in {*old, *other}:
        path.unlink()
    begin = int(segments(copy, filled, 1)[0].name[:20])
    frame = read(
        spark, copy, subscribe="mixed", where=f"partition > 0 and partition < 2 and offset >= {begin}"
    )
    assert offsets_of(frame) == [(1, n) for n in range(begin, filled.borders["mixed"][1])]
    newest = max(row.timestamp_ms for row in filled.rows["mixed"] if row.partition == 1) - 100_000
    frame = read(spark, copy, subscribe="mixed", where=f"partition = 1 and timestamp >= {at(newest)}")
    expected = [r.offset for r in filled.rows["mixed"] if r.partition == 1 and r.timestamp_ms >= newest]
    assert offsets_of(frame) == [(1, n) for n in expected]


def test_segments_younger_than_a_time_range_are_not_opened(spark: Any, copy: Store, filled: Filled) -> None:
    """Most of the batches are compressed; offload has looked into them."""
    rows = [row for row in filled.rows["mixed"] if row.partition == 1]
    begin, end = START_MS + 1_000_000, START_MS + 2_000_000
    wanted: list[Any] = []
    others: list[Any] = []
    for path in segments(copy, filled, 1):
        first, last = int(path.name[:20]), int(path.name[21:41])
        times = [row.timestamp_ms for row in rows if first <= row.offset <= last]
        (wanted if min(times) < end and max(times) >= begin else others).append(path)
    assert len(wanted) < len(others)
    for path in others:
        path.unlink()
    frame = read(
        spark,
        copy,
        subscribe="mixed",
        where=f"partition = 1 and timestamp >= {at(begin)} and timestamp < {at(end)}",
    )
    assert offsets_of(frame) == [(1, row.offset) for row in rows if begin <= row.timestamp_ms < end]


def test_an_object_that_is_gone_is_named_or_passed_over(spark: Any, copy: Store, filled: Filled) -> None:
    gone = segments(copy, filled, 1)[4]
    first, last = int(gone.name[:20]), int(gone.name[21:41])
    gone.unlink()
    with pytest.raises(errors.PySparkException) as raised:
        read(spark, copy, subscribe="mixed").count()
    assert gone.name in str(raised.value)
    assert f"offsets {first} to {last} are lost" in str(raised.value)
    rest = read(spark, copy, subscribe="mixed", failOnDataLoss="false")
    assert offsets_of(rest) == [
        (r.partition, r.offset)
        for r in filled.rows["mixed"]
        if r.partition != 1 or not first <= r.offset <= last
    ]


def test_a_flipped_bit_is_named_with_its_object_and_offsets(spark: Any, copy: Store, filled: Filled) -> None:
    path = segments(copy, filled, 2)[3]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.PySparkException, match=f"{path.name}: wrong checksum .*offsets") as raised:
        read(spark, copy, subscribe="mixed", failOnDataLoss="false").count()
    assert str(int(path.name[:20])) in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "planes"}, "no topic 'planes'"),
        ({"subscribe": "mixed", "startingOffset": "earliest"}, "unknown option startingoffset"),
        ({"subscribe": "mixed", "secretAccessKey": "x"}, "refused"),
        ({"subscribe": "stamped", "endingOffsets": '{"stamped":{"0":99999999}}'}, "not in the archive"),
    ],
)
def test_unreadable_tables_are_refused_with_the_reason(
    load: Load, options: dict[str, str], said: str
) -> None:
    with pytest.raises(errors.PySparkException, match=said):
        load(**options).count()


def test_nothing_to_read_is_an_empty_frame(load: Load) -> None:
    assert load(subscribePattern="nothing").count() == 0
    assert load(subscribe="mixed", where="partition = 77").collect() == []
