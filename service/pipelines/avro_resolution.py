"""Avro schema resolution: conversion of values from the writer's schema to the reader's. [P]

Values are those that fastavro decodes with the writer's schema alone; a plan made once from both schemas
converts each (Avro specification, "Schema Resolution"). Fields match by name or the reader's alias; a field
that only the reader has gets its default, one that only the writer has is dropped; numbers are widened,
strings and bytes converted into each other. Logical types have to be equal, except timestamps of different
units: otherwise a number of days would become one of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from service.base.errors import ConfigError
from service.pipelines.avro_types import MAX_DEPTH

Convert = Callable[[Any], Any]
Names = Mapping[str, Any]
"""Full name -> a named type's schema."""
_NUMBERS: Final = ("int", "long", "float", "double")
_TIMESTAMPS: Final = ("timestamp-millis", "timestamp-micros")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Unresolved(ValueError):
    """A datum that the reader's schema cannot represent."""


def plan_resolution(writer: Any, reader: Any, writer_names: Names, reader_names: Names) -> Convert:
    """Return a function from the writer's values to the reader's. `ConfigError` says why there is none.

    Schemas are as fastavro has parsed them: types are referred to by full name. The reader's is finite.
    """
    return _Planner(writer_names, reader_names).plan(writer, reader, 0)


class _Planner:
    def __init__(self, writer_names: Names, reader_names: Names) -> None:
        self._writer_names = writer_names
        self._reader_names = reader_names

    def plan(self, writer: Any, reader: Any, depth: int) -> Convert:
        if depth > MAX_DEPTH:
            raise ConfigError(f"nested deeper than {MAX_DEPTH}")
        wrote, w_null = _branches(_resolved(writer, self._writer_names), self._writer_names)
        reads, r_null = _branches(_resolved(reader, self._reader_names), self._reader_names)
        # Branches of a reader's union differ in width alone: other unions have no column.
        target = max(reads, key=_width, default="null")
        if not wrote:
            return _nothing if r_null else _no_null
        plans = [self._plain(one, target, depth) for one in wrote]
        if len(plans) > 1 and not all(_kind(one) in _NUMBERS for one in wrote):
            raise ConfigError(f"a union of {len(wrote)} types that are no numbers")
        convert = plans[0] if len(plans) == 1 else _float_of(target)
        return _optional(convert, allowed=r_null) if w_null else convert

    def _plain(self, writer: Any, reader: Any, depth: int) -> Convert:
        wrote, reads = _kind(writer), _kind(reader)
        if _logical(writer) != _logical(reader):
            raise ConfigError(f"{_type_name(writer)} is no {_type_name(reader)}")
        if wrote in _NUMBERS and reads in _NUMBERS and _NUMBERS.index(wrote) <= _NUMBERS.index(reads):
            return _float_of(reads) if wrote in ("int", "long") else _same
        if {wrote, reads} == {"string", "bytes"}:
            return str.encode if wrote == "string" else bytes.decode
        if wrote != reads:
            raise ConfigError(f"{_type_name(writer)} is no {_type_name(reader)}")
        match wrote:
            case "record":
                return self._record(writer, reader, depth)
            case "array":
                each = self.plan(writer["items"], reader["items"], depth + 1)
                return _same if each is _same else lambda found: [each(one) for one in found]
            case "map":
                each = self.plan(writer["values"], reader["values"], depth + 1)
                return _same if each is _same else lambda found: {k: each(v) for k, v in found.items()}
            case "enum":
                return _symbols(writer, reader)
            case "fixed" if writer.get("size") != reader.get("size"):
                raise ConfigError(f"a fixed of {writer.get('size')} bytes is none of {reader.get('size')}")
        return _same

    def _record(self, writer: Any, reader: Any, depth: int) -> Convert:
        wrote = {field["name"]: field for field in writer["fields"]}
        moved: list[tuple[str, str, Convert]] = []
        fixed: dict[str, Any] = {}
        for field in reader["fields"]:
            name = next((one for one in (field["name"], *field.get("aliases", ())) if one in wrote), None)
            try:
                if name is not None:
                    plan = self.plan(wrote[name]["type"], field["type"], depth + 1)
                    moved.append((field["name"], name, plan))
                elif "default" in field:
                    fixed[field["name"]] = default_of(field["type"], field["default"], self._reader_names)
                else:
                    raise ConfigError("is not in what was written and has no default")
            except ConfigError as e:
                raise ConfigError(f"{field['name']}: {e}") from e

        def convert(found: Any) -> Any:
            return fixed | {name: each(found[source]) for name, source, each in moved}

        return convert


