"""The last step, where Spark is installed: what was delayed, asked of the bucket with the node gone."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

PLOT = Path("flights-delays.png")
CARRIERS = 8
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_VALUE = "carrier string, month int, dep_delay double"


class Delays(NamedTuple):
    """Average minutes by carrier (those with the most flights first) and month; None: no flight."""

    flights: int
    rows: list[tuple[str, list[float | None]]]


def is_possible() -> bool:
    """Whether the spark extra is there."""
    return all(find_spec(name) is not None for name in ("pyspark", "pyarrow", "matplotlib"))


def ask(url: str, endpoint: str, topic: str) -> Delays:
    """Average departure delay of the archived flights. Starts a Spark of its own and ends it."""
    from pyspark.sql import functions as F

    from service.spark.session import session

    spark = session(
        "firn demo",
        master="local[*]",
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
            "spark.sql.shuffle.partitions": "4",
        },
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        records = (
            spark.read.format("firn")
            .options(url=url, endpoint=endpoint, subscribe=topic)
            .schema("value binary")
            .load()
        )
        flight = F.from_json(F.col("value").cast("string"), _VALUE)
        found = (
            records.select(flight.alias("flight"))
            .groupBy("flight.carrier", "flight.month")
            .agg(F.count("*").alias("flights"), F.avg("flight.dep_delay").alias("delay"))
            .collect()
        )
    finally:
        spark.stop()
    return table_of([(row.carrier, row.month, row.flights, row.delay) for row in found])


def table_of(found: list[tuple[str, int, int, float | None]]) -> Delays:
    """From (carrier, month, flights, average delay); the carriers with the most flights are kept."""
    flights: dict[str, int] = {}
    delays: dict[str, list[float | None]] = {}
    for carrier, month, count, delay in found:
        flights[carrier] = flights.get(carrier, 0) + count
        delays.setdefault(carrier, [None] * 12)[month - 1] = delay
    greatest = sorted(flights, key=lambda carrier: -flights[carrier])[:CARRIERS]
    return Delays(sum(flights.values()), [(carrier, delays[carrier]) for carrier in greatest])


def as_lines(delays: Delays) -> list[str]:
    """A small table."""
    lines = ["carrier " + " ".join(f"{month:>4}" for month in MONTHS)]
    for carrier, row in delays.rows:
        lines.append(f"{carrier:<7} " + " ".join("   -" if one is None else f"{one:4.0f}" for one in row))
    return lines


def plot(delays: Delays, path: Path) -> None:
    """A line for each carrier, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for carrier, row in delays.rows:
        axes.plot(MONTHS, [float("nan") if one is None else one for one in row], marker=".", label=carrier)
    axes.set_ylabel("average departure delay, minutes")
    axes.set_title("Flights from New York in 2013, read from the archive")
    axes.grid(alpha=0.3)
    axes.legend(ncols=2)
    figure.savefig(path, format="png", dpi=120)
