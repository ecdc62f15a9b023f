"""Avro schemas as Spark's types, and what has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.pipelines.avro_types import load_schema, spark_type


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": one} for i, one in enumerate(types)]
    return {"type": "record", "name": "r", "namespace": "n", "fields": fields}


@pytest.mark.parametrize(
    ("avro", "ddl"),
    [
        ("long", "bigint"),
        (["null", "string"], "string"),
        (["null", "int", "long"], "bigint"),
        ({"type": "array", "items": ["double", "float"]}, "array<double>"),
        ({"type": "map", "values": {"type": "enum", "name": "e", "symbols": ["A"]}}, "map<string,string>"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "fixed", "name": "f", "size": 9, "logicalType": "decimal", "precision": 9}, "decimal(9,0)"),
        ({"type": {"type": "string", "logicalType": "uuid"}}, "string"),
        (record("bytes"), "struct<`f0`:binary>"),
    ],
)
def test_a_type_has_its_column(avro: Any, ddl: str) -> None:
    schema = load_schema(
        json.dumps({"type": "record", "name": "top", "fields": [{"name": "x", "type": avro}]})
    )
    assert spark_type(schema) == f"struct<`x`:{ddl}>"


def test_a_named_type_is_used_again_in_its_namespace() -> None:
    schema = record({"type": "fixed", "name": "id", "size": 16}, "id", ["null", "n.id"])
    assert spark_type(schema) == "struct<`f0`:binary,`f1`:binary,`f2`:binary>"


def deep() -> Any:
    schema: Any = "int"
    for _ in range(50):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("avro", "said"),
    [
        (["int", "string"], "union of int, string"),
        ("null", "'null'"),
        (["null"], "nothing but null"),
        ("unknown", "'unknown'"),
        ({"type": "array", "items": "r"}, "holds itself"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "precision 50"),
        (deep(), "deeper than 32"),
        ({"type": "record", "name": "empty", "fields": []}, "no fields"),
        (7, "'7'"),
    ],
)
def test_unsupported_avro_types_are_refused(avro: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spark_type(record(avro))


@pytest.mark.parametrize("text", ["{", "[]", '"string"', '{"type": "enum"}', "[" * 100_000])
def test_a_file_that_is_no_record_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Avro schema"):
        load_schema(text)
