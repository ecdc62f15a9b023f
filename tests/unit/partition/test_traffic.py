"""Counters of traffic by topic, for a bounded number of topics."""

from __future__ import annotations

from service.partition.traffic import TrafficByTopic


def test_partitions_of_a_topic_share_its_counters() -> None:
    traffic = TrafficByTopic(2)
    first, second = traffic.opened("a"), traffic.opened("a")
    first.produced_bytes += 5
    second.produced_bytes += 7
    assert {topic: one.produced_bytes for topic, one in traffic.counters().items()} == {"a": 12}


def test_topics_beyond_the_limit_are_counted_as_one() -> None:
    traffic = TrafficByTopic(1)
    traffic.opened("a").produced_bytes += 1
    for topic in ("b", "c"):
        traffic.opened(topic).fetched_bytes += 10
    assert {topic: one.fetched_bytes for topic, one in traffic.counters().items()} == {"a": 0, "(others)": 20}


def test_a_topic_without_partitions_leaves_its_place_to_the_next() -> None:
    traffic = TrafficByTopic(1)
    a, again = traffic.opened("a"), traffic.opened("a")
    a.produced_bytes += 1
    traffic.closed("a", a)
    assert traffic.opened("b") is not a
    assert set(traffic.counters()) == {"a"}, "a partition of it is here"
    traffic.closed("a", again)
    assert traffic.counters() == {}
    c = traffic.opened("c")
    c.produced_bytes += 1
    assert set(traffic.counters()) == {"c"}


def test_none_has_counters_of_its_own_with_a_limit_of_none() -> None:
    traffic = TrafficByTopic(0)
    one = traffic.opened("a")
    one.produced_bytes += 3
    traffic.closed("a", one)
    assert {topic: one.produced_bytes for topic, one in traffic.counters().items()} == {"(others)": 3}


def test_topics_without_traffic_are_not_told() -> None:
    traffic = TrafficByTopic()
    traffic.opened("quiet")
    assert traffic.counters() == {}
