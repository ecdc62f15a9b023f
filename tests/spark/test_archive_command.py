"""`firn pipeline archive` as people run it: a process that stays, that is stopped and that is killed."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.desk import Desk, desk_with_readings
from tests.spark.growing import Growing, each_once
from tests.spark.killing import PATIENCE_S, Job, kill_often, seeded
from tests.support.processes import REPOSITORY, end, wait_until
from tests.support.terminal import Terminal

pytestmark = pytest.mark.timeout(1200)

SMALL = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=600m")
COMMAND = [sys.executable, "-m", "service.cli.main", "pipeline", "archive"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_with_readings(tmp_path / "desk") as found:
        yield found


def archive(url: str, topic: str, output: Path, *more: str) -> Job:
    command = [*COMMAND, url, str(output), "--topics", topic, *SMALL, *more]
    return Job(command, output / "_checkpoint", output.with_suffix(".log"))


def own_words(text: str) -> list[str]:
    """What the job has said itself, after proving that nobody in it has complained.

    Without how it got on: a job that takes long on a slow machine says so now and then.
    """
    assert not re.search(r"Traceback|ERROR|Exception| WARN ", text), text
    lines = [line for line in text.splitlines() if line.startswith(("archive:", "firn"))]
    return [line for line in lines if not re.search(r" batch(es)?; (now |waiting for more)", line)]


def test_on_a_terminal_a_job_that_stays_shows_how_far_it_is_until_ctrl_c(
    spark: Any, desk: Desk, tmp_path: Path
) -> None:
    output, terminal = tmp_path / "lake", Terminal(columns=400)
    command = [*COMMAND, desk.store.url, str(output), "--topics", "readings", *SMALL]
    command += ["--interval", "1", "--values", "json", "--infer-records", "50"]
    count = desk.write(0, 1500)
    process = terminal.run(command, REPOSITORY)
    try:
        for more in (desk.write, None):
            line = rf"archive: readings: {count:,} records in \d+ batch(es)?; waiting for more"
            wait_until(line, lambda s=line: re.fullmatch(s, terminal.lines[-1]), PATIENCE_S)
            count = count if more is None else more(1500, 3000)
        terminal.press(b"\x03")
        assert process.wait(PATIENCE_S) == 0
    finally:
        end(process)
        terminal.close()
    # The lines that progress has shown are gone, and nothing is left of them.
    inferred, done = own_words("\n".join(terminal.lines))
    assert inferred == "archive: inferred struct<at:struct<x:double>,reading:bigint,sensor:string>"
    assert re.fullmatch(
        rf"archive: {count:,} records to {output} in [0-9.]+ s; stopped, the next run continues from here",
        done,
    )
    assert terminal.lines[-2:] == [done, ""]
    assert spark.read.parquet(str(output)).count() == count


def test_sigterm_ends_a_job_that_stays_as_it_should_end(spark: Any, desk: Desk, tmp_path: Path) -> None:
    job = archive(desk.store.url, "readings", tmp_path / "lake", "--interval", "1")
    try:
        for number in (1, 2):
            count = desk.write(1500 * (number - 1), 1500 * number)
            if number == 1:
                job.begin()
            job.wait_for(f"{count} offsets are read", lambda n=count: job.offsets_done == n)
        job.signal(signal.SIGTERM)
        assert job.end() == 0
    finally:
        job.kill()
    (done,) = own_words(job.log.read_text("utf-8"))
    assert done.endswith("; stopped, the next run continues from here")
    assert spark.read.parquet(str(tmp_path / "lake")).count() == count


def test_a_job_that_stays_takes_up_topics_that_come(spark: Any, grown: Growing, tmp_path: Path) -> None:
    grown.topic("stay-a")
    first = sum(grown.append("stay-a", 600).values())
    output = tmp_path / "lake"
    # Once a second instead of once a minute.
    impatient = "import sys; from service.cli.main import main; import service.pipelines.follow as follow; "
    impatient += "follow.OUTDATED_CHECK_S = 1.0; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", impatient, "pipeline", "archive", grown.store.url, str(output)]
    command += ["--pattern", "stay-.*", "--interval", "1", *SMALL]
    job = Job(command, output / "_checkpoint", output.with_suffix(".log"))
    try:
        job.begin().wait_for("the first is read", lambda: job.offsets_done == first)
        grown.topic("stay-b")
        total = first + sum(grown.append("stay-b", 600).values())
        job.wait_for("the second is read", lambda: job.offsets_done == total)
        job.signal(signal.SIGTERM)
        assert job.end() == 0, job.said()
    finally:
        job.kill()
    new, done = own_words(job.log.read_text("utf-8"))
    assert re.fullmatch(r"archive: topic stay-b \(id .*\) is new and is read from its beginning", new)
    assert done.startswith(f"archive: {total:,} records to ")
    rows = spark.read.parquet(str(output)).select("topic", "partition", "offset")
    assert rows.count() == rows.distinct().count() == total


def test_a_job_that_is_stopped_before_its_end_says_so_and_the_next_run_goes_on(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("stopped")
    sealed = grown.append("stopped", 3000)
    output = tmp_path / "lake"
    job = archive(grown.store.url, "stopped", output, "--option", "maxOffsetsPerTrigger=100")
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            done = job.batches_done
            job.begin()
            job.wait_for("a batch is done", lambda n=done: job.batches_done > n)
            job.signal(number)
            assert job.end() == 128 + number
            assert own_words(job.log.read_text("utf-8"))[-1].endswith(
                "; stopped, the next run continues from here"
            )
        assert job.begin().end() == 0
    finally:
        job.kill()
    assert own_words(job.log.read_text("utf-8"))[-1].endswith(" s")
    each_once(spark.read.parquet(str(output)).select("partition", "offset").collect(), sealed)


def test_a_batch_that_is_written_but_not_noted_is_not_written_again(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("noted")
    grown.append("noted", 600)
    output = tmp_path / "lake"
    job = archive(grown.store.url, "noted", output)
    try:
        assert job.begin().end() == 0, job.said()
        job.forget_newest()
        sealed = grown.append("noted", 600)
        assert job.begin().end() == 0, job.said()
    finally:
        job.kill()
    each_once(spark.read.parquet(str(output)).select("partition", "offset").collect(), sealed)


def each_offset_once(
    spark: Any, grown: Growing, topic: str, output: Path, *, records: int, limit: int, kills: int
) -> None:
    grown.topic(topic)
    sealed = grown.append(topic, records)
    job = archive(grown.store.url, topic, output, "--option", f"maxOffsetsPerTrigger={limit}")
    kill_often(job, seeded(), output, kills=kills)
    try:
        assert job.begin().end() == 0, job.said()
    finally:
        job.kill()
    frame = spark.read.parquet(str(output))
    each_once(frame.select("partition", "offset").collect(), sealed)
    assert frame.select("topic_id").distinct().count() == 1
    # A kill in the middle of a batch leaves files that no batch has claimed.
    assert len(frame.inputFiles()) < sum(1 for _ in output.rglob("*.parquet"))


def test_killed_at_random_moments_it_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    each_offset_once(spark, grown, "killed", tmp_path / "lake", records=1200, limit=200, kills=3)


@pytest.mark.soak
def test_killed_twenty_times_it_has_written_every_offset_once(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    each_offset_once(spark, grown, "killed-often", tmp_path / "lake", records=9000, limit=150, kills=20)
