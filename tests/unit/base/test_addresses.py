"""Addresses that count as one: each of IPv4, and the network of 64 bits of IPv6."""

from __future__ import annotations

import pytest

from service.base.addresses import is_loopback, source_of


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.2", "192.0.2.2"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::"),
        ("2001:db8:1:3::", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, source: str) -> None:
    assert source_of(address) == source


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.9.9.9", True),
        ("::1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("127.0.0.1.example", False),
    ],
)
def test_loopback(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own
