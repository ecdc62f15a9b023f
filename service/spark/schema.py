"""The columns of the source: names, order and types of Spark's Kafka source. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.base.errors import ConfigError

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
"""Column -> type, as Spark's DDL writes it."""
NEVER_NULL: Final = frozenset(("topic", "partition", "offset", "timestamp", "timestampType"))
"""Columns that the full schema declares NOT NULL: Spark then copies rows without a null check of each."""
HEADERS: Final = "headers"
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def schema_ddl(*, include_headers: bool) -> str:
    """Return the full schema. Headers are in it only on request, as in Spark's Kafka source."""
    columns = dict(COLUMNS)
    if include_headers:
        columns[HEADERS] = HEADERS_TYPE
    return ", ".join(f"{name} {kind}{' NOT NULL' * (name in NEVER_NULL)}" for name, kind in columns.items())


class ReadColumn(NamedTuple):
    """One requested column, and whether Spark expects nulls in it."""

    name: str
    nullable: bool = True


def check_columns(
    fields: Sequence[tuple[str, str, bool]], *, include_headers: bool
) -> tuple[ReadColumn, ...]:
    """Return the requested columns in order, given the fields of a schema as (name, simple type, nullable).

    The user's own schema may leave columns out; those are never read into memory. Raises `ConfigError` for a
    column that the source does not have, that is given twice, has another type, or is NOT NULL though it may
    hold nulls.
    """
    columns = COLUMNS | ({HEADERS: HEADERS_TYPE} if include_headers else {})
    names = [name for name, _, _ in fields]
    for name, kind, nullable in fields:
        if name not in columns:
            hint = "; includeHeaders=true brings it" if name == HEADERS else ""
            raise ConfigError(f"schema: there is no column {name!r}, only {', '.join(columns)}{hint}")
        if kind != columns[name]:
            raise ConfigError(f"schema: column {name} is {columns[name]}, not {kind}")
        if names.count(name) > 1:
            raise ConfigError(f"schema: column {name} is given twice")
        if not nullable and name not in NEVER_NULL:
            raise ConfigError(f"schema: column {name} may hold nulls, it cannot be NOT NULL")
    if not names:
        raise ConfigError("schema: it has no column")
    return tuple(ReadColumn(name, nullable) for name, _, nullable in fields)
