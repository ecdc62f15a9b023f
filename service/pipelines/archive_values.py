"""What `firn pipeline archive` makes of values: by which schema, and how that is described. Needs pyspark.

The description goes into the job's document, so that later runs make the same columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from service.base.errors import ConfigError
from service.pipelines.archive_guard import Admitted, say
from service.pipelines.archive_options import schema_files
from service.pipelines.avro_types import load_schema
from service.pipelines.confluent import ConfluentDecoder, reading
from service.pipelines.inference import kept_schema
from service.pipelines.schema_registry import SchemaRegistry, check_url
from service.pipelines.values import decode_avro, decode_json, decode_with, parse_json_schema


class Decoding(NamedTuple):
    """`described` as JSON has it; `decode` makes the columns of a frame."""

    described: dict[str, Any]
    decode: Callable[[Any], Any]


def decoding(spark: Any, args: argparse.Namespace, admitted: Admitted) -> Decoding:
    """`ConfigError` for a schema that has no columns."""
    if args.values == "raw":
        return Decoding({"kind": "raw"}, lambda frame: frame)
    if args.values == "json":
        return _json(spark, args, admitted)
    if args.confluent_header:
        return _confluent(args, admitted)
    schema = load_schema(Path(schema_files(args.schema)[0]).read_text("utf-8"))
    return Decoding({"kind": "avro", "schema": schema}, partial(decode_avro, schema=schema))


def _confluent(args: argparse.Namespace, admitted: Admitted) -> Decoding:
    """Values by the ids in their headers. The first run decides which schema the columns are of."""
    known = {} if admitted.known is None else admitted.known.values
    given = {number: load_schema(text) for number, text in _texts(args.schema).items()}
    kept = {int(number): schema for number, schema in (known.get("schemas") or {}).items()}
    registry = None if args.schema_registry is None else check_url(args.schema_registry)
    if args.reader_schema is None and known.get("reader") is not None:
        reader_id, reader = known.get("reader_id"), known["reader"]
    else:
        reader_id, reader = _reader(args, admitted, {**kept, **given}, registry)
    schemas = {**kept, **given}
    for number, schema in schemas.items():
        try:
            reading(schema, reader)
        except ConfigError as e:
            raise ConfigError(f"--schema {number}=…: it cannot be read as the columns' schema: {e}") from e
    described = {
        "kind": "avro",
        "confluent_header": True,
        "reader": reader,
        "reader_id": reader_id,
        "registry": _same_registry(registry, known, reader_id, reader),
        "schemas": {str(number): schema for number, schema in schemas.items()},
    }
    if "reader" not in known:
        say(f"columns are those of {'the reader schema' if reader_id is None else f'schema {reader_id}'}")
    decoder = ConfluentDecoder(reader, schemas, registry)
    return Decoding(described, partial(decode_with, decoder=decoder, schema=reader))


def _texts(schemas: list[str]) -> dict[int, str]:
    return {number: Path(file).read_text("utf-8") for number, file in schema_files(schemas)[1].items()}


def _reader(
    args: argparse.Namespace,
    admitted: Admitted,
    schemas: Mapping[int, dict[str, Any]],
    registry: str | None,
) -> tuple[int | None, dict[str, Any]]:
    """Whose columns: what ``--reader-schema`` says, else the greatest id given, else the subject's newest."""
    said = args.reader_schema
    if said is not None and not said.isdecimal():
        return None, load_schema(Path(said).read_text("utf-8"))
    number = int(said) if said is not None else max(schemas, default=None)
    if number is not None and number in schemas:
        return number, schemas[number]
    if registry is None:
        raise ConfigError(f"--reader-schema {number}: there is no --schema {number}=FILE, nor a registry")
    asked = SchemaRegistry(registry)
    if number is not None:
        schema = asked.schema(number)
        if schema is None:
            raise ConfigError(f"--reader-schema {number}: the registry {registry} has no such schema")
        return number, load_schema(json.dumps(schema))
    return _newest(asked, sorted(admitted.topics))


def _newest(registry: SchemaRegistry, topics: list[str]) -> tuple[int, dict[str, Any]]:
    """Of the subject that Confluent's serializers call a topic's values by; one for all topics."""
    found: dict[int, Any] = {}
    for topic in topics:
        newest = registry.newest(f"{topic}-value")
        if newest is None:
            raise ConfigError(
                f"the schema registry has no subject {topic}-value, so say whose columns there are to be: "
                "--reader-schema FILE or ID"
            )
        found[newest[0]] = newest[1]
    if len(found) != 1:
        raise ConfigError(
            f"the topics {', '.join(topics)} have different schemas ({', '.join(map(str, sorted(found)))}), "
            "and all go into the same columns: --reader-schema FILE or ID says which, or archive them apart"
        )
    ((number, schema),) = found.items()
    return number, load_schema(json.dumps(schema))


def _same_registry(
    registry: str | None, known: Mapping[str, Any], reader_id: int | None, reader: Mapping[str, Any]
) -> str | None:
    """What the document has for the registry: the first address, where another one is the same registry."""
    before = known.get("registry")
    if before is None or registry is None or before == registry or reader_id is None:
        return registry
    found = SchemaRegistry(registry).schema(reader_id)
    if found is None or load_schema(json.dumps(found)) != reader:
        return registry
    say(f"schema registry {registry} has the columns' schema as {before} had it, and is taken for the same")
    return str(before)


def _json(spark: Any, args: argparse.Namespace, admitted: Admitted) -> Decoding:
    known = None if admitted.known is None else admitted.known.values.get("schema")
    if args.schema:
        schema = parse_json_schema(Path(schema_files(args.schema)[0]).read_text("utf-8"))
    elif known is not None:
        schema = parse_json_schema(json.dumps(known))
    else:
        schema = kept_schema(spark, admitted.options, admitted.checkpoint, args.infer_records)
    described = {"kind": "json", "schema": json.loads(schema.json())}
    return Decoding(described, partial(decode_json, schema=schema))
