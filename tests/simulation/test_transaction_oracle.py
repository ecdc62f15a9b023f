"""The oracle of transactions: what it takes for broken, and for sound."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from service.records.builder import BatchBuilder
from simulator.cluster.groups import Committed
from simulator.cluster.offsets_replay import OffsetsReplay
from simulator.cluster.transaction_log import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Ids,
)
from simulator.cluster.transaction_model import Transaction
from simulator.cluster.transaction_replay import Replay
from simulator.groups import NOTHING
from simulator.model import Violation

KEY = b"\0\0" + struct.pack(">h", 3) + b"pay"


def _value(state: int, *partitions: tuple[str, int], epoch: int = 0, version: int = 0) -> bytes:
    head = struct.pack(">hqhib", version, 7, epoch, 60_000, state)
    if version == 0:
        found = struct.pack(">i", len(partitions))
        for topic, number in partitions:
            found += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">ii", 1, number)
    else:
        found = bytes((len(partitions) + 1,))
        for topic, number in partitions:
            found += bytes((len(topic) + 1,)) + topic.encode() + b"\2" + struct.pack(">i", number) + b"\0"
    return head + found + struct.pack(">qq", 1, 1)


def _data(offset: int, producer_id: int, *values: bytes, epoch: int = 0) -> bytes:
    builder = BatchBuilder(offset, producer_id=producer_id, producer_epoch=epoch, is_transactional=True)
    for value in values:
        builder.add(1, None, value)
    return bytes(builder.build())


def _marker(offset: int, producer_id: int, *, commit: bool, coordinator_epoch: int = 0) -> bytes:
    builder = BatchBuilder(
        offset, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True
    )
    builder.add(1, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch))
    return bytes(builder.build())


@pytest.mark.parametrize("version", [0, 1])
def test_records_of_both_versions_name_their_partitions(version: int) -> None:
    ids = Ids()
    ids.learn(1, KEY, _value(EMPTY, version=0))
    ids.learn(1, KEY, _value(ONGOING, ("flights", 3), ("b", 0), version=version))
    change = ids.changes["pay"][-1]
    assert (change.state, change.producer_id, change.epoch) == (1, 7, 0)
    assert change.partitions == {("flights", 3), ("b", 0)}


def test_a_decision_that_changes_is_a_violation() -> None:
    ids = Ids()
    for state in (EMPTY, ONGOING, PREPARE_COMMIT):
        ids.learn(0, KEY, _value(state, ("a", 0)))
    with pytest.raises(Violation, match="X2: pay goes from"):
        ids.learn(0, KEY, _value(PREPARE_ABORT, ("a", 0)))


def test_the_first_decision_after_its_beginning_is_that_of_a_transaction() -> None:
    ids = Ids()
    for state in (EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING):
        ids.learn(0, KEY, _value(state, ("a", 0)))
    assert ids.decision("pay", 1, 7, 0) is True
    assert ids.decision("pay", 4, 7, 0) is None
    ids.learn(0, KEY, _value(PREPARE_ABORT, ("a", 0), epoch=1))
    assert ids.decision("pay", 4, 7, 0) is False


def test_an_aborted_row_ends_at_the_oldest_span_that_is_still_open() -> None:
    replay = Replay()
    for batch in (
        _data(0, 7, b"v1.", b"v2."),
        _data(2, 8, b"v3."),
        _marker(3, 7, commit=False),
        _data(4, 7, b"v4."),
        _marker(5, 8, commit=True),
        _marker(6, 7, commit=False),
        _marker(7, 9, commit=False),
    ):
        replay.take(batch, "t-0")
    assert replay.rows == [(7, 0, 3, 2), (7, 4, 6, 7)]
    assert replay.first_unstable is None
    assert replay.shown(0, 8) == [(2, b"v3.")]


@pytest.mark.parametrize(
    ("row", "start", "is_right"),
    [
        ((7, 0, 5, 1), 0, True),
        ((7, 2, 5, 1), 0, False),
        ((7, 2, 5, 1), 1, True),
        ((7, 2, 5, 3), 2, True),
        ((7, 4, 5, 1), 1, False),
        ((7, 4, 5, 1), 3, True),
        ((7, 3, 5, 1), 3, False),
        ((8, 2, 5, 1), 1, False),
        ((7, 2, 5, 7), 2, False),
    ],
)
def test_a_row_may_leave_out_what_was_deleted_and_nothing_else(
    row: tuple[int, int, int, int], start: int, is_right: bool
) -> None:
    replay = Replay()
    for batch in (
        _data(0, 7, b"v1."),
        _data(1, 8, b"v2."),
        _data(2, 7, b"v3."),
        _data(3, 8, b"v4."),
        _data(4, 7, b"v5."),
        _marker(5, 7, commit=False),
    ):
        replay.take(batch, "t-0")
    assert replay.rows == [(7, 0, 5, 1)]
    assert replay.are_rows([row], replay.rows, start) is is_right
    assert not replay.are_rows([], replay.rows, start)


def test_an_older_coordinator_s_marker_is_a_violation() -> None:
    replay = Replay()
    replay.take(_marker(0, 7, commit=True, coordinator_epoch=3), "t-0")
    with pytest.raises(Violation, match="X9"):
        replay.take(_marker(1, 7, commit=False, coordinator_epoch=2), "t-0")


def test_a_batch_of_another_epoch_within_a_transaction_is_a_violation() -> None:
    replay = Replay()
    replay.take(_data(0, 7, b"v1."), "t-0")
    with pytest.raises(Violation, match="X7"):
        replay.take(_data(1, 7, b"v2.", epoch=1), "t-0")


def _offsets(offset: int, values: Sequence[int | None], *, producer_id: int = -1) -> bytes:
    """A batch of offsets that the group ``g`` commits for ``t-0``; None: a tombstone."""
    builder = BatchBuilder(
        offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )
    for value in values:
        key = b"\0\1\0\1g\0\1t\0\0\0\0"
        builder.add(1, key, None if value is None else struct.pack(">hqi", 3, value, -1) + b"\0\0" + bytes(8))
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ((_offsets(0, [5, 6]),), 6),
        ((_offsets(0, [5], producer_id=7),), None),
        ((_offsets(0, [5], producer_id=7), _marker(1, 7, commit=True)), 5),
        ((_offsets(0, [5], producer_id=7), _marker(1, 7, commit=False)), None),
        ((_offsets(0, [5], producer_id=7), _marker(1, 8, commit=True)), None),
        ((_offsets(0, [5], producer_id=7), _offsets(1, [9]), _marker(2, 7, commit=True)), 9),
        ((_offsets(0, [9]), _offsets(1, [5], producer_id=7), _marker(2, 7, commit=True)), 5),
        ((_offsets(0, [5], producer_id=7), _offsets(1, [None]), _marker(2, 7, commit=True)), None),
        (
            (
                _offsets(0, [5], producer_id=7),
                _offsets(1, [6], producer_id=8),
                _marker(2, 8, commit=True),
                _marker(3, 7, commit=True),
            ),
            6,
        ),
    ],
)
def test_a_committed_offset_is_that_of_the_last_record_whose_transaction_is_committed(
    batches: tuple[bytes, ...], found: int | None
) -> None:
    replay = OffsetsReplay()
    for batch in batches:
        replay.take(batch)
    assert replay.of_group("g") == ({} if found is None else {("t", 0): found})
    assert replay.of_group("h") == {}


@pytest.mark.parametrize(
    ("begin", "rows", "unstable"),
    [
        (0, [(7, 0, 5, 1), (9, 6, 8, 1)], 1),
        (1, [(7, 2, 5, 1), (9, 6, 8, 1)], 1),
        (2, [(7, 2, 5, 3), (9, 6, 8, 3)], 3),
        (4, [(7, 4, 5, 6), (9, 6, 8, 7)], 7),
        (5, [(9, 6, 8, 7)], 7),
        (8, [], None),
    ],
)
def test_a_replica_that_is_told_nothing_knows_what_follows_its_beginning(
    begin: int, rows: list[tuple[int, int, int, int]], unstable: int | None
) -> None:
    replay = Replay()
    for batch in (
        _data(0, 7, b"v1."),
        _data(1, 8, b"v2."),
        _data(2, 7, b"v3."),
        _data(3, 8, b"v4."),
        _data(4, 7, b"v5."),
        _marker(5, 7, commit=False),
        _data(6, 9, b"v6."),
        _data(7, 8, b"v7."),
        _marker(8, 9, commit=False),
    ):
        replay.take(batch, "t-0")
    assert replay.known_from(begin) == (rows, unstable)
    assert replay.is_open_at(begin) is (begin > 0)
    assert replay.known_from(0) == (replay.rows, replay.first_unstable)


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_offset_may_be_missing_if_its_log_was_lost_before_its_transaction_was_known_to_end(
    is_lost: bool,
) -> None:
    place = ("group", 0)
    one = Transaction(1, "pay", 7, 0, 0, answered_offsets={place})
    committed = Committed(sent={1}, undecided={1: one})
    if is_lost:
        committed.may_be_lost()
    committed.settle(place, lambda _: True)
    if is_lost:
        committed.judge(NOTHING, "n1", iter(()))
    else:
        with pytest.raises(Violation, match="G2"):
            committed.judge(NOTHING, "n1", iter(()))
