"""Heartbeats of KIP-848 that are refused, and writes that fail."""

from __future__ import annotations

from itertools import repeat
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import RequestError
from service.groups.consumer.requests import MOST_OWNED
from service.groups.consumer_config import ConsumerConfig
from service.groups.protocol import MOST_NAMES
from tests.unit.groups.consumers import NOW, E, consumers


@pytest.mark.parametrize(
    ("about", "version"),
    [
        ({"member_id": ""}, 1),
        ({"member_id": "", "epoch": 3}, 0),
        ({"member_id": "", "epoch": -1}, 0),
        ({"group_id": ""}, 1),
        ({"instance": ""}, 1),
        ({"rack": " "}, 1),
        ({"group_id": "\0"}, 1),
        ({"instance": "\x1f\t "}, 1),
        ({"timeout_ms": -1}, 1),
        ({"has": None}, 1),
        ({"has": [(UUID(int=1), 0)]}, 1),
        ({"names": None}, 1),
        ({"epoch": -2}, 1),
        ({"epoch": -3}, 1),
        ({"member_id": "m" * 40_000}, 1),
        ({"group_id": "g" * 40_000}, 1),
        ({"names": [f"t{n}" for n in range(MOST_NAMES + 1)]}, 1),
        ({"epoch": 1, "has": list(zip(repeat(UUID(int=1)), range(MOST_OWNED), strict=False))}, 1),
    ],
)
def test_a_malformed_heartbeat_is_an_invalid_request(about: dict[str, Any], version: int) -> None:
    c = consumers()
    given = {"member_id": "a", "epoch": 0, "names": ("apples",), "has": (), "timeout_ms": 1000, **about}
    answer = c.answer(c.beat(version=version, **given))
    assert (answer.error_code, bool(answer.error_message)) == (E.invalid_request, True)
    assert not c.leader.log


def test_ids_of_spaces_that_java_does_not_trim_are_taken() -> None:
    c = consumers()
    answer = c.enter("a", "apples", group_id="\u2028", instance="\u00a0", rack="\x85")
    assert answer.error_code == E.none


def test_a_member_of_version_0_is_given_its_id() -> None:
    c = consumers()
    one = c.enter("", "apples", version=0)
    other = c.enter("", "apples", version=0)
    assert one.member_id != other.member_id
    assert len(one.member_id) == 22
    assert set(c.world.group().members) == {one.member_id, other.member_id}


def test_refusals_leave_group_and_log_as_they_were() -> None:
    c = consumers(ConsumerConfig(assignment_interval_ms=0, max_size=1))
    assert c.says("a", 3).error_code == E.group_id_not_found
    assert c.says("a", -1).error_code == E.group_id_not_found
    epoch = c.enter("a", "apples").member_epoch
    log, members = list(c.leader.log), dict(c.world.group().members.items())
    assert c.enter("b", "apples").error_code == E.group_max_size_reached
    assert c.says("a", epoch, assignor="best").error_code == E.unsupported_assignor
    assert c.says("b", -1).error_code == E.unknown_member_id
    assert c.says("a", epoch + 1).error_code == E.fenced_member_epoch
    c.world.config = NOW
    assert c.says("b", epoch).error_code == E.unknown_member_id
    assert c.leader.log == log
    assert dict(c.world.group().members.items()) == members


def test_a_write_that_fails_changes_nothing() -> None:
    c = consumers()
    epoch = c.enter("a", "apples").member_epoch
    before = dict(c.world.group().members.items())
    c.leader.failing = E.coordinator_not_available
    failed = c.beat("b", 0, names=("apples",), has=(), timeout_ms=1000)
    assert isinstance(c.leader.answers[failed], RequestError)
    c.leader.failing = None
    assert dict(c.world.group().members.items()) == before
    assert c.says("a", epoch).member_epoch == epoch
    assert c.enter("b", "apples").error_code == E.none
