"""Strategies for kio's dataclasses, and their bytes as kio writes them."""

from __future__ import annotations

import io
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_field_tag, is_optional

_INTEGERS = {
    name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for name, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64))
}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **_INTEGERS,
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=30),
    "records": st.binary(max_size=300),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _INTEGERS["int32"].map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(2**50), 2**50).map(lambda ms: timedelta(milliseconds=ms)),
    # Whole seconds: kio's own conversion goes through floats.
    "datetime_i64": st.integers(0, 2**32).map(lambda s: datetime.fromtimestamp(s, UTC)),
    "uuid": st.one_of(st.none(), st.integers(1, 2**128 - 1).map(lambda n: UUID(int=n))),
}


def entities(entity: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of one of kio's dataclasses."""
    return st.builds(entity, **{field.name: _values(field) for field in fields(entity)})


def _values(field: Any) -> st.SearchStrategy[Any]:
    kind = classify_field(field)
    if isinstance(kind, EntityField | EntityTupleField):
        values = entities(kind.type_)
    else:
        values = _SCALARS[field.metadata["kafka_type"]]
    if kind.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    nullable = is_optional(field) and get_field_tag(field) is None
    return st.one_of(st.none(), values) if nullable else values


def kio_bytes(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def project(message: Any, entity: type[Any]) -> Any:
    """`message` as `entity`, field by field name."""
    values = {}
    for field in fields(entity):
        if not hasattr(message, field.name):
            continue
        value = getattr(message, field.name)
        kind = classify_field(field)
        if value is not None and isinstance(kind, EntityTupleField):
            value = tuple(project(item, kind.type_) for item in value)
        elif value is not None and isinstance(kind, EntityField):
            value = project(value, kind.type_)
        values[field.name] = value
    return entity(**values)
