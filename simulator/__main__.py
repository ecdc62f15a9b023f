"""Plays histories: `python -m simulator --seed N --histories M`, as `make sim SEED=… HISTORIES=…` does."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Final

import service.inspect.fsck  # what every history needs is loaded once, before the first fork
from simulator.acts import ACTS
from simulator.history import Outcome, draw, play_apart, play_many
from simulator.shrink import kind_of, shrink
from simulator.transcript import transcript

_ = service.inspect.fsck

PROGRESS_S: Final = 20.0
"""between two lines that say how far it is"""


def main(arguments: list[str] | None = None) -> int:
    """0 when every history was clean."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the others follow it")
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--only", help="kinds of acts that may exist, comma-separated, instead of a draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="histories at a time")
    parser.add_argument("--shrink-seconds", type=float, default=20.0, help="spent on each kind of failure")
    parser.add_argument("--kinds", type=int, default=5, help="kinds of failures that are told in full")
    parser.add_argument("--trace", action="store_true", help="print every event, for one history")
    given = parser.parse_args(arguments)
    only = given.only.split(",") if given.only is not None else None
    unknown = set(only or ()) - set(ACTS) - {""}
    if unknown:
        parser.error(f"no such acts: {', '.join(sorted(unknown))}; there are {', '.join(ACTS)}")
    if given.histories == 1:
        return _one(given.seed, only, given.trace)
    began = time.monotonic()
    failed: dict[str, list[Outcome]] = {}
    clean, events, virtual_s = 0, 0, 0.0
    told = began
    seeds = range(given.seed, given.seed + given.histories)
    for number, outcome in enumerate(play_many(seeds, only, given.jobs), 1):
        if outcome.problem is not None:
            print(f"seed {outcome.seed}: {outcome.problem.splitlines()[0]}", flush=True)
        events += outcome.events
        virtual_s += outcome.virtual_s
        if outcome.problem is None:
            clean += 1
        else:
            failed.setdefault(kind_of(outcome.problem), []).append(outcome)
        now = time.monotonic()
        if now - told > PROGRESS_S:
            told = now
            print(f"{number} of {given.histories}: {clean} clean, {now - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    for outcomes in sorted(failed.values(), key=len, reverse=True)[: given.kinds]:
        plan = draw(outcomes[0].seed, only)
        small, outcome = shrink(plan, outcomes[0].problem or "", seconds=given.shrink_seconds)
        print("\n".join(transcript(outcome, small, len(plan.acts))), end="\n\n")
    for kind, outcomes in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"{len(outcomes):5} × {kind}   seeds {', '.join(str(one.seed) for one in outcomes[:8])}")
    print(
        f"{clean} of {given.histories} histories clean in {seconds:.0f} s: {given.histories / seconds:.1f} "
        f"histories/s, {events} events, {virtual_s / 3600:.1f} virtual hours"
    )
    return 0 if not failed else 1


def _one(seed: int, only: list[str] | None, everything: bool) -> int:
    plan = draw(seed, only)
    outcome = play_apart(plan, keep_all=everything)
    if everything:
        print("\n".join(map(str, outcome.lines)))
    if outcome.problem is not None:
        small, smallest = shrink(plan, outcome.problem)
        print("\n".join(transcript(smallest, small, len(plan.acts))))
    print(f"seed {seed}: trace {outcome.digest}, {outcome.events} events, {outcome.virtual_s:.1f} virtual s")
    return 0 if outcome.problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
