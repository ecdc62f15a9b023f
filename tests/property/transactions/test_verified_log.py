"""Verification against markers in every order: nothing is appended that no marker follows (X7)."""

from __future__ import annotations

import pytest

from tests.property.transactions.verified_log import PLANTS, VerifiedLog, Violation


@pytest.mark.parametrize("version", [1, 2])
def test_no_data_is_left_without_a_marker(version: int) -> None:
    appended = 0
    for seed in range(400):
        try:
            appended += VerifiedLog(seed, version).play()
        except Violation as e:
            pytest.fail(f"{e}: again with VerifiedLog({seed}, {version}).play()")
    assert appended > 300


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_found(plant: str) -> None:
    found = 0
    for seed in range(200):
        try:
            VerifiedLog(seed, 1, PLANTS[plant]).play()
        except Violation:
            found += 1
    assert found > 0
