"""Results of acts on groups: what was done, what was refused, and what nobody knows."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.group_changes import PlaceErrors
from service.console.web.acts import group_acts
from service.console.web.acts.act import Act, ActOutcome, ActPreview, ActWorld, may_be_done

DENIED = RequestError(ErrorCode.group_authorization_failed, "GROUP_AUTHORIZATION_FAILED")
AWAY = RequestError(ErrorCode.coordinator_not_available, "COORDINATOR_NOT_AVAILABLE")


def carried_out(monkeypatch: pytest.MonkeyPatch, results: PlaceErrors) -> ActOutcome:
    """Return the outcome of a deletion of offsets whose broker answers so."""
    monkeypatch.setattr(group_acts, "delete_offsets", lambda *_: results)
    values = {"group": "billing", "topic": "t"}
    act: Act = group_acts.DELETE_OFFSETS.make(values, ActWorld(lambda: 0, lambda _: 0))
    return act.carry_out(cast("Any", None), ActPreview("billing", ("billing",), chosen=tuple(results)))


def test_an_act_that_no_partition_took_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"t-0: .*t-1: this user may not") as raised:
        carried_out(monkeypatch, {("t", 0): DENIED, ("t", 1): DENIED})
    assert not may_be_done(raised.value)


def test_one_partition_of_which_nobody_knows_leaves_the_act_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RequestError, match="t-1: the group's coordinator is not there") as raised:
        carried_out(monkeypatch, {("t", 0): DENIED, ("t", 1): AWAY})
    assert may_be_done(raised.value)


def test_done_refused_and_unknown_partitions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = carried_out(monkeypatch, {("t", 0): None, ("t", 1): DENIED, ("t", 2): AWAY})
    assert found.words == "1 of 3 partitions lost their offsets."
    assert [one.partition(":")[0] for one in found.problems] == ["t-1"]
    assert [one.partition(":")[0] for one in found.undecided] == ["t-2"]
