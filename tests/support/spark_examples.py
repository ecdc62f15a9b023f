"""Requirements of the examples: jars for the Spark of Iceberg's runtime, and Python packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.iceberg import ICEBERG
from tests.support.iceberg import settings as iceberg_settings
from tests.support.processes import REPOSITORY
from tests.support.spark_process import SparkProcess

PACKAGES = Path(os.environ.get("FIRN_SPARK_EXAMPLES", REPOSITORY / ".cache" / "spark-examples"))
PYTHON = PACKAGES / "python"


def need_packages() -> None:
    """Skip the test where they are not here; in CI (CI=true) that is a failure."""
    if (PACKAGES / ".complete").exists():
        return
    message = "packages of the examples are not here: `make test-spark` fetches them (needs Maven)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def need_protobuf_jar() -> None:
    """Skip the test without it, also in CI: not every mirror of Maven Central has it."""
    if not any(PACKAGES.glob("spark-protobuf_*.jar")):
        pytest.skip("Spark's Protobuf jar is not here: Maven could not fetch it")


class LakeSession(SparkProcess):
    """A session with Avro, Delta, Protobuf where it is, and Iceberg's catalog `lake` in `warehouse`."""

    def __init__(self, warehouse: Path, log: Path) -> None:
        settings = iceberg_settings(warehouse)
        jars = [settings["spark.jars"], *map(str, sorted(PACKAGES.glob("*.jar")))]
        delta = {
            "spark.jars": ",".join(jars),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Its own fifty partitions are for tables of many files.
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": "2",
        }
        super().__init__(settings | delta, log, (ICEBERG / "python", PYTHON))
