"""Each planted defect can still be planted, and one of them is found."""

from __future__ import annotations

import pytest

from simulator.apart import apart
from simulator.plant import DEFECTS, Defect, duplicates_accepted, find


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.__name__)
def test_a_defect_can_be_planted(defect: Defect) -> None:
    apart(defect)


@pytest.mark.timeout(600)
def test_a_planted_defect_is_found() -> None:
    found = find(duplicates_accepted, 60, first=245)
    assert found is not None
    assert "is at" in found[1]
