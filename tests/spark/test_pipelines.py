"""The pipelines over buckets that a real node filled, through their command line."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from service.cli.main import main
from service.pipelines.audit import spread
from service.pipelines.confluent import ConfluentDecoder
from service.pipelines.values import decode_json, decode_with, parse_json_schema
from tests.spark.desk import Desk, desk_with_readings
from tests.spark.filling import START_MS, Filled, Row, consume
from tests.support.clients import Admin
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.timeout(600)  # a busy machine takes its time, and what interrupts Spark breaks it


def day_of(row: Row) -> str:
    return datetime.fromtimestamp(row.timestamp_ms / 1000, UTC).date().isoformat()


@pytest.fixture
def pipeline(spark: Any, filled: Filled) -> Any:
    """`pipeline(name, *arguments)` over the folder; returns the exit code. Runs in the tests' session."""

    def run(name: str, *arguments: str) -> int:
        return main(["pipeline", name, filled.store.url, *arguments])

    return run


@pytest.fixture(scope="module")
def desk(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_with_readings(tmp_path_factory.mktemp("desk")) as found:
        yield found


class TestArchive:
    def test_runs_one_after_the_other_write_every_offset_once_with_json_in_columns(
        self, spark: Any, desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "lake"
        command = ["pipeline", "archive", desk.store.url, str(output), "--topics", "readings", "--headers"]
        for end in (1500, 3000):
            count = desk.write(end - 1500, end)
            assert main([*command, "--values", "json", "--batch-bytes", "64k"]) == 0
        written = spark.read.parquet(str(output))
        assert written.columns[:6] == ["topic_id", "partition", "offset", "timestamp", "timestampType", "key"]
        assert written.schema["value"].dataType.simpleString() == (
            "struct<at:struct<x:double>,reading:bigint,sensor:string>"
        )
        rows = written.orderBy("partition", "offset").collect()
        assert len(rows) == len({(row.topic_id, row.partition, row.offset) for row in rows}) == count
        for row in rows:
            i = row.offset * 2 + row.partition
            assert row.date == datetime.fromtimestamp(START_MS // 1000 + 20 * i, UTC).date()
            if i % 500 in (7, 8, 9):
                undecoded = {7: None, 8: b"[1, 2", 9: b"\xff\xfe"}[i % 500]
                assert (row.value, row.undecoded) == (None, undecoded and bytearray(undecoded))
            else:
                assert row.value.asDict(True) == {"sensor": f"s{i % 5}", "reading": i, "at": {"x": i / 2}}
                assert row.undecoded is None
            headers = None if row["headers"] is None else [(h.key, h.value) for h in row["headers"]]
            assert headers == ([("n", str(i).encode()), ("none", None)] if i % 2 else None)
        assert len(list((output / "_checkpoint" / "commits").glob("[0-9]*"))) > 2
        assert main([*command, "--values", "json"]) == 0
        assert "archive: 0 records" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--values", "avro"), "needs --schema"),
            (("--schema", "x.ddl"), "has no effect without --values"),
            (("--batch-bytes", "many"), "maxBytesPerTrigger"),
            (("--values", "json", "--schema", "/nowhere.ddl"), "No such file"),
            (("--format", "iceberg"), "needs --checkpoint"),
            (("--format", "iceberg", "--checkpoint", "/nowhere"), "needs Iceberg's runtime"),
        ],
    )
    def test_invalid_options_are_reported_in_one_line(
        self,
        spark: Any,
        filled: Filled,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        said: str,
    ) -> None:
        output = tmp_path / "lake"
        assert main(["pipeline", "archive", filled.store.url, str(output), *arguments]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert not output.exists()


class TestAudit:
    def test_a_clean_archive_is_counted_by_day(
        self, spark: Any, pipeline: Any, filled: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert pipeline("audit", "--topics", "mixed", "--json", "--output", str(tmp_path / "rows")) == 0
        found = json.loads(capsys.readouterr().out)
        rows = filled.rows["mixed"]
        days = Counter(day_of(row) for row in rows)
        assert {one["day"]: one["records"] for one in found["days"]} == days
        assert (found["records"], found["errors"]) == (len(rows), [])
        table = spark.read.parquet(str(tmp_path / "rows"))
        assert table.count() == found["segments"]
        assert table.where("size(errors) > 0").isEmpty()

    @pytest.mark.parametrize(("rows", "tasks"), [(90, 64), (30, 16), (5, 8)])
    def test_tasks_get_equal_work_however_few_segments_there_are(
        self, spark: Any, rows: int, tasks: int
    ) -> None:
        # As chains come: a partition with many segments, others with one.
        uneven = spark.sparkContext.parallelize([rows - 3, 1, 1, 1], 4).flatMap(range)
        shares = [len(share) for share in spread(uneven, tasks).glom().collect()]
        assert sum(shares) == rows
        assert set(shares) <= {rows // tasks, rows // tasks + 1}

    def test_each_kind_of_damage_is_found_and_named(
        self, spark: Any, filled: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(filled.store.url.removeprefix("file://"), tmp_path / "copy")
        paths = sorted((tmp_path / "copy").glob("data/*/1/*.seg"))
        missing, flipped, longer, footer = paths[0], paths[1], paths[2], paths[3]
        missing.unlink()
        for path, position in ((flipped, 100), (footer, -40)):
            data = bytearray(path.read_bytes())
            data[position] ^= 1
            path.write_bytes(data)
        longer.write_bytes(longer.read_bytes() + b"x")
        (head,) = (tmp_path / "copy").glob(f"data/{paths[0].parent.parent.name}/2/HEAD")
        head.write_bytes(b"{}")
        (tmp_path / "copy" / "cluster.json").unlink()
        assert main(["pipeline", "audit", f"file://{tmp_path}/copy"]) == 1
        out = capsys.readouterr().out
        for path in (missing, flipped, longer, footer):
            assert len(re.findall(rf"^ERROR: .*{path.name}", out, re.MULTILINE)) == 1
        assert re.search(r"^ERROR: cluster.json", out, re.MULTILINE)
        assert re.search(r"^ERROR: .*/2", out, re.MULTILINE)
        assert out.endswith("\nnot in the archive: __consumer_offsets, plain\n6 errors\n")

    def test_partitions_that_are_not_in_the_archive_are_not_counted_as_proved(
        self, spark: Any, pipeline: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert pipeline("audit", "--topics", "stamped,plain", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["partitions"] == 1
        assert found["topics_without_archive"] == ["plain"]


class TestReplay:
    def test_a_range_goes_back_in_order_and_is_resumed_after_a_failure(
        self, spark: Any, desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        desk.write(0, 1500)
        admin = Admin(desk.bootstrap)
        admin.create("again", 2, **{"max.message.bytes": "200"})
        starting, ending = '{"readings":{"0":10,"1":20}}', '{"readings":{"0":500,"1":530}}'
        command = ["pipeline", "replay", desk.store.url, "--topics", "readings", "--into", "again"]
        command += ["--bootstrap-server", desk.bootstrap, "--state", str(tmp_path / "state")]
        command += ["--starting-offsets", starting, "--ending-offsets", ending, "--keep-partition"]
        # Batches above the topic's limit: librdkafka does not split them, so nothing of theirs is accepted.
        assert main([*command, "--client", "linger.ms=200"]) == 1
        assert "was not accepted" in capsys.readouterr().err
        admin.alter("again", **{"max.message.bytes": "1000000"})
        assert main([*command, "--records-per-second", "2000"]) == 0
        sent = consume(desk.bootstrap, "again", {0: 490, 1: 510})
        wanted = consume(desk.bootstrap, "readings", {0: 500, 1: 530})
        wanted = [row for row in wanted if row.offset >= (10, 20)[row.partition]]
        assert [
            row._replace(topic="readings", offset=row.offset + (10, 20)[row.partition]) for row in sent
        ] == wanted
        capsys.readouterr()
        assert main(command) == 0
        assert "replay: 0 records" in capsys.readouterr().err
        assert main([*command[:-1], "--bytes-per-second", "9"]) == 1
        assert "is of another replay (keep_partition differ)" in capsys.readouterr().err
        admin.delete("again")
        assert main(command) == 1
        assert capsys.readouterr().err == "firn pipeline: brokers know no topic again; create it first\n"
        admin.create("again", 1)
        assert main(command) == 1
        assert "topic again was deleted and created again since" in capsys.readouterr().err
        fresh = ["--state", str(tmp_path / "fresh")]
        assert main([*command, *fresh]) == 1
        assert "topic again has 1 partitions, no 1" in capsys.readouterr().err
        assert main([*command, *fresh, "--client", "acks=1"]) == 1
        assert "--client acks is '1'; it has to be all" in capsys.readouterr().err


AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": {"type": "enum", "name": "Sensor", "symbols": ["A", "B"]}},
        {"name": "small", "type": ["null", "int"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    ],
}


class TestValues:
    def test_avro_with_a_registry_header_and_what_is_not_avro(self, spark: Any) -> None:
        reading = {
            "sensor": "B",
            "small": None,
            "day": date(2013, 1, 2),
            "at": datetime(2013, 1, 2, 3, 4, 5, 678000, UTC),
            "price": Decimal("12.34"),
            "tags": {"x": ["y", "z"]},
        }
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, reading)
        data = stream.getvalue()
        long_written = io.BytesIO()
        wider = json.loads(json.dumps(AVRO).replace('["null", "int"]', '["null", "long"]'))
        fastavro.schemaless_writer(long_written, wider, {**reading, "small": 2**40})
        too_wide = b"\0\0\0\0\1" + long_written.getvalue()
        good = b"\0\0\0\0\1" + data
        values = [good, None, data, good[:-1], good + b"\0", b"", b"\0\0", too_wide, good]
        frame = spark.createDataFrame(list(enumerate(values)), "n int, value binary")
        rows = decode_with(frame, ConfluentDecoder(AVRO, {1: AVRO}, None), AVRO).orderBy("n").collect()
        assert [row.n for row in rows if row.value is not None] == [0, 8]
        assert [row.n for row in rows if row.undecoded is not None] == [2, 3, 4, 5, 6, 7]
        assert all(bytes(row.undecoded) == values[row.n] for row in rows if row.undecoded is not None)
        found = rows[0].value.asDict()
        assert found.pop("at").timestamp() == reading["at"].timestamp()
        assert found == {name: value for name, value in reading.items() if name != "at"}

    def test_json_that_is_not_of_the_schema_is_kept_as_it_is(self, spark: Any) -> None:
        values = [
            b'{"a": 1}',
            b'{"a": "one"}',
            b"{}",
            b"",
            b"null",
            b"7",
            None,
            b'{"a": 1',
            b'{"b": 2, "a": 3}',
        ]
        frame = spark.createDataFrame(list(enumerate(values)), "n int, value binary")
        rows = decode_json(frame, parse_json_schema("a int")).orderBy("n").collect()
        assert {row.n: row.value.a for row in rows if row.value is not None} == {0: 1, 2: None, 8: 3}
        assert [row.n for row in rows if row.undecoded is not None] == [1, 3, 4, 5, 7]


class TestStats:
    def test_days_and_keys_are_counted_as_a_consumer_would(
        self, pipeline: Any, filled: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        plot = tmp_path / "stats.png"
        assert pipeline("stats", "--pattern", "mixed|stamped", "--json", "--top", "4", f"--plot={plot}") == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        rows = filled.rows["mixed"] + filled.rows["stamped"]
        days = Counter((row.topic, day_of(row)) for row in rows)
        assert {(day["topic"], day["day"]): day["records"] for day in found["days"]} == days
        size = sum(len(row.key or b"") + len(row.value or b"") for row in rows)
        assert sum(day["bytes"] for day in found["days"]) == size
        keys = Counter(row.key for row in filled.rows["mixed"])
        mixed = [key for key in found["keys"] if key["topic"] == "mixed"]
        assert [key["records"] for key in mixed] == [count for _, count in keys.most_common(4)]
        for key in mixed:
            assert keys[None if key["key_hex"] is None else bytes.fromhex(key["key_hex"])] == key["records"]
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert re.search(rf"^stats: {len(rows):,} records, ", captured.err, re.MULTILINE)

    def test_a_range_of_offsets_and_no_keys(self, pipeline: Any, capsys: pytest.CaptureFixture[str]) -> None:
        starting, ending = '{"mixed":{"0":10,"1":20,"2":30}}', '{"mixed":{"0":11,"1":22,"2":33}}'
        arguments = ("--starting-offsets", starting, "--ending-offsets", ending, "--top", "0")
        assert pipeline("stats", "--topics", "mixed", *arguments) == 0
        out = capsys.readouterr().out
        assert re.search(r"mixed +20\d\d-\d\d-\d\d +6 ", out)
        assert "key" not in out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--topics", "planes"), "the archive has no topic 'planes'"),
            (("--pattern", "nothing"), "no topic of the archive is selected"),
            (("--option", "startingoffset=earliest"), "unknown option startingoffset"),
            (("--plot", "/nowhere/at/all.png"), "there is no folder /nowhere/at"),
        ],
    )
    def test_invalid_options_are_reported_in_one_line(
        self, pipeline: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
    ) -> None:
        assert pipeline("stats", *arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("firn pipeline: ")
        assert said in captured.err
        assert captured.err.count("\n") == 1


class TestFailure:
    @pytest.mark.thorough
    def test_a_job_that_fails_says_why_in_a_line_and_where_all_the_rest_is(
        self, filled: Filled, tmp_path: Path
    ) -> None:
        shutil.copytree(filled.store.url.removeprefix("file://"), tmp_path / "copy")
        damaged = sorted((tmp_path / "copy").glob("data/*/1/*.seg"))[0]
        data = bytearray(damaged.read_bytes())
        data[100] ^= 1
        damaged.write_bytes(data)
        log = tmp_path / "spark.log"
        command = [sys.executable, "-m", "service.cli.main", "pipeline", "stats", f"file://{tmp_path}/copy"]
        command += ["--log", str(log), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
        found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
        assert found.returncode == 1
        error, *more = found.stderr.splitlines()
        assert error.startswith("firn pipeline: ")
        assert damaged.name in error
        assert more[-1] == f"  Spark's log: {log}"
        assert all(line.startswith("  cause: ") for line in more[:-1])
        assert found.stdout == ""
        # What Python's workers and the JVM have said of it, and nobody wants to see first.
        text = log.read_text("utf-8", "replace")
        assert "Traceback (most recent call last)" in text
        assert "Lost task" in text
