"""Changes of groups that are tried again: what a try has done whose coordinator did not know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client import group_changes


def deleted(monkeypatch: pytest.MonkeyPatch, *codes: ErrorCode) -> None:
    """Delete a group whose coordinator answers so, one after the other."""
    answers = iter(codes)

    def answer(*_: object) -> Any:
        return SimpleNamespace(results=(SimpleNamespace(error_code=next(answers)),))

    monkeypatch.setattr(group_changes, "_at_coordinator", answer)
    group_changes.delete_group(cast("Any", None), lambda: True, "billing")


def test_a_group_that_is_gone_at_the_second_try_was_deleted_by_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deleted(monkeypatch, ErrorCode.coordinator_not_available, ErrorCode.group_id_not_found)


@pytest.mark.parametrize("before", [(), (ErrorCode.not_coordinator,)])
def test_a_group_that_was_never_there_is_told(
    before: tuple[ErrorCode, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="GROUP_ID_NOT_FOUND"):
        deleted(monkeypatch, *before, ErrorCode.group_id_not_found)
