"""Verification of transactional batches: who is asked, and what a client is told."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.transactions.verification import (
    Answered,
    AskBroker,
    Asked,
    AskHere,
    Mode,
    TransactionQuestion,
    VerificationQueue,
    mode_of_produce,
    mode_of_txn_offset_commit,
    produce_error,
)

A0, A1 = ("a", 0), ("a", 1)


def asked(
    transactional_id: str = "pay",
    *partitions: tuple[str, int],
    epoch: int = 3,
    mode: Mode = Mode.ADD,
    at: int = 0,
) -> Asked:
    return Asked(TransactionQuestion(transactional_id, 7, epoch, partitions or (A0,), mode), at)


def machine(coordinator: int | None = 2) -> VerificationQueue:
    return VerificationQueue(lambda transactional_id: coordinator, own_id=1)


def told(effects: list[Any]) -> list[tuple[Asked, dict[tuple[str, int], ErrorCode]]]:
    assert all(isinstance(effect, Answered) for effect in effects)
    return [(effect.asked, effect.errors) for effect in effects]


def test_the_coordinator_is_asked_and_its_answer_told() -> None:
    verifications, one = machine(), asked("pay", A0, A1)
    assert verifications.ask(one, 0) == [AskBroker(2, (one.question,))]
    results = {"pay": {A0: ErrorCode.none, A1: ErrorCode.invalid_txn_state}}
    assert told(verifications.answered(2, results, 5)) == [(one, results["pay"])]
    assert verifications.waiting == 0


def test_questions_that_come_meanwhile_share_the_next_request() -> None:
    verifications = machine()
    first, second, third = asked("a"), asked("b"), asked("c")
    verifications.ask(first, 0)
    assert verifications.ask(second, 1) == verifications.ask(third, 2) == []
    _, following = verifications.answered(2, {"a": {A0: ErrorCode.none}}, 3)
    assert following == AskBroker(2, (second.question, third.question))


def test_a_coordinator_of_this_node_is_asked_without_a_request() -> None:
    verifications, one, other = machine(1), asked(), asked()
    assert verifications.ask(one, 0) == [AskHere(one)]
    assert verifications.ask(other, 0) == [AskHere(other)]
    assert told(verifications.answered_here(one, {A0: ErrorCode.none}, 1)) == [(one, {A0: ErrorCode.none})]


def test_without_a_coordinator_there_is_an_answer_at_once() -> None:
    verifications, one = machine(None), asked()
    assert told(verifications.ask(one, 0)) == [(one, {A0: ErrorCode.coordinator_not_available})]


@pytest.mark.parametrize(
    ("epoch", "of_the_first", "of_the_second"),
    [
        (3, ErrorCode.network_exception, None),
        (4, ErrorCode.invalid_producer_epoch, None),
        (2, None, ErrorCode.invalid_producer_epoch),
    ],
)
def test_one_question_of_an_id_waits_at_most(
    epoch: int, of_the_first: ErrorCode | None, of_the_second: ErrorCode | None
) -> None:
    verifications = machine()
    verifications.ask(asked("other"), 0)
    first, second = asked("pay"), asked("pay", epoch=epoch)
    assert verifications.ask(first, 1) == []
    [effect] = told(verifications.ask(second, 2))
    refused, stays = (first, second) if of_the_second is None else (second, first)
    assert effect == (refused, {A0: of_the_first or of_the_second})
    _, following = verifications.answered(2, {"other": {A0: ErrorCode.none}}, 3)
    assert following == AskBroker(2, (stays.question,))


def test_a_question_under_way_is_not_answered_by_a_later_one() -> None:
    verifications, first, second = machine(), asked(), asked(epoch=4)
    verifications.ask(first, 0)
    assert verifications.ask(second, 1) == []
    answer, following = verifications.answered(2, {"pay": {A0: ErrorCode.none}}, 2)
    assert told([answer]) == [(first, {A0: ErrorCode.none})]
    assert following == AskBroker(2, (second.question,))


def test_an_add_beside_the_end_of_the_transaction_before_is_repeated_every_20_ms_for_100_ms() -> None:
    verifications, one = machine(), asked(at=1_000)
    verifications.ask(one, 1_000)
    now_ms = 1_000
    for _ in range(5):
        assert verifications.answered(2, {"pay": {A0: ErrorCode.concurrent_transactions}}, now_ms) == []
        assert verifications.due(now_ms + 19) == []
        now_ms += 20
        assert verifications.due_ms == now_ms
        assert verifications.due(now_ms) == [AskBroker(2, (one.question,))]
    answer = verifications.answered(2, {"pay": {A0: ErrorCode.concurrent_transactions}}, now_ms)
    assert told(answer) == [(one, {A0: ErrorCode.concurrent_transactions})]
    assert verifications.due_ms is None


def test_a_verification_is_not_repeated() -> None:
    verifications, one = machine(), asked(mode=Mode.VERIFY)
    verifications.ask(one, 0)
    answer = verifications.answered(2, {"pay": {A0: ErrorCode.concurrent_transactions}}, 1)
    assert told(answer) == [(one, {A0: ErrorCode.concurrent_transactions})]


@pytest.mark.parametrize(
    ("error", "mode", "expected"),
    [
        (ErrorCode.producer_fenced, Mode.ADD, ErrorCode.invalid_producer_epoch),
        (ErrorCode.producer_fenced, Mode.VERIFY_OLD, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, Mode.VERIFY, ErrorCode.transaction_abortable),
        (ErrorCode.transaction_abortable, Mode.VERIFY_OLD, ErrorCode.invalid_txn_state),
        (ErrorCode.not_coordinator, Mode.ADD, ErrorCode.not_coordinator),
    ],
)
def test_errors_of_the_coordinator_become_those_that_producers_know(
    error: ErrorCode, mode: Mode, expected: ErrorCode
) -> None:
    verifications, one = machine(), asked(mode=mode)
    verifications.ask(one, 0)
    assert told(verifications.answered(2, {"pay": {A0: error}}, 1)) == [(one, {A0: expected})]


@pytest.mark.parametrize("results", [{}, {"pay": {}}, {"pay": {A1: ErrorCode.none}}])
def test_a_partition_that_the_answer_lacks_is_not_taken_for_verified(results: dict[str, Any]) -> None:
    verifications, one = machine(), asked()
    verifications.ask(one, 0)
    assert told(verifications.answered(2, results, 1)) == [(one, {A0: ErrorCode.network_exception})]


def test_a_lost_request_answers_its_questions_and_the_next_one_goes() -> None:
    verifications, one, other = machine(), asked("pay"), asked("buy")
    verifications.ask(one, 0)
    verifications.ask(other, 0)
    answer, following = verifications.lost(2, 9)
    assert told([answer]) == [(one, {A0: ErrorCode.network_exception})]
    assert following == AskBroker(2, (other.question,))


def test_a_coordinator_without_verification_lets_everything_pass() -> None:
    verifications, one = machine(), asked(mode=Mode.VERIFY)
    verifications.ask(one, 0)
    assert told(verifications.unsupported(2, 1)) == [(one, {A0: ErrorCode.none})]


def test_a_client_is_not_told_that_this_node_lacks_a_right() -> None:
    verifications, one = machine(), asked()
    verifications.ask(one, 0)
    answer = verifications.refused(2, ErrorCode.cluster_authorization_failed, 1)
    assert told(answer) == [(one, {A0: ErrorCode.invalid_txn_state})]


def test_a_request_takes_no_question_beyond_a_thousand_partitions() -> None:
    verifications = machine()
    verifications.ask(asked("first"), 0)
    large = asked("large", *(("a", index) for index in range(1_000)))
    last = asked("last")
    verifications.ask(large, 0)
    verifications.ask(last, 0)
    _, following = verifications.answered(2, {"first": {A0: ErrorCode.none}}, 1)
    assert following == AskBroker(2, (large.question,))
    assert verifications.lost(2, 2)[-1] == AskBroker(2, (last.question,))


def test_an_answer_to_nothing_changes_nothing() -> None:
    assert machine().answered(2, {"pay": {A0: ErrorCode.none}}, 0) == []


@pytest.mark.parametrize(
    ("version", "mode"), [(3, Mode.VERIFY_OLD), (10, Mode.VERIFY_OLD), (11, Mode.VERIFY), (12, Mode.ADD)]
)
def test_a_produce_adds_from_version_12_on(version: int, mode: Mode) -> None:
    assert mode_of_produce(version) is mode


@pytest.mark.parametrize(
    ("version", "mode"), [(0, Mode.VERIFY_OLD), (3, Mode.VERIFY_OLD), (4, Mode.VERIFY), (5, Mode.ADD)]
)
def test_an_offset_commit_adds_from_version_5_on(version: int, mode: Mode) -> None:
    assert mode_of_txn_offset_commit(version) is mode


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.network_exception,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
    ],
)
def test_a_produce_is_told_not_enough_replicas_while_the_coordinator_does_not_answer(
    error: ErrorCode,
) -> None:
    assert (
        produce_error(error, Mode.ADD) == produce_error(error, Mode.VERIFY) == ErrorCode.not_enough_replicas
    )


def test_only_an_add_is_told_that_another_transaction_is_ending() -> None:
    concurrent = ErrorCode.concurrent_transactions
    assert produce_error(concurrent, Mode.ADD) == concurrent
    assert produce_error(concurrent, Mode.VERIFY) == ErrorCode.not_enough_replicas
    assert produce_error(ErrorCode.invalid_txn_state, Mode.VERIFY) == ErrorCode.invalid_txn_state
