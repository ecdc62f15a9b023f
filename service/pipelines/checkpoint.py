"""Access to a stream's checkpoint: whether it is new, its offsets, and documents of the jobs. Needs pyspark.

It uses Spark's own readers and writers and Hadoop's file systems, so a checkpoint may lie wherever Spark can
write.
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
    """Return whether there is a file or a folder at the URL."""
    try:
        spark.read.text(url)
    except PySparkException as e:
        if e.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


class Checkpoint:
    """The folder where Spark records the progress of a query."""

    def __init__(self, spark: Any, url: str) -> None:
        self._spark = spark
        self.url = url

    @property
    def is_new(self) -> bool:
        """True if no query has ever started here: Spark first writes the query's id."""
        return not exists(self._spark, f"{self.url}/metadata")

    def kept(self, name: str) -> str | None:
        """Return the text that `keep` wrote in an earlier run."""
        place = f"{self.url}/{name}"
        if not exists(self._spark, place):
            return None
        rows = self._spark.read.text(place, wholetext=True).collect()
        return str(rows[0][0]).rstrip("\n") if rows else None

    def keep(self, name: str, text: str) -> None:
        """Write a text for later runs."""
        frame = self._spark.createDataFrame([(text,)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(f"{self.url}/{name}")

    def versions(self, name: str) -> list[int]:
        """Return the version numbers that `add` wrote, or Spark in a folder of its own; oldest first."""
        folder, files = self._place(name)
        if not files.exists(folder):
            return []
        names = [one.getPath().getName() for one in files.listStatus(folder)]
        return sorted(int(one) for one in names if one.isascii() and one.isdecimal())

    def newest(self, name: str) -> str | None:
        """Return the text with the greatest number. A version is whole or absent."""
        numbers = self.versions(name)
        return self._read(f"{name}/{numbers[-1]}") if numbers else None

    def add(self, name: str, text: str) -> None:
        """Write the next version of a text; earlier ones stay."""
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
                f"{self.url}/{name}/{number} was written meanwhile: another job uses this checkpoint"
            )

    def offsets(self) -> Offsets:
        """Return the end offsets of the newest batch that was started; empty where there is none."""
        text = self.newest(_OFFSETS)
        if text is None:
            return {}
        try:
            return decode_position(json.loads(text.splitlines()[-1])).offsets
        except (ValueError, IndexError) as e:
            raise CorruptionError(f"{self.url}/{_OFFSETS}: the newest file has no offsets: {e}") from e

    def qualified(self, url: str) -> str:
        """Return the URL with scheme and absolute path, so that two names of one place are equal."""
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
        """Return a path inside the checkpoint, and its file system."""
        path = self._spark._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}")
        return path, path.getFileSystem(self._hadoop())

    def _hadoop(self) -> Any:
        return self._spark._jsparkSession.sessionState().newHadoopConf()
