"""A trouble that lasts: one warning, then rarely, and one line when it is over."""

from __future__ import annotations

import logging

import pytest

from service.base.clock import ManualClock
from service.console.web.trouble_log import TroubleLog


def test_ten_minutes_of_failures_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    log = TroubleLog(logging.getLogger("trouble"), clock)
    log.over("it is back")
    for _ in range(300):
        log.failed("waiting for %s", "a:1")
        clock.advance(2_000)
    assert [one.getMessage() for one in caplog.records] == ["waiting for a:1"]
    for _ in range(300):
        log.failed("waiting for %s", "a:1")
        clock.advance(2_000)
    assert [one.getMessage() for one in caplog.records][1:] == ["waiting for a:1 (for 15 min now)"]
    log.over("it is back")
    log.over("it is back")
    assert [one.getMessage() for one in caplog.records][2:] == ["it is back"]
    log.failed("waiting for %s", "b:1")
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING", "INFO", "WARNING"]
