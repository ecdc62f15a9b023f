"""Mapping of Avro schemas to Spark's types. [P]

=========================================  ===================
Avro                                       Spark (DDL)
=========================================  ===================
boolean, float, double, string             the same
int, long                                  int, bigint
bytes, fixed                               binary
enum, string with `uuid`                   string
array, map, record                         array, map, struct
int with `date`                            date
long with `timestamp-{millis,micros}`      timestamp
bytes or fixed with `decimal`              decimal
union of null and one other                that other
union of int and long, float and double    the wider one
=========================================  ===================

Other logical types are read as their underlying types. Other unions, records that hold themselves and a bare
null have no column; they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from service.base.errors import ConfigError

MAX_DEPTH: Final = 32
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_WIDER: Final = {frozenset(("int", "bigint")): "bigint", frozenset(("float", "double")): "double"}
_TIMES: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
}


def load_schema(text: str) -> dict[str, Any]:
    """Parse an ``.avsc`` file's record schema, and drop logical types that have no column of their own."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"the Avro schema is not JSON: {e}") from e
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("the Avro schema is not one record")
    plain: dict[str, Any] = _plain(schema)
    return plain


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _plain(value) if key in ("type", "fields", "items", "values") else value
        for key, value in schema.items()
    }
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical is not None and not _is_mapped(kind, logical):
        del kept["logicalType"]
    return kept


def _is_mapped(kind: Any, logical: Any) -> bool:
    if not isinstance(kind, str) or not isinstance(logical, str):
        return False
    return (kind, logical) in _TIMES or (logical == "decimal" and kind in ("bytes", "fixed"))


def spark_type(schema: Any) -> str:
    """Return the Spark type of an Avro schema, as DDL. `ConfigError` for a schema that no column can hold.

    >>> spark_type({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "long"]}]})
    'struct<`a`:bigint>'
    """
    return _type(schema, {}, (), "")


def _type(schema: Any, names: dict[str, Any], inside: tuple[str, ...], space: str) -> str:
    if len(inside) > MAX_DEPTH:
        raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH}")
    if isinstance(schema, list):
        return _union(schema, names, inside, space)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        full = schema if "." in schema or not space else f"{space}.{schema}"
        full = full if full in names else schema
        if full in inside:
            raise ConfigError(f"the Avro record {full} holds itself, which no column can")
        if full not in names:
            raise ConfigError(f"the Avro schema has a type {schema!r} that no column can hold")
        return _type(names[full], names, inside, space)
    if not isinstance(schema, dict):
        raise ConfigError(f"the Avro schema has {str(schema)[:100]!r} where a type belongs")
    return _complex(schema, names, inside, space)


def _complex(schema: Mapping[str, Any], names: dict[str, Any], inside: tuple[str, ...], space: str) -> str:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _type(kind, names, (*inside, ""), space)
    if kind in ("record", "enum", "fixed"):
        name = str(schema.get("name", ""))
        space = name.rpartition(".")[0] or str(schema.get("namespace", space))
        name = name if "." in name or not space else f"{space}.{name}"
        if name in inside:
            raise ConfigError(f"the Avro record {name} holds itself, which no column can")
        names[name] = schema
        inside = (*inside, name)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema)
    if isinstance(kind, str) and (kind, logical) in _TIMES:
        return _TIMES[kind, str(logical)]
    match kind:
        case "record":
            return _struct(schema, names, inside, space)
        case "enum":
            return "string"
        case "fixed":
            return "binary"
        case "array":
            return f"array<{_type(schema.get('items'), names, (*inside, ''), space)}>"
        case "map":
            return f"map<string,{_type(schema.get('values'), names, (*inside, ''), space)}>"
    return _type(kind, names, inside, space)


def _struct(schema: Mapping[str, Any], names: dict[str, Any], inside: tuple[str, ...], space: str) -> str:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not fields:
        raise ConfigError(f"the Avro record {schema.get('name')} has no fields")
    if not all(isinstance(field, dict) and isinstance(field.get("name"), str) for field in fields):
        raise ConfigError(f"the Avro record {schema.get('name')} has a field without a name")
    columns = [f"`{field['name']}`:{_type(field.get('type'), names, inside, space)}" for field in fields]
    return f"struct<{','.join(columns)}>"


def _decimal(schema: Mapping[str, Any]) -> str:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38):
        raise ConfigError(f"no column holds an Avro decimal of precision {precision} and scale {scale}")
    return f"decimal({precision},{scale})"


def _union(schema: list[Any], names: dict[str, Any], inside: tuple[str, ...], space: str) -> str:
    kinds = {_type(one, names, inside, space) for one in schema if one not in ("null", {"type": "null"})}
    if len(kinds) == 1:
        return kinds.pop()
    if wider := _WIDER.get(frozenset(kinds)):
        return wider
    raise ConfigError(f"no column holds an Avro union of {', '.join(sorted(kinds)) or 'nothing but null'}")
