"""Shape of a row in the tables of metrics. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class Family(NamedTuple):
    """One metric. `kafka` is the MBean of the same meaning, if Apache Kafka has one."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    kafka: str = ""

    @property
    def unit(self) -> str:
        last = self.name.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""


def counter(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    """Return a counter's row."""
    return Family(f"firn_{name}", COUNTER, help, labels, kafka)


def gauge(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    """Return a gauge's row."""
    return Family(f"firn_{name}", GAUGE, help, labels, kafka)


def histogram(name: str, help: str, *labels: str, kafka: str = "") -> Family:
    """Return a histogram's row."""
    return Family(f"firn_{name}", HISTOGRAM, help, labels, kafka)
