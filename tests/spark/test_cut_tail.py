"""A real Spark reads segments and, with ``includeTail=cut``, the tails behind them; no broker is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.remote.stores.memory_store import MemoryStore
from tests.support.cut_archives import CutWriter, row
from tests.unit.spark.bucket import Bucket, marker, transactional
from tests.unit.spark.test_cut_tail import saved, ten


class Folder:
    """A bucket in a folder, with a cut behind its chain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bucket = Bucket()
        self.bucket.topic("t")
        self.bucket.add("t", batches=3, opened={})
        self.writer = CutWriter(self.bucket.store)
        self.tails = [
            self.writer.tail([saved(self.bucket, "t", [transactional(30, 7), *ten(31)])]),
            self.writer.tail([saved(self.bucket, "t", [marker(41, 7, commit=False), *ten(42)])], cut=2),
        ]
        self.cut(52, 2)

    def cut(self, end: int, number: int) -> None:
        self.writer.cut({self.bucket.topic_id("t"): [row(end)]}, self.tails, number=number)
        self.write()

    def write(self) -> None:
        store = self.bucket.store
        for info in MemoryStore.list(store, ""):
            path = self.path / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(info.key, max_size=1 << 30))

    def options(self, **more: str) -> dict[str, str]:
        return {"url": self.path.as_uri(), "subscribe": "t", "includeTail": "cut", **more}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "bucket")


def offsets(spark: Any, folder: Folder, **more: str) -> list[int]:
    frame = spark.read.format("firn").options(**folder.options(**more)).load()
    rows = frame.select(
        "offset", "value", "topic", "partition", "timestamp", "timestampType", "key"
    ).collect()
    assert {(one.topic, one.partition, one.timestampType) for one in rows} <= {("t", 0, 0)}
    return sorted(one.offset for one in rows)


def test_batches_have_rows_of_segments_and_of_tails(spark: Any, folder: Folder) -> None:
    assert offsets(spark, folder) == [*range(41), *range(42, 52)]
    assert offsets(spark, folder, isolationLevel="read_committed") == [
        *range(30),
        *range(31, 41),
        *range(42, 52),
    ]
    assert offsets(spark, folder, where="timestamp < TIMESTAMP '2000-01-01 00:00:00Z'") == []


def test_a_stream_goes_on_with_each_cut_and_from_segments_later(
    spark: Any, folder: Folder, tmp_path: Path
) -> None:
    def run() -> list[int]:
        """All that is new, in one run."""
        frame = (
            spark.readStream.format("firn")
            .options(**folder.options(startingOffsets="earliest", refreshInterval="0s"))
            .load()
        )
        query = (
            frame.select("offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return sorted(one.offset for one in spark.read.parquet(str(tmp_path / "out")).collect())

    assert run() == [*range(41), *range(42, 52)]
    folder.tails.append(folder.writer.tail([saved(folder.bucket, "t", ten(52))], cut=3))
    folder.cut(62, 3)
    assert run() == [*range(41), *range(42, 62)]
    folder.bucket.add(
        "t",
        batches=[transactional(30, 7), *ten(31), marker(41, 7, commit=False), *ten(42, 52, 62)],
        txn_rows=[(7, 30, 41, 42)],
        opened={},
    )
    folder.write()
    assert run() == [*range(41), *range(42, 72)]
