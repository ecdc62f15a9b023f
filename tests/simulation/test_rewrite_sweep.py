"""Calls of the store that fail amid a merge and an order to erase keys: a few of them, and all."""

from __future__ import annotations

import pytest

from simulator.apart import apart
from simulator.rewrite_sweep import WORKS, cases_of, dry_run, run_cases
from simulator.sweep import UNREACHED, Result


def swept(name: str, *, every: int) -> list[Result]:
    """Play one case of so many, of all of them."""
    work = WORKS[name]
    cases = cases_of(apart(lambda: dry_run(work)))
    return run_cases(work, cases[::every])


def check(results: list[Result]) -> None:
    assert not [f"{result.case}: {result.problem}" for result in results if result.problem is not None]
    assert not [str(result.case) for result in results if result.outcome == UNREACHED]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WORKS)
def test_a_call_that_fails_amid_it_leaves_nothing_and_loses_nothing(name: str) -> None:
    check(swept(name, every=151))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORKS)
def test_any_call_that_fails_amid_it_leaves_nothing_and_loses_nothing(name: str) -> None:
    results = swept(name, every=1)
    assert len(results) > 100
    check(results)
