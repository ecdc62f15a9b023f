"""An attempt at a cut: who is asked what, and which answers make a moment."""

from __future__ import annotations

import random
from uuid import UUID

from service.remote.format.cut_codec import PartitionCut, TailRef
from service.tiering.cuts.round import Ask, AttemptPhase, CutAttempt, CutStep, Led

A, B = UUID(int=1), UUID(int=2)
BROKERS = (1, 2, 3)
IMAGE = (Led(A, 0, 1, 4), Led(A, 1, 2, 7), Led(B, 0, 3, 0))


def row(epoch: int, end: int = 10) -> PartitionCut:
    return PartitionCut(epoch, 0, end, end, 0, 0, -1, 0, False)


ENDS = {1: {(A, 0): row(4)}, 2: {(A, 1): row(7)}, 3: {(B, 0): row(0)}}


def tail(broker_id: int) -> TailRef:
    key = f"tail/{9:020d}-00-{broker_id:010d}-{UUID(int=broker_id)}.tail"
    return TailRef(key, 100, 50, 1)


def asks(step: CutStep, *brokers: int) -> list[Ask]:
    return [Ask(one, step) for one in brokers]


def at_check(*, is_exact: bool = True) -> CutAttempt:
    attempt = CutAttempt(BROKERS, is_exact=is_exact, hold_ms=20)
    attempt.start(0)
    if is_exact:
        for one in BROKERS:
            attempt.begun(one, 100 + one, 1)
    for one in BROKERS:
        attempt.taken(one, 100 + one, ENDS[one], 2)
    assert attempt.phase is AttemptPhase.CHECK
    return attempt


def checked(attempt: CutAttempt, image: tuple[Led, ...] = IMAGE) -> list[Ask]:
    for _ in attempt.check(image, {A: (row(3, 5), row(6, 6))}):
        pass
    return attempt.checked(3)


def test_a_failed_log_ends_an_exact_attempt_before_any_gate_is_held_for_long() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    attempt.start(0)
    attempt.begun(1, 50, 1)
    assert attempt.begun(2, 50, 1, [(A, 1)]) == asks(CutStep.VOID, 1, 2, 3)
    assert (attempt.offline, attempt.has_missed) == ({(A, 1): 2}, False)
    assert attempt.why == "broker 2 cannot read the logs of 1 partitions"


def test_a_log_that_fails_between_the_steps_is_known_for_the_next_attempt() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    attempt.start(0)
    for one in BROKERS:
        attempt.begun(one, 50, 1)
    attempt.taken(1, 50, ENDS[1], 2)
    attempt.taken(2, 50, {}, 2, [(A, 1)])
    attempt.taken(3, 50, ENDS[3], 2)
    assert checked(attempt) == asks(CutStep.VOID, 1, 2, 3)
    assert attempt.offline == {(A, 1): 2}


def test_a_loose_cut_has_what_was_known_of_a_partition_whose_log_has_failed() -> None:
    attempt = CutAttempt(BROKERS, is_exact=False, hold_ms=0)
    attempt.start(0)
    for one in BROKERS:
        attempt.taken(one, 50, {} if one == 2 else ENDS[one], 2, [(A, 1)] if one == 2 else [])
    assert checked(attempt) == asks(CutStep.SAVE, 1, 2, 3)
    assert attempt.topics[A] == (row(4), row(-1, 6))


def test_an_exact_cut_goes_from_closed_gates_to_ends_to_tails() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    assert attempt.start(0) == asks(CutStep.BEGIN, 1, 2, 3)
    assert attempt.begun(2, 50, 5) == []
    assert attempt.begun(1, 70, 5) == []
    assert attempt.begun(1, 99, 5) == [], "twice"
    assert attempt.begun(3, 60, 6) == asks(CutStep.TAKE, 1, 2, 3)
    assert (attempt.metadata_end, attempt.due_ms) == (70, 5006)
    for one in BROKERS:
        assert attempt.taken(one, 1000, ENDS[one], 7) == []
    assert (attempt.phase, attempt.metadata_end) == (AttemptPhase.CHECK, 70)
    assert checked(attempt) == asks(CutStep.SAVE, 1, 2, 3)
    assert attempt.topics == {A: (row(4), row(7)), B: (row(0),)}
    for one in BROKERS:
        assert attempt.phase is AttemptPhase.SAVE
        assert attempt.saved(one, [tail(one)]) == []
    assert attempt.phase is AttemptPhase.DONE
    assert attempt.tails == [tail(1), tail(2), tail(3)]
    assert attempt.failed(1, "late", 8) == attempt.overdue(10**9) == attempt.fail("late") == []
    assert attempt.phase is AttemptPhase.DONE


