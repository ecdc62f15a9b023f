"""Frame of every pipeline: the session, the source's options, error texts, progress. Needs pyspark."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from service.base.errors import ConfigError, FirnError
from service.pipelines.failure import JobFailure, failure_of
from service.pipelines.noise import Log
from service.pipelines.pace import ProgressSample, RateEstimator, topics_text
from service.spark.options import STORE_OPTIONS, ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.snapshots import ChosenPartition
from service.spark.session import session
from service.spark.store import open_store_of

INTERVAL_S: Final = 1.0
LINE_EVERY_S: Final = 30.0
"""Interval of progress lines where the output is not a terminal."""
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",  # days are UTC days, wherever a job runs
    "spark.ui.showConsoleProgress": "false",  # jobs show their own progress, in records
    # Before Spark 4.2 AvailableNow is otherwise one batch of a Python source: the interrupted one, if any.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    # With Unix domain sockets, workers of a job that is stopped print errors to its terminal.
    "spark.python.unix.domain.socket.enabled": "false",
}
_SCANS: Final = ("BatchScan firn", "MicroBatchScan")
_ROWS: Final = "number of output rows"
_BYTES: Final = "data returned from Python workers"
_COUNT: Final = re.compile(r"[0-9][0-9,]*")
_SIZE: Final = re.compile(r"[0-9][0-9.,]* [KMGTP]?i?B")


class PipelineError(FirnError):
    """A job that Spark gave up: the error, its cause, and the path of Spark's log."""

    def __init__(self, failure: JobFailure, log: Path | None) -> None:
        lines = [failure.error]
        if failure.cause:
            lines.append(f"  cause: {failure.cause}")
        if log is not None:
            lines.append(f"  Spark's log: {log}")
        super().__init__("\n".join(lines))


@contextmanager
def spark_session(name: str, args: argparse.Namespace, topics: Iterable[str] = ()) -> Iterator[Any]:
    """Yield a session for one job, and stop it at the end unless it existed before.

    Spark's output goes to a file where this process starts the JVM (`noise`); elsewhere the
    process that started the JVM has it. Spark's jobs are named for the pipeline and its topics.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    is_ours = SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    if args.log is not None and not is_ours:
        raise ConfigError("--log: Spark runs already, with a log of its own (docs/pipelines.md)")
    log = Log(name, args.log) if is_ours else None
    try:
        with nullcontext() if log is None else log.redirect_streams():
            spark = session(f"firn {name}", master=args.master, config={**_SETTINGS, **dict(args.conf)})
    except (PySparkException, Py4JError) as e:
        raise PipelineError(failure_of(str(e)), log.path if log else None) from e
    described = spark.sparkContext.getLocalProperty("spark.job.description")
    try:
        if found is None:
            spark.sparkContext.setLogLevel("ERROR" if log is None else "WARN")
        spark.sparkContext.setJobDescription(f"firn {name} {topics_text(topics)}".rstrip())
        yield spark
        _drop(log)
    except (PySparkException, Py4JError) as e:
        raise PipelineError(failure_of(str(e)), log.path if log else None) from e
    except FirnError:
        _drop(log)
        raise
    finally:
        with suppress(PySparkException, Py4JError):
            spark.sparkContext.setJobDescription(described)
            if found is None:
                spark.stop()


def _drop(log: Log | None) -> None:
    """Discard Spark's log: the job has succeeded, or the error is complete without it."""
    if log is not None:
        log.drop()


