"""A DataFrame, a view, a cached frame may be asked more than once, each time something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

from tests.spark.conftest import read
from tests.spark.filling import Filled

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COLUMNS = "topic string, partition int, offset bigint, timestamp timestamp"
SHAPES = {
    "a filter, then everything": [
        "select count(*) from {t} where partition = 2",
        "select count(*) from {t}",
        "select count(*) from {t} where partition = 1",
    ],
    "everything, then a filter": [
        "select count(*), max(`offset`) from {t}",
        "select count(*), max(`offset`) from {t} where `offset` < 100",
    ],
    "a union of filters": [
        "select * from {t} where partition = 0 and `offset` < 50 "
        "union all select * from {t} where partition = 1",
    ],
    "a self-join": [
        "select a.offset, b.partition from {t} a join {t} b on a.offset = b.offset "
        "where a.partition = 0 and b.partition = 2 and a.offset < 300",
    ],
    "a scalar subquery": [
        "select count(*) from {t} where `offset` > (select avg(`offset`) from {t} where partition = 1)",
    ],
    "a semi and an anti join": [
        "select partition, `offset` from {t} where `offset` in "
        "(select `offset` from {t} where partition = 2 and `offset` > 2900)",
        "select count(*) from {t} where `offset` not in (select `offset` from {t} where partition = 0)",
    ],
    "a common table expression used twice": [
        "with few as (select * from {t} where `offset` < 200) select a.partition, count(*) "
        "from few a join few b on a.offset = b.offset where b.partition = 1 group by 1",
    ],
    "aggregates with filters of their own": [
        "select count(*) filter (where partition = 0), count(*) filter (where `offset` >= 2000), count(*) "
        "from {t}",
    ],
    "except and intersect": [
        "select `offset` from {t} where partition = 0 except select `offset` from {t} where `offset` < 2990",
        "select `offset` from {t} where partition = 0 intersect select `offset` from {t} where partition = 1",
    ],
    "a window, then a filter on its result": [
        "select * from (select partition, `offset`, row_number() over "
        "(partition by partition order by `offset` desc) as n from {t} where `offset` < 1000) where n <= 2",
        "select min(timestamp), max(timestamp) from {t} where partition = 2",
    ],
}


@pytest.fixture(scope="module")
def truth(spark: Any, filled: Filled) -> Any:
    """The same rows, as a consumer read them."""
    rows = [(r.topic, r.partition, r.offset, r.timestamp_ms) for r in filled.rows["mixed"]]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset bigint, ms bigint")
    found = frame.selectExpr("topic", "partition", "offset", "timestamp_millis(ms) as timestamp").cache()
    yield found
    found.unpersist()


@pytest.fixture(params=["true", "false"], ids=["pushdown on", "pushdown off"])
def pushdown(spark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.unset(PUSHDOWN)


def answers(spark: Any, query: str, source: Any) -> list[tuple[Any, ...]]:
    frame = spark.sql(query.replace("{t}", source)) if isinstance(source, str) else spark.sql(query, t=source)
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(
    "kind",
    [
        "frame",
        pytest.param("view", marks=pytest.mark.thorough),
        pytest.param("cache", marks=pytest.mark.thorough),
    ],
)
def test_every_query_of_one_frame_has_its_own_answer(
    spark: Any, filled: Filled, truth: Any, pushdown: None, kind: str
) -> None:
    frame = read(spark, filled.store, COLUMNS, subscribe="mixed")
    source: Any = frame
    if kind == "view":
        frame.createOrReplaceTempView("archived")
        source = "archived"
    if kind == "cache":
        frame.cache()
    try:
        for shape, queries in SHAPES.items():
            for query in queries:
                assert answers(spark, query, source) == answers(spark, query, truth), (shape, query)
    finally:
        frame.unpersist()


def test_a_narrowed_load_keeps_to_its_condition_whatever_is_asked(
    spark: Any, filled: Filled, truth: Any, pushdown: None
) -> None:
    where = "partition <> 1 and offset between 100 and 2000"
    frame = read(spark, filled.store, COLUMNS, subscribe="mixed", where=where)
    narrowed = truth.where(where)
    for query in SHAPES["a filter, then everything"] + SHAPES["a self-join"]:
        assert answers(spark, query, frame) == answers(spark, query, narrowed), query


class Narrowing(DataSourceReader):
    """A reader that does with filters what they are handed over for."""

    def __init__(self) -> None:
        self.only: int | None = None

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute == ("part",):
                self.only = one.value
            else:
                yield one

    def partitions(self) -> list[Any]:
        return [InputPartition(part) for part in range(3) if self.only in (None, part)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield (partition.value,)


class NarrowingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "narrowing"

    def schema(self) -> str:
        return "part int"

    def reader(self, schema: Any) -> Narrowing:
        return Narrowing()


def test_spark_shares_a_narrowed_reader_among_queries_of_a_frame(spark: Any) -> None:
    """Why the source takes no filters (docs/adr/0005). It fails on the first Spark that keeps them apart, and
    then filters may be taken there.
    """
    spark.dataSource.register(NarrowingSource)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = spark.read.format("narrowing").load()
        assert frame.where("part = 1").count() == 1
        assert frame.count() == 1, f"Spark {spark.version} reads all three parts: filters are kept apart"
    finally:
        spark.conf.unset(PUSHDOWN)
