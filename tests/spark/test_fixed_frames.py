"""A DataFrame is of what its first action found; `load()` looks again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import errors

from tests.spark.growing import Growing


def test_a_frame_stays_with_what_its_first_action_found(spark: Any, grown: Growing) -> None:
    grown.topic("fixed")
    first = sum(grown.append("fixed", 1000).values())
    reader = spark.read.format("firn").options(**grown.options("fixed")).schema("offset bigint")
    frame = reader.load()
    frame.createOrReplaceTempView("fixed")
    assert frame.count() == first
    second = sum(grown.append("fixed", 1000).values())
    assert second > first
    assert frame.count() == frame.where("offset >= 0").count() == first
    assert spark.table("fixed").count() == first
    spark.catalog.refreshTable("fixed")
    assert spark.table("fixed").count() == first, "Spark has nothing to refresh in it"
    assert reader.load().count() == second
    reader.load().createOrReplaceTempView("fixed")
    assert spark.table("fixed").count() == second


def test_records_deleted_since_planning_are_reported_with_a_remedy(spark: Any, grown: Growing) -> None:
    grown.topic("expired")
    grown.append("expired", 1000)
    reader = spark.read.format("firn").options(**grown.options("expired")).schema("value binary")
    frame = reader.load()
    before = frame.count()
    folder = Path(grown.store.url.removeprefix("file://"))
    gone = min((p for p in folder.rglob("*.seg") if b"expired" in p.read_bytes()), key=lambda path: path.name)
    gone.unlink()
    with pytest.raises(errors.PySparkException) as raised:
        frame.count()
    said = str(raised.value)
    assert gone.name in said
    assert "deleted after this read was planned" in said
    assert "load() makes a new one" in said
    assert before > 0


def test_an_unknown_topic_is_told_which_there_are(spark: Any, grown: Growing) -> None:
    grown.topic("here")
    grown.append("here", 700)
    with pytest.raises(errors.PySparkException, match=r"no topic 'her'; there are .*here.*a moment later"):
        spark.read.format("firn").options(**grown.options("her")).load().count()
