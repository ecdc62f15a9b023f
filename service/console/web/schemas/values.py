"""Keys and values as text by their schemas: Avro, JSON Schema and Protobuf. For the decoder's process.

Neither time nor memory is bounded here: a small Avro array may have 2^60 items. The process has limits, and
the console ends it when it takes too long.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from service.console.web.schemas.protobuf import compiled, indexes_of, message_at, message_named
from service.console.web.schemas.settings import DecodeSettings, LocalSchema

HEADER_BYTES: Final = 5
MOST_TEXT: Final = 64 << 10
MOST_KNOWN: Final = 500
MOST_REFERENCES: Final = 64


class Undecodable(Exception):
    """A value that cannot be decoded, with the reason."""


class SchemaUnavailable(Undecodable):
    """A schema that cannot be had or compiled for now: somebody may have to look after this machine."""


class RegistryError(SchemaUnavailable):
    """A schema that the registry does not give: somebody may have to look after the registry."""


class FoundSchema(NamedTuple):
    """A schema with those that it refers to, by their names. `kind` is AVRO, JSON or PROTOBUF."""

    kind: str
    text: str
    references: Mapping[str, str]


Find = Callable[[int], FoundSchema]
Reader = Callable[[bytes], str]


class ValueReader:
    """Reader of values by the ids in their headers, and by the topics of a file. `find` asks the registry."""

    def __init__(self, settings: DecodeSettings, find: Find | None) -> None:
        self._find = find
        self._by_topic = {(one.topic, one.part): one for one in settings.local if one.topic is not None}
        self._by_id = {one.id: one for one in settings.local if one.id is not None}
        self._readers: dict[object, Reader] = {}

    def read(self, topic: str, part: str, data: bytes) -> tuple[str, str] | None:
        """Return text and the kind of schema; None for data without a schema. Raises `Undecodable`."""
        local = self._by_topic.get((topic, part))
        if local is not None:
            reader = self._known((topic, part), lambda: _local_reader(local))
            return _text(reader, data), _NAMES[local.kind]
        if len(data) < HEADER_BYTES or data[0] != 0 or (self._find is None and not self._by_id):
            return None
        number = int.from_bytes(data[1:HEADER_BYTES], "big")
        kind, reader = self._reader_of(number)
        try:
            return _text(reader, data[HEADER_BYTES:]), f"{_NAMES[kind]}, schema {number}"
        except Undecodable as e:
            raise Undecodable(f"schema {number}: {e}") from e

    def _reader_of(self, number: int) -> tuple[str, Reader]:
        local = self._by_id.get(number)
        if local is not None:
            schema = FoundSchema(local.kind, local.text, {})
        elif self._find is not None:
            schema = self._find(number)
        else:
            raise Undecodable(f"schema {number} is not in the file of schemas")
        return schema.kind, self._known(number, lambda: _reader(schema))

    def _known(self, key: object, make: Callable[[], Reader]) -> Reader:
        known = self._readers.get(key)
        if known is None:
            known = self._readers[key] = make()
            if len(self._readers) > MOST_KNOWN:
                del self._readers[next(iter(self._readers))]
        return known


_NAMES: Final = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}


def _text(reader: Reader, data: bytes) -> str:
    try:
        return reader(data)[:MOST_TEXT]
    except Undecodable:
        raise
    except MemoryError:
        raise
    except Exception as e:
        # Whatever fastavro and protobuf raise for bytes that are not of the schema.
        raise Undecodable(f"the value is not of its schema ({type(e).__name__}: {e})"[:300]) from e


def _local_reader(local: LocalSchema) -> Reader:
    schema = FoundSchema(local.kind, local.text, {})
    if local.kind != "PROTOBUF":
        return _reader(schema)
    pool, main = _compiled(schema)
    descriptor = message_named(pool, main, local.message)
    if descriptor is None:
        raise Undecodable(f"the schema has no message {local.message or ''}".rstrip())
    return lambda data: _message_text(pool, descriptor, data)


def _reader(schema: FoundSchema) -> Reader:
    if schema.kind == "AVRO":
        return _avro(schema)
    if schema.kind == "JSON":
        return _json
    if schema.kind != "PROTOBUF":
        raise Undecodable(f"schemas of type {schema.kind[:40]!r} are not known here")
    pool, main = _compiled(schema)

    def read(data: bytes) -> str:
        indexes, at = indexes_of(data)
        descriptor = message_at(main, indexes)
        if descriptor is None:
            raise Undecodable("the schema has no such message")
        return _message_text(pool, descriptor, data[at:])

    return read


def _json(data: bytes) -> str:
    """Return JSON with indentation. It is shown as it is, not checked against its schema."""
    return json.dumps(json.loads(data), indent=2, ensure_ascii=False)


def _avro(schema: FoundSchema) -> Reader:
    try:
        import fastavro
    except ImportError as e:
        raise Undecodable("Avro schemas need the extra schemas: fastavro is not installed") from e
    named: dict[str, Any] = {}
    try:
        for text in schema.references.values():
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as e:
        raise Undecodable(f"the schema is not Avro ({type(e).__name__}: {e})"[:300]) from e

    def read(data: bytes) -> str:
        stream = io.BytesIO(data)
        found = fastavro.schemaless_reader(stream, parsed, None)
        if rest := len(data) - stream.tell():
            raise Undecodable(f"{rest} bytes are left behind the value")
        return json.dumps(found, indent=2, ensure_ascii=False, default=_plain)

    return read


def _plain(value: object) -> object:
    """Return what JSON lacks as text: bytes, decimals, dates, UUIDs."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return str(value)


def _compiled(schema: FoundSchema) -> tuple[Any, Any]:
    try:
        return compiled(schema.text, schema.references)
    except OSError as e:
        raise SchemaUnavailable(f"the schema cannot be compiled here: {e.strerror or e}"[:300]) from e
    except (ValueError, TypeError, ImportError, LookupError) as e:
        raise Undecodable(str(e)[:300]) from e


def _message_text(pool: Any, descriptor: Any, data: bytes) -> str:
    from google.protobuf import json_format, message_factory

    message = message_factory.GetMessageClass(descriptor)()
    message.ParseFromString(data)
    text: str = json_format.MessageToJson(
        message, preserving_proto_field_name=True, ensure_ascii=False, descriptor_pool=pool
    )
    return text
