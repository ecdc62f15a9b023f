"""Addresses of peers: which are this machine's, which count as one, and the texts that name them. [P]"""

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


def normalized(address: str) -> str:
    """Return the one text of an address, without a zone; an IPv4 address in IPv6's form is an IPv4 address.
    A text that is no address stays as it is.

    >>> normalized("::FFFF:192.0.2.1"), normalized("fe80:0::1%eth0")
    ('192.0.2.1', 'fe80::1')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def names_of(host: str) -> tuple[str, ...]:
    """Return the texts that name a peer's address `host`: its own first, then, of IPv6, the normalized one
    and Java's (``InetAddress.getHostAddress``), with and without the zone.

    >>> names_of("192.0.2.1"), names_of("2001:db8::1")
    (('192.0.2.1',), ('2001:db8::1', '2001:db8:0:0:0:0:0:1'))
    """
    if ":" not in host:
        return (host,)
    short, _, zone = host.partition("%")
    try:
        found = IPv6Address(short)
    except ValueError:
        return (host,)
    if found.ipv4_mapped is not None:
        return host, str(found.ipv4_mapped)
    long = ":".join([group.lstrip("0") or "0" for group in found.exploded.split(":")])
    names = [host, str(found), long]
    if zone:
        names.append(f"{long}%{zone}")
    return tuple(dict.fromkeys(names))
