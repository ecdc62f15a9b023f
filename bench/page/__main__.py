"""`python -m bench.page [--quick] [PART …]`, as `make bench-page`: all benches, their figures, and the page.

Writes docs/benchmarks/figures.json after each part, charts (SVG) and README.md. With names of parts only
these are measured again; the others stay as the file has them. So do soaks (`nothing`, `mixed`: 45 minutes)
unless they are named. `--draw` measures nothing. A part that fails is told on the page, and the others go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import read_figures
from bench.page.facts import ROOT, facts
from bench.page.parts import PARTS, without_soaks
from bench.page.results import PartResult, Results, read_results
from bench.page.rows import CURVES, SECTIONS
from bench.page.text import page
from bench.parts import parts_of
from bench.tiered_kafka import tiered_kafka_is_here

FOLDER = ROOT / "docs" / "benchmarks"
_PATIENCE_S = 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all but soaks"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds of the parts that are quick, a quarter of an hour"
    )
    parser.add_argument("--without-kafka", action="store_true", help="Firn alone")
    parser.add_argument("--draw", action="store_true", help="draw what is there, measure nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="(default: docs/benchmarks)")
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, list(PARTS)) if arguments.names else without_soaks()
    with_kafka = not arguments.without_kafka
    if with_kafka and not arguments.draw and not tiered_kafka_is_here():
        parser.error("Apache Kafka's jars are not all here: make fetch-tools, or --without-kafka")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / "figures.json"
    results = Results(arguments.quick, facts())
    if (arguments.names or arguments.draw) and file.exists():
        known = read_results(file)
        results = known if arguments.draw else Results(arguments.quick, facts(), known.parts)
    elif file.exists():
        soaks = PARTS.keys() - without_soaks()
        kept = {name: one for name, one in read_results(file).parts.items() if name in soaks}
        results = Results(arguments.quick, facts(), kept)
    for name in () if arguments.draw else names:
        commands = PARTS[name].commands(is_quick=arguments.quick, with_kafka=with_kafka)
        if not commands:
            print(f"== {name}: left out of {'a quick run' if arguments.quick else 'a run without Kafka'}")
            continue
        part = measured(commands)
        part.commit, part.processors = results.facts["commit"], results.facts["processors"]
        results.parts[name] = part
        results.write(file)
    draw(results, arguments.folder)
    ran = list(results.parts) if arguments.draw else names
    failed = [name for name in ran if name in results.parts and results.parts[name].failed is not None]
    print(f"{arguments.folder / 'README.md'}; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


def measured(commands: Sequence[Sequence[str]]) -> PartResult:
    """Run the commands of a part, and read their figures."""
    result, began = PartResult(), time.monotonic()
    for words in commands:
        print(f"== {' '.join(words)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="firn-page-") as folder:
            result.failed = _run(words, Path(folder) / "figures.json", result)
        if result.failed is not None:
            break
    result.seconds = time.monotonic() - began
    return result


def _run(words: Sequence[str], file: Path, result: PartResult) -> str | None:
    """Add the figures of one run; return why it failed."""
    command = [sys.executable, "-m", *words, "--json", str(file)]
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=_PATIENCE_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"`{' '.join(words)}` did not end within {_PATIENCE_S:.0f} s"
    if code != 0 or not file.exists():
        return f"`{' '.join(words)}` ended with {code}"
    result.figures.add(read_figures(file))
    return None


def draw(results: Results, folder: Path) -> None:
    """Write charts and page."""
    from bench.page.charts import draw_bars, draw_curves  # with matplotlib, which only `make spark` brings

    drawn = {one.part for one in SECTIONS if draw_bars(results, one, folder, one.part)}
    if draw_curves(results, folder, CURVES):
        drawn.add(CURVES)
    (folder / "README.md").write_text(page(results, drawn), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
