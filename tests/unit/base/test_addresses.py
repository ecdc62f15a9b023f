"""Texts of addresses: one to compare, and those that others write."""

from __future__ import annotations

import pytest

from service.base.addresses import names_of, normalized


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
