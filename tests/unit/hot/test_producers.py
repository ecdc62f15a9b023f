"""Idempotent producers: duplicates, order, epochs, expiry; and their state on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, RequestError
from service.base.steps import at_once
from service.hot.log import LocalLog
from service.hot.producer_snapshot import decode_snapshot, encode_snapshot
from service.hot.producers import ProducerEntry, ProducerStates
from service.hot.state import AppendInfo
from service.hot.verification import VERIFICATION_OFF
from service.records.batch import BatchHeader
from service.records.builder import BatchBuilder
from service.records.markers import EndMarker
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch, open_log, records_from

MAX_SEQUENCE = 2**31 - 1


def send(
    log: LocalLog, sequence: int, count: int = 1, *, epoch: int = 0, pid: int = 9, at: int = START_MS
) -> AppendInfo:
    return log.append(
        batch(count, producer_id=pid, epoch=epoch, sequence=sequence, timestamp=at), 0, START_MS
    )


def refused(log: LocalLog, *args: int, **options: int) -> ErrorCode:
    """The code with which a batch is refused; the log is unchanged then."""
    before = log.log_end_offset, log.size, encode_snapshot(log.producers)
    with pytest.raises(RequestError) as error:
        send(log, *args, **options)
    assert (log.log_end_offset, log.size, encode_snapshot(log.producers)) == before
    return error.value.code


def test_a_retried_batch_is_answered_with_its_first_offsets_and_not_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 3)
    first = send(log, 3, 2, at=START_MS + 50)
    size = log.size
    again = send(log, 3, 2, at=START_MS + 50)
    assert again == AppendInfo(first.first_offset, first.last_offset, START_MS + 51, 0, True, False)
    assert (log.log_end_offset, log.size) == (5, size)


def test_the_last_five_batches_are_known_and_a_sixth_is_out_of_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(6):
        send(log, sequence)
    for sequence in range(1, 6):
        assert send(log, sequence).first_offset == sequence
    assert refused(log, 0) is ErrorCode.out_of_order_sequence_number


def test_a_retry_with_another_number_of_records_is_no_duplicate(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 3)
    assert refused(log, 0, 2) is ErrorCode.out_of_order_sequence_number
    assert refused(log, 1, 2) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("sequence", [2, 0, MAX_SEQUENCE])
def test_a_gap_or_a_step_back_is_out_of_order(tmp_path: Path, sequence: int) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    if sequence == 0:
        send(log, 1)
        assert refused(log, 0, 2) is ErrorCode.out_of_order_sequence_number
    else:
        assert refused(log, sequence) is ErrorCode.out_of_order_sequence_number


def test_sequences_wrap_to_zero(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, MAX_SEQUENCE - 1, 4)
    assert send(log, MAX_SEQUENCE - 1, 4).duplicate
    assert not send(log, 2).duplicate
    log = open_log(tmp_path / "other")
    send(log, MAX_SEQUENCE)
    assert send(log, 0).first_offset == 1


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    assert refused(log, 1, epoch=1) is ErrorCode.out_of_order_sequence_number
    assert not send(log, 0, epoch=1).duplicate
    assert refused(log, 1, epoch=0) is ErrorCode.invalid_producer_epoch
    assert send(log, 0, epoch=1).duplicate


def test_an_unknown_producer_may_begin_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert not send(log, 77, epoch=4).duplicate
    assert not send(log, 78, epoch=4).duplicate


def test_an_idle_producer_is_forgotten_and_may_then_begin_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_expiration_ms=1000)
    send(log, 0, pid=1, at=START_MS)
    send(log, 0, pid=2, at=START_MS + 1)
    assert at_once(log.producers.expire(START_MS + 1000)) == 1
    assert not send(log, 50, pid=1).duplicate
    assert refused(log, 50, pid=2) is ErrorCode.out_of_order_sequence_number


def test_inside_a_transaction_only_transactional_batches_are_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin = batch(producer_id=9, epoch=0, sequence=0, is_transactional=True)
    log.append(begin, 0, START_MS, VERIFICATION_OFF)
    assert refused(log, 1) is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("clean", [True, False])
def test_a_marker_ends_a_transaction_and_that_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    begin = batch(3, producer_id=9, epoch=0, sequence=0, is_transactional=True)
    log.append(begin, 0, START_MS, VERIFICATION_OFF)
    entry = log.producers.get(9)
    assert entry is not None
    assert entry.txn_first_offset == 0
    marker = BatchBuilder(
        base_offset=3, producer_id=9, producer_epoch=0, is_transactional=True, is_control=True
    )
    marker.add(START_MS + 70, bytes.fromhex("00000001"), bytes.fromhex("00000000002a"))
    log.appender.append_raw(memoryview(marker.build()))
    log.close(clean)
    entry = open_log(tmp_path, clean=clean).producers.get(9)
    assert entry is not None
    assert (entry.txn_first_offset, entry.coordinator_epoch, entry.last_timestamp) == (-1, 42, START_MS + 70)
    assert entry.last_sequence == 2


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, segment_bytes=600)
    for n in range(20):
        send(log, n // 3, pid=n % 3)
    if clean:
        log.close()
    again = open_log(tmp_path, clean=clean, segment_bytes=600)
    assert again.log_end_offset == 20
    assert send(again, 6, pid=1).first_offset == 19
    assert refused(again, 8, pid=1) is ErrorCode.out_of_order_sequence_number
    assert send(again, 7, pid=1).first_offset == 20


def test_after_a_crash_all_five_batches_of_the_open_segment_are_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(8):
        send(log, sequence)
    again = open_log(tmp_path)
    for sequence in range(3, 8):
        assert send(again, sequence).first_offset == sequence


def test_truncation_takes_producer_state_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=500)
    for sequence in range(20):
        send(log, sequence)
    log.truncation.truncate_to(11)
    assert refused(log, 12) is ErrorCode.out_of_order_sequence_number
    assert send(log, 11).first_offset == 11


def test_expired_producers_are_not_loaded_from_a_snapshot(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock)
    send(log, 0)
    log.close()
    clock.advance(86_400_001)
    assert len(open_log(tmp_path, clock, clean=True).producers) == 0


def test_a_producer_that_loads_history_is_known_while_it_writes(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock)
    old = START_MS - 365 * 86_400_000
    one = batch(producer_id=1, epoch=0, sequence=0, timestamp=old)
    log.append(one, 0, clock.now_ms())
    assert at_once(log.producers.expire(clock.now_ms())) == 0
    log.close()
    again = open_log(tmp_path, clock, clean=True)
    repeated = batch(producer_id=1, epoch=0, sequence=0, timestamp=old)
    assert again.append(repeated, 0, clock.now_ms()).duplicate
    assert at_once(again.producers.expire(clock.now_ms() + 86_400_001)) == 1


def test_an_unreadable_snapshot_is_replaced_by_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for sequence in range(10):
        send(log, sequence)
    log.close()
    snapshots = sorted(log.dir.glob("*.snapshot"))
    assert len(snapshots) > 1
    for path in snapshots:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    again = open_log(tmp_path, clean=True, segment_bytes=400)
    assert send(again, 9).duplicate
    assert not send(again, 10).duplicate


def test_snapshots_survive_encoding_and_refuse_damage() -> None:
    states = ProducerStates(1000)
    for pid in range(3):
        header = batch(4, producer_id=pid, epoch=pid, sequence=MAX_SEQUENCE - 1).header
        states.update(header, 10 * pid, 10 * pid + 3)
    data = encode_snapshot(states)
    loaded = ProducerStates(1000)
    loaded.load(decode_snapshot(data), 24, START_MS)
    assert encode_snapshot(loaded) == data
    assert loaded.get(1).batches == states.get(1).batches
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(CorruptionError):
            decode_snapshot(bytes(damaged))
        with pytest.raises(CorruptionError):
            decode_snapshot(data[:at])
    with pytest.raises(CorruptionError):
        decode_snapshot(b"\0\1" + bytes(4) + b"\x7f\xff\xff\xff")


def test_records_of_refused_batches_are_nowhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    refused(log, 5)
    send(log, 1)
    assert [r.offset for r in records_from(log)] == [0, 1]


def test_a_roll_leaves_the_snapshot_of_many_producers_to_its_flush(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    for n in range(600):
        log.append(batch(1, producer_id=n, epoch=0, sequence=0), 0, START_MS)
    disk.log.clear()
    log.appender.roll()
    assert not any(path.name.startswith(f"{600:020d}.snapshot") for _, path in disk.log)
    assert log.sealed.describe_all() == []
    for n in range(600):
        log.append(batch(1, producer_id=n, epoch=0, sequence=1), 0, START_MS)
    log.durability.flush(log.active_base_offset)
    (sealed,) = log.sealed.describe_all()
    assert sealed.producer_snapshot_path is not None
    entries = dict(decode_snapshot(sealed.producer_snapshot_path.read_bytes()))
    assert {entry.last_sequence for entry in entries.values()} == {0}, "what came after the roll is not in it"
    assert {entry.last_sequence for _, entry in log.producers} == {1}
    log.close(clean=False)
    again = open_log(tmp_path, recovery_point=600)
    assert {entry.last_sequence for _, entry in again.producers} == {1}


def test_a_snapshot_that_was_not_written_is_made_up_for_by_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for n in range(600):
        log.append(batch(1, producer_id=n, epoch=0, sequence=0), 0, START_MS)
    log.appender.roll()
    log.close(clean=False)
    again = open_log(tmp_path)
    assert len(again.producers) == 600


def told(*, epoch: int = 3, sequence: int = 0, count: int = 1, transactional: bool = False) -> BatchHeader:
    return batch(count, producer_id=9, epoch=epoch, sequence=sequence, is_transactional=transactional).header


def test_a_producer_that_has_written_nothing() -> None:
    entry = ProducerEntry()
    assert (entry.epoch, entry.last_timestamp, entry.coordinator_epoch) == (-1, -1, -1)
    assert (entry.last_sequence, entry.next_sequence, entry.last_offset) == (-1, 0, -1)
    assert (entry.last_offset_delta, entry.txn_first_offset, entry.batches) == (0, -1, [])


def test_five_batches_are_remembered_with_their_offsets_and_times() -> None:
    states = ProducerStates(1000)
    for n in range(6):
        states.update(told(sequence=2 * n, count=2), 10 + 2 * n, 11 + 2 * n, START_MS + 50 * n)
    entry = states.get(9)
    assert entry is not None
    assert [one[:4] for one in entry.batches] == [
        (2 * n, 2 * n + 1, 10 + 2 * n, 11 + 2 * n) for n in range(1, 6)
    ]
    assert (entry.last_sequence, entry.next_sequence, entry.last_offset) == (11, 12, 21)
    assert (entry.last_offset_delta, entry.last_timestamp) == (1, START_MS + 250)
    assert states.original(told(sequence=2, count=2)) == entry.batches[0]
    assert states.original(told(sequence=0, count=2)) is None, "too long ago"
    assert states.original(told(sequence=2, count=2, epoch=4)) is None, "of another epoch"
    assert states.original(told(sequence=2, count=2, epoch=2)) is None


def test_a_newer_epoch_forgets_the_batches_of_the_one_before() -> None:
    states = ProducerStates(1000)
    states.update(told(), 10, 10)
    states.update(told(epoch=4), 11, 11)
    entry = states.get(9)
    assert entry is not None
    assert (entry.epoch, [one.first_offset for one in entry.batches]) == (4, [11])


def test_a_batch_without_a_sequence_is_judged_by_its_epoch_alone() -> None:
    states = ProducerStates(1000)
    states.update(told(sequence=5), 10, 10)
    with pytest.raises(RequestError) as refusal:
        states.check(told(sequence=9), 11)
    assert refusal.value.code is ErrorCode.out_of_order_sequence_number
    assert states.check(told(sequence=9), 11, has_sequence=False) is None
    assert states.check(told(sequence=5), 11) == states.original(told(sequence=5))
    with pytest.raises(RequestError) as refusal:
        states.check(told(epoch=2), 11, has_sequence=False)
    assert refusal.value.code is ErrorCode.invalid_producer_epoch


def test_a_transaction_is_open_from_its_first_batch_to_its_marker_and_does_not_expire() -> None:
    states = ProducerStates(1000)
    states.update(told(transactional=True), 0, 0, START_MS)
    states.update(told(sequence=1, transactional=True), 20, 20, START_MS)
    entry = states.get(9)
    assert entry is not None
    assert entry.txn_first_offset == 0
    with pytest.raises(RequestError) as refusal:
        states.check(told(sequence=2), 21)
    assert refusal.value.code is ErrorCode.invalid_txn_state
    assert states.check(told(sequence=2, transactional=True), 21) is None
    assert at_once(states.expire(START_MS + 10_000)) == 0
    states.end_transaction(told(epoch=4), EndMarker(7, START_MS + 5, True))
    entry = states.get(9)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch, entry.last_timestamp) == (4, 7, START_MS + 5)
    assert (entry.txn_first_offset, entry.batches) == (-1, [])
    assert at_once(states.expire(START_MS + 1004)) == 0
    assert at_once(states.expire(START_MS + 1005)) == 1
    assert len(states) == 0


def test_a_frozen_producer_state_does_not_change() -> None:
    states = ProducerStates(1000)
    states.update(told(), 10, 10)
    frozen = states.freeze()
    states.update(told(sequence=1), 11, 11)
    again = states.freeze()
    states.end_transaction(told(), EndMarker(7, START_MS, True))
    assert [one.first_offset for one in frozen[9].batches] == [10]
    assert [one.first_offset for one in again[9].batches] == [10, 11]
    assert again[9].coordinator_epoch == -1
    entry = states.get(9)
    assert entry is not None
    assert entry.coordinator_epoch == 7


def test_loading_a_snapshot_replaces_all_but_expired_producers() -> None:
    states = ProducerStates(1000)
    states.update(told(), 10, 10)
    old, new = ProducerEntry(1, START_MS - 1000), ProducerEntry(1, START_MS - 999)
    states.load([(1, old), (2, new)], 50, START_MS)
    assert ([pid for pid, _ in states], states.end_offset) == ([2], 50)
    states.clear(60)
    assert (len(states), states.end_offset) == (0, 60)


def test_a_batch_keeps_the_fields_that_it_does_not_set() -> None:
    """Also in a state that begins with a snapshot."""
    states = ProducerStates(1000)
    states.end_transaction(told(), EndMarker(7, START_MS, True))
    states.update(told(transactional=True), 10, 10)
    states.freeze()
    states.update(told(sequence=1, transactional=True), 11, 11)
    entry = states.get(9)
    assert entry is not None
    assert (entry.coordinator_epoch, entry.txn_first_offset, entry.epoch) == (7, 10, 3)
    assert [one.first_offset for one in entry.batches] == [10, 11]
    states.freeze()
    states.freeze()
    states.update(told(sequence=2, transactional=True), 12, 12)
    again = states.get(9)
    assert again is not None
    assert [one.first_offset for one in again.batches] == [10, 11, 12]


def test_sequences_of_a_batch_that_wraps_and_of_one_that_has_none() -> None:
    states = ProducerStates(1000)
    states.update(told(sequence=MAX_SEQUENCE, count=2), 10, 11)
    entry = states.get(9)
    assert entry is not None
    assert entry.batches[0][:2] == (MAX_SEQUENCE, 0)
    assert entry.next_sequence == 1
    bare = ProducerStates(1000)
    bare.update(told(sequence=-1), 10, 10)
    entry = bare.get(9)
    assert entry is not None
    assert entry.batches[0][:2] == (-1, -1)


def test_expiry_pauses_however_many_producers_and_guards_there_are() -> None:
    states = ProducerStates(1000)
    header = told()
    for number in range(2000):
        states.update(header._replace(producer_id=number), number, number, START_MS)
        states.begin_verification(10_000 + number, 0, 0, is_tv2=True)
    steps = states.expire(START_MS + 1000)
    pauses = sum(1 for _ in steps)
    assert pauses == 8, "each 500"
    assert len(states) == 0
