"""Inlining of the references of a registry's schema, so that it stands alone. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from service.base.errors import ConfigError
from service.pipelines.avro_types import MAX_DEPTH

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = ("record", "enum", "fixed", "error")


def inlined(schema: Any, referenced: Mapping[str, Any]) -> Any:
    """Write each type of `referenced` (schema by full name) into `schema` where it is first named.

    Names in the result are full ones, so that no type changes its meaning by moving.

    >>> inlined({"type": "record", "name": "n.R", "fields": [{"name": "a", "type": "A"}]},
    ...         {"n.A": {"type": "fixed", "name": "A", "namespace": "n", "size": 2}})["fields"]
    [{'name': 'a', 'type': {'type': 'fixed', 'name': 'n.A', 'size': 2}}]
    """
    return _walk(schema, referenced, set(), "", 0)


def full_name(schema: Any) -> str:
    """Return a named schema's name with its namespace. `ConfigError` for one without a name."""
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        raise ConfigError("a schema that is referred to has no name")
    return _full(schema["name"], str(schema.get("namespace", "")))


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _walk(schema: Any, referenced: Mapping[str, Any], defined: set[str], space: str, depth: int) -> Any:
    if depth > 4 * MAX_DEPTH:
        raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH}")
    if isinstance(schema, list):
        return [_walk(one, referenced, defined, space, depth + 1) for one in schema]
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema
        full = _full(schema, space)
        for name in (full, schema):
            if name in defined:
                return name
            if name in referenced:
                inner = name.rpartition(".")[0]
                return _walk(referenced[name], referenced, defined, inner, depth + 1)
        return full
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if key != "namespace"}
    if schema.get("type") in _NAMED and isinstance(schema.get("name"), str):
        found["name"] = _full(schema["name"], str(schema.get("namespace", space)))
        space = found["name"].rpartition(".")[0]
        defined.add(found["name"])
    elif isinstance(schema.get("type"), (dict, list)):
        found["type"] = _walk(schema["type"], referenced, defined, space, depth + 1)
    for key in ("items", "values"):
        if key in schema:
            found[key] = _walk(schema[key], referenced, defined, space, depth + 1)
    if isinstance(schema.get("fields"), list):
        found["fields"] = [
            {**field, "type": _walk(field.get("type"), referenced, defined, space, depth + 1)}
            if isinstance(field, dict)
            else field
            for field in schema["fields"]
        ]
    return found
