"""The examples of docs/spark-examples.md, as they stand there, over a bucket that a real node filled."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.spark.desk import Desk, desk_with_readings
from tests.spark.filling import START_MS, TIERED
from tests.spark.page import PAGE, examples
from tests.support.clients import Admin
from tests.support.iceberg import need_iceberg
from tests.support.spark_examples import PYTHON, LakeSession, need_packages, need_protobuf_jar
from tests.support.spark_process import SparkProcess
from tests.support.tiers import LATEST, offset, settle

pytestmark = pytest.mark.timeout(600)

RUN_HERE: Final = {
    "json",
    "avro",
    "registry",
    "reading.proto",
    "descriptor",
    "protobuf",
    "protobuf-python",
    "delta",
    "iceberg",
    "connect",
    "connect-stream",
    "connect-write",
}
RECORDS: Final = 60
_READING: Final = ("sensor", "string"), ("reading", "long")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """JSON in `readings`, and three topics of one partition with other values."""
    with desk_with_readings(tmp_path_factory.mktemp("desk")) as found:
        found.write(0, 300)
        fill(found, "readings-avro", lambda i: b"\x03" if i == 5 else datum(_READING, f"s{i}", i))
        fill(found, "readings-registry", registered)
        fill(found, "readings-protobuf", lambda i: None if i == 5 else message(f"s{i}", large(i)))
        yield found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSession]:
    need_iceberg()
    need_packages()
    folder = tmp_path_factory.mktemp("lake")
    found = LakeSession(folder / "warehouse", folder / "log")
    yield found
    found.close()


@pytest.fixture(scope="module")
def described(lake: LakeSession, tmp_path_factory: pytest.TempPathFactory) -> LakeSession:
    """`lake` in a folder with the descriptor that the page's command makes."""
    folder = tmp_path_factory.mktemp("protobuf")
    (folder / "reading.proto").write_text(examples()["reading.proto"], "utf-8")
    python, *command = shlex.split(examples()["descriptor"])
    assert python == "python"
    subprocess.run([sys.executable, *command], cwd=folder, env={"PYTHONPATH": str(PYTHON)}, check=True)
    lake.run(f"import os; os.chdir({str(folder)!r})")
    return lake


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A client of Spark Connect with a server beside it, whose address is `server`."""
    need_packages()
    folder = tmp_path_factory.mktemp("connect")
    plugin = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
    }
    server = SparkProcess(plugin, folder / "server.log", (PYTHON,))
    service = "getattr(spark._jvm, 'org.apache.spark.sql.connect.service.SparkConnectService$')"
    port = server.value(f"getattr({service}, 'MODULE$').localPort()")
    found = SparkProcess(None, folder / "client.log", (PYTHON,))
    found.run("", server=f"sc://127.0.0.1:{port}")
    yield found
    found.close()
    server.close()


def fill(desk: Desk, topic: str, value: Callable[[int], bytes | None]) -> None:
    Admin(desk.bootstrap).create(topic, 1, **TIERED)
    producer = Producer({"bootstrap.servers": desk.bootstrap, "linger.ms": 5})
    for i in range(RECORDS):
        producer.produce(topic, value(i), partition=0, timestamp=START_MS + 20_000 * i)
        if i % 20 == 0:
            producer.flush()
    assert producer.flush(30) == 0
    settle(desk.bootstrap, topic, 0)


def datum(fields: tuple[tuple[str, str], ...], *values: object) -> bytes:
    import fastavro

    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, dict(zip((name for name, _ in fields), values, strict=True)))
    return out.getvalue()


def message(sensor: str, reading: int) -> bytes:
    out = bytearray(b"\n%c%b\x10" % (len(sensor), sensor.encode()))
    while reading > 127:
        out.append(reading & 127 | 128)
        reading >>= 7
    out.append(reading)
    return bytes(out)


def large(i: int) -> int:
    """Beyond what floats can tell apart, and once zero."""
    return i << 56 | i


def registered(i: int) -> bytes:
    """Ids 7 and 9 have the same two strings, the other way round; nobody knows id 8."""
    sensor, unit = f"s{i}", "m"
    body = datum((("a", "string"), ("b", "string")), *((sensor, unit) if i % 3 == 0 else (unit, sensor)))
    return b"\0" + (7, 9, 8)[i % 3].to_bytes(4, "big") + body


def test_every_example_of_the_page_is_run_here() -> None:
    assert examples().keys() == RUN_HERE
    # The first makes a session with addresses of nobody.
    unnamed = [
        block for block in PAGE.read_text("utf-8").split("```python\n")[1:] if "# example: " not in block
    ]
    assert len(unnamed) == 1
    assert unnamed[0].startswith("from pyspark_firn import session")


def test_json_values_become_columns_and_what_is_none_is_kept_as_text(spark: Any, desk: Desk) -> None:
    names: dict[str, Any] = {"spark": spark, "archive": desk.store.url}
    exec(compile(examples()["json"], "json", "exec", dont_inherit=True), names)
    rows = names["readings"].where("offset < 100").orderBy("offset", "partition").collect()
    assert len(rows) == 200
    for row in rows:
        i = row.offset * 2 + row.partition
        if i not in (7, 8, 9):
            assert (row.sensor, row.reading, row["at"].x, row._corrupt_record) == (
                f"s{i % 5}",
                i,
                i / 2,
                None,
            )
    odd = [row for row in rows if row.sensor is None]
    assert [row.offset * 2 + row.partition for row in odd] == [7, 8, 9]
    assert [row.reading for row in odd] == [None] * 3
    assert [row._corrupt_record for row in odd][:2] == [None, "[1, 2"]
    assert odd[2]._corrupt_record is not None


def test_avro_values_become_columns(desk: Desk, lake: LakeSession) -> None:
    lake.run(examples()["avro"], archive=desk.store.url)
    rows = lake.value("readings.orderBy('reading')")
    assert len(rows) > RECORDS / 2
    wanted = [[f"s{i}", i] for i in range(len(rows)) if i != 5]
    assert rows == [[None, None], *wanted]


def test_values_of_a_registry_are_read_by_the_schema_of_their_id(desk: Desk, lake: LakeSession) -> None:
    lake.run(examples()["registry"], archive=desk.store.url)
    rows = lake.value("readings.orderBy('offset').select('offset', 'avro.unit', 'avro.sensor')")
    assert len(rows) > RECORDS / 2
    assert rows == [[i, None, None] if i % 3 == 2 else [i, "m", f"s{i}"] for i in range(len(rows))]


def test_one_schema_for_all_ids_swaps_columns_without_an_error(desk: Desk, lake: LakeSession) -> None:
    """The warning of the page is true."""
    lake.run(examples()["registry"], archive=desk.store.url)
    lake.run(
        "wrong = rows.select('offset', from_avro(F.expr('substring(value, 6)'), written[7]).alias('avro'))"
    )
    rows = lake.value("wrong.orderBy('offset').select('avro.sensor', 'avro.unit').limit(2)")
    assert rows == [["s0", "m"], ["m", "s1"]]


@pytest.mark.parametrize("example", ["protobuf", "protobuf-python"])
def test_protobuf_values_become_columns(example: str, desk: Desk, described: LakeSession) -> None:
    if example == "protobuf":
        need_protobuf_jar()
    described.run(examples()[example], archive=desk.store.url)
    rows = described.value("readings.orderBy('offset')")
    assert len(rows) > RECORDS / 2
    assert rows == [[i, None, None] if i == 5 else [i, f"s{i}", large(i)] for i in range(len(rows))]


def test_a_stream_into_delta_has_every_offset_once(desk: Desk, lake: LakeSession, tmp_path: Path) -> None:
    found = []
    for begin in (300, 400):
        count = desk.write(begin, begin + 100)
        lake.run(examples()["delta"], archive=desk.store.url, lake=str(tmp_path))
        lake.run("found = spark.read.format('delta').load(f'{lake}/readings').select('partition', 'offset')")
        pairs = lake.value("found")
        assert len(pairs) == count == len({tuple(pair) for pair in pairs})
        found.append(count)
    assert found[0] < found[1]


def test_a_range_becomes_an_iceberg_table(desk: Desk, lake: LakeSession) -> None:
    lake.run(examples()["iceberg"], archive=desk.store.url)
    rows = lake.sql("select partition, offset, string(value) from lake.db.readings order by offset")
    assert [row[:2] for row in rows] == [[1, offset] for offset in range(100)]
    assert '"reading": 1,' in rows[0][2]
    lake.sql("drop table lake.db.readings")


def test_spark_connect_reads_the_archive(desk: Desk, client: SparkProcess, tmp_path: Path) -> None:
    client.run(examples()["connect"], archive=desk.store.url)
    counts = client.value("by_partition")
    assert [partition for partition, _ in counts] == [0, 1]
    total = sum(count for _, count in counts)
    assert total == client.value("rows.count()")
    few = client.value("few.select('partition', 'offset').orderBy('partition', 'offset')")
    tail = "spark.read.format('firn').option('bootstrap.servers', brokers)"
    client.run("", brokers=desk.bootstrap)
    ends = [offset(desk.bootstrap, "readings", partition, LATEST) for partition in (0, 1)]
    assert (
        sum(ends) == client.value(f"{tail}.options(url=archive, subscribe='readings').load().count()") > total
    )
    assert few == [[partition, offset] for partition in (0, 1) for offset in range(10)]

    client.run(examples()["connect-stream"], archive=desk.store.url, lake=str(tmp_path))
    written = client.value("spark.read.parquet(f'{lake}/batches/*').select('partition', 'offset')")
    assert len(written) == len({tuple(pair) for pair in written}) == total
    # Not as in a session without Connect: ["rows"] is refused.
    assert client.value("query.lastProgress['observedMetrics']['seen']['values']") == [total]


def test_spark_connect_writes_records(desk: Desk, client: SparkProcess) -> None:
    Admin(desk.bootstrap).create("readings-again", 2)
    client.run(examples()["connect"], archive=desk.store.url)
    client.run(examples()["connect-write"], brokers=desk.bootstrap)
    assert [offset(desk.bootstrap, "readings-again", partition, LATEST) for partition in (0, 1)] == [10, 10]


def test_limits_of_spark_connect_are_as_documented(desk: Desk, client: SparkProcess) -> None:
    client.run(examples()["connect"], archive=desk.store.url)
    with pytest.raises(AssertionError, match="CONNECT_URL_NOT_SET"):
        client.run("from pyspark_firn import session\nsession()")
    with pytest.raises(AssertionError, match=r"(?s)AnalysisException.*ConfigError: .*nonsense.*SQLSTATE"):
        client.run(
            "spark.read.format('firn').options(url=archive, subscribe='readings', nonsense='1').load().schema"
        )
