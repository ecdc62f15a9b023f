"""Decoding of values into columns, from JSON or Avro; undecodable values are kept. Needs pyspark.

A decoded frame has `value` as a struct, null where the record has no value or one that does not match the
schema; that value is then in `undecoded`, byte for byte, so an archive never loses any.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from service.base.errors import ConfigError
from service.pipelines.avro_types import spark_type

VALUE: Final = "value"
UNDECODED: Final = "undecoded"
_CORRUPT: Final = "_firn_corrupt"


def parse_json_schema(text: str) -> Any:
    """Parse a `StructType` from a schema as Spark prints it: DDL (``a int, b string``) or its JSON form."""
    try:
        found = (
            StructType.fromJson(json.loads(text)) if text.lstrip()[:1] == "{" else StructType.fromDDL(text)
        )
    except (PySparkException, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"the schema is neither Spark's DDL nor its JSON form: {str(e)[:300]}") from e
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigError("the schema has no fields")
    return found


def infer_json_schema(spark: Any, records: Any) -> Any:
    """Return the schema that Spark infers from all these values; None when no JSON object is among them."""
    texts = records.select(_text(F.col(VALUE)).alias("text")).where("text is not null")
    found = spark.read.json(texts.rdd.map(lambda row: row[0])).schema
    fields = [field for field in found.fields if field.name != "_corrupt_record"]
    return StructType(fields) if fields else None


def decode_json(records: Any, schema: Any) -> Any:
    """Parse `value` as JSON objects of this schema."""
    wide = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(
        _text(F.col(VALUE)), wide, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )
    frame = records.withColumn("_parsed", parsed)
    whole = F.col("_parsed").isNotNull() & F.col(f"_parsed.{_CORRUPT}").isNull()
    return (
        frame.withColumn(UNDECODED, F.when(~whole, F.col(VALUE)))
        .withColumn(VALUE, F.when(whole, F.col("_parsed").dropFields(_CORRUPT)))
        .drop("_parsed")
    )


def _text(value: Any) -> Any:
    """Return bytes as text, null where they are not UTF-8."""
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text)


class Decoder(Protocol):
    """Factory of a function from bytes to a value, or None. Sent to tasks by pickle, and opened in each."""

    def open(self) -> Callable[[bytes], Any]: ...


def decode_avro(records: Any, schema: Mapping[str, Any]) -> Any:
    """Decode each `value` as one Avro datum, by the schema it was written with."""
    parse_avro(schema)
    return decode_with(records, AvroDecoder(dict(schema)), schema)


def parse_avro(schema: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return fastavro's form of a schema, and its named types by full name. Raises `ConfigError`."""
    import fastavro

    names: dict[str, Any] = {}
    try:
        return fastavro.parse_schema(dict(schema), named_schemas=names), names
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError) as e:
        raise ConfigError(f"the Avro schema: {e}") from e


def decode_with(records: Any, decoder: Decoder, schema: Mapping[str, Any]) -> Any:
    """Decode `value` to the column of this Avro schema, and add `undecoded`."""
    kind = StructType.fromDDL(f"{VALUE} {spark_type(schema)}")[0].dataType
    fields = [StructField(VALUE, kind) if field.name == VALUE else field for field in records.schema.fields]
    out = StructType([*fields, StructField(UNDECODED, BinaryType())])
    return records.mapInArrow(_AvroBatches(decoder, out), out)


class AvroDecoder:
    """A decoder that uses one schema for all values."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def open(self) -> Callable[[bytes], Any]:
        schema, _ = parse_avro(self._schema)
        return lambda data: read_datum(data, 0, schema)


def read_datum(data: bytes, skipped: int, schema: Any) -> Any:
    """Decode the datum after the skipped bytes; None unless it ends at the last byte."""
    from fastavro import schemaless_reader

    stream = io.BytesIO(data)
    stream.seek(skipped)
    try:
        value = schemaless_reader(stream, schema)
    except Exception:  # invalid bytes raise exceptions of any type
        return None
    return value if stream.tell() == len(data) else None


class _AvroBatches:
    """The function of a task, sent by pickle."""

    def __init__(self, decoder: Decoder, out: Any) -> None:
        self._decoder = decoder
        self._out = out

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        target = to_arrow_schema(self._out, timezone="UTC")
        kind = target.field(VALUE).type
        decode = self._decoder.open()
        for batch in batches:
            index = batch.schema.get_field_index(VALUE)
            data = batch.column(index).to_pylist()
            values = [None if one is None else decode(one) for one in data]
            column = _arrow_column(values, kind)
            lost = [one if value is None else None for one, value in zip(data, values, strict=True)]
            arrays = [*batch.columns, pa.array(lost, pa.binary())]
            arrays[index] = column
            yield pa.RecordBatch.from_arrays(arrays, names=target.names)


def _arrow_column(values: list[Any], kind: Any) -> Any:
    """Convert to Arrow; a value that does not fit (an int of 64 bits) becomes None, in `values` too."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for index, value in enumerate(values):
            if not _fits(value, kind):
                values[index] = None
        return pa.array(values, kind)


def _fits(value: Any, kind: Any) -> bool:
    import pyarrow as pa

    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False
    return True


def columns_in_order(frame: Any, first: Sequence[str], last: Sequence[str]) -> Any:
    """Return the frame with the columns `first`, then the others, then `last`."""
    between = [name for name in frame.columns if name not in (*first, *last)]
    return frame.select(*first, *between, *last)
