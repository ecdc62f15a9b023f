"""Addresses of peers: which are this machine's, and which count as one. [P]"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or ``localhost``. Names that look like addresses are
    not."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def source_of(address: str) -> str:
    """Return the unit that is limited: an IPv4 address, or the 2^64 addresses of one IPv6 network.

    >>> source_of("::ffff:192.0.2.1"), source_of("2001:db8::1:2:3:4%eth0"), source_of("?")
    ('192.0.2.1', '2001:db8::', '?')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))
