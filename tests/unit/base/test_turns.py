"""The longest turns of a loop and who held it."""

from __future__ import annotations

from service.base.turns import KEPT, LATEST, LongTurn, TurnSample, TurnTimes


def test_a_long_turn_is_named_after_its_longest_holder() -> None:
    turns = TurnTimes()
    turns.began = 1.0
    turns.note_holder(0.012, "a")
    turns.note_holder(0.040, "b")
    turns.note_holder(0.011, "c")
    turns.note_turn(0.065, 1.065)
    turns.began = 2.0
    turns.note_turn(0.030, 2.030)
    assert turns.longest == (LongTurn(0.065, 1.065, "b"), LongTurn(0.030, 2.030, "many small steps"))


def test_an_unclaimed_long_turn_is_named_by_a_sample() -> None:
    turns = TurnTimes()
    turns.began = 1.0
    turns.note_holder(0.011, "a")
    turns.note_sample(TurnSample(1.0, lambda: "b"))
    turns.note_turn(0.065, 1.065)
    turns.began = 2.0
    turns.note_sample(TurnSample(1.0, lambda: "the turn before"))
    turns.note_turn(0.030, 2.030)
    assert [one.who for one in turns.longest] == ["b and a (11 ms)", "many small steps"]


def test_only_the_longest_turns_are_kept() -> None:
    turns = TurnTimes()
    for number in range(100):
        turns.note_holder(0.02 + number % 50 / 1000, str(number))
        turns.note_turn(0.02 + number % 50 / 1000, number)
    assert [one.who for one in turns.longest[:4]] == ["49", "99", "48", "98"]
    assert len(turns.longest) == KEPT


def test_turns_over_the_limit_are_told() -> None:
    turns = TurnTimes()
    told: list[LongTurn] = []
    turns.on_long = told.append
    turns.note_turn(0.050, 1.0)
    turns.note_turn(0.051, 2.0)
    assert [one.took_s for one in told] == [0.051]


def test_the_latest_turns_are_kept_however_short_beside_the_longest() -> None:
    turns = TurnTimes()
    for number in range(1000):
        turns.note_holder(1 - number / 10_000, str(number))
        turns.note_turn(1 - number / 10_000, number)
    assert [one.who for one in turns.latest] == [str(number) for number in range(1000 - LATEST, 1000)]
    assert turns.longest[0].who == "0"
