"""Histories of one node: hundreds of them clean, each the same whenever it is played."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator import apart
from simulator.history import draw, play_apart, play_many

ROOT = Path(__file__).resolve().parents[2]


def _traces(seeds: str, hash_seed: str) -> str:
    program = (
        "from simulator.history import draw, play_apart, play_many\n"
        f"for seed in [{seeds}]:\n"
        "    outcome = play_apart(draw(seed))\n"
        "    print(seed, outcome.digest, outcome.events, outcome.problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_same_seed_is_the_same_trace_under_any_hash_seed() -> None:
    one = _traces("7, 8, 9, 10, 11, 12", "1")
    assert len(one.splitlines()) == 6
    assert one == _traces("7, 8, 9, 10, 11, 12", "4242")


def test_other_seeds_are_other_traces() -> None:
    assert play_apart(draw(7)).digest != play_apart(draw(8)).digest


@pytest.mark.parametrize(
    "first", [1, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(51, 301, 50))]
)
def test_fifty_histories_are_clean(first: int) -> None:
    seeds = []
    for outcome in play_many(range(first, first + 50), None, os.cpu_count() or 1):
        again = f"make sim SEED={outcome.seed} HISTORIES=1"
        assert outcome.problem is None, f"{outcome.problem}\nagain: {again}"
        seeds.append(outcome.seed)
    assert sorted(seeds) == list(range(first, first + 50))


def test_a_child_that_hangs_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "HANGS_S", 0.2)
    with pytest.raises(RuntimeError, match="died, or hung"):
        apart.apart(lambda: time.sleep(3600))
