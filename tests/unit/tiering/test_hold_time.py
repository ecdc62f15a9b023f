"""Time for which gates may be closed, as brokers miss it and are in time again."""

from __future__ import annotations

from service.tiering.cuts.hold_time import HoldTime


def test_the_time_doubles_with_every_second_miss_up_to_the_longest() -> None:
    hold, asked = HoldTime(), []
    for _ in range(12):
        asked.append(hold.now_ms(20, 200))
        hold.missed()
    assert asked == [20, 20, 40, 40, 80, 80, 160, 160, 200, 200, 200, 200]


def test_a_longer_time_is_halved_after_sixteen_tries_in_time() -> None:
    hold, asked = HoldTime(), []
    for _ in range(4):
        hold.missed()
    for _ in range(33):
        asked.append(hold.now_ms(20, 640))
        hold.was_in_time()
    assert asked == [80] * 16 + [40] * 16 + [20]


def test_one_miss_among_others_in_time_changes_nothing() -> None:
    hold = HoldTime()
    for _ in range(10):
        hold.missed()
        hold.was_in_time()
    assert hold.now_ms(20, 640) == 20


def test_a_longest_time_that_is_not_above_the_usual_one_keeps_it_as_it_is() -> None:
    hold = HoldTime()
    for _ in range(40):
        hold.missed()
    assert (hold.now_ms(20, 20), hold.now_ms(50, 20)) == (20, 50)


def test_a_longest_time_that_was_lowered_holds_at_once_and_later_misses_do_not_add_up() -> None:
    hold = HoldTime()
    for _ in range(100):
        hold.now_ms(20, 640)
        hold.missed()
    assert (hold.now_ms(20, 640), hold.now_ms(20, 100)) == (640, 100)
    for _ in range(16):
        hold.was_in_time()
    assert hold.now_ms(20, 640) == 80
