"""What `firn pipeline archive` makes of values: by which schema, and how that is described. Needs pyspark.

The description goes into the job's document, so that later runs make the same columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from service.pipelines.archive_guard import Admitted
from service.pipelines.avro_types import load_schema
from service.pipelines.inference import kept_schema
from service.pipelines.values import decode_avro, decode_json, parse_json_schema


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
    schema = load_schema(Path(args.schema).read_text("utf-8"))
    return Decoding(
        {"kind": "avro", "schema": schema}, partial(decode_avro, schema=schema, confluent_header=False)
    )


def _json(spark: Any, args: argparse.Namespace, admitted: Admitted) -> Decoding:
    known = None if admitted.known is None else admitted.known.values.get("schema")
    if args.schema is not None:
        schema = parse_json_schema(Path(args.schema).read_text("utf-8"))
    elif known is not None:
        schema = parse_json_schema(json.dumps(known))
    else:
        schema = kept_schema(spark, admitted.options, admitted.checkpoint, args.infer_records)
    described = {"kind": "json", "schema": json.loads(schema.json())}
    return Decoding(described, partial(decode_json, schema=schema))
