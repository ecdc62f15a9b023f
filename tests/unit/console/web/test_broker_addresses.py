"""Addresses of brokers: a comma list, what the cluster names beside it, and the order of attempts."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.console.web.broker_addresses import BrokerAddresses


def test_brokers_that_the_cluster_names_are_tried_after_those_of_the_list() -> None:
    addresses = BrokerAddresses("a:9092, b:9092")
    addresses.learn([("b", 9092), ("c", 9092), ("::1", 9094)])
    assert addresses.order == ("a:9092", "b:9092", "c:9092", "[::1]:9094")
    addresses.learn([("d", 9092)])
    assert addresses.order == ("a:9092", "b:9092", "d:9092")


def test_the_address_that_answered_comes_first_and_failed_ones_last() -> None:
    addresses = BrokerAddresses("a:1,b:2,c:3")
    addresses.answered("b:2")
    assert addresses.order == ("b:2", "c:3", "a:1")
    addresses.failed("b:2")
    assert addresses.order == ("c:3", "a:1", "b:2")
    addresses.failed("x:9")
    addresses.answered("x:9")
    assert addresses.order == ("c:3", "a:1", "b:2")


def test_a_named_address_of_another_cluster_is_dropped_and_a_listed_one_is_not() -> None:
    addresses = BrokerAddresses("a:1")
    addresses.learn([("b", 2)])
    addresses.forget("b:2")
    addresses.forget("a:1")
    assert addresses.order == ("a:1",)


def test_a_cluster_that_names_very_many_brokers_is_bounded() -> None:
    addresses = BrokerAddresses("a:1")
    addresses.learn((f"b{n}", 9092) for n in range(10_000))
    assert len(addresses.order) == 101


@pytest.mark.parametrize("written", ["", "a", "a:", ":1", "a:x", "a:0", "a:65536", "a:1,,b:2", "a:1,"])
def test_a_list_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        BrokerAddresses(written)
