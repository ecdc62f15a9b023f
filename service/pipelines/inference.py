"""Inference of a JSON schema for values, in the first run. Needs pyspark."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from service.base.errors import ConfigError
from service.pipelines.checkpoint import Checkpoint
from service.pipelines.values import infer_json_schema, parse_json_schema
from service.spark.parts import open_archive
from service.spark.plan.ranges import resolve_ranges
from service.spark.plan.snapshots import OffsetRange
from service.spark.stream.offsets import Backlog, Spot, by_count, encode_offsets
from service.spark.stream.options import LIMITS
from service.spark.tail.options import parse_batch

_KEPT: Final = "value_schema"
_GROWTH: Final = 10


def kept_schema(spark: Any, options: Mapping[str, str], checkpoint: Checkpoint, records: int) -> Any:
    """Return the schema that the first run inferred from `records` records, so that columns stay the same."""
    kept = checkpoint.kept(_KEPT)
    if kept is not None:
        return parse_json_schema(kept)
    schema = _inferred(spark, {key: text for key, text in options.items() if key not in LIMITS}, records)
    checkpoint.keep(_KEPT, schema.json())
    print(f"archive: inferred {schema.simpleString()}", file=sys.stderr)
    return schema


def _inferred(spark: Any, options: Mapping[str, str], records: int) -> Any:
    """Infer the schema of the first records; of more of them where those are no JSON objects."""
    read, tail = parse_batch(options)
    with open_archive(read, tail) as archive:
        ranges = resolve_ranges(archive, read)
    total = sum(one.end_offset - one.begin_offset for one in ranges)
    while True:
        sample = spark.read.format("firn").options(**sample_options(options, ranges, records))
        schema = infer_json_schema(spark, sample.schema("value binary").load()) if ranges else None
        if schema is not None:
            return schema
        if records >= total:
            raise ConfigError("no schema can be inferred: there is no JSON object; give --schema")
        records *= _GROWTH


def sample_options(options: Mapping[str, str], ranges: list[OffsetRange], records: int) -> dict[str, str]:
    """Return the options of a batch read of at most `records` offsets, in proportion to the partitions.

    The bound is in the plan because a limit in the query would stop tasks half-way, and Spark's Python
    workers then log errors about the rows that they could not deliver.
    """
    begins = {_spot(one): one.begin_offset for one in ranges}
    ends = by_count([Backlog(_spot(one), one.begin_offset, one.end_offset) for one in ranges], records)
    assigned: dict[str, list[int]] = {}
    for topic, partition in ends:
        assigned.setdefault(topic, []).append(partition)
    kept = {
        key: text
        for key, text in options.items()
        if not key.lower().startswith(("subscribe", "assign", "starting", "ending"))
    }
    return kept | {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(encode_offsets({spot: begins[spot] for spot in ends})),
        "endingOffsets": json.dumps(encode_offsets(ends)),
    }


def _spot(one: OffsetRange) -> Spot:
    return one.snapshot.chosen.asked, one.snapshot.chosen.partition
