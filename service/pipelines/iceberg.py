"""Checks of an Iceberg table as the archive's output; it is created where it is absent. Needs pyspark.

Iceberg's streaming sink makes it exactly-once: every snapshot names its query and its micro-batch, and a
batch that is repeated after a crash is skipped where the table's history has it (Iceberg `SparkWrite`). The
checks here ensure that the history is that of the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from service.base.errors import ConfigError
from service.pipelines.checkpoint import Checkpoint

_CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_KEPT: Final = "table"
_UNKNOWN_TYPES: Final = re.compile(r"\b(tinyint|smallint)\b(?!:)")  # a colon follows a name


def check_runtime(spark: Any, table: str) -> None:
    """Raise `ConfigError` unless Iceberg's runtime fits this Spark and the table's catalog is set up."""
    wanted = f"iceberg-spark-runtime-{'.'.join(spark.version.split('.')[:2])}_2.13"
    jvm = spark._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    try:
        # `getMethods` links the class, which fails for a runtime of another Spark.
        jvm.java.lang.Class.forName(_CATALOG_CLASS, True, loader).getMethods()
    except Py4JJavaError as e:
        if is_instance_of(spark._sc._gateway, e.java_exception, "java.lang.LinkageError"):
            raise ConfigError(
                f"the Iceberg runtime does not fit Spark {spark.version}, which needs {wanted}, "
                f"where Iceberg has one (docs/pipelines.md): {e.java_exception.getMessage()}"
            ) from e
        raise ConfigError(
            f"--format iceberg needs Iceberg's runtime, {wanted}: "
            "--conf spark.jars=FILE.jar or --conf spark.jars.packages=org.apache.iceberg:…"
        ) from e
    parts = spark._jsparkSession.sessionState().sqlParser().parseMultipartIdentifier(table)
    if parts.size() < 2 or spark.conf.get(f"spark.sql.catalog.{parts.apply(0)}", None) is None:
        raise ConfigError(
            f"{table}: a table is named CATALOG.DATABASE.TABLE, and the catalog is set up with "
            f"--conf spark.sql.catalog.CATALOG={_CATALOG_CLASS} and its own settings"
        )


def fit_table(spark: Any, name: str, frame: Any, checkpoint: Checkpoint, topic_ids: Collection[str]) -> Any:
    """Return the frame with its columns in the table's order; create the table where the checkpoint is new.

    Raises `ConfigError` where the table has other columns or another format, and where table and checkpoint
    do not belong together, so that rows would be missing or duplicate.
    """
    is_there = spark.catalog.tableExists(name)
    if checkpoint.is_new:
        if not is_there:
            _create(spark, name, frame)
        checkpoint.keep(_KEPT, name)
    elif checkpoint.kept(_KEPT) != name:
        raise ConfigError(f"checkpoint {checkpoint.url} is of another output than table {name}")
    elif not is_there:
        raise ConfigError(f"table {name} is gone, but checkpoint {checkpoint.url} records writes to it")
    table = spark.table(name)
    _check_columns(name, frame, table)
    if checkpoint.is_new and is_there and _has_rows(table, topic_ids):
        raise ConfigError(
            f"table {name} has rows of these topics already, and checkpoint {checkpoint.url} is new: "
            "they would be duplicate"
        )
    return frame.select(*(F.col(f"`{column}`") for column in table.columns))


def _create(spark: Any, name: str, frame: Any) -> None:
    if found := _UNKNOWN_TYPES.search(frame.schema.simpleString()):
        raise ConfigError(f"the schema: Iceberg has no {found[1]}; use int")
    writer = spark.createDataFrame([], frame.schema).writeTo(name).using("iceberg")
    writer = writer.partitionedBy(F.col("topic"), F.partitioning.days(F.col("timestamp")))
    # A task reads neighbouring offsets, so few days: a shuffle of rows to one task per day gains nothing.
    writer.tableProperty("write.distribution-mode", "none").create()


def _check_columns(name: str, frame: Any, table: Any) -> None:
    wanted = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    found = {field.name: field.dataType.simpleString() for field in table.schema.fields}
    if differ := sorted(column for column in wanted | found if wanted.get(column) != found.get(column)):
        details = "; ".join(
            f"{column} is {wanted.get(column, 'none')} here and {found.get(column, 'none')} there"
            for column in differ
        )
        raise ConfigError(f"table {name} has other columns: {details}")


def _has_rows(table: Any, topic_ids: Collection[str]) -> bool:
    return not table.where(F.col("topic_id").isin(*topic_ids)).isEmpty()