def test_rows_that_brokers_answer_to_save_take_the_place_of_those_of_take() -> None:
    attempt = at_check()
    checked(attempt)
    saved = row(4)._replace(saved=10, saved_high=3, last_epoch=4)
    others = {(A, 1): row(6)._replace(saved=9), (A, 7): row(7), (B, 0): row(0, 11), (UUID(int=9), 0): row(1)}
    for _ in attempt.note_saved({(A, 0): saved, **others}):
        pass
    assert attempt.topics == {A: (saved, row(7)), B: (row(0),)}


def test_a_partition_whose_leader_did_not_answer_as_such_makes_an_exact_cut_void() -> None:
    for image in (
        (*IMAGE, Led(B, 1, 2, 0)),
        (IMAGE[0]._replace(leader_epoch=5), *IMAGE[1:]),
        (IMAGE[0]._replace(leader_epoch=3), *IMAGE[1:]),
        (IMAGE[0]._replace(leader_id=-1), *IMAGE[1:]),
    ):
        attempt = at_check()
        assert checked(attempt, image) == asks(CutStep.VOID, 1, 2, 3)
        assert attempt.phase is AttemptPhase.VOID
        assert "partition" in attempt.why


def test_a_topic_that_is_deleted_while_the_cut_is_taken_makes_an_exact_cut_void() -> None:
    attempt = at_check()
    assert checked(attempt, IMAGE[:2]) == asks(CutStep.VOID, 1, 2, 3)
    assert attempt.why == f"topic {B} was deleted while the cut was taken"
    loose = at_check(is_exact=False)
    assert checked(loose, IMAGE[:2]) == asks(CutStep.SAVE, 1, 2, 3)
    assert loose.topics == {A: (row(4), row(7))}


def test_a_broker_that_fails_any_step_of_an_exact_cut_makes_it_void() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    attempt.start(0)
    attempt.begun(1, 5, 1)
    assert attempt.failed(1, "it has answered already", 1) == []
    assert attempt.failed(2, "connection refused", 1) == asks(CutStep.VOID, 1, 2, 3)
    assert attempt.why == "broker 2: connection refused"
    assert attempt.begun(3, 5, 1) == []
    again = at_check()
    checked(again)
    again.saved(1, [tail(1)])
    assert again.failed(3, "the store refuses", 4) == asks(CutStep.VOID, 1, 2, 3)
    assert again.tails == [tail(1)]


def test_a_step_that_takes_too_long_makes_it_void() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    attempt.start(0)
    assert attempt.overdue(19) == []
    attempt.begun(1, 5, 1)
    assert attempt.overdue(20) == asks(CutStep.VOID, 1, 2, 3)
    assert attempt.why == "no answer to begin from broker 2, 3"
    waiting = at_check()
    assert waiting.overdue(2 + 59_999) == []
    assert waiting.overdue(2 + 60_000) == asks(CutStep.VOID, 1, 2, 3)
    assert waiting.why == "the keeper's metadata does not reach offset 103"


def test_a_loose_cut_closes_no_gate_and_takes_the_ends_before_of_who_does_not_answer() -> None:
    attempt = CutAttempt(BROKERS, is_exact=False, hold_ms=20)
    assert attempt.start(0) == asks(CutStep.TAKE, 1, 2, 3)
    attempt.taken(1, 80, ENDS[1], 1)
    assert attempt.failed(3, "hangs", 1) == []
    assert attempt.overdue(59_999) == []
    assert attempt.overdue(60_000) == []
    assert (attempt.phase, attempt.metadata_end) == (AttemptPhase.CHECK, 80)
    assert checked(attempt) == asks(CutStep.SAVE, 1), "whoever answers nothing saves nothing"
    nobody = PartitionCut(-1, 0, 0, 0, 0, 0, -1, 0, False)
    assert attempt.topics == {A: (row(4), row(6, 6)._replace(leader_epoch=-1)), B: (nobody,)}
    attempt.saved(1, [])
    assert attempt.phase is AttemptPhase.DONE