def default_of(schema: Any, value: Any, names: Names) -> Any:
    """Convert a field's JSON default to the value that fastavro decodes; for a union to its branch's.

    >>> default_of("bytes", "\\u00ff", {}), default_of({"type": "int", "logicalType": "date"}, 1, {})
    (b'\\xff', datetime.date(1970, 1, 2))
    """
    schema = _resolved(schema, names)
    if isinstance(schema, list):
        wanted = [one for one in schema if (value is None) == (_kind(_resolved(one, names)) == "null")]
        if not wanted:
            raise ConfigError(f"the default {value!r} is of no type of its union")
        return default_of(wanted[0], value, names)
    try:
        return _default(schema, value, names)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as e:
        raise ConfigError(f"the default {value!r} is no {_type_name(schema)}") from e


def _default(schema: Any, value: Any, names: Names) -> Any:
    kind, logical = _kind(schema), schema.get("logicalType") if isinstance(schema, dict) else None
    if logical in _TIMESTAMPS:
        return _EPOCH + timedelta(**{"milliseconds" if logical == _TIMESTAMPS[0] else "microseconds": value})
    if logical == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        if logical != "decimal":
            return data
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0))
    if kind in ("float", "double"):
        return float(value)
    if kind == "array":
        return [default_of(schema["items"], one, names) for one in value]
    if kind == "map":
        return {key: default_of(schema["values"], one, names) for key, one in value.items()}
    if kind == "record":
        return {
            field["name"]: default_of(field["type"], value.get(field["name"], field.get("default")), names)
            for field in schema["fields"]
        }
    return value


def _resolved(schema: Any, names: Names) -> Any:
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
        return _resolved(schema["type"], names)
    return schema


def _branches(schema: Any, names: Names) -> tuple[list[Any], bool]:
    """Return the types of a union except null, and whether null is one of them."""
    parts: Sequence[Any] = schema if isinstance(schema, list) else [schema]
    found = [_resolved(one, names) for one in parts]
    return [one for one in found if _kind(one) != "null"], any(_kind(one) == "null" for one in found)


def _kind(schema: Any) -> str:
    return str(schema.get("type")) if isinstance(schema, dict) else str(schema)


def _width(schema: Any) -> int:
    kind = _kind(schema)
    return _NUMBERS.index(kind) if kind in _NUMBERS else 0


def _logical(schema: Any) -> Any:
    """Return the logical type as far as it must be equal in both schemas."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal":
        return logical, schema.get("precision"), schema.get("scale", 0)
    return "timestamp" if logical in _TIMESTAMPS else logical


def _type_name(schema: Any) -> str:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return f"{_kind(schema)} ({logical})" if logical else _kind(schema)


def _same(found: Any) -> Any:
    return found


def _nothing(_: Any) -> None:
    return None


def _no_null(_: Any) -> Any:
    raise Unresolved("null, where the reader has none")


def _optional(convert: Convert, *, allowed: bool) -> Convert:
    if convert is _same and allowed:
        return _same
    return lambda found: (None if allowed else _no_null(None)) if found is None else convert(found)


def _float_of(reader: Any) -> Convert:
    return float if _kind(reader) in ("float", "double") else _same


def _symbols(writer: Any, reader: Any) -> Convert:
    known, default = frozenset(reader["symbols"]), reader.get("default")
    if known.issuperset(writer["symbols"]):
        return _same

    def convert(found: str) -> Any:
        if found in known:
            return found
        if default is None:
            raise Unresolved(f"symbol {found}, which the reader does not have")
        return default

    return convert
