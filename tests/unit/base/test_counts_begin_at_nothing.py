"""A node that has done nothing has counted nothing."""

from __future__ import annotations

from dataclasses import fields

import pytest

from service.hot.metrics import HotMetrics
from service.replication.metrics import ReplicationMetrics
from service.tiering.metrics import TieringMetrics


@pytest.mark.parametrize("counts", [HotMetrics(), ReplicationMetrics(), TieringMetrics()])
def test_all_counters_start_at_zero(counts: HotMetrics | ReplicationMetrics | TieringMetrics) -> None:
    plain = {one.name: getattr(counts, one.name) for one in fields(counts)}
    numbers = {name: value for name, value in plain.items() if isinstance(value, int | float)}
    assert numbers
    assert set(numbers.values()) == {0}
