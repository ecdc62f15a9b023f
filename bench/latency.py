"""`python -m bench.latency [--only NAME …] [--check]`: an innocent client beside something nasty.

The client (`bench.innocent`) makes 1,000 requests a second, by turns a produce of one small record and a
fetch of the newest, and its times count from when each request is due. Each row (`bench.nasty`) has a node
of its own. `loop` is the longest turn of the node's loop meanwhile and who held it, as far as the node
tells; `own` is how late the client itself was at worst: where that is large, the machine was busy with
something else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.innocent import Felt, Innocent
from bench.nasty import ROWS, TOPIC, Stage

WORST_P99_S, WORST_S, LONGEST_TURN_S = 0.010, 0.100, 0.050


class Result(NamedTuple):
    """What one row did."""

    felt: Felt
    turn_s: float
    """the longest turn of the loop; 0 where none was over 10 ms"""
    who: str
    note: str
    seconds: float
    """how long the nasty act took"""


def measure(name: str, folder: Path, scale: float) -> Result:
    """One row, from an empty folder to its figures."""
    row = ROWS[name]
    with ExitStack() as stack:
        stage = Stage(folder, row, scale, stack)
        act = row.prepare(stage)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, stage.node.pid, -5)
        with Innocent(stage.bootstrap, TOPIC) as innocent:
            time.sleep(1)
            began = time.monotonic()
            innocent.begin()
            time.sleep(0.3)
            started = time.monotonic()
            note = act() or ""
            seconds = time.monotonic() - started
            time.sleep(0.3)
            felt = innocent.end()
        turn_s, who = _longest_turn(stage, time.monotonic() - began)
        if not stage.node.running:
            raise AssertionError(f"the node has ended: {stage.node.log()}")
        return Result(felt, turn_s, who, note, seconds)


def _longest_turn(stage: Stage, seconds: float) -> tuple[float, str]:
    """Of the last `seconds`, as the node tells."""
    with urllib.request.urlopen(stage.http + "/turns", timeout=30) as answer:
        told = json.load(answer)
    turns = told["longest"] + told["latest"]
    found = [(one["took_ms"] / 1000, one["who"]) for one in turns if one["ended_s_ago"] <= seconds]
    return max(found, default=(0.0, ""))


def _broken(result: Result) -> list[str]:
    """The bounds that `result` is over, in words."""
    felt = result.felt
    bounds = (
        ("p99", felt.p99, WORST_P99_S),
        ("worst", felt.worst, WORST_S),
        ("turn", result.turn_s, LONGEST_TURN_S),
    )
    return [
        f"{what} {1000 * value:.0f} ms > {1000 * most:.0f} ms" for what, value, most in bounds if value > most
    ]


def _line(name: str, result: Result) -> str:
    felt = result.felt
    times = "".join(
        f"{1000 * value:>9.1f}" for value in (felt.p50, felt.p99, felt.p999, felt.worst, felt.late)
    )
    turn = f"{1000 * result.turn_s:>9.0f}" if result.turn_s else f"{'<10':>9}"
    return f"{name:<18}{times}{turn}{result.seconds:>8.1f}  {result.note}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=ROWS, help=f"of {', '.join(ROWS)}")
    parser.add_argument(
        "--check", action="store_true", help="fail where a bound is broken (not of `nothing`)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of the nasty things (default: 1)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="the best of so many rounds is shown (default: 1)"
    )
    arguments = parser.parse_args()
    head = ("p50", "p99", "p99.9", "worst", "own", "loop")
    print(f"{'milliseconds':<18}" + "".join(f"{one:>9}" for one in head) + f"{'act s':>8}", flush=True)
    broken: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="firn-latency-") as name:
        for row in arguments.only or ROWS:
            try:
                results = [
                    measure(row, Path(name) / f"{row}-{number}", arguments.scale)
                    for number in range(arguments.rounds)
                ]
            except Exception as e:
                traceback.print_exc()
                print(f"{row:<18}failed: {e}"[:300], flush=True)
                broken[row] = ["failed"]
                continue
            best = min(results, key=lambda one: one.felt.worst)
            print(_line(row, best), flush=True)
            if best.turn_s > LONGEST_TURN_S:
                print(f"    held by {best.who[:300]}", flush=True)
            if row != "nothing" and (found := _broken(best)):
                broken[row] = found
    for row, found in broken.items():
        print(f"over: {row}: {', '.join(found)}", file=sys.stderr)
    failed = any(found == ["failed"] for found in broken.values())
    return 1 if failed or (broken and arguments.check) else 0


if __name__ == "__main__":
    sys.exit(main())
