"""Around every pipeline's work: a session, its source, errors in words, progress. Needs pyspark."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from service.base.errors import ConfigError, FirnError
from service.spark.options import ReadOptions, parse_options
from service.spark.plan.archive import Archive, ChosenPartition
from service.spark.session import session
from service.spark.store import open_store_of

INTERVAL_S: Final = 1.0
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",  # days are UTC days, wherever a job runs
    "spark.ui.showConsoleProgress": "false",  # jobs say what they have done in records
    # Before Spark 4.2 AvailableNow is otherwise one batch of a Python source: the interrupted one, if any.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    # Over these, workers of a job that is told to end complain to its terminal.
    "spark.python.unix.domain.socket.enabled": "false",
}
_SCANS: Final = ("BatchScan firn", "MicroBatchScan")
_CAUSE: Final = re.compile(
    r"^(?:[\w.]*\.)?(\w*(?:Error|NotFound|Unavailable|Refused|Truncated)): (.+)$", re.MULTILINE
)


class PipelineError(FirnError):
    """A job that Spark gave up, with the words of what made it fail."""


@contextmanager
def spark_session(name: str, args: argparse.Namespace) -> Iterator[Any]:
    """A session for one job, ended with it unless it was there before."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    spark = session(f"firn {name}", master=args.master, config={**_SETTINGS, **dict(args.conf)})
    try:
        if found is None:
            spark.sparkContext.setLogLevel("ERROR")
        yield spark
    except (PySparkException, Py4JError) as e:
        raise PipelineError(reason(e)) from e
    finally:
        if found is None:
            with suppress(PySparkException, Py4JError):
                spark.stop()


def reason(error: Exception) -> str:
    """The last line of Python's that made a job fail, or else Spark's first."""
    text = str(error)
    causes = _CAUSE.findall(text)
    if causes:
        return f"{causes[-1][1]}"
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)


def source_options(args: argparse.Namespace, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options of the firn source that a command line asks for."""
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


def chosen_partitions(options: ReadOptions) -> list[ChosenPartition]:
    """The partitions that a read would be of. `ConfigError` when there is none."""
    with Archive(open_store_of(options)) as archive:
        chosen = archive.choose(options.choice)
    if not chosen:
        raise ConfigError("no topic of the archive is asked for")
    return chosen


def frame(spark: Any, options: Mapping[str, str], schema: str) -> Any:
    """The archive as a DataFrame with these columns. `ConfigError` before Spark is asked for anything."""
    chosen_partitions(parse_options(options))
    return spark.read.format("firn").options(**options).schema(schema).load()


class Progress:
    """One line on stderr that is painted over while a job runs; nothing where stderr is no terminal.

    `look` is called every second on a thread of its own; what Spark fails with there is not shown. A line is
    cut to the terminal's width: what wraps could not be painted over.
    """

    def __init__(self, look: Callable[[], str], out: TextIO | None = None) -> None:
        self._look = look
        self._out = sys.stderr if out is None else out
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self._out.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._out.write("\r\x1b[K")
            self._out.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def done(self, text: str) -> None:
        """The job's last word, which stays; said everywhere."""
        prefix = "\r\x1b[K" if self._thread.ident is not None else ""
        self._out.write(f"{prefix}{text} in {self.seconds:.1f} s\n")
        self._out.flush()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            with suppress(PySparkException, Py4JError, OSError):
                self._out.write(f"\r\x1b[K{self._look()[: self._width() - 1]}")
                self._out.flush()

    def _width(self) -> int:
        # A terminal that nobody has told its size has none.
        return os.get_terminal_size(self._out.fileno()).columns or 80


def read_so_far(spark: Any) -> str:
    """``1,000,000 records read, 12 of 40 tasks``: of the newest query, as far as executors have reported."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    there = [info for info in infos if info is not None]
    done, total = sum(info.numCompletedTasks for info in there), sum(info.numTasks for info in there)
    return f"{_rows_of_scans(spark)} records read, {done} of {total} tasks"


def _rows_of_scans(spark: Any) -> str:
    """What the SQL page of Spark's UI shows of the scan; there is no public way to it for Python."""
    store = spark._jsparkSession.sharedState().statusStore()
    queries = store.executionsList()
    if queries.size() == 0:
        return "0"
    query = queries.apply(queries.size() - 1).executionId()
    nodes, values = store.planGraph(query).allNodes(), store.executionMetrics(query)
    for node in (nodes.apply(i) for i in range(nodes.size())):
        metrics = node.metrics()
        for metric in (metrics.apply(i) for i in range(metrics.size())):
            if node.name() in _SCANS and metric.name() == "number of output rows":
                value = values.get(metric.accumulatorId())
                return str(value.get()) if value.isDefined() else "0"
    return "0"


def human_bytes(count: float) -> str:
    """``12.3 MB``."""
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
    """A pipeline as a program of its own, for ``python -m`` and spark-submit; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"firn-{name}", description=(run.__doc__ or "").partition("\n")[0])
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except (FirnError, OSError) as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 1
