"""Streaming jobs killed at random moments: what they wrote has every offset once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.growing import Growing, each_once, growing
from tests.support.processes import REPOSITORY, wait_until

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install -e '.[test,spark]'")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    with growing(tmp_path_factory.mktemp("growing")) as found:
        yield found


def job(settings: Mapping[str, Any], log: Path) -> subprocess.Popen[bytes]:
    """In a process group of its own: the JVM and the Python workers are killed with it."""
    command = [sys.executable, "-m", "tests.spark.streaming_job", json.dumps(dict(settings))]
    with log.open("ab") as out:
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=out, stderr=out, start_new_session=True)


def kill_often(
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
    """Kills a job `kills` times, each time a moment after it has got on, and looks at what it wrote.

    The sink `files` is Spark's own and reads the sealed part; `batches` is a foreachBatch, with the tail.
    """
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    folder.mkdir()
    settings = {
        "options": grown.options(
            topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit, bootstrap=sink == "batches"
        ),
        "checkpoint": str(folder / "checkpoint"),
        "output": str(folder / "output"),
        "sink": sink,
        "to_the_end": False,
    }
    log = folder / "log"

    def progress() -> int:
        commits = folder / "checkpoint" / "commits"
        return sum(1 for one in commits.iterdir() if one.name.isdigit()) if commits.exists() else 0

    for _ in range(kills):
        process = job(settings, log)
        try:
            before = progress()
            wait_until("the job to get on", lambda b=before: progress() > b, 60)
            time.sleep(rng.uniform(0, 0.7))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    process = job({**settings, "to_the_end": True}, log)
    try:
        assert process.wait(100 + 20 * kills) == 0, log.read_text("utf-8", "replace")[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    frame = spark.read.parquet(settings["output"]).select("partition", "offset")
    each_once(frame.collect(), grown.ends(topic) if sink == "batches" else sealed)


@pytest.mark.parametrize("sink", ["files", "batches"])
def test_a_job_killed_at_random_moments_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path, sink: str
) -> None:
    grown.topic(f"killed-{sink}")
    sealed = grown.append(f"killed-{sink}", 900)
    kills = 2 if sink == "files" else 1
    kill_often(spark, grown, tmp_path / "job", f"killed-{sink}", sink, sealed, kills=kills, limit=200)


@pytest.mark.soak
@pytest.mark.parametrize("sink", ["files", "batches"])
def test_a_job_killed_twenty_times_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path, sink: str
) -> None:
    grown.topic(f"killed-often-{sink}")
    sealed = grown.append(f"killed-often-{sink}", 6000)
    kill_often(spark, grown, tmp_path / "job", f"killed-often-{sink}", sink, sealed, kills=20, limit=150)