def test_no_cut_has_less_metadata_than_the_one_before() -> None:
    attempt = CutAttempt(BROKERS, is_exact=True, hold_ms=20, metadata_end=65)
    attempt.start(0)
    for one in BROKERS:
        attempt.begun(one, 50 + one, 1)
    assert attempt.metadata_end == 65


def test_an_attempt_tells_whether_its_brokers_needed_more_time() -> None:
    late = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    late.start(0)
    late.overdue(20)
    opened = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    opened.start(0)
    for one in BROKERS:
        opened.begun(one, 5, 1)
    opened.failed(2, "its gate has opened", 2)
    refused = CutAttempt(BROKERS, is_exact=True, hold_ms=20)
    refused.start(0)
    refused.failed(2, "it may not write to the bucket", 1)
    assert (late.has_missed, opened.has_missed, refused.has_missed) == (True, True, False)


def test_an_answer_of_many_rows_is_not_gone_through_in_one_turn() -> None:
    rows = {(A, partition): row(4) for partition in range(5000)}
    attempt = CutAttempt((1,), is_exact=False, hold_ms=20)
    attempt.start(0)
    attempt.taken(1, 5, rows, 1)
    image = (Led(A, partition, 1, 4) for partition in range(5000))
    assert sum(1 for _ in attempt.check(image, {})) >= 10_000
    assert len(attempt.topics[A]) == 5000


def test_a_loose_cut_without_any_answer_is_void() -> None:
    attempt = CutAttempt((1, 2), is_exact=False, hold_ms=20)
    attempt.start(0)
    attempt.failed(1, "hangs", 1)
    assert attempt.failed(2, "refuses", 1) == []
    assert attempt.phase is AttemptPhase.VOID
    assert attempt.why == "no broker answers; broker 2: refuses"
    empty = CutAttempt((), is_exact=True, hold_ms=20)
    assert empty.start(0) == []
    assert empty.phase is AttemptPhase.VOID


def test_answers_in_any_order_end_every_attempt_once_and_ask_nobody_twice() -> None:
    for seed in range(300):
        source = random.Random(seed)
        is_exact = source.random() < 0.7
        attempt = CutAttempt(BROKERS, is_exact=is_exact, hold_ms=20)
        pending = attempt.start(0)
        asked = list(pending)
        now_ms = 0
        for _ in range(60):
            now_ms += source.choice((0, 1, 1, 3))
            if attempt.phase is AttemptPhase.CHECK and source.random() < 0.5:
                for _ in attempt.check(IMAGE, {}):
                    pass
                new = attempt.checked(now_ms)
            elif pending and source.random() < 0.8:
                broker_id, step = pending.pop(source.randrange(len(pending)))
                if source.random() < 0.1:
                    new = attempt.failed(broker_id, "no", now_ms)
                elif step is CutStep.BEGIN:
                    new = attempt.begun(broker_id, source.randrange(100), now_ms)
                elif step is CutStep.TAKE:
                    new = attempt.taken(broker_id, 5, ENDS[broker_id], now_ms)
                elif step is CutStep.SAVE:
                    new = attempt.saved(broker_id, [tail(broker_id)])
                else:
                    new = []
                if source.random() < 0.2:
                    pending.append(Ask(broker_id, step))  # the answer comes a second time
            else:
                new = attempt.overdue(now_ms)
            pending += new
            asked += new
        assert len(asked) == len(set(asked)), f"seed {seed}"
        attempt.overdue(10**9)
        attempt.overdue(2 * 10**9)
        if attempt.phase is AttemptPhase.CHECK:
            attempt.fail("no metadata")
        assert attempt.is_over, f"seed {seed}: {attempt.phase}"
        if attempt.phase is AttemptPhase.DONE:
            assert len(attempt.tails) == len({one.key for one in attempt.tails})
            assert set(attempt.topics) == {A, B}
