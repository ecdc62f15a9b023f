"""The page itself: facts, charts and tables, in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from bench.figures import FIRN, KAFKA, Figure, Spread, amount, shown
from bench.page.results import Results
from bench.page.rows import CURVES, SECTIONS, Row, Section

HEAD = """# Benchmarks

Firn beside Apache Kafka on one machine: the same clients in the same run, by turns. Medians, and the least
and the most of all rounds. Both sides are warm where rates and processor time are compared: at least 100,000
requests or a gigabyte before anything counts, so that a JVM's code is compiled (transactions: five seconds
of them). What is measured while a node starts, fails or catches up has no warm-up. Shares of what is left are
of the rate that raw requests would reach if the processors had the work of clients and store as well. Rows
that Firn loses stay. `make bench-page` measures all of it again but the two soaks (`BENCH="nothing mixed"`),
and writes this page.
"""

LEAST_OF_TWO_DIGITS: Final = 0.01


def page(results: Results, drawn: Collection[str]) -> str:
    """Return the page. `drawn` are the names of the charts that there are."""
    lines = [HEAD]
    if results.is_quick:
        lines.append("**A quick run**: few rounds, little data; trust large differences only.\n")
    lines += ["| | |", "|---|---|", *(f"| {what} | {said} |" for what, said in results.facts.items()), ""]
    for section in SECTIONS:
        lines += _section(results, section, drawn)
    if CURVES in drawn:
        lines += ["## Produce requests at rising rates", "", _picture(CURVES), ""]
    failed = [f"- {name}: {part.failed}" for name, part in results.parts.items() if part.failed is not None]
    if failed:
        lines += ["## What could not be measured", "", *failed, ""]
    return "\n".join(lines)


def _section(results: Results, section: Section, drawn: Collection[str]) -> Iterator[str]:
    rows = [(row, *one) for row in section.rows for one in results.found(section.part, row.begins)]
    if not rows:
        return
    yield f"## {section.title}\n"
    if section.part in drawn:
        yield _picture(section.part) + "\n"
    part, facts = results.parts[section.part], results.facts
    where = [
        *([f"at commit {part.commit}"] if part.commit != facts.get("commit", part.commit) else []),
        *([f"on {part.processors}"] if part.processors != facts.get("processors", part.processors) else []),
    ]
    if where:
        yield f"Measured {' '.join(where)}.\n"
    yield f"| | {FIRN} | {KAFKA} | | goal |"
    yield "|---|---|---|---|---|"
    for row, what, figure in rows:
        yield _line(row, what, figure)
    yield ""


def _line(row: Row, what: str, figure: Figure) -> str:
    ours, theirs = figure.spread(FIRN), figure.spread(KAFKA)
    ratio = _times(ours.median / theirs.median) if ours and theirs and theirs.median else ""
    goal = ""
    if row.goal is not None:
        sign, unit = "≥" if row.more_is_better else "≤", "×" if row.goal.is_ratio else figure.unit
        goal = f"{sign} {row.goal.bound:g} {unit}"
        if ours and row.is_met(ours.median, theirs.median if theirs else None) is False:
            goal = f"**{goal}: missed**"
    return f"| {what} | {_cell(ours, figure.unit)} | {_cell(theirs, figure.unit)} | {ratio} | {goal} |"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if ratio >= LEAST_OF_TWO_DIGITS else f"{ratio:.1g} ×"


def _cell(spread: Spread | None, unit: str) -> str:
    if spread is None:
        return ""
    around = "" if spread.least == spread.most else f" ({shown(spread.least)} to {shown(spread.most)})"
    return f"{amount(spread.median, unit)}{around}"


def _picture(name: str) -> str:
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{name}-dark.svg">'
        f'<img src="{name}-light.svg" alt="{name}"></picture>'
    )
