"""A closed gate hides what becomes committed, and lets it through once it is open again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.purgatory import Purgatory
from service.base.steps import at_once
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.partition.gate import CutGate, PartitionEnd
from service.partition.partition import Partition
from service.replication.ack_queue import Waiter
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.partition.leading import EPOCH, Led

ATTEMPT, OTHER = UUID(int=1), UUID(int=2)


def closed(gate: CutGate) -> CutGate:
    assert gate.close(ATTEMPT, 0, 20)
    return gate


def grow(led: Led, records: int) -> None:
    """Append, and have both followers fetch it."""
    led.append(records)
    for broker in (2, 3):
        led.fetch(broker, led.log.log_end_offset)


def alone(folder: Path) -> Partition:
    log = open_log(folder)
    return Partition(log.tip, log, None, EPOCH, 1, 1 << 20, Purgatory(0))


def test_committed_records_are_hidden_until_the_ends_are_noted(tmp_path: Path) -> None:
    led = Led(tmp_path)
    grow(led, 5)
    gate = closed(led.partition.gate)
    answers: list[ErrorCode] = []
    waiter = led.leading.wait(answers.append, 8)
    assert isinstance(waiter, Waiter)
    led.told()
    grow(led, 3)
    assert (led.partition.high_watermark, led.partition.end_offset, answers) == (5, 8, [])
    assert [one.key for one in led.told()] == ["growth"]
    steps = gate.take(ATTEMPT, 19, [led.partition])
    assert steps is not None
    for _ in steps:
        pass
    assert gate.ends() == {led.partition: PartitionEnd(EPOCH, 0, 5, 5)}
    assert (led.partition.high_watermark, answers) == (8, [ErrorCode.none])
    assert "seen" in [one.key for one in led.told()]
    assert gate.is_open


def test_a_partition_that_moves_before_it_was_noted_is_noted_as_it_was(tmp_path: Path) -> None:
    first, second = Led(tmp_path / "1"), Led(tmp_path / "2")
    gate = second.partition.gate = first.partition.gate
    grow(first, 5)
    grow(second, 2)
    steps = closed(gate).take(ATTEMPT, 0, [first.partition, second.partition])
    assert steps is not None
    next(steps)
    grow(second, 7)
    grow(first, 1)
    assert (first.partition.high_watermark, second.partition.high_watermark) == (6, 9)
    for _ in steps:
        pass
    ends = gate.ends()
    assert ends[first.partition] == PartitionEnd(EPOCH, 0, 5, 5)
    assert ends[second.partition] == PartitionEnd(EPOCH, 0, 2, 2)


def test_waiters_go_on_one_after_the_other(tmp_path: Path) -> None:
    """So that thousands of producers hold no turn; one that waits later is not forgotten."""
    led = Led(tmp_path)
    gate = closed(led.partition.gate)
    went_on: list[int] = []
    for number in range(3):
        gate.when_open(partial(went_on.append, number))
    steps = gate.take(ATTEMPT, 0, [led.partition])
    assert steps is not None
    seen = []
    for _ in steps:
        seen.append(len(went_on))
        if len(seen) == 2:
            gate.when_open(partial(went_on.append, 3))
    assert seen == [0, 1, 2, 3]
    gate.ends()
    assert went_on == [0, 1, 2, 3]


def test_a_sole_replica_hides_its_appends_as_well(tmp_path: Path) -> None:
    partition = alone(tmp_path)
    partition.append(batch(4), START_MS)
    gate = closed(partition.gate)
    for _ in range(3):
        partition.append(batch(2), START_MS)
    assert (partition.high_watermark, partition.end_offset) == (4, 10)
    steps = gate.open_late(20)
    assert steps is not None
    assert list(steps) == [None]
    assert (partition.high_watermark, gate.is_open) == (10, True)


def test_a_gate_opens_for_its_own_attempt_or_once_its_time_is_over() -> None:
    gate = closed(CutGate())
    assert not gate.close(OTHER, 0, 20)
    assert gate.open_late(19) is None
    assert gate.open_late(19, attempt=OTHER) is None
    assert gate.take(OTHER, 5, []) is None
    assert gate.take(ATTEMPT, 20, []) is None
    steps = gate.open_late(0, attempt=ATTEMPT)
    assert steps is not None
    assert list(steps) == []
    assert gate.is_open
    assert gate.take(ATTEMPT, 0, []) is None
    assert gate.open_late(100) is None


def test_a_waiter_is_called_when_all_of_it_is_seen(tmp_path: Path) -> None:
    partition = alone(tmp_path)
    gate = closed(partition.gate)
    partition.append(batch(4), START_MS)
    seen: list[int] = []
    gate.when_open(lambda: seen.append(partition.high_watermark))
    steps = gate.take(ATTEMPT, 0, [partition])
    assert steps is not None
    for _ in steps:
        assert seen in ([], [4])
    assert gate.ends() == {partition: PartitionEnd(EPOCH, 0, 0, 0)}
    assert seen == [4]


def test_a_leader_that_may_not_know_what_was_shown_before_has_no_end(tmp_path: Path) -> None:
    led = Led(tmp_path, records=5, high_watermark=3)
    assert led.partition.note_end() is None
    for broker in (2, 3):
        led.fetch(broker, 5)
    assert led.partition.note_end() == PartitionEnd(EPOCH, 0, 5, 5)
    led.partition.follow(EPOCH + 1)
    assert led.partition.note_end() is None


def test_a_partition_that_another_broker_leads_now_moves_by_its_leaders_word(tmp_path: Path) -> None:
    led = Led(tmp_path)
    gate = closed(led.partition.gate)
    grow(led, 5)
    led.partition.follow(EPOCH + 1)
    led.partition.set_follower_high_watermark(2)
    assert led.partition.high_watermark == 2
    steps = gate.open_late(20)
    assert steps is not None
    assert list(steps) == []
    assert led.partition.high_watermark == 2


def test_a_leader_that_is_left_alone_answers_once_the_gate_is_open(tmp_path: Path) -> None:
    led = Led(tmp_path)
    gate = closed(led.partition.gate)
    answers: list[ErrorCode] = []
    led.append(5)
    assert isinstance(led.leading.wait(answers.append, 5), Waiter)
    led.partition.lead(EPOCH, None)
    assert (led.partition.high_watermark, answers) == (0, [])
    steps = gate.open_late(20)
    assert steps is not None
    for _ in steps:
        pass
    assert (led.partition.high_watermark, answers) == (5, [ErrorCode.none])


def test_a_transaction_that_ends_behind_a_closed_gate_is_open_in_the_cut(tmp_path: Path) -> None:
    """The stable end is the one that readers of committed transactions had at that moment."""
    partition = alone(tmp_path)
    partition.append(batch(2), START_MS)
    for_seven = batch(2, producer_id=7, epoch=0, sequence=0, is_transactional=True)
    partition.append(for_seven, START_MS, VERIFICATION_OFF)
    gate = closed(partition.gate)
    partition.append_markers([Marker(7, 0, 1, True, 1)], START_MS)
    for_eight = batch(1, producer_id=8, epoch=0, sequence=0, is_transactional=True)
    partition.append(for_eight, START_MS, VERIFICATION_OFF)
    assert (partition.end_offset, partition.last_stable_offset) == (6, 2)
    steps = gate.take(ATTEMPT, 0, [partition])
    assert steps is not None
    for _ in steps:
        pass
    assert gate.ends() == {partition: PartitionEnd(EPOCH, 0, 4, 2)}
    assert (partition.high_watermark, partition.last_stable_offset) == (6, 5)


def test_a_partition_that_began_to_lead_is_doubtful_until_it_has_what_its_epoch_began_with(
    tmp_path: Path,
) -> None:
    led = Led(tmp_path, records=5, high_watermark=3)
    gate = led.partition.gate
    assert at_once(gate.still_doubtful()) is led.partition
    for broker in (2, 3):
        led.fetch(broker, 5)
    assert at_once(gate.still_doubtful()) is None
    led.partition.follow(EPOCH + 1)
    led.partition.close()
    assert at_once(gate.still_doubtful()) is None
