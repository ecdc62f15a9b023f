"""Decoding of values in `firn pipeline archive`: the schemas to use, and their description. Needs pyspark.

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
from service.pipelines.archive_admission import Admitted, print_note
from service.pipelines.archive_options import schema_files
from service.pipelines.avro_types import load_schema
from service.pipelines.confluent import ConfluentDecoder, reading
from service.pipelines.inference import kept_schema
from service.pipelines.schema_registry import SchemaRegistry, check_url
from service.pipelines.values import decode_avro, decode_json, decode_with, parse_json_schema


class Decoding(NamedTuple):
    """A decoding of values: `described` is its JSON description; `decode` makes the columns of a frame."""

    described: dict[str, Any]
    decode: Callable[[Any], Any]


def decoding(spark: Any, args: argparse.Namespace, admitted: Admitted) -> Decoding:
    """Return the decoding that the arguments request. `ConfigError` for a schema without columns."""
    if args.values == "raw":
        return Decoding({"kind": "raw"}, lambda frame: frame)
    if args.values == "json":
        return _json(spark, args, admitted)
    if args.confluent_header:
        return _confluent(args, admitted)
    schema = load_schema(Path(schema_files(args.schema)[0]).read_text("utf-8"))
    return Decoding({"kind": "avro", "schema": schema}, partial(decode_avro, schema=schema))


def _confluent(args: argparse.Namespace, admitted: Admitted) -> Decoding:
    """Return the decoding by schema ids in the values' headers. The first run decides the columns' schema."""
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
        schema_name = "the reader schema" if reader_id is None else f"schema {reader_id}"
        print_note(f"columns are those of {schema_name}")
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
    """Return id and schema of the columns.

    They are those of ``--reader-schema``, else of the greatest id given, else of the subject's newest
    version.
    """
    given = args.reader_schema
    if given is not None and not given.isdecimal():
        return None, load_schema(Path(given).read_text("utf-8"))
    number = int(given) if given is not None else max(schemas, default=None)
    if number is not None and number in schemas:
        return number, schemas[number]
    if registry is None:
        raise ConfigError(f"--reader-schema {number}: there is no --schema {number}=FILE, nor a registry")
    client = SchemaRegistry(registry)
    if number is not None:
        schema = client.schema(number)
        if schema is None:
            raise ConfigError(f"--reader-schema {number}: the registry {registry} has no such schema")
        return number, load_schema(json.dumps(schema))
    return _newest(client, sorted(admitted.topics))


def _newest(registry: SchemaRegistry, topics: list[str]) -> tuple[int, dict[str, Any]]:
    """Return id and schema of the newest version of ``TOPIC-value``, which must be one for all topics."""
    found: dict[int, Any] = {}
    for topic in topics:
        newest = registry.newest(f"{topic}-value")
        if newest is None:
            raise ConfigError(
                f"the schema registry has no subject {topic}-value, so give the columns' schema: "
                "--reader-schema FILE or ID"
            )
        found[newest[0]] = newest[1]
    if len(found) != 1:
        raise ConfigError(
            f"the topics {', '.join(topics)} have different schemas ({', '.join(map(str, sorted(found)))}), "
            "and all go into the same columns: choose one with --reader-schema FILE or ID, or archive the "
            "topics separately"
        )
    ((number, schema),) = found.items()
    return number, load_schema(json.dumps(schema))


def _same_registry(
    registry: str | None, known: Mapping[str, Any], reader_id: int | None, reader: Mapping[str, Any]
) -> str | None:
    """Return the registry's address for the document: the first run's, if both are one registry."""
    before = known.get("registry")
    if before is None or registry is None or before == registry or reader_id is None:
        return registry
    found = SchemaRegistry(registry).schema(reader_id)
    if found is None or load_schema(json.dumps(found)) != reader:
        return registry
    print_note(f"schema registry {registry} has the columns' schema of {before} and counts as the same")
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
