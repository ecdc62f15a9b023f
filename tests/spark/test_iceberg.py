"""`firn pipeline archive --format iceberg`, on a Spark that Iceberg has a runtime for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.spark.desk import Desk, desk_with_readings
from tests.spark.filling import START_MS
from tests.spark.growing import Growing, each_once
from tests.spark.killing import Job, kill_often, seeded
from tests.support.iceberg import ENV, IcebergSession, need_iceberg, settings

pytestmark = pytest.mark.timeout(1200)

TABLE = "lake.db.rows"
SMALL = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=600m")


@pytest.fixture(scope="module", autouse=True)
def _needs_iceberg() -> None:
    need_iceberg()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    # More partitions than tasks: a task then writes rows of one day, of the next, and of the first again.
    with desk_with_readings(tmp_path_factory.mktemp("desk"), partitions=3) as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergSession]:
    found = IcebergSession(tmp_path / "warehouse", tmp_path / "session.log")
    yield found
    found.close()


def archive(url: str, topic: str, folder: Path, *more: str, env: dict[str, str] = ENV) -> Job:
    """The command with the catalog of `lake`; its table is `TABLE`."""
    command = [sys.executable, "-m", "service.cli.main", "pipeline", "archive", url, TABLE, "--topics", topic]
    command += ["--format", "iceberg", "--checkpoint", str(folder / "checkpoint"), *SMALL, *more]
    for name, value in settings(folder / "warehouse").items():
        command += ["--conf", f"{name}={value}"]
    return Job(command, folder / "checkpoint", folder / "log", env)


def test_runs_one_after_the_other_fill_a_table_by_topic_and_day(
    desk: Desk, lake: IcebergSession, tmp_path: Path
) -> None:
    command = ["archive", desk.store.url, TABLE, "--format", "iceberg", "--topics", "readings"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--values", "json", "--headers"]
    counts = []
    for end in (3000, 6000):
        counts.append(desk.write(end - 3000, end))
        code, said = lake.pipeline(*command)
        assert code == 0, said
    assert f"archive: {counts[1] - counts[0]:,} records to {TABLE} in " in said
    columns = [row[:2] for row in lake.sql(f"describe {TABLE}")]
    assert columns[:10] == [
        ["topic_id", "string"],
        ["partition", "int"],
        ["offset", "bigint"],
        ["timestamp", "timestamp"],
        ["timestampType", "int"],
        ["key", "binary"],
        ["value", "struct<at:struct<x:double>,reading:bigint,sensor:string>"],
        ["headers", "array<struct<key:string,value:binary>>"],
        ["undecoded", "binary"],
        ["topic", "string"],
    ]
    assert [row[:2] for row in columns if row[0].startswith("Part ")] == [
        ["Part 0", "topic"],
        ["Part 1", "days(timestamp)"],
    ]
    rows = lake.sql(
        "select partition, offset, unix_millis(timestamp), value.reading, value.at.x, string(undecoded), "
        f"string(headers[0].value) from {TABLE} order by partition, offset"
    )
    assert len(rows) == len({(row[0], row[1]) for row in rows}) == counts[1]
    for partition, offset, time, reading, x, undecoded, header in rows:
        i = offset * 3 + partition
        assert time == START_MS + 20_000 * i
        if i % 500 not in (7, 8, 9):
            assert (reading, x, undecoded) == (i, i / 2, None)
        elif i % 500 == 8:
            assert (reading, x, undecoded) == (None, None, "[1, 2")
        assert header == (str(i) if i % 2 else None)
    days = {datetime.fromtimestamp(row[2] // 1000, UTC).date().isoformat() for row in rows}
    parts = f"select partition.topic, partition.timestamp_day from {TABLE}.partitions order by 2"
    assert lake.sql(parts) == [["readings", day] for day in sorted(days)]
    assert len(days) > 1
    code, said = lake.pipeline(*command)
    assert (code, "archive: 0 records" in said) == (0, True)
    assert lake.sql(f"select count(*) from {TABLE}") == [[counts[1]]]


def test_contradictory_options_are_refused_in_one_line(
    desk: Desk, lake: IcebergSession, tmp_path: Path
) -> None:
    desk.write(0, 300)

    def refused(table: str, checkpoint: str, *more: str) -> str:
        command = ["archive", desk.store.url, table, "--format", "iceberg", "--topics", "readings"]
        code, said = lake.pipeline(*command, "--checkpoint", str(tmp_path / checkpoint), *more)
        assert (code, said.count("\n")) == (1, 1), said
        return said

    command = ["archive", desk.store.url, TABLE, "--format", "iceberg", "--topics", "readings"]
    assert lake.pipeline(*command, "--checkpoint", str(tmp_path / "first"))[0] == 0
    assert "rows of these topics already" in refused(TABLE, "second")
    assert "output: lake.db.rows there, lake.db.other here" in refused("lake.db.other", "first")
    assert "includeHeaders: false there, true here" in refused(TABLE, "first", "--headers")
    assert "headers is array<struct<key:string,value:binary>> here and none there" in refused(
        TABLE, "third", "--headers"
    )
    assert "Iceberg has no smallint" in refused(
        "lake.db.small",
        "third",
        "--values",
        "json",
        "--schema",
        _schema(tmp_path, "reading struct<smallint:smallint>"),
    )
    assert "CATALOG.DATABASE.TABLE" in refused("rows", "fourth")
    assert "CATALOG.DATABASE.TABLE" in refused("nowhere.db.rows", "fourth")
    lake.sql(f"drop table {TABLE}")
    assert f"table {TABLE} is gone" in refused(TABLE, "first")
    assert lake.sql("show tables in lake.db") == []


def _schema(folder: Path, ddl: str) -> str:
    (folder / "schema.ddl").write_text(ddl, "utf-8")
    return str(folder / "schema.ddl")


def test_a_table_made_before_with_its_columns_in_another_order_is_filled(
    desk: Desk, lake: IcebergSession, tmp_path: Path
) -> None:
    count = desk.write(0, 300)
    lake.sql(
        f"create table {TABLE} (key binary, value binary, topic string, partition int, offset bigint, "
        "topic_id string, timestamp timestamp, timestampType int) using iceberg partitioned by (topic)"
    )
    command = ["archive", desk.store.url, TABLE, "--format", "iceberg", "--topics", "readings"]
    code, said = lake.pipeline(*command, "--checkpoint", str(tmp_path / "checkpoint"))
    assert code == 0, said
    keys = f"select count(*), count_if(string(key) = concat('k', (offset * 3 + partition) % 3)) from {TABLE}"
    assert lake.sql(keys) == [[count, count // 2]]


def test_a_runtime_made_for_another_spark_is_refused_in_one_line(desk: Desk, tmp_path: Path) -> None:
    desk.write(0, 300)
    job = archive(desk.store.url, "readings", tmp_path, env={})
    try:
        assert job.begin().end() == 1
    finally:
        job.kill()
    said = [line for line in job.log.read_text("utf-8").splitlines() if " WARN " not in line]
    assert said[-1].startswith("firn pipeline: the Iceberg runtime does not fit Spark ")
    assert not any(line.startswith(("Traceback", "\tat ")) for line in said)


def each_offset_once(
    grown: Growing, topic: str, lake: IcebergSession, folder: Path, *, records: int, kills: int
) -> None:
    """Records are added before each start: this Spark takes all there is in one batch."""
    grown.topic(topic)
    job = archive(grown.store.url, topic, folder, "--interval", "1")
    prepare = lambda: grown.append(topic, records)  # noqa: E731
    kill_often(job, seeded(), folder / "warehouse", kills=kills, prepare=prepare)
    finishing = archive(grown.store.url, topic, folder)
    try:
        assert finishing.begin().end() == 0, finishing.said()
        # The batch in the table that is not noted comes first, and then what is new.
        finishing.forget_newest()
        sealed = grown.append(topic, records)
        assert finishing.begin().end() == 0, finishing.said()
    finally:
        finishing.kill()
    each_once(lake.sql(f"select partition, offset from {TABLE}"), sealed)
    assert lake.sql(f"select count(distinct topic_id) from {TABLE}") == [[1]]
    # A kill in the middle of a batch leaves files that no snapshot names.
    named = lake.sql(f"select count(distinct file_path) from {TABLE}.all_data_files")
    assert named[0][0] < sum(1 for _ in (folder / "warehouse").rglob("*.parquet"))


def test_killed_at_random_moments_it_has_written_every_offset_once(
    grown: Growing, lake: IcebergSession, tmp_path: Path
) -> None:
    each_offset_once(grown, "killed", lake, tmp_path, records=400, kills=3)


@pytest.mark.soak
def test_killed_twenty_times_it_has_written_every_offset_once(
    grown: Growing, lake: IcebergSession, tmp_path: Path
) -> None:
    each_offset_once(grown, "killed-often", lake, tmp_path, records=400, kills=20)
