"""Messages with as many array elements as asked for, made from Kafka's schemas."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_field_tag, is_optional

_VALUES: dict[str, Any] = {
    "bool": False, "bytes": b"", "records": b"", "error_code": ErrorCode.none, "float64": 0.0,
    "timedelta_i32": timedelta(0), "timedelta_i64": timedelta(0),
    "datetime_i64": datetime.fromtimestamp(1_700_000_000, UTC),
}  # fmt: skip


def most_elements(entity: type[Any], count: int) -> Any:
    """A value of one of kio's dataclasses whose arrays, those in tagged fields and in elements as well, have
    about `count` elements together. Strings and numbers differ from element to element."""
    return _Maker().make(entity, count)


class _Maker:
    def __init__(self) -> None:
        self._number = 0

    def make(self, entity: type[Any], count: int) -> Any:
        arrays = [field for field in fields(entity) if _arrays(field)]
        share = count // len(arrays) if arrays else 0
        return entity(**{field.name: self._value(field, share) for field in fields(entity)})

    def _value(self, field: Any, share: int) -> Any:
        kind = classify_field(field)
        if isinstance(kind, EntityTupleField):
            deep = _has_arrays(kind.type_)
            outer = max(int(share**0.5), 1) if deep else share
            return tuple(
                self.make(kind.type_, max(share // outer - 1, 0) if deep else 0) for _ in range(outer)
            )
        if kind.is_array:
            return tuple(self._scalar(field) for _ in range(share))
        if isinstance(kind, EntityField):
            return (
                None if is_optional(field) and not _has_arrays(kind.type_) else self.make(kind.type_, share)
            )
        return self._scalar(field)

    def _scalar(self, field: Any) -> Any:
        kafka_type = field.metadata["kafka_type"]
        self._number += 1
        if kafka_type == "string":
            return f"n{self._number}"
        if kafka_type == "uuid":
            return UUID(int=self._number)
        if kafka_type in _VALUES:
            return _VALUES[kafka_type]
        return self._number % 100 if kafka_type == "int8" else self._number % 30_000


def _arrays(field: Any) -> bool:
    kind = classify_field(field)
    return kind.is_array or (isinstance(kind, EntityField) and _has_arrays(kind.type_))


def _has_arrays(entity: type[Any]) -> bool:
    return any(_arrays(field) for field in fields(entity))


def is_tagged_array(field: Any) -> bool:
    """Return whether `field` is an array in a tagged field."""
    return get_field_tag(field) is not None and _arrays(field)