def source_options(args: argparse.Namespace, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of the firn source that a command line gives."""
    options = {"url": args.url, **dict(getattr(args, "option", ())), **(more or {})}
    for name in ("endpoint", "region"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    if args.topics is not None:
        options["subscribe"] = args.topics
    elif not any(key in options for key in ("subscribe", "assign")):
        options["subscribePattern"] = args.pattern if args.pattern is not None else ".*"
    if getattr(args, "from_ms", None) is not None:
        options["startingTimestamp"] = str(args.from_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if getattr(args, "to_ms", None) is not None:
        options["endingTimestamp"] = str(args.to_ms)
    for argument, name in (("starting_offsets", "startingOffsets"), ("ending_offsets", "endingOffsets")):
        if getattr(args, argument, None) is not None:
            options[name] = getattr(args, argument)
    return options


def check_store_options(args: argparse.Namespace, reason: str) -> None:
    """Raise `ConfigError` for options that narrow or alter what a job reads, which `reason` says is all."""
    names = {name.lower() for name in STORE_OPTIONS}
    for name, _ in args.option:
        if name.lower() not in names:
            raise ConfigError(
                f"option {name} is refused: {reason}, and takes only " + ", ".join(STORE_OPTIONS)
            )


def chosen_partitions(options: ReadOptions) -> list[ChosenPartition]:
    """Return the partitions that a read covers. `ConfigError` when there is none."""
    with ArchiveReader(open_store_of(options)) as archive:
        chosen = archive.choose(options.choice)
    if not chosen:
        raise ConfigError("no topic of the archive is selected")
    return chosen


def topics_of(chosen: Iterable[ChosenPartition]) -> list[str]:
    """Return the topics' names, in order."""
    return sorted({one.topic for one in chosen})


def frame(spark: Any, options: Mapping[str, str], schema: str) -> Any:
    """Return the archive as a DataFrame with these columns."""
    return spark.read.format("firn").options(**options).schema(schema).load()


class ProgressLine:
    """A line on stderr that is overwritten while a job runs.

    Where stderr is not a terminal it prints a line now and then, so that short jobs print nothing. `status`
    is called on a thread of its own every second, or each time a line is due; Spark's errors there are not
    shown. A line is cut to the terminal's width: a wrapped one could not be overwritten.
    """

    def __init__(
        self, status: Callable[[], str], out: TextIO | None = None, *, every_s: float = LINE_EVERY_S
    ) -> None:
        self._status = status
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._interval_s = INTERVAL_S if self._is_terminal else every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def done(self, text: str) -> None:
        """Print the job's last line, which stays, on any output."""
        prefix = "\r\x1b[K" if self._is_terminal else ""
        self._out.write(f"{prefix}{text} in {self.seconds:.1f} s\n")
        self._out.flush()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            with suppress(PySparkException, Py4JError, OSError):
                text = self._status()
                painted = f"\r\x1b[K{text[: self._width() - 1]}" if self._is_terminal else f"{text}\n"
                self._out.write(painted)
                self._out.flush()

    def _width(self) -> int:
        # A terminal without a set size reports 0 columns.
        return os.get_terminal_size(self._out.fileno()).columns or 80


class JobProgress:
    """Progress of a job, as far as executors have reported it; each call of `words` samples the rate."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._rate = RateEstimator()

    def words(self, *, records: int | None = None, size: str = "", records_left: int | None = None) -> str:
        """Return ``1,234 records, 56 rows/s, …``: of the newest query's scans, or of the job's own counts."""
        if records is None:
            records, size = _read_by_scans(self._spark)
        done, total = _tasks(self._spark)
        return self._rate.words(time.monotonic(), ProgressSample(records, size, done, total, records_left))


def _tasks(spark: Any) -> tuple[int, int]:
    """Return how many tasks of the active stages are done, and how many they have."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    active = [info for info in infos if info is not None]
    return sum(info.numCompletedTasks for info in active), sum(info.numTasks for info in active)


def _read_by_scans(spark: Any) -> tuple[int, str]:
    """Return rows and bytes from the SQL page of Spark's UI; Python has no public API for them."""
    store = spark._jsparkSession.sharedState().statusStore()
    queries = store.executionsList()
    if queries.size() == 0:
        return 0, ""
    query = queries.apply(queries.size() - 1).executionId()
    nodes, values = store.planGraph(query).allNodes(), store.executionMetrics(query)
    found: dict[str, str] = {}
    for node in (nodes.apply(i) for i in range(nodes.size())):
        metrics = node.metrics()
        for metric in (metrics.apply(i) for i in range(metrics.size())):
            value = values.get(metric.accumulatorId())
            if node.name().startswith(_SCANS) and value.isDefined():
                found[metric.name()] = str(value.get())
    rows = _COUNT.search(found.get(_ROWS, ""))
    size = _SIZE.search(found.get(_BYTES, ""))
    return int(rows[0].replace(",", "")) if rows else 0, size[0] if size else ""


def human_bytes(count: float) -> str:
    """Format a size: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def main(
    name: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    argv: list[str] | None = None,
) -> int:
    """Run a pipeline as a program, for ``python -m`` and spark-submit; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"firn-{name}", description=(run.__doc__ or "").partition("\n")[0])
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except (FirnError, OSError) as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 1
