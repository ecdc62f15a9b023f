"""`python -m bench.latency [--only NAME …] [--check]`: an innocent client beside something nasty.

The client (`bench.innocent`) makes 1,000 requests a second, by turns a produce of one small record and a
fetch of the newest, and its times count from when each request is due. Each row (`bench.rows`) has a node
of its own, with 10,000 partitions of which nobody speaks. `loop` is the longest turn of the node's loop
meanwhile and who held it, as far as the node tells; `own` is how late the client itself was at worst: where
that is large, the machine was busy with something else. `before` is the client's p99 in the same node just
before the act, and `times` how many times that its p99 is beside it.

Some rows have a control, in which the same is done by the same processes to a second node, with a process and
a directory of its own, while the client's does nothing else. What the client feels there comes of sharing the
machine; what it feels beyond that, of sharing a node.
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
from bench.rows import CONTROLS, ROWS
from bench.stage import TOPIC, Stage

WORST_P99_S, WORST_S, LONGEST_TURN_S = 0.010, 0.100, 0.050
BEFORE_S, BEFORE_LONG_S = 2, 10
PARTITIONS = 10_000


class Result(NamedTuple):
    """Result of one row."""

    before: Felt
    """the same node in the seconds before"""
    felt: Felt
    turn_s: float
    """the longest turn of the loop; 0 where none was over 10 ms"""
    who: str
    note: str
    seconds: float
    """how long the nasty act took"""

    @property
    def times(self) -> float:
        """The p99 beside the act in times of that before it."""
        return self.felt.p99 / self.before.p99


def measure(name: str, folder: Path, scale: float, beside: int) -> Result:
    """One row, from an empty folder to its figures."""
    row = ROWS[name]
    with ExitStack() as stack:
        stage = Stage(folder, row, scale, beside, stack)
        act = row.prepare(stage)
        for node in {stage.node, stage.asked}:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, node.pid, -5)
        with Innocent(stage.bootstrap, TOPIC) as innocent:
            time.sleep(1)
            innocent.begin()
            time.sleep(BEFORE_LONG_S if row.most_times or row.is_apart else BEFORE_S)
            before = innocent.end()
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
        return Result(before, felt, turn_s, who, note, seconds)


def _longest_turn(stage: Stage, seconds: float) -> tuple[float, str]:
    """Return the longest turn of the last `seconds` in s, and its name, from the node's ``/turns``."""
    with urllib.request.urlopen(stage.http + "/turns", timeout=30) as answer:
        told = json.load(answer)
    turns = told["longest"] + told["latest"]
    found = [(one["took_ms"] / 1000, one["who"]) for one in turns if one["ended_s_ago"] <= seconds]
    return max(found, default=(0.0, ""))


def _broken(result: Result, most_times: float) -> list[str]:
    """The bounds that `result` is over, in words."""
    felt = result.felt
    bounds = (
        ("p99", felt.p99, WORST_P99_S),
        ("worst", felt.worst, WORST_S),
        ("turn", result.turn_s, LONGEST_TURN_S),
    )
    found = [
        f"{what} {1000 * value:.0f} ms > {1000 * most:.0f} ms" for what, value, most in bounds if value > most
    ]
    if most_times and result.times > most_times:
        found.append(f"p99 {result.times:.2f} times that before > {most_times:g} times")
    return found


def _line(name: str, result: Result) -> str:
    times = _times(result.felt)
    turn = f"{1000 * result.turn_s:>9.0f}" if result.turn_s else f"{'<10':>9}"
    before = f"{1000 * result.before.p99:>9.1f}{result.times:>7.1f}"
    return f"{name:<18}{times}{turn}{before}{result.seconds:>8.1f}  {result.note}"


def _times(felt: Felt) -> str:
    return "".join(
        f"{1000 * value:>9.2f}" for value in (felt.p50, felt.p99, felt.p999, felt.worst, felt.late)
    )


def _against_control(name: str, of: Felt, control: Felt) -> str:
    """Each figure of a row in times of its control's."""
    found = (getattr(of, one) / getattr(control, one) for one in ("p50", "p99", "p999", "worst"))
    return f"{name:<18}" + "".join(f"{times:>8.2f}x" for times in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=ROWS, help=f"of {', '.join(ROWS)}")
    parser.add_argument(
        "--check", action="store_true", help="fail where a bound is broken (not of `nothing`)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of the nasty things (default: 1)")
    parser.add_argument(
        "--beside", type=int, default=PARTITIONS, help="partitions that are there, too (default: 10,000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="the best of so many rounds is shown (default: 1)"
    )
    arguments = parser.parse_args()
    head = ("p50", "p99", "p99.9", "worst", "own", "loop", "before")
    titles = "".join(f"{one:>9}" for one in head)
    print(f"{'milliseconds':<18}{titles}{'times':>7}{'act s':>8}", flush=True)
    broken: dict[str, list[str]] = {}
    felt: dict[str, Felt] = {}
    with tempfile.TemporaryDirectory(prefix="firn-latency-") as name:
        for row in arguments.only or ROWS:
            try:
                results = [
                    measure(row, Path(name) / f"{row}-{number}", arguments.scale, arguments.beside)
                    for number in range(arguments.rounds)
                ]
            except Exception as e:
                traceback.print_exc()
                print(f"{row:<18}failed: {e}"[:300], flush=True)
                broken[row] = ["failed"]
                continue
            best = min(results, key=lambda one: one.felt.worst)
            felt[row] = best.felt
            print(_line(row, best), flush=True)
            if row in CONTROLS or row in CONTROLS.values():
                print(f"{'    before it':<18}{_times(best.before)}", flush=True)
            if best.who:
                print(f"    held by {best.who[:300]}", flush=True)
            if row != "nothing" and (found := _broken(best, ROWS[row].most_times)):
                broken[row] = found
    for row, control in CONTROLS.items():
        if row in felt and control in felt:
            print(_against_control(f"{row} / control", felt[row], felt[control]), flush=True)
    for row, found in broken.items():
        print(f"over: {row}: {', '.join(found)}", file=sys.stderr)
    failed = any(found == ["failed"] for found in broken.values())
    return 1 if failed or (broken and arguments.check) else 0


if __name__ == "__main__":
    sys.exit(main())
