"""Pipelined requests of a producer, some of which arrive while too few replicas are in sync."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
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
