"""Error codes in plain words, with what to do."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.advice import ADVICE, advised


def test_a_bare_code_is_told_in_words() -> None:
    error = RequestError(ErrorCode.non_empty_group, "group g: NON_EMPTY_GROUP")
    assert advised(error) == (
        "group g: the group has members (NON_EMPTY_GROUP);"
        " stop its consumers; 'firn group describe GROUP' names them"
    )
    assert advised(RequestError(ErrorCode.not_controller)).startswith(
        "this node is not the active controller"
    )


def test_a_reason_of_the_clusters_is_kept() -> None:
    error = RequestError(ErrorCode.invalid_partitions, "topic t: Topic has 3 (INVALID_PARTITIONS)")
    assert advised(error) == (
        "topic t: Topic has 3 (INVALID_PARTITIONS);"
        " a topic can only grow: name a number above the present one"
    )


def test_a_code_without_advice_stays_as_it_is() -> None:
    assert advised(RequestError(ErrorCode.unknown_server_error, "why")) == "why"


@pytest.mark.parametrize("code", ADVICE)
def test_advice_is_for_codes_of_kafka(code: str) -> None:
    assert code in {one.name.upper() for one in ErrorCode}
    meaning, act = ADVICE[code]
    assert meaning[0].islower()
    assert act
    assert not act.endswith(".")
