"""Subscriptions of KIP-848 members by regular expression."""

from __future__ import annotations

from service.groups import records_modern as modern
from service.groups.consumer.regex import REFRESH_MIN_INTERVAL_MS
from service.groups.consumer_config import ConsumerConfig
from tests.support.consumer_groups import Consumer
from tests.support.requirements import need_re2
from tests.unit.groups.consumers import E, consumers, settle


def test_a_regular_expression_is_resolved_and_again_when_there_are_new_topics() -> None:
    need_re2()
    c = consumers(apples=1, apricots=2, pears=4)
    a = Consumer(c, "a", regex="ap.*")
    assert a.beat() is None
    assert not a.has, "it is resolved after the answer"
    settle(a)
    assert len(a.has) == 3
    c.world.make_topic("apes", 5)
    settle(a)
    assert len(a.has) == 3, "at most every ten seconds"
    c.leader.advance(10_001)
    settle(a)
    assert len(a.has) == 8
    (resolved,) = c.world.group().regexes.values()
    assert resolved.topics == {"apples", "apricots", "apes"}
    a.leave()
    assert not len(c.world.group().regexes)
    assert c.leader.log[-2].record == modern.tombstone(modern.RegexKey("g", "ap.*"))


def test_regular_expressions_are_resolved_by_a_clock_that_was_set_back() -> None:
    need_re2()
    c = consumers(apples=1)
    a = Consumer(c, "a", regex="ap.*")
    settle(a)
    c.world.make_topic("apes", 5)
    c.leader.advance(-3_600_000)
    settle(a)
    assert len(a.has) == 6


def test_targets_are_made_by_a_clock_that_was_set_back() -> None:
    c = consumers(config=ConsumerConfig(assignment_interval_ms=1000), t=4)
    a, b = Consumer(c, "a", names=("t",)), Consumer(c, "b", names=("t",))
    settle(a)
    c.leader.advance(-3_600_000)
    settle(a, b)
    assert len(a.has) == len(b.has) == 2


def test_topics_found_for_a_regex_that_could_not_be_written_are_looked_for_again() -> None:
    need_re2()
    c = consumers(apples=2)
    a = Consumer(c, "a", regex="ap.*")
    settle(a)
    c.world.make_topic("apricots", 2)
    c.leader.advance(REFRESH_MIN_INTERVAL_MS + 1)
    c.leader.long_work = []
    a.take(a.send())
    c.leader.failing = E.not_coordinator
    c.leader.do_work()
    c.leader.failing = None
    c.leader.advance(REFRESH_MIN_INTERVAL_MS + 1)
    settle(a)
    assert len(a.has) == 4


def test_a_regular_expression_matches_whole_names_and_is_that_of_re2() -> None:
    need_re2()
    c = consumers(apples=1, pineapples=1)
    a = Consumer(c, "a", regex="apples")
    settle(a)
    assert a.has == {(c.world.topics["apples"].topic_id, 0)}
    for bad in ("a(?=b)", "(", r"(a)\1", "(a{1000}){1000}"):
        answer = c.enter("b", regex=bad)
        assert answer.error_code == E.invalid_regular_expression
        assert answer.error_message
    assert set(c.world.group().members) == {"a"}


def test_names_and_a_regular_expression_add_up() -> None:
    need_re2()
    c = consumers(apples=1, pears=2, plums=3)
    a = Consumer(c, "a", names=("apples",), regex="pl.*")
    settle(a)
    assert len(a.has) == 4
    a.subscribe(("apples",), "")
    settle(a)
    assert len(a.has) == 1


def test_a_regex_is_resolved_again_after_its_refresh_interval() -> None:
    need_re2()
    c = consumers(apples=1)
    a = Consumer(c, "a", regex=".*s")
    settle(a)
    c.world.topics.make("pears", 2, 99)
    for _ in range(20):
        c.leader.advance(30_000)
        settle(a)
    assert len(a.has) == 1
    c.leader.advance(30_000)
    settle(a)
    assert len(a.has) == 3
