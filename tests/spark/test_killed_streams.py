"""Streaming jobs killed at random moments: what they wrote has every offset once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.growing import Growing, each_once
from tests.spark.killing import Job, kill_often, seeded


def each_offset_once(
    spark: Any,
    grown: Growing,
    folder: Path,
    topic: str,
    sink: str,
    sealed: Mapping[int, int],
    *,
    kills: int,
    limit: int,
) -> None:
    """Kills a job `kills` times, lets it finish, and looks at what it wrote.

    The sink `files` is Spark's own and reads the sealed part; `batches` is a foreachBatch, with the tail.
    """
    settings = {
        "options": grown.options(
            topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit, bootstrap=sink == "batches"
        ),
        "checkpoint": str(folder / "checkpoint"),
        "output": str(folder / "output"),
        "sink": sink,
    }
    command = [sys.executable, "-m", "tests.spark.streaming_job", json.dumps(settings)]
    job = Job(command, folder / "checkpoint", folder / "log")
    kill_often(job, seeded(), folder / "output", kills=kills)
    try:
        assert job.begin("to-the-end").end() == 0, job.said()
    finally:
        job.kill()
    frame = spark.read.parquet(settings["output"]).select("partition", "offset")
    each_once(frame.collect(), grown.ends(topic) if sink == "batches" else sealed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sink", ["files", "batches"])
def test_a_job_killed_at_random_moments_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path, sink: str
) -> None:
    grown.topic(f"killed-{sink}")
    sealed = grown.append(f"killed-{sink}", 900)
    kills = 2 if sink == "files" else 1
    each_offset_once(spark, grown, tmp_path, f"killed-{sink}", sink, sealed, kills=kills, limit=200)


@pytest.mark.soak
@pytest.mark.parametrize("sink", ["files", "batches"])
def test_a_job_killed_twenty_times_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path, sink: str
) -> None:
    grown.topic(f"killed-often-{sink}")
    sealed = grown.append(f"killed-often-{sink}", 6000)
    each_offset_once(spark, grown, tmp_path, f"killed-often-{sink}", sink, sealed, kills=20, limit=150)
