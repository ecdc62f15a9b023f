"""Spark's own Kafka connector, for comparing with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY

CONNECTOR = Path(os.environ.get("FIRN_SPARK_CONNECTOR", REPOSITORY / ".cache" / "spark-connector"))


def connector_jars() -> str:
    """Return ``spark.jars`` for ``format("kafka")``; empty without the connector."""
    return ",".join(str(path) for path in sorted(CONNECTOR.glob("*.jar")))


def need_connector() -> None:
    """Skip the test where the connector is not here; in CI (CI=true) that is a failure."""
    if connector_jars():
        return
    message = "Spark's Kafka connector is not here: `make spark` fetches it (needs Maven)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def read_kafka(spark: Any, bootstrap: str, **options: object) -> Any:
    """A DataFrame of Spark's own Kafka source."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()
