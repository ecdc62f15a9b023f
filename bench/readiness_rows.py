"""Arithmetic of `bench.readiness`: medians of both sides, bounds of their differences, reckoned PUTs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from statistics import median
from typing import Final, NamedTuple

SECONDS_OF_AN_HOUR: Final = 3600
LEAST_RATE: Final = 0.95
MOST_TIMES: Final = 1.1
MOST_MORE: Final = 10.0
MOST_VOID: Final = 0.01
MOST_TOLD: Final = 100
"""Most times that say anything: more of them are of what is hardly there."""


class Bar(Enum):
    """Bound of a figure with cuts, beside the same without."""

    RATE = f"≥ {LEAST_RATE:g} x"
    TIMES = f"≤ {MOST_TIMES:g} x"
    MORE = f"≤ +{MOST_MORE:g}"
    """of its own unit"""
    TOLD = ""


class Kind(NamedTuple):
    """Name of a figure, and its bound."""

    what: str
    unit: str
    bar: Bar = Bar.TOLD


class Line(NamedTuple):
    """One figure on both sides."""

    kind: Kind
    off: float
    on: float

    @property
    def change(self) -> float | None:
        """Return the difference, or the ratio; None where there is none."""
        if self.kind.bar is Bar.MORE:
            return self.on - self.off
        return self.on / self.off if self.off else None

    @property
    def is_over(self) -> bool:
        """Return whether the bound is broken."""
        change = self.change
        if change is None:
            return False
        bounds: Mapping[Bar, bool] = {
            Bar.RATE: change < LEAST_RATE,
            Bar.TIMES: change > MOST_TIMES,
            Bar.MORE: change > MOST_MORE,
        }
        return bounds.get(self.kind.bar, False)

    def __str__(self) -> str:
        change, unit = self.change, self.kind.unit
        told = "" if change is None or change > MOST_TOLD else f"{change:>9.2f} x"
        if change is not None and self.kind.bar is Bar.MORE:
            told = f"{change:>+9.2f} {unit}"
        over = "  OVER" if self.is_over else ""
        return (
            f"{self.kind.what:<46} off {self.off:>10.2f} {unit:<5}  on {self.on:>10.2f} {unit:<5}{told:<16}"
            f"{self.kind.bar.value}{over}"
        )


def lines_of(found: Mapping[bool, Sequence[Mapping[Kind, float]]]) -> list[Line]:
    """Return the medians of the rounds without cuts (False) and with them (True)."""
    kinds = dict.fromkeys(kind for side in found.values() for one in side for kind in one)
    return [
        Line(kind, *(median(one[kind] for one in found[is_on]) for is_on in (False, True))) for kind in kinds
    ]


def void_share(written: float, void: float) -> float:
    """Return the share of attempts that came to nothing; an attempt that finds no news is none."""
    return void / (written + void) if void else 0.0


def an_hour(count: float, seconds: float) -> float:
    """Return how many there are in an hour."""
    return count * SECONDS_OF_AN_HOUR / seconds


def reckoned_puts(brokers: int, interval_ms: int) -> tuple[float, float]:
    """Return the PUTs of an hour that were reckoned for a cluster that is written to all the time: a tail of
    each broker with each cut; and a cut's document and `CUT`."""
    cuts = an_hour(1000, interval_ms)
    return brokers * cuts, 2 * cuts
