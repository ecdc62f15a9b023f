"""Many histories of the machines world, and how long a planted bug takes to be found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from simulator.machines.plants import PLANTS
from simulator.machines.world import MachinesWorld, Result

WITHIN = 2000
"""histories in which a planted bug is to be found"""
_CHUNK = 20


def play(seed: int, plant: str | None = None) -> Result:
    """Play the history of `seed`, with the planted bug `plant` if named."""
    return MachinesWorld(seed, PLANTS[plant] if plant is not None else None).play()


def play_many(seeds: Sequence[int], jobs: int) -> Iterator[Result]:
    """Play histories in `jobs` processes; yield the results in the seeds' order."""
    if jobs == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, seeds, chunksize=_CHUNK)


class Found(NamedTuple):
    """`histories` is None for a bug that was not found."""

    plant: str
    histories: int | None
    problem: str
    seconds: float


def find(plant: str, first: int = 1, within: int = WITHIN) -> Found:
    """Play until the bug shows."""
    began = time.monotonic()
    for number in range(within):
        result = play(first + number, plant)
        if result.problem is not None:
            return Found(plant, number + 1, result.problem, time.monotonic() - began)
    return Found(plant, None, "", time.monotonic() - began)


def find_all(names: Sequence[str], jobs: int) -> Iterator[Found]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(find, names)


def tell(seeds: Sequence[int], jobs: int) -> bool:
    """Print what failed and how fast it went; whether all were clean."""
    began, events, virtual_s, bad = time.monotonic(), 0, 0.0, 0
    for result in play_many(seeds, jobs):
        events += result.events
        virtual_s += result.virtual_s
        if result.problem is not None:
            bad += 1
            print(f"seed {result.seed}: {result.problem}", flush=True)
    seconds, count = time.monotonic() - began, len(seeds)
    print(
        f"machines: {count - bad} of {count} histories clean in {seconds:.0f} s on {jobs} core(s): "
        f"{count / seconds:.1f} histories/s of {virtual_s / count:.1f} virtual s and {events // count} events"
    )
    return bad == 0


def tell_plants(names: Sequence[str], jobs: int) -> bool:
    """Print after how many histories each planted bug was found; whether all were."""
    missed = 0
    for found in find_all(names, jobs):
        missed += found.histories is None
        after = "NOT FOUND" if found.histories is None else f"after {found.histories:4}"
        print(f"{found.plant:34} {after}  {found.seconds:6.1f} s  {found.problem[:90]}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs found within {WITHIN} histories")
    return missed == 0
