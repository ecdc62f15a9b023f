"""Values of one Avro schema as another one has them."""

from __future__ import annotations

import doctest
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.pipelines import avro_references, avro_resolution
from service.pipelines.avro_resolution import Unresolved, plan_resolution

fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: pip install -e '.[test,spark]'")


def record(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": t} for name, t in types.items()]}


def resolved(writer: dict[str, Any], reader: dict[str, Any], value: Any) -> Any:
    """Written by one schema, read as the other."""
    names: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    wrote, reads = (
        fastavro.parse_schema(one, named_schemas=named)
        for one, named in zip((writer, reader), names, strict=True)
    )
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, wrote, value)
    stream.seek(0)
    return plan_resolution(wrote, reads, *names)(fastavro.schemaless_reader(stream, wrote))


def test_the_examples_hold() -> None:
    for module in (avro_resolution, avro_references):
        assert doctest.testmod(module).failed == 0


def test_fields_go_by_name_however_they_are_ordered_and_others_are_dropped_or_defaults() -> None:
    reader = record(b="int", a="long")
    reader["fields"] += [
        {"name": "renamed", "aliases": ["old"], "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
    ]
    found = resolved(
        record(a="int", b="int", gone="string", old="string"),
        reader,
        {"a": 1, "b": 2, "gone": "", "old": "x"},
    )
    assert found == {"b": 2, "a": 1, "renamed": "x", "raw": b"\xff", "day": date(1970, 1, 2)}


def test_named_types_that_are_used_again_and_optional_are_resolved_too() -> None:
    inner = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}
    wide = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "double"}]}
    writer, reader = record(p=inner, q="A"), record(q=["null", wide], p=["null", "A"])
    assert resolved(writer, reader, {"p": {"x": 1}, "q": {"x": 2}}) == {"q": {"x": 2.0}, "p": {"x": 1.0}}


@pytest.mark.parametrize(
    ("wrote", "reads", "value", "found"),
    [
        ("int", "double", 3, 3.0),
        ("string", "bytes", "ü", b"\xc3\xbc"),
        ("bytes", "string", b"x", "x"),
        (["null", "int"], ["null", "int", "long"], None, None),
        (["int", "long"], "long", 2**40, 2**40),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "float"]}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(2013, 1, 2, tzinfo=UTC),
            datetime(2013, 1, 2, tzinfo=UTC),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            Decimal("1.20"),
            Decimal("1.20"),
        ),
    ],
)
def test_a_value_becomes_what_the_reader_has(wrote: Any, reads: Any, value: Any, found: Any) -> None:
    assert resolved(record(a=wrote), record(a=reads), {"a": value}) == {"a": found}


@pytest.mark.parametrize(
    ("wrote", "reads", "said"),
    [
        ("long", "int", "a: long is no int"),
        ("string", "int", "a: string is no int"),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, "a: long is no long"),
        ({"type": "int", "logicalType": "date"}, "int", "date"),
        (["int", "string"], "string", "a: int is no string"),
        ({"type": "fixed", "name": "f", "size": 2}, {"type": "fixed", "name": "f", "size": 3}, "2 bytes"),
    ],
)
def test_incompatible_avro_schemas_are_refused(wrote: Any, reads: Any, said: str) -> None:
    names: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    parsed = [
        fastavro.parse_schema(record(a=one), named_schemas=n)
        for one, n in zip((wrote, reads), names, strict=True)
    ]
    with pytest.raises(ConfigError, match=said):
        plan_resolution(parsed[0], parsed[1], names[0], names[1])


def test_a_field_that_was_not_written_needs_a_default() -> None:
    with pytest.raises(ConfigError, match="b: is not in what was written and has no default"):
        resolved(record(a="int"), record(a="int", b="int"), {"a": 1})


def test_a_datum_without_a_place_is_told_by_itself() -> None:
    with pytest.raises(Unresolved, match="null"):
        resolved(record(a=["null", "int"]), record(a="int"), {"a": None})
    letters, fewer = ({"type": "enum", "name": "E", "symbols": symbols} for symbols in (["X", "Y"], ["X"]))
    assert resolved(record(a=letters), record(a=fewer), {"a": "X"}) == {"a": "X"}
    with pytest.raises(Unresolved, match="symbol Y"):
        resolved(record(a=letters), record(a=fewer), {"a": "Y"})
    assert resolved(record(a=letters), record(a={**fewer, "default": "X"}), {"a": "Y"}) == {"a": "X"}
