"""The JSON schema of the first records: of how many, and that it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.pipelines.checkpoint import Checkpoint
from service.pipelines.inference import kept_schema, sample_options
from service.spark.options import parse_options
from service.spark.parts import open_archive
from service.spark.plan.ranges import resolve_ranges
from tests.spark.desk import Desk, desk_with_readings
from tests.spark.filling import Filled


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_with_readings(tmp_path_factory.mktemp("desk")) as found:
        found.write(0, 1500)
        yield found


def test_a_sample_is_bounded_when_it_is_planned_and_has_a_share_of_every_partition(
    spark: Any, filled: Filled
) -> None:
    options = {
        "url": filled.store.url,
        "subscribe": "mixed",
        "startingOffsets": '{"mixed":{"0":100,"1":0,"2":200}}',
    }
    read = parse_options(options)
    with open_archive(read, None) as archive:
        ranges = resolve_ranges(archive, read)
    sample = spark.read.format("firn").options(**sample_options(options, ranges, 300)).load()
    found = {
        row.partition: row
        for row in sample.groupBy("partition").agg({"offset": "min", "*": "count"}).collect()
    }
    assert {partition: row["min(offset)"] for partition, row in found.items()} == {0: 100, 1: 0, 2: 200}
    assert sum(row["count(1)"] for row in found.values()) == 300
    assert all(90 < row["count(1)"] < 110 for row in found.values())


def test_more_records_are_looked_at_where_the_first_hold_no_json(
    spark: Any, desk: Desk, tmp_path: Path
) -> None:
    # Records 7 and 8 of all, which are null and half an object.
    options = {
        "url": desk.store.url,
        "subscribe": "readings",
        "startingOffsets": '{"readings":{"0":4,"1":3}}',
        "maxBytesPerTrigger": "16g",
    }
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    schema = kept_schema(spark, options, checkpoint, 2)
    assert schema.simpleString() == "struct<at:struct<x:double>,reading:bigint,sensor:string>"
    assert kept_schema(spark, {"url": "file:///nowhere"}, checkpoint, 2) == schema


def test_a_topic_without_json_is_told(spark: Any, filled: Filled, tmp_path: Path) -> None:
    options = {"url": filled.store.url, "subscribe": "stamped"}
    with pytest.raises(ConfigError, match="there is no JSON object; give --schema"):
        kept_schema(spark, options, Checkpoint(spark, str(tmp_path / "checkpoint")), 10)
