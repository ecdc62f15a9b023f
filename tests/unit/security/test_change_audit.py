"""Lines of the audit log about changes: who has done it stands in each, however long the names are."""

from __future__ import annotations

import logging

import pytest

from service.base.printable import printable
from service.cli.log_lines import OneLineFormatter
from service.security.audited_change import AuditedChange
from service.security.change_audit import Requester, tell

ASKER = Requester("User:mallory", "10.0.0.7", "console")
WHO = "; by User:mallory from 10.0.0.7, client id 'console'"


@pytest.mark.parametrize(
    ("names", "count", "said"),
    [
        # A topic's longest name, and a group's id of characters that are ten as an escape.
        (["t" * 249] * 20, 20, f"{'t' * 249} and 15 more{WHO}"),
        ([printable("\U000e0001" * 256)] * 2, 2, f"… and 1 more{WHO}"),
        (["a", "b"], 30, f": a, b and 28 more{WHO}"),
        (["a", "b"], 2, f": a, b{WHO}"),
    ],
)
def test_a_log_that_cuts_its_lines_tells_who_has_done_it(
    names: list[str], count: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "firn.audit")
    tell(AuditedChange("topics-created", "topics created", names, count), ASKER)
    (record,) = caplog.records
    assert OneLineFormatter().format(record).endswith(said)
    assert record.audit["items"] == names  # type: ignore[attr-defined]
