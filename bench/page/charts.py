"""Charts as SVG, each once for light pages and once for dark ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullFormatter

from bench.figures import FIRN, KAFKA, amount
from bench.page.results import Results
from bench.page.rows import CURVES, Section

THEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {"text": "#24292f", "grid": "#d0d7de", FIRN: "#0969da", KAFKA: "#8c959f"},
    "dark": {"text": "#e6edf3", "grid": "#30363d", FIRN: "#58a6ff", KAFKA: "#6e7681"},
}
_INCHES_A_ROW: Final = 0.62
_RATE: Final = re.compile(r"produce at ([\d,]+)/s, (p50|p99)$")


def draw_bars(results: Results, section: Section, folder: Path, name: str) -> bool:
    """Draw medians of a section, with what lies between the least and the most of the rounds. Return False
    where the run has none of them."""
    rows = [found for row in section.rows for found in results.found(section.part, row.begins)]
    if not rows:
        return False
    for theme, colors in THEMES.items():
        with _drawing(colors, len(rows) * _INCHES_A_ROW + 0.6) as (drawing, path):
            for at, (what, figure) in enumerate(rows, 1):
                axes = drawing.add_subplot(len(rows), 1, at)
                spreads = {side: one for side in (FIRN, KAFKA) if (one := figure.spread(side)) is not None}
                most = max(one.most for one in spreads.values()) or 1.0
                for place, (side, spread) in enumerate(spreads.items()):
                    axes.barh(-place, spread.median / most, color=colors[side], height=0.8)
                    ends = [spread.least / most, spread.most / most]
                    axes.plot(ends, [-place, -place], color=colors["text"], lw=1)
                    label = f" {amount(spread.median, figure.unit)}  {side}"
                    axes.text(ends[1], -place, label, va="center", fontsize=8, color=colors["text"])
                axes.set_title(what, loc="left", fontsize=9, color=colors["text"], pad=2)
                axes.set_xlim(0, 1.6)
                axes.set_ylim(-1.5, 0.5)  # as high where one side has no figure
                axes.axis("off")
            path(folder / f"{name}-{theme}.svg")
    return True


def draw_curves(results: Results, folder: Path, name: str) -> bool:
    """Draw latencies over the rate. Return False where the run has none."""
    part = results.parts.get(CURVES)
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for what, figure in ({} if part is None else part.figures.found).items():
        if (found := _RATE.match(what)) is None:
            continue
        for side in figure.sides:
            spread = figure.spread(side)
            if spread is not None and side in (FIRN, KAFKA):
                rate = int(found[1].replace(",", ""))
                curves.setdefault((side, found[2]), []).append((rate, spread.median))
    if not curves:
        return False
    for theme, colors in THEMES.items():
        with _drawing(colors, 3.6) as (drawing, path):
            axes = drawing.add_subplot()
            for (side, which), points in curves.items():
                rates, times = zip(*sorted(points), strict=True)
                style = "-" if which == "p99" else ":"
                axes.plot(rates, times, style, marker="o", ms=3, color=colors[side], label=f"{side}, {which}")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("requests a second")
            axes.set_ylabel("ms from when it was due")
            axes.grid(color=colors["grid"], lw=0.5)
            axes.legend(frameon=False, fontsize=8, labelcolor=colors["text"])
            path(folder / f"{name}-{theme}.svg")
    return True


@contextmanager
def _drawing(colors: Mapping[str, str], inches: float) -> Iterator[tuple[Drawing, Any]]:
    """Yield a drawing of that height, and what saves it."""
    text = colors["text"]
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "firn",  # the same figures make the same file
        "text.color": text, "axes.labelcolor": text, "xtick.color": text, "ytick.color": text,
        "axes.edgecolor": colors["grid"], "font.size": 9,
    }  # fmt: skip
    with mpl.rc_context(style):
        drawing = Drawing(figsize=(7.2, inches), layout="constrained")

        def save(path: Path) -> None:
            drawing.savefig(path, transparent=True, metadata={"Date": None})

        yield drawing, save
