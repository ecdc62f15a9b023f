"""A few cases of the sweep, one of a kind; `make sim-sweep` plays them all."""

from __future__ import annotations

import pytest

from simulator.apart import apart
from simulator.sweep import Case, bit_cases, disk_cases, dry_run, run_case, store_cases


def _cases() -> list[Case]:
    disk_calls, store_calls, files, objects = apart(dry_run)
    disk, store = list(disk_cases(disk_calls)), list(store_cases(store_calls))
    bits = list(bit_cases([*files, *objects], 1))
    return [*disk[:: len(disk) // 8], *store[:: len(store) // 6], *bits[:: len(bits) // 6]]


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_a_call_that_fails_and_a_bit_that_flips_break_no_promise(case: Case) -> None:
    result = apart(lambda: run_case(case))
    assert result.problem is None, result.problem
