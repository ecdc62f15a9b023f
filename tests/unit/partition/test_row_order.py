"""Rows and responses of a topic in one order, by places and spans."""

from __future__ import annotations

import pytest

from service.base.purgatory import Purgatory
from service.partition.implicit_sessions import ImplicitPartition, ImplicitSession, RowOrder
from service.wire.fetch import FetchPartition

COUNT = 100


def row(number: int, offset: int = 0) -> bytes:
    return b"%04d%04d" % (number, offset)


@pytest.fixture
def order() -> RowOrder:
    session = ImplicitSession(Purgatory(0), 11, 0)
    asked = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
    return RowOrder([ImplicitPartition(session, "t", asked, row(number)) for number in range(COUNT)])


def whole(order: RowOrder) -> bytes:
    return b"".join(one.row for one in order.partitions)


@pytest.mark.parametrize("first", [0, 1, 50, 99])
def test_a_request_that_begins_with_another_partition_is_two_spans(order: RowOrder, first: int) -> None:
    rows = b"".join(row((first + number) % COUNT) for number in range(COUNT))
    assert order.common(first, rows, 0) == COUNT - first
    assert order.common(0, rows, COUNT - first) == first


@pytest.mark.parametrize("changed", [0, 1, 2, 63, 64, 98, 99])
def test_a_span_ends_before_the_row_that_differs(order: RowOrder, changed: int) -> None:
    rows = whole(order)
    rows = rows[: changed * 8] + row(changed, 1) + rows[changed * 8 + 8 :]
    assert order.common(0, rows, 0) == changed
    assert order.common(changed, rows, changed) == 0
    one = order.partitions[changed]
    one.row = row(changed, 1)
    order.set_row(one)
    assert order.common(0, rows, 0) == COUNT


def test_a_span_ends_with_the_request(order: RowOrder) -> None:
    assert order.common(10, whole(order)[80:160], 0) == 10
    assert order.common(10, whole(order)[80:160], 10) == 0


def test_responses_are_joined_and_blank_ones_are_known(order: RowOrder) -> None:
    assert not order.can_join()  # there is none
    for number, one in enumerate(order.partitions):
        one.answer = b"" if number in (3, 40) else b"<%04d>" % number
    assert order.can_join()
    assert order.joined(4, 6) == b"<0004><0005>"
    assert [one.place for one in order.among(order.blank, 0, COUNT)] == [3, 40]
    assert [one.place for one in order.among(order.blank, 4, 41)] == [40]
    one = order.partitions[3]
    one.answer = b"<new!>"
    order.set_answer(one)
    assert order.joined(2, 5) == b"<0002><new!><0004>"
    assert order.blank == {order.partitions[40]}
    one.answer = b""
    order.set_answer(one)
    assert order.blank == {one, order.partitions[40]}


def test_responses_of_different_sizes_are_not_joined(order: RowOrder) -> None:
    for one in order.partitions:
        one.answer = b"same"
    assert order.can_join()
    order.partitions[7].answer = b"longer"
    order.set_answer(order.partitions[7])
    assert not order.can_join()


def test_a_partition_of_another_order_has_no_place_here(order: RowOrder) -> None:
    other = RowOrder(order.partitions[50:])
    assert not order.has(other.partitions[0])
    assert order.among(other.partitions, 0, COUNT) == []
