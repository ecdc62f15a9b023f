"""Addresses that count as one, and their texts: one to compare, and those that others write."""

from __future__ import annotations

import pytest

from service.base.addresses import is_loopback, names_of, normalized, source_of


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


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("192.0.2.1", ("192.0.2.1",)),
        ("::1", ("::1", "0:0:0:0:0:0:0:1")),
        ("2001:db8::20:0:5", ("2001:db8::20:0:5", "2001:db8:0:0:0:20:0:5")),
        ("0:0:0:0:0:0:0:1", ("0:0:0:0:0:0:0:1", "::1")),
        ("fe80::1%eth0", ("fe80::1%eth0", "fe80::1", "fe80:0:0:0:0:0:0:1", "fe80:0:0:0:0:0:0:1%eth0")),
        ("::ffff:192.0.2.1", ("::ffff:192.0.2.1", "192.0.2.1")),
        ("::ffff:c000:201", ("::ffff:c000:201", "192.0.2.1")),
        ("", ("",)),
        ("no:address", ("no:address",)),
    ],
)
def test_a_peer_is_named_as_itself_and_as_java_writes_it(host: str, names: tuple[str, ...]) -> None:
    assert names_of(host) == names


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("::FFFF:192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("fe80:0::1%eth0", "fe80::1"),
        ("no address", "no address"),
    ],
)
def test_an_address_has_one_text_to_compare(text: str, one: str) -> None:
    assert normalized(text) == one
