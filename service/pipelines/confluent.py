"""Decoder of values with Confluent's header, each by the schema that its header names. Needs fastavro.

The header is a zero byte and the schema's id in the registry, four bytes, big-endian (Confluent wire format).
A value is decoded by that schema and resolved to the reader's (`avro_resolution`), which is the column's and
the same in every run. An id always stands for the same schema, so a repeated batch has the same rows wherever
its schemas come from: the command line, or the registry, which a task asks once per process for each id.
Values with an unknown id, or whose schema cannot be resolved, stay undecoded.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.errors import ConfigError
from service.pipelines.avro_resolution import Unresolved, plan_resolution
from service.pipelines.avro_types import load_schema
from service.pipelines.schema_registry import SchemaRegistry
from service.pipelines.values import parse_avro, read_datum

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 5
MAX_KEPT: Final = 256
MAX_UNKNOWN: Final = 1000
_fetched: OrderedDict[tuple[str, int], Mapping[str, Any]] = OrderedDict()
"""LRU cache of this process: schemas by the registry's url and their ids."""

Read = Callable[[bytes], Any]


class ConfluentDecoder:
    """A decoder, sent to tasks by pickle. `registry` is asked for schemas that are not in `schemas`."""

    def __init__(
        self, reader: Mapping[str, Any], schemas: Mapping[int, Mapping[str, Any]], registry: str | None
    ) -> None:
        self._reader = reader
        self._schemas = schemas
        self._registry = registry

    def open(self) -> Callable[[bytes], Any]:
        return _Opened(self._reader, self._schemas, self._registry)


def reading(writer: Mapping[str, Any], reader: Mapping[str, Any]) -> Read:
    """Return a function from the writer's bytes to the reader's values. `ConfigError` where there is none."""
    schema, names = parse_avro(writer)
    if writer == reader:
        return lambda data: read_datum(data, HEADER_BYTES, schema)
    wanted, wanted_names = parse_avro(reader)
    convert = plan_resolution(schema, wanted, names, wanted_names)

    def read(data: bytes) -> Any:
        found = read_datum(data, HEADER_BYTES, schema)
        try:
            return None if found is None else convert(found)
        except (Unresolved, UnicodeDecodeError, OverflowError):
            return None

    return read


class _Opened:
    """The decoder of one task; it plans and fetches each schema once."""

    def __init__(
        self, reader: Mapping[str, Any], schemas: Mapping[int, Mapping[str, Any]], registry: str | None
    ) -> None:
        self._reader = reader
        self._schemas = schemas
        self._url = registry
        self._registry = None if registry is None else SchemaRegistry(registry)
        self._reads: OrderedDict[int, Read | None] = OrderedDict()
        self._unknown = 0

    def __call__(self, data: bytes) -> Any:
        if len(data) < HEADER_BYTES or data[0] != 0:
            return None
        schema_id = int.from_bytes(data[1:HEADER_BYTES], "big")
        if schema_id not in self._reads:
            self._add(schema_id)
        read = self._reads[schema_id]
        return None if read is None else read(data)

    def _add(self, schema_id: int) -> None:
        schema = self._schema(schema_id)
        read: Read | None = None
        if schema is not None:
            try:
                read = reading(load_schema(json.dumps(schema)), self._reader)
            except ConfigError as e:
                log.warning("values of schema %d stay undecoded: %s", schema_id, e)
        if len(self._reads) >= MAX_UNKNOWN + MAX_KEPT:
            self._reads.popitem(last=False)
        self._reads[schema_id] = read

    def _schema(self, schema_id: int) -> Mapping[str, Any] | None:
        known = self._schemas.get(schema_id)
        if known is not None or self._registry is None or self._url is None or schema_id >= 1 << 31:
            return known
        key = self._url, schema_id
        if key not in _fetched:
            found = self._registry.schema(schema_id)
            if found is None:
                self._count_unknown()
                return None
            _fetched[key] = found
            if len(_fetched) > MAX_KEPT:
                _fetched.popitem(last=False)
        _fetched.move_to_end(key)
        return _fetched[key]

    def _count_unknown(self) -> None:
        """Raise `ConfigError` after too many unknown ids: the values hardly have headers."""
        self._unknown += 1
        if self._unknown > MAX_UNKNOWN:
            raise ConfigError(
                f"a task has found more than {MAX_UNKNOWN} schema ids that the registry {self._url} does not "
                "have: the values have no Confluent header, or it is the wrong registry"
            )
