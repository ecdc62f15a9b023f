"""Pipelined requests of a producer, some of which arrive while too few replicas are in sync."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.hot.markers import Marker
from service.hot.verification import VerificationGuard
from tests.unit.hot.logs import START_MS, batch
from tests.unit.partition.leading import EPOCH, Led

PRODUCER = 7
TOO_FEW, OUT_OF_ORDER = ErrorCode.not_enough_replicas, ErrorCode.out_of_order_sequence_number


class Produced(Led):
    """Two replicas are in sync, and `least` must be."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, isr=(1, 2))

    def there_must_be(self, least: int) -> None:
        self.partition.configure(replace(self.partition.config, min_insync_replicas=least))

    def send(
        self, sequence: int, count: int = 1, *, producer: int = PRODUCER, epoch: int = 0
    ) -> int | ErrorCode:
        """A batch with acks=all: where it is, or why it is not."""
        made = batch(count, producer_id=producer, epoch=epoch, sequence=sequence)
        try:
            self.partition.check_replicas(made.data)
            return self.partition.append(made, START_MS).first_offset
        except RequestError as e:
            return e.code


@pytest.fixture
def led(tmp_path: Path) -> Produced:
    """Three records of the producer are there."""
    made = Produced(tmp_path)
    assert [made.send(0), made.send(1, 2)] == [0, 1]
    return made


def test_a_duplicate_of_an_appended_batch_is_accepted(led: Produced) -> None:
    led.there_must_be(3)
    assert [led.send(0), led.send(1, 2), led.send(3), led.send(1, 2)] == [0, 1, TOO_FEW, 1]
    assert [led.send(0, epoch=1), led.send(1)] == [TOO_FEW, TOO_FEW], "that is not there"
    assert led.log.log_end_offset == 3


def test_batches_after_a_refused_one_wait_for_its_retry(led: Produced) -> None:
    led.there_must_be(3)
    assert [led.send(3, 2), led.send(5)] == [TOO_FEW, TOO_FEW]
    led.there_must_be(2)
    assert [led.send(6), led.send(5), led.send(1, 2)] == [TOO_FEW, TOO_FEW, 1]
    assert [led.send(3, 2), led.send(5), led.send(6), led.send(8)] == [3, 5, 6, OUT_OF_ORDER]


def test_a_new_producer_begins_with_its_first_batch(led: Produced) -> None:
    led.there_must_be(3)
    assert led.send(0, producer=8) is TOO_FEW
    led.there_must_be(2)
    assert [led.send(1, producer=8), led.send(0, producer=8), led.send(1, producer=8)] == [TOO_FEW, 3, 4]


def test_a_refused_batch_does_not_block_other_producers(led: Produced) -> None:
    led.there_must_be(3)
    assert [led.send(3), led.send(-1, producer=-1, epoch=-1)] == [TOO_FEW, TOO_FEW]
    led.there_must_be(2)
    assert [led.send(0, producer=8), led.send(-1, producer=-1, epoch=-1)] == [3, 4]
    led.partition.check_replicas(memoryview(b"no batch"))
    led.partition.check_replicas()


@pytest.mark.parametrize("epoch", [0, 1], ids=["by another request", "in a new epoch"])
def test_a_later_sequence_or_epoch_clears_the_refusal(led: Produced, epoch: int) -> None:
    led.there_must_be(3)
    assert led.send(3) is TOO_FEW
    led.there_must_be(2)
    if epoch:
        assert led.send(0, epoch=1) == 3
    else:
        led.partition.append(batch(producer_id=PRODUCER, epoch=0, sequence=3), START_MS)  # acks=1
    assert led.send(1 if epoch else 4, epoch=epoch) == 4


def test_a_new_leadership_forgets_refused_sequences(led: Produced) -> None:
    led.there_must_be(3)
    assert led.send(3) is TOO_FEW
    led.there_must_be(2)
    led.partition.follow(EPOCH + 1)
    led.partition.lead(EPOCH + 2, led.made(led.shape._replace(leader_epoch=EPOCH + 2)))
    assert led.send(4) is OUT_OF_ORDER


def test_at_most_64_refused_producers_are_remembered(led: Produced) -> None:
    led.there_must_be(3)
    remembered = []
    for producer in range(1000, 1130):
        assert led.send(0, producer=producer) is TOO_FEW
        remembered.append(len(led.partition._refused_sequences))
    assert remembered == [*range(1, 65), *range(1, 65), 1, 2]


# Transactions that are verified first


class Transactional(Produced):
    """A producer whose transactions are verified; the test is the coordinator that is asked."""

    def ask(self, sequence: int, *, epoch: int = 0, is_tv2: bool = False) -> VerificationGuard:
        guard = self.partition.log.begin_verification(PRODUCER, epoch, sequence, is_tv2)
        assert guard is not None
        return guard

    def verified(self, guard: VerificationGuard | None, sequence: int, *, epoch: int = 0) -> int | ErrorCode:
        """A batch that may be appended with this guard: where it is, or why it is not."""
        made = batch(1, producer_id=PRODUCER, epoch=epoch, sequence=sequence, is_transactional=True)
        try:
            self.partition.check_replicas(made.data)
            return self.partition.append(made, START_MS, guard).first_offset
        except RequestError as e:
            return e.code


@pytest.fixture
def asking(tmp_path: Path) -> Transactional:
    return Transactional(tmp_path)


@pytest.mark.parametrize("is_tv2", [False, True])
def test_batches_behind_one_whose_verification_failed_wait_for_its_retry(
    asking: Transactional, is_tv2: bool
) -> None:
    asking.ask(0, is_tv2=is_tv2)
    second = asking.ask(1, is_tv2=is_tv2)
    assert asking.verified(second, 1) is TOO_FEW
    assert [asking.verified(asking.ask(0, is_tv2=is_tv2), 0), asking.verified(None, 1)] == [0, 1]
    assert asking.partition.log.has_open_transaction(PRODUCER, 0)
    assert asking.partition.log.begin_verification(PRODUCER, 0, 2, is_tv2) is None
    assert asking.verified(None, 3) is OUT_OF_ORDER


def test_a_batch_with_a_guard_of_another_verification_is_no_part_of_a_transaction(
    asking: Transactional,
) -> None:
    guard = asking.ask(0)
    asking.partition.append_markers([Marker(PRODUCER, 0, 1, False, 1)], START_MS)
    asking.ask(0)
    assert asking.verified(guard, 1) is ErrorCode.invalid_txn_state
    assert asking.verified(None, 0) is ErrorCode.invalid_txn_state


def test_a_new_epoch_begins_its_verifications_anew(asking: Transactional) -> None:
    asking.ask(0)
    assert asking.verified(asking.ask(0, epoch=1), 0, epoch=1) == 0
    with pytest.raises(RequestError) as error:
        asking.ask(1)
    assert error.value.code is ErrorCode.invalid_producer_epoch
    asking.partition.append_markers([Marker(PRODUCER, 1, 1, True, 1)], START_MS)
    late = asking.ask(0, epoch=2)
    asking.ask(1, epoch=2)
    asking.partition.append_markers([Marker(PRODUCER, 3, 1, True, 0)], START_MS)
    assert asking.verified(late, 1, epoch=2) is ErrorCode.invalid_producer_epoch


def test_a_repeated_batch_is_accepted_though_an_earlier_one_is_being_verified(asking: Transactional) -> None:
    assert asking.verified(asking.ask(0), 0) == 0
    assert asking.verified(None, 1) == 1
    asking.partition.append_markers([Marker(PRODUCER, 0, 1, True, 1)], START_MS)
    assert asking.verified(asking.ask(0), 1) == 1
