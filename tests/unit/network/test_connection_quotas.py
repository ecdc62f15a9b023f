"""Limits on new connections: counts of an address, rates of addresses, listeners and all."""

from __future__ import annotations

import dataclasses

from service.base.addresses import normalized
from service.config.quotas import QuotaConfig
from service.config.settings import BrokerConfig
from service.network.connection_quotas import ConnectionQuotas
from tests.support.turns import Clock, with_clock

PLAIN = BrokerConfig.from_properties({}).quotas


def limited(config: QuotaConfig) -> ConnectionQuotas:
    return ConnectionQuotas(lambda: config, ("INSIDE", "OUTSIDE"), "INSIDE")


def test_nothing_is_limited_by_default() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = limited(PLAIN)
        assert {quotas.arrives("OUTSIDE", "192.0.2.1") for _ in range(10_000)} == {(False, 0.0)}
        assert quotas.addresses == 1

    with_clock(scenario)


def test_the_count_of_an_address_is_over_all_listeners() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = limited(dataclasses.replace(PLAIN, max_connections_per_ip=2))
        assert not quotas.arrives("OUTSIDE", "192.0.2.1").is_refused
        assert not quotas.arrives("INSIDE", "::ffff:192.0.2.1").is_refused
        assert quotas.arrives("OUTSIDE", "192.0.2.1") == (True, 0.0)
        quotas.leaves("::ffff:192.0.2.1")
        assert not quotas.arrives("OUTSIDE", "192.0.2.1").is_refused
        quotas.leaves("192.0.2.1")
        quotas.leaves("192.0.2.1")
        assert quotas.addresses == 0

    with_clock(scenario)


def test_a_throttled_address_counts_for_nobody_else() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = limited(dataclasses.replace(PLAIN, max_connection_creation_rate=2))
        quotas.apply({("", "", "192.0.2.1"): {"connection_creation_rate": 1.0}})
        for _ in range(10):
            assert quotas.arrives("OUTSIDE", "192.0.2.1") == (False, 0.0)
        for _ in range(50):
            assert quotas.arrives("OUTSIDE", "192.0.2.1").is_refused
        for _ in range(10):
            assert quotas.arrives("OUTSIDE", "192.0.2.2") == (False, 0.0), "twenty in ten seconds"
        is_refused, wait_s = quotas.arrives("OUTSIDE", "192.0.2.2")
        assert (is_refused, wait_s) == (False, 0.5)
        quotas.close()

    with_clock(scenario)


def test_a_wait_is_a_window_at_most() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = limited(dataclasses.replace(PLAIN, max_connection_creation_rate=0))
        assert quotas.arrives("OUTSIDE", "192.0.2.1") == (False, 1.0)
        quotas.apply({("", "", None): {"connection_creation_rate": 1.0}})
        refused = [quotas.arrives("INSIDE", "192.0.2.9") for _ in range(60)]
        assert max(one.wait_s for one in refused) == 1.0
        quotas.close()

    with_clock(scenario)


def test_the_listener_of_brokers_counts_for_itself_alone() -> None:
    async def scenario(clock: Clock) -> None:
        own = {"outside": 3}
        config = dataclasses.replace(PLAIN, max_connection_creation_rate=1, listener_creation_rates=own)
        quotas = limited(config)
        for _ in range(10):
            assert quotas.arrives("INSIDE", "192.0.2.1").wait_s == 0
        assert quotas.arrives("INSIDE", "192.0.2.1").wait_s > 0, "its own rate is that of all"
        for _ in range(10):
            assert quotas.arrives("OUTSIDE", "192.0.2.1").wait_s == 0
        assert quotas.arrives("OUTSIDE", "192.0.2.1").wait_s > 0, "beyond the rate of all"
        alone = ConnectionQuotas(lambda: config, ("INSIDE",), "INSIDE")
        for _ in range(11):
            is_refused, wait_s = alone.arrives("INSIDE", "192.0.2.1")
        assert (is_refused, wait_s) == (False, 1.0), "there is no other"

    with_clock(scenario)


def test_throttled_connections_that_are_held_have_a_bound() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = limited(PLAIN)
        quotas.apply({("", "", None): {"connection_creation_rate": 1.0}})
        for _ in range(10):
            quotas.arrives("OUTSIDE", "192.0.2.1")
        quotas.held = 1_000
        assert quotas.arrives("OUTSIDE", "192.0.2.1") == (True, 0.0)
        quotas.held = 999
        assert quotas.arrives("OUTSIDE", "192.0.2.1").wait_s > 0
        quotas.close()

    with_clock(scenario)


def test_the_settings_of_addresses_and_listeners_are_read() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "INSIDE://127.0.0.1:1,OUT.SIDE://127.0.0.1:2",
            "inter.broker.listener.name": "INSIDE",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUT.SIDE:PLAINTEXT",
            "max.connections.per.ip": "9",
            "max.connections.per.ip.overrides": "192.0.2.1:3, ::ffff:192.0.2.2:4,[2001:DB8::1]:5",
            "max.connection.creation.rate": "7",
            "listener.name.out.side.max.connection.creation.rate": "2",
        }
    ).quotas
    counts = [config.most_connections_of(one) for one in ("192.0.2.1", "192.0.2.2", "2001:db8::1", "::1")]
    assert counts == [3, 4, 5, 9]
    assert (config.creation_rate_of("INSIDE"), config.creation_rate_of("OUT.SIDE")) == (7, 2)
    assert normalized("no address") == "no address"
