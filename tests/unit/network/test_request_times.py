"""The whole time of requests, put together from what the server counts."""

from __future__ import annotations

from service.network.metrics import ApiMetrics


def test_each_request_counts_once_whether_it_was_answered_at_once_or_had_to_wait() -> None:
    api = ApiMetrics()
    api.swift, api.swift_s = 5, 0.002
    api.lengthy.observe(0.03)
    for waited_s in (0.00003, 0.0009, 0.002, 0.5, 7.0, 20.0, 100.0):
        api.later.observe(waited_s)
    total = api.total()
    assert total.bounds == (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
    assert total.counts == (7, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 2)
    assert total.observed == 13
    assert round(total.total, 6) == round(0.032 + 0.00093 + 0.002 + 0.5 + 127, 6)
