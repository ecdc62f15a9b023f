"""Verification guards: what may be appended to a transaction that is not open here."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import at_once
from service.hot.log import LocalLog
from service.hot.verification import VERIFICATION_OFF, VerificationGuard
from service.records.validation import AppendOrigin
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.hot.transactional import abort, commit, send

PID = 7


def tried(
    log: LocalLog,
    guard: VerificationGuard | None,
    sequence: int = 0,
    *,
    epoch: int = 0,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> int | ErrorCode:
    one = batch(producer_id=PID, epoch=epoch, sequence=sequence, is_transactional=True)
    try:
        return log.append(one._replace(origin=origin), 0, START_MS, guard).first_offset
    except RequestError as e:
        return e.code


def begun(
    log: LocalLog, sequence: int = 0, *, epoch: int = 0, is_tv2: bool = False
) -> VerificationGuard | None:
    return log.begin_verification(PID, epoch, sequence, is_tv2)


@pytest.mark.parametrize("origin", list(AppendOrigin))
def test_the_first_batch_of_a_transaction_needs_the_partitions_guard(
    tmp_path: Path, origin: AppendOrigin
) -> None:
    log = open_log(tmp_path)
    sequence = 0 if origin is AppendOrigin.CLIENT else -1
    assert tried(log, None, sequence, origin=origin) is ErrorCode.invalid_txn_state
    guard = begun(log, sequence)
    assert tried(log, VerificationGuard(), sequence, origin=origin) is ErrorCode.invalid_txn_state
    assert tried(log, None, sequence, origin=origin) is ErrorCode.invalid_txn_state
    assert tried(log, guard, sequence, origin=origin) == 0
    assert begun(log) is None


def test_an_append_and_a_marker_take_the_guard_away(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log)
    assert tried(log, guard) == 0
    commit(log, PID)
    assert tried(log, guard, 1) is ErrorCode.invalid_txn_state
    late = begun(log, 1)
    assert late is not guard
    abort(log, PID)
    assert tried(log, late, 1) is ErrorCode.invalid_txn_state


def test_a_guard_of_the_second_protocol_outlives_the_marker_that_gave_its_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, PID, 0)
    guard = begun(log, epoch=1, is_tv2=True)
    commit(log, PID, epoch=1, version=2)
    assert tried(log, guard, epoch=1) == 2
    other = begun(log, epoch=2, is_tv2=True)
    commit(log, PID, epoch=3, version=2)
    assert tried(log, other, epoch=3) is ErrorCode.invalid_txn_state


def test_a_guard_of_the_first_protocol_goes_with_any_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log, epoch=1)
    commit(log, PID, epoch=1)
    assert tried(log, guard, epoch=1) is ErrorCode.invalid_txn_state


def test_an_older_epoch_is_refused_before_the_guard_is_looked_at(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    commit(log, PID, epoch=3)
    assert tried(log, None, epoch=2) is ErrorCode.invalid_producer_epoch
    with pytest.raises(RequestError) as error:
        begun(log, epoch=2)
    assert error.value.code is ErrorCode.invalid_producer_epoch


def test_a_duplicate_is_found_before_the_guard_is_looked_at(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, PID, 0)
    commit(log, PID)
    assert tried(log, None) == 0
    assert tried(log, None, 1) is ErrorCode.invalid_txn_state


def test_nothing_is_appended_behind_the_lowest_sequence_that_was_asked_about(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log, 5)
    assert begun(log, 2) is guard
    assert begun(log, 7) is guard
    assert tried(log, guard, 5) is ErrorCode.out_of_order_sequence_number
    assert tried(log, guard, 2) == 0


def test_a_newer_epoch_begins_with_its_own_lowest_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log, 0)
    assert begun(log, 3, epoch=1) is guard
    assert tried(log, guard, 3, epoch=1) == 0


def test_a_producer_of_the_second_protocol_of_which_nothing_is_known_begins_at_0(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log, 4, is_tv2=True)
    assert tried(log, guard, 4) is ErrorCode.out_of_order_sequence_number
    begun(log, 0, is_tv2=True)
    assert tried(log, guard, 0) == 0


def test_a_producer_of_the_first_protocol_of_which_nothing_is_known_begins_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert tried(log, begun(log, 4), 4) == 0


def test_no_guard_is_needed_once_verification_is_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert tried(log, VERIFICATION_OFF) == 0


def test_guards_expire_as_producers_do(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_expiration_ms=1000)
    guard = begun(log)
    at_once(log.producers.expire(START_MS))
    at_once(log.producers.expire(START_MS + 999))
    assert begun(log) is guard
    at_once(log.producers.expire(START_MS + 1000))
    assert begun(log) is not guard


def test_the_oldest_guards_go_first_once_there_are_too_many(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = begun(log)
    for other in range(100, 10_099):
        log.begin_verification(other, 0, 0, False)
    assert begun(log) is guard
    log.begin_verification(99, 0, 0, False)
    assert log.producers.guards is not None
    assert len(log.producers.guards) == 10_000
    assert tried(log, guard) is ErrorCode.invalid_txn_state
