"""A few cases of the sweep, one of a kind; `make sim-sweep` plays them all."""

from __future__ import annotations

from simulator.apart import apart
from simulator.sweep import UNREACHED, bit_cases, disk_cases, dry_run, run_cases, store_cases


def test_a_call_that_fails_and_a_bit_that_flips_break_no_promise() -> None:
    workload = apart(dry_run)
    disk, store = list(disk_cases(workload.disk_calls)), list(store_cases(workload.store_calls))
    bits = list(bit_cases([*workload.files, *workload.objects], 1))
    cases = [*disk[:: len(disk) // 25], *store[:: len(store) // 15], *bits[:: len(bits) // 15]]
    results = run_cases(cases)
    assert {result.case for result in results} == set(cases)
    assert not [f"{result.case}: {result.problem}" for result in results if result.problem is not None]
    assert not [str(result.case) for result in results if result.outcome == UNREACHED]
