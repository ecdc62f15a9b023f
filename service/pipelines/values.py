"""Values of records as columns: decoded from JSON or Avro, what cannot be decoded kept as it is.

A decoded frame has `value` as a struct, null where the record has no value or a value that is not of the
schema; that one is then in `undecoded`, byte for byte, so an archive never loses any. Needs pyspark.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from service.base.errors import ConfigError
from service.pipelines.avro_types import spark_type

VALUE: Final = "value"
UNDECODED: Final = "undecoded"
CONFLUENT_HEADER_BYTES: Final = 5
"""A zero byte and the schema's number in the registry (Confluent wire format)."""
_CORRUPT: Final = "_firn_corrupt"


def parse_json_schema(text: str) -> Any:
    """A `StructType` from a schema as Spark prints it: DDL (``a int, b string``) or its JSON form."""
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
    """The schema that Spark makes of all these values; None when no JSON object is among them."""
    texts = records.select(_text(F.col(VALUE)).alias("text")).where("text is not null")
    found = spark.read.json(texts.rdd.map(lambda row: row[0])).schema
    fields = [field for field in found.fields if field.name != "_corrupt_record"]
    return StructType(fields) if fields else None


def decode_json(records: Any, schema: Any) -> Any:
    """`value` parsed as JSON objects of this schema."""
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
    """Bytes as text, null where they are not UTF-8."""
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text)


def decode_avro(records: Any, schema: Mapping[str, Any], *, confluent_header: bool) -> Any:
    """`value` decoded as one Avro datum each, by the schema it was written with."""
    import fastavro

    ddl = spark_type(schema)
    try:
        fastavro.parse_schema(dict(schema))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError) as e:
        raise ConfigError(f"the Avro schema: {e}") from e
    kind = StructType.fromDDL(f"{VALUE} {ddl}")[0].dataType
    fields = [StructField(VALUE, kind) if field.name == VALUE else field for field in records.schema.fields]
    out = StructType([*fields, StructField(UNDECODED, BinaryType())])
    skipped = CONFLUENT_HEADER_BYTES if confluent_header else 0
    return records.mapInArrow(_AvroBatches(dict(schema), out, skipped), out)


class _AvroBatches:
    """What a task does; sent to it by pickle."""

    def __init__(self, schema: Mapping[str, Any], out: Any, skipped: int) -> None:
        self._schema = schema
        self._out = out
        self._skipped = skipped

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from fastavro import parse_schema
        from pyspark.sql.pandas.types import to_arrow_schema

        target = to_arrow_schema(self._out, timezone="UTC")
        kind = target.field(VALUE).type
        schema = parse_schema(dict(self._schema))
        for batch in batches:
            index = batch.schema.get_field_index(VALUE)
            data = batch.column(index).to_pylist()
            values = [self._decoded(one, schema) for one in data]
            column = _arrow_column(values, kind)
            lost = [one if value is None else None for one, value in zip(data, values, strict=True)]
            arrays = [*batch.columns, pa.array(lost, pa.binary())]
            arrays[index] = column
            yield pa.RecordBatch.from_arrays(arrays, names=target.names)

    def _decoded(self, data: bytes | None, schema: Any) -> Any:
        from fastavro import schemaless_reader

        if data is None or (self._skipped and data[:1] != b"\0"):
            return None
        stream = io.BytesIO(data)
        stream.seek(self._skipped)
        try:
            value = schemaless_reader(stream, schema)
        except Exception:  # bytes that are no Avro fail in as many ways as Python has
            return None
        return value if stream.tell() == len(data) else None


def _arrow_column(values: list[Any], kind: Any) -> Any:
    """As Arrow; what does not fit its column (an int of 64 bits) becomes None, in `values` too."""
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
    """These columns first and those last, what else there is between."""
    between = [name for name in frame.columns if name not in (*first, *last)]
    return frame.select(*first, *between, *last)
