"""A stream's checkpoint as the jobs see it: whether it is new, and what they keep in it. Needs pyspark.

Everything goes through Spark's own readers and writers and Hadoop's file systems, so a checkpoint may lie
wherever Spark can write.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.errors import PySparkException

from service.base.errors import ConfigError, CorruptionError
from service.spark.stream.offsets import Offsets, decode_position

_MAX_BYTES: Final = 64 << 20
_OFFSETS: Final = "offsets"


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

    def versions(self, name: str) -> list[int]:
        """The numbers of what `add` wrote, or Spark in a folder of its own; oldest first."""
        folder, files = self._place(name)
        if not files.exists(folder):
            return []
        names = [one.getPath().getName() for one in files.listStatus(folder)]
        return sorted(int(one) for one in names if one.isascii() and one.isdecimal())

    def newest(self, name: str) -> str | None:
        """The text with the greatest number. What is added is whole or not there."""
        numbers = self.versions(name)
        return self._read(f"{name}/{numbers[-1]}") if numbers else None

    def add(self, name: str, text: str) -> None:
        """Write the next version of a text down; earlier ones stay."""
        number = max(self.versions(name), default=-1) + 1
        place, files = self._place(f"{name}/{number}")
        unfinished, _ = self._place(f"{name}/.{number}.tmp")
        stream = files.create(unfinished, True)
        try:
            stream.write(bytearray(text.encode("utf-8")))
        finally:
            stream.close()
        if not files.rename(unfinished, place):
            raise ConfigError(
                f"{self.url}/{name}/{number} has come meanwhile: another job uses this checkpoint"
            )

    def offsets(self) -> Offsets:
        """How far the newest batch that was begun reads; empty where there is none."""
        text = self.newest(_OFFSETS)
        if text is None:
            return {}
        try:
            return decode_position(json.loads(text.splitlines()[-1])).offsets
        except (ValueError, IndexError) as e:
            raise CorruptionError(f"{self.url}/{_OFFSETS}: the newest file has no offsets: {e}") from e

    def qualified(self, url: str) -> str:
        """With scheme and whole path, so that two names of one place are the same."""
        path = self._spark._jvm.org.apache.hadoop.fs.Path(url)
        return str(path.getFileSystem(self._hadoop()).makeQualified(path).toString()).rstrip("/")

    def _read(self, name: str) -> str:
        path, files = self._place(name)
        if files.getFileStatus(path).getLen() > _MAX_BYTES:
            raise CorruptionError(f"{self.url}/{name} is larger than {_MAX_BYTES} bytes")
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8", "replace")
        finally:
            stream.close()

    def _place(self, name: str) -> tuple[Any, Any]:
        """A path inside the checkpoint, and its file system."""
        path = self._spark._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}")
        return path, path.getFileSystem(self._hadoop())

    def _hadoop(self) -> Any:
        return self._spark._jsparkSession.sessionState().newHadoopConf()
