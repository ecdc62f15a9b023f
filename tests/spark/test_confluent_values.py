"""`firn pipeline archive --confluent-header`: each value by the schema that its header names."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer

from service.cli.main import main
from tests.spark.filling import START_MS
from tests.spark.growing import Growing
from tests.support.schema_registry import Registry, schema_registry
from tests.support.tiers import settle

pytestmark = pytest.mark.timeout(600)


def schema(*fields: str, **more: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in fields]
    found += [{"name": name, "type": kind, "default": None} for name, kind in more.items()]
    return {"type": "record", "name": "Reading", "namespace": "n", "fields": found}


V1 = schema("a", "b")
# As many bytes as the first, in another order: read by the first it is whole, and wrong.
V2 = schema("b", "a")
V3 = schema("a", "b", c=["null", "string"])
UNKNOWN = 1_999_999_999


def value_of(number: int, written_by: Mapping[str, Any], datum: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, dict(written_by), dict(datum))
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as found:
        yield found


@pytest.fixture
def topic(grown: Growing) -> str:
    name = f"avro-{uuid4()}"
    grown.topic(name)
    return name


def produce(grown: Growing, topic: str, begin: int, end: int, value: Callable[[int], bytes]) -> int:
    """Record i goes into partition i modulo 2; returns how many are archived."""
    producer = Producer({"bootstrap.servers": grown.node.bootstrap, "linger.ms": 5})
    for i in range(begin, end):
        producer.produce(topic, value(i), partition=i % 2, timestamp=START_MS + 20_000 * i)
        if i % 50 == 0:
            producer.flush()
    assert producer.flush(30) == 0
    return sum(settle(grown.node.bootstrap, topic, partition) for partition in (0, 1))


def rows_of(spark: Any, output: Path) -> dict[int, Any]:
    """By the number of the record."""
    rows = spark.read.parquet(str(output)).collect()
    found = {row.offset * 2 + row.partition: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_values_of_a_later_schema_are_not_read_as_the_first_and_columns_stay(
    spark: Any,
    grown: Growing,
    registry: Registry,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "lake"
    command = ["pipeline", "archive", grown.store.url, str(output), "--topics", topic]
    command += ["--values", "avro", "--confluent-header", "--schema-registry", registry.url]
    first = registry.register(f"{topic}-value", V1)
    produce(grown, topic, 0, 200, lambda i: value_of(first, V1, {"a": i, "b": -i}))
    assert main(command) == 0
    assert f"archive: columns are those of schema {first}\n" in capsys.readouterr().err
    second, third = (registry.register(f"{topic}-value", one) for one in (V2, V3))

    def later(i: int) -> bytes:
        datum = {"a": i, "b": -i, "c": "x"}
        if i % 4 == 3:
            return value_of(UNKNOWN, V1, datum)
        return value_of(second, V2, datum) if i % 4 else value_of(third, V3, datum)

    count = produce(grown, topic, 200, 400, later)
    assert main(command) == 0, capsys.readouterr().err
    found = rows_of(spark, output)
    assert len(found) == count > 300
    for i, row in found.items():
        if i >= 200 and i % 4 == 3:
            assert (row.value, bytes(row.undecoded)) == (None, later(i))
        else:
            assert (row.value.asDict(), row.undecoded) == ({"a": i, "b": -i}, None)
    if registry.asked:  # of the stand-in: each id once in a task's process, whatever it stands for
        assert 1 <= registry.asked.count(f"/schemas/ids/{second}") <= 4
    capsys.readouterr()
    assert main([*command, "--reader-schema", str(second)]) == 1
    assert "values' reader: " in capsys.readouterr().err


def test_schemas_from_files_need_no_registry_and_the_greatest_id_is_whose_columns_there_are(
    spark: Any, grown: Growing, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, one in (("v1", V1), ("v2", V2), ("v3", V3)):
        (tmp_path / name).write_text(json.dumps(one), "utf-8")
    output = tmp_path / "lake"
    command = ["pipeline", "archive", grown.store.url, str(output), "--topics", topic]
    command += ["--values", "avro", "--confluent-header"]
    writers = {7: V1, 9: V2, 12: V3}

    def value(i: int) -> bytes:
        number = (7, 9, 12, 13)[i % 4]
        return value_of(number, writers.get(number, V1), {"a": i, "b": -i, "c": "x"})

    count = produce(grown, topic, 0, 200, value)
    given = ["--schema", f"7={tmp_path}/v1", "--schema", f"12={tmp_path}/v3"]
    assert main([*command, *given, "--schema", f"9={tmp_path}/v2"]) == 0, capsys.readouterr().err
    found = rows_of(spark, output)
    assert len(found) == count
    for i, row in found.items():
        if i % 4 == 3:
            assert (row.value, bytes(row.undecoded)) == (None, value(i))
        else:
            assert row.value.asDict() == {"a": i, "b": -i, "c": "x" if i % 4 == 2 else None}
    capsys.readouterr()
    assert main([*command, "--schema", f"7={tmp_path}/v2"]) == 1
    assert "schema 7: " in capsys.readouterr().err
    assert main([*command, "--schema", f"{tmp_path}/v1"]) == 1
    assert "give this schema's id: --schema ID=FILE" in capsys.readouterr().err
    # Those that were given before need not be given again.
    produce(grown, topic, 200, 300, value)
    assert main([*command, "--schema", f"13={tmp_path}/v1"]) == 0
    later = {i: row for i, row in rows_of(spark, output).items() if i not in found}
    assert later
    assert all(row.value.a == i for i, row in later.items())
