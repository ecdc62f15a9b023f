"""Lines that a peer can cause are bounded, and what is left out is counted."""

from __future__ import annotations

import logging

import pytest

from service.base.rate_limited_log import RateLimitedLog


def test_lines_beyond_the_burst_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RateLimitedLog(logging.getLogger("limited"), burst=3, interval_s=10, now=lambda: now)
    with caplog.at_level(logging.WARNING, "limited"):
        for i in range(8):
            log.warning("line %d", i)
        assert [record.getMessage() for record in caplog.records] == ["line 0", "line 1", "line 2"]
        now = 10.0
        log.warning("line %d", 8)
        log.warning("line %d", 9)
    assert [record.getMessage() for record in caplog.records[3:]] == [
        "line 8 (5 lines like this were left out)",
        "line 9",
    ]


def test_a_percent_sign_in_an_argument_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("limited"), now=lambda: 0.0)
    with caplog.at_level(logging.WARNING, "limited"):
        log.warning("closed %s", "100% %s %d")
    assert caplog.records[0].getMessage() == "closed 100% %s %d"
