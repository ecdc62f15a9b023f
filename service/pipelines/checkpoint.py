"""A stream's checkpoint as the jobs see it: whether it is new, and what they keep in it. Needs pyspark.

Everything goes through Spark's own readers and writers, so a checkpoint may lie wherever Spark can write.
"""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException


def exists(spark: Any, url: str) -> bool:
    """Whether there is a file or a folder."""
    try:
        spark.read.text(url)
    except PySparkException as e:
        if e.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


class Checkpoint:
    """The folder where Spark writes down how far a query has come."""

    def __init__(self, spark: Any, url: str) -> None:
        self._spark = spark
        self.url = url

    @property
    def is_new(self) -> bool:
        """Whether no query has ever begun here: Spark's first act is to write the query's id down."""
        return not exists(self._spark, f"{self.url}/metadata")

    def kept(self, name: str) -> str | None:
        """What `keep` wrote in an earlier run."""
        place = f"{self.url}/{name}"
        if not exists(self._spark, place):
            return None
        rows = self._spark.read.text(place, wholetext=True).collect()
        return str(rows[0][0]).rstrip("\n") if rows else None

    def keep(self, name: str, text: str) -> None:
        """Write a text down for later runs."""
        frame = self._spark.createDataFrame([(text,)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(f"{self.url}/{name}")
