"""Audit line of an act: one line, whatever the names in it are, and never a long one."""

from __future__ import annotations

import logging

import pytest

from service.cli.log_lines import OneLineFormatter
from service.console.web.acts import audit


def test_a_name_can_neither_end_the_line_nor_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "firn.audit")
    items = ("a\n2026-01-01 INFO all is well", "b" * 40_000, *map(str, range(50)))
    line = audit.ActLine("groups-deleted", "groups deleted", items, "done", "r1")
    audit.tell(line, audit.SignedIn("s1", "10.0.0.7"))
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(r"groups deleted (52): a\n2026-01-01 INFO all is well, bbb")
    assert text.endswith(" and 32 more; done; by session s1 from 10.0.0.7, request r1")
    assert "\n" not in text
    assert len(text) < 1000
    assert record.audit["items"][0] == r"a\n2026-01-01 INFO all is well"  # type: ignore[attr-defined]
    assert record.audit["count"] == 52  # type: ignore[attr-defined]


def test_names_leave_room_for_who_has_done_it(caplog: pytest.LogCaptureFixture) -> None:
    """Each of these characters is ten as an escape, and a log cuts a message at 4,096."""
    caplog.set_level(logging.INFO, "firn.audit")
    for items in (("\U000e0001" * 600,), ("k" * 500,) * 100):
        line = audit.ActLine("groups-deleted", "groups deleted", items, "done", "r1")
        audit.tell(line, audit.SignedIn("s1", "10.0.0.7"))
        written = OneLineFormatter().format(caplog.records[-1])
        assert written.endswith("; done; by session s1 from 10.0.0.7, request r1")
