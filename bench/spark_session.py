"""Spark session of a bench, in this process and on both cores, with its files in the bench's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def spark_session(
    folder: Path, *, memory: str = "2g", more: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Yield a session whose driver has so much memory, with these settings besides; stop it at the end."""
    from pyspark_firn import session

    config = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark"),
        **(more or {}),
    }
    spark = session("bench", master="local[2]", config=config)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()
