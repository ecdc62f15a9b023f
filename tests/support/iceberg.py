"""A Spark that Iceberg's runtime is made for; the installed one may be too new for any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY
from tests.support.spark_process import SparkProcess

ICEBERG = Path(os.environ.get("FIRN_SPARK_ICEBERG", REPOSITORY / ".cache" / "spark-iceberg"))
ENV = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(ICEBERG / "python")))}
"""What makes a Python find that Spark before the installed one."""


def need_iceberg() -> None:
    """Skip the test where the runtime is not here; in CI (CI=true) that is a failure."""
    if (ICEBERG / ".complete").exists():
        return
    message = "Iceberg's runtime is not here: `make test-spark` fetches it (needs Maven)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def settings(warehouse: Path) -> dict[str, str]:
    """Return settings of a Spark session whose catalog `lake` is this folder."""
    (jar,) = ICEBERG.glob("*.jar")
    return {
        "spark.jars": str(jar),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(warehouse),
    }


class IcebergSession(SparkProcess):
    """A session of that Spark, with the catalog `lake`."""

    def __init__(self, warehouse: Path, log: Path) -> None:
        super().__init__(settings(warehouse), log, (ICEBERG / "python",))
