"""Plays all disasters, one after the other, and prints what was read back after each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

from simulator.apart import apart
from simulator.restore import alone, several
from simulator.restore.plants import PLANTS

Plant = Callable[[], None]


class Case(NamedTuple):
    """One disaster, and how it is played."""

    name: str
    play: Callable[[int, Plant | None, bool], str | None]


def cases_of(nodes: int) -> list[Case]:
    """Return the disasters of a cluster of this size."""
    if nodes > 1:
        return [
            Case(one.name, lambda seed, plant, tell, one=one: several.suffer(one, seed, plant, tell=tell))  # type: ignore[misc]
            for one in several.DISASTERS
        ]
    return [
        Case(one.name, lambda seed, plant, tell, one=one: alone.suffer(one, seed, plant, tell=tell))  # type: ignore[misc]
        for one in alone.DISASTERS
    ]


def _plants(cases: list[Case], seeds: range, names: list[str]) -> int:
    missed = 0
    for plant in PLANTS:
        if names and plant.__name__ not in names:
            continue
        found = _found(cases, seeds, plant)
        missed += found is None
        print(f"{plant.__name__:28s}  {found or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def _found(cases: list[Case], seeds: range, plant: Plant) -> str | None:
    tried = 0
    for seed in seeds:
        for case in cases:
            tried += 1
            problem = apart(lambda one=case, at=seed: one.play(at, plant, False))  # type: ignore[misc]
            if problem is not None:
                return f"{tried:3d} disasters, {case.name}: {problem}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """0 when everything was read back after each disaster."""
    parser = argparse.ArgumentParser(prog="python -m simulator.restore", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="of the cluster")
    parser.add_argument("--rounds", type=int, default=1, help="of all disasters, each with the next seed")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="disasters with these words in their name"
    )
    parser.add_argument("--trace", action="store_true", help="print acts and log lines")
    parser.add_argument(
        "--plants", nargs="*", metavar="NAME", help="put known defects back, or these: which is found by what"
    )
    given = parser.parse_args(arguments)
    cases = [case for case in cases_of(given.nodes) if given.only in case.name]
    if given.plants is not None:
        # Every other node can be joined by others, and keeps more of who may lead.
        seeds = range(given.seed, given.seed + max(given.rounds, 2))
        return _plants(cases, seeds, given.plants)
    wrong = 0
    for seed in range(given.seed, given.seed + given.rounds):
        for case in cases:
            problem = apart(lambda one=case, at=seed: one.play(at, None, given.trace))  # type: ignore[misc]
            wrong += problem is not None
            print(f"{seed:4d}  {case.name:58s}  {problem or 'all is read back'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
