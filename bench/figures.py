"""Figures of a bench by side, a value for each round, and the JSON in which a bench gives them to others."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TextIO

from bench.measures import Measured
from tests.support.quorums import Program

FIRN: Final = "Firn"
KAFKA: Final = "Apache Kafka"
SIDES: Final = {Program.FIRN: FIRN, Program.KAFKA: KAFKA}


class Spread(NamedTuple):
    """The least, the middle and the greatest of the values that several rounds gave."""

    least: float
    median: float
    most: float


@dataclass
class Figure:
    """One figure of each side."""

    unit: str
    target: float | None = None
    """upper bound of Firn's, if any"""
    sides: dict[str, list[float]] = field(default_factory=dict)

    def spread(self, side: str) -> Spread | None:
        values = self.sides.get(side)
        return Spread(min(values), median(values), max(values)) if values else None


@dataclass
class Figures:
    """All figures of a bench, by what they are called, in the order in which they came."""

    found: dict[str, Figure] = field(default_factory=dict)

    def note(self, side: str, measured: Iterable[Measured]) -> None:
        for one in measured:
            figure = self.found.setdefault(one.what, Figure(one.unit, one.target))
            figure.sides.setdefault(side, []).append(one.value)

    def median(self, what: str, side: str) -> float:
        return median(self.found[what].sides[side])

    def tell(self, side: str, measured: Iterable[Measured], file: TextIO | None = None) -> None:
        """Note figures, and print a line for each, on stdout unless `file` is given. Targets are Firn's."""
        for one in measured:
            self.note(side, [one])
            bound = "" if one.target is None or side != FIRN else f"≤ {one.target:g} {one.unit}"
            over = "OVER" if bound and one.target is not None and one.value > one.target else ""
            line = f"{side:<14}{one.what:<64}{bound:>12}{over:>6}{one.value:>12.2f} {one.unit}"
            print(line, file=file, flush=True)

    def tell_medians(self) -> None:
        """Print a line for each figure: medians of the sides, and ours by Kafka's."""
        for what, figure in self.found.items():
            medians = {side: median(values) for side, values in figure.sides.items()}
            ours = medians.get(FIRN, 0.0)
            bound = "" if figure.target is None else f"≤ {figure.target:g} {figure.unit}"
            over = "OVER" if figure.target is not None and ours > figure.target else ""
            cells = "".join(f"  {side} {value:>10.2f} {figure.unit:<7}" for side, value in medians.items())
            ratio = f"{ours / medians[KAFKA]:>7.2f} x" if medians.get(KAFKA) and FIRN in medians else ""
            print(f"{what:<64}{bound:>12}{over:>6}{cells}{ratio}", flush=True)

    def add(self, others: Figures) -> None:
        """Add the figures of another run, or of another side."""
        for what, figure in others.found.items():
            own = self.found.setdefault(what, Figure(figure.unit, figure.target))
            for side, values in figure.sides.items():
                own.sides.setdefault(side, []).extend(values)

    def as_fields(self) -> dict[str, Any]:
        return {what: asdict(one) for what, one in self.found.items()}


def shown(value: float) -> str:
    """Return a figure with as many digits as it is worth.

    >>> shown(12345.6), shown(3.14159), shown(0.0123)
    ('12,346', '3.14', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit.

    >>> amount(366.04, "1000/s")
    '366 thousand/s'
    """
    return f"{shown(value)} {unit.replace('1000', 'thousand')}"


def figures_of(fields: Mapping[str, Any]) -> Figures:
    """Return what `Figures.as_fields` gave."""
    return Figures({what: Figure(**one) for what, one in fields.items()})


def read_figures(path: Path) -> Figures:
    """Read what a bench has written for `--json`."""
    return figures_of(json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")


def write_asked(arguments: argparse.Namespace, figures: Figures) -> None:
    """Write the figures where `--json` asks for them."""
    if arguments.json is not None:
        write_json(arguments.json, figures.as_fields())
